"""Variants and tracks of the driving benchmark, as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.simulator.tracks.track_generator import generate_track
from trackmania_rl.track.map_sources import write_in_folder
from trackmania_rl.track.named_maps import recipes_of

PROJECT: Final = Path(__file__).resolve().parents[2]
OPTIONS: Final = ("config", "cluster", "weights_from")
"""Options of scripts/train.py that a variant may name beside settings."""


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    name: str  # in file names and pictures
    config_file: Path
    overrides: tuple[str, ...]  # `NAME=VALUE` texts that take precedence over the file
    cluster: str | None = None  # as `train.py --cluster`; None for this machine
    weights_from: str | None = None  # as `train.py --weights-from`; None for new networks

    @classmethod
    def read(cls, text: str, config_file: Path, overrides: Sequence[str]) -> Variant:
        """Read `name: NAME=VALUE NAME=VALUE`; config=, cluster= and weights_from= are options of train.py.

        Args:
            text: values may hold spaces: a new setting begins where a name and an equals sign follow a space.
            config_file: unless the text names one.
            overrides: settings of all variants; those of the text win.

        Raises:
            UserError: if the text has another form.
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
    """Read a file of variants, one to a line; indented lines continue the one before, `#` begins a comment.

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


def find_tracks(names: Sequence[str], generated_tracks: Path) -> list[Path]:
    """Return the files of tracks of maps/, of track files, and of `generated:DIFFICULTY:SEEDS`.

    Args:
        names: as the user wrote them.
        generated_tracks: folder in which generated tracks are written.

    Raises:
        UserError: if there is no track of a name, or one cannot be written.
    """
    files = []
    for name in names:
        recipes = recipes_of(name)
        if not recipes:
            files.append(find_track_file(name, PROJECT / "maps"))
        files += [write_in_folder(generate_track(recipe).design, generated_tracks) for recipe in recipes]
    return files
