"""Ways to train that the driving benchmark compares, as the command line or a file says them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError

OPTIONS: Final = ("config", "cluster", "weights_from")
"""What a variant's text may name beside settings: options of scripts/train.py."""


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: in file names and pictures.
        config_file: its configuration.
        overrides: `NAME=VALUE` texts that win over the file.
        cluster: where its collectors play, as `train.py --cluster` has it; None for this machine.
        weights_from: whose networks it begins with, as `train.py --weights-from` has it; None for new ones.
    """

    name: str
    config_file: Path
    overrides: tuple[str, ...]
    cluster: str | None = None
    weights_from: str | None = None

    @classmethod
    def read(cls, text: str, config_file: Path, overrides: Sequence[str]) -> Variant:
        """A variant as the command line has it: `name: NAME=VALUE NAME=VALUE`; `config=FILE` takes another file.

        `cluster=local:2` or another address lets its collectors play on a Ray cluster, `weights_from=FILE` lets it
        begin with a driver's networks.

        Args:
            text: values may hold spaces: a new setting begins where a name and an equals sign follow a space.
            config_file: unless the text names one.
            overrides: settings of all variants; those of the text win.

        Raises:
            UserError: if it is written in another way.
        """
        name, colon, rest = text.partition(":")
        words = re.split(r"\s+(?=[A-Za-z_]\w*=)", rest.strip()) if rest.strip() else []
        if not colon or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name) or any("=" not in word for word in words):
            raise UserError(
                f'--variant {text!r}: write it as "name: NAME=VALUE NAME=VALUE", for example "double: use_ddqn=True"; '
                "the name is of letters, digits, dots and dashes"
            )
        said = [word.partition("=") for word in words]
        options = {option: value for option, _, value in said if option in OPTIONS}
        own = tuple("".join(word) for word in said if word[0] not in OPTIONS)
        return cls(
            name,
            Path(options.get("config", config_file)),
            (*overrides, *own),
            options.get("cluster"),
            options.get("weights_from"),
        )


def read_variants(file: Path) -> list[str]:
    """The variants of a file, as `Variant.read` takes them: one a line; indented lines go on with the one before.

    Empty lines and lines that begin with a number sign are passed over.

    Raises:
        UserError: if the file cannot be read, or holds none.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--variants {file}: cannot be read: {error}") from error
    text = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    if not text:
        raise UserError(f"--variants {file}: there is none in it; write one a line, as --variant has them")
    return [re.sub(r"\n\s+", " ", variant) for variant in re.split(r"\n(?=\S)", text)]
