"""A run's random streams, spawned from one seed by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import parse_json, read_bounded, write_durably

MOST_JSON_BYTES: Final = 1 << 20


class SeedTree:
    """A run's random streams, each spawned from the seed by name, once per tree.

    A name's SHA-256 digest is the `spawn_key` of a `numpy.random.SeedSequence`: streams are independent and the same on
    any machine. A restarted process must use a new name, such as `collector-0/restart-1`, or it draws the same numbers
    again.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._spawned: set[str] = set()

    def sequence(self, name: str) -> np.random.SeedSequence:
        """Return the branch called `name`.

        Raises:
            UserError: if this tree has spawned it already.
        """
        if name in self._spawned:
            raise UserError(f"seeds: the stream {name!r} is in use: keep its first value, or take another name")
        self._spawned.add(name)
        return self._branch(name)

    def _branch(self, name: str) -> np.random.SeedSequence:
        digest = hashlib.sha256(name.encode()).digest()
        return np.random.SeedSequence(self.seed, spawn_key=tuple(np.frombuffer(digest, dtype="<u4").tolist()))

    def rng(self, name: str) -> np.random.Generator:
        """Return the stream called `name`; errors as for `sequence`."""
        return np.random.default_rng(self.sequence(name))

    def integer(self, name: str) -> int:
        """Return a seed for `torch.manual_seed`, from 0 to 2**63 - 1; errors as for `sequence`."""
        return _integer(self.sequence(name))

    def write_json(self, path: Path) -> None:
        """Write the seed and each used name's integer."""
        names = sorted(self._spawned)
        record = {"seed": self.seed, "integers": {name: _integer(self._branch(name)) for name in names}}
        write_durably(path, json.dumps(record, indent=2) + "\n")


def read_seed(path: Path) -> int:
    """Read the seed that `SeedTree.write_json` wrote.

    Raises:
        UserError: if it is no such file, or the names have other integers in this version.
    """
    try:
        record = parse_json(read_bounded(path, MOST_JSON_BYTES))
        tree = SeedTree(int(record["seed"]))
        other = [name for name, integer in record["integers"].items() if integer != tree.integer(name)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no seeds.json of a run: {one_line(error)}") from error
    if other:
        raise UserError(f"{path}: this version draws other numbers for {', '.join(other)[:100]}; use the run's version")
    return tree.seed


def _integer(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
