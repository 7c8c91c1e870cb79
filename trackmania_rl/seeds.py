"""One seed for a whole run: every random stream is a named branch of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably


def stream_state(rng: np.random.Generator) -> str:
    """Where a random stream is, as a text of some 200 characters."""
    return json.dumps(rng.bit_generator.state, separators=(",", ":"))


def set_stream_state(rng: np.random.Generator, state: str) -> None:
    """Let a random stream go on where `stream_state` was taken.

    Raises:
        ValueError: if the text is something else.
    """
    try:
        rng.bit_generator.state = json.loads(state)
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"no state of a random stream: {state[:80]}") from error


class SeedTree:
    """Random streams of a run, each spawned from the run's seed by name.

    A name always gives the same stream for the same seed, whatever else is spawned, in which order, and on which
    machine: the name's SHA-256 digest is the `spawn_key` of a `numpy.random.SeedSequence`, so streams of different
    names are independent. A process that starts again (a collector after a crash, a resumed run) must take a new name,
    for example `collector-0/restart-1`: under its old one it would draw the same numbers once more. Within one tree
    each name can be used once. To repeat a stream on purpose, make another tree of the same seed.
    """

    def __init__(self, seed: int) -> None:
        """Plants the tree.

        Args:
            seed: the run's seed, not negative.

        Raises:
            ValueError: if the seed is negative.
        """
        if seed < 0:
            raise ValueError(f"seed = {seed}: a seed is an integer of 0 or more")
        self.seed = seed
        self._spawned: set[str] = set()

    def sequence(self, name: str) -> np.random.SeedSequence:
        """Return the branch called `name`, to be spawned further.

        Raises:
            UserError: if this tree has spawned that branch already, as a part of the user's own may ask.
        """
        if name in self._spawned:
            raise UserError(f"seeds: the stream {name!r} is in use: keep its first value, or take another name")
        self._spawned.add(name)
        return self._branch(name)

    def _branch(self, name: str) -> np.random.SeedSequence:
        digest = hashlib.sha256(name.encode()).digest()
        return np.random.SeedSequence(self.seed, spawn_key=tuple(np.frombuffer(digest, dtype="<u4").tolist()))

    def rng(self, name: str) -> np.random.Generator:
        """A fresh generator at the start of the stream called `name`."""
        return np.random.default_rng(self.sequence(name))

    def integer(self, name: str) -> int:
        """A seed for libraries that take a number (`torch.manual_seed`), between 0 and 2**63 - 1."""
        return _integer(self.sequence(name))

    def write_json(self, path: Path) -> None:
        """Writes the seed and, for each name used so far, the number `integer` gives: enough to repeat any part."""
        names = sorted(self._spawned)
        record = {"seed": self.seed, "integers": {name: _integer(self._branch(name)) for name in names}}
        write_durably(path, json.dumps(record, indent=2) + "\n")


def _integer(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
