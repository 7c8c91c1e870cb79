"""Maps for a map cycle's generators: tracks made on demand, as files in a folder that never grows beyond a bound.

The game loads them like any other map, so both transports and every tool treat them alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GeneratorSettings, MapEntry
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track

log = logging.getLogger(__name__)

MOST_TRACKS_KEPT: Final = 1000
"""Tracks whose files stay, some 25 MB: far more than are driven at a time, since a game that failed loads its map
again."""


class GeneratedMaps:
    """The generated tracks of one process.

    A generator's tracks are numbered: each is drawn from its number alone, so that whoever knows how many races were
    begun on them can go on.

    Args:
        folder: for their files; this object's alone. It is made when it is needed, and what an earlier process left in
            it is removed.
        seeds: what each track's seed and difficulty are drawn from.
        most_kept: tracks whose files stay there, those used last.
        n_begun: how many races were begun on each generator's tracks before, by `generator_key`.
    """

    def __init__(
        self,
        folder: Path,
        seeds: np.random.SeedSequence,
        most_kept: int = MOST_TRACKS_KEPT,
        n_begun: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._folder = folder.resolve()
        self._seeds = seeds
        self._most_kept = most_kept
        self._n_begun = dict(n_begun)
        self._driven: dict[str, TrackRecipe] = {}  # the last track of each generator
        self._kept: OrderedDict[TrackRecipe, Path] = OrderedDict()  # the one used last is last
        shutil.rmtree(self._folder, ignore_errors=True)

    def draw(self, entry: MapEntry) -> MapEntry:
        """The map of the next race of a map cycle's generator: a track of the entry's range, under the entry's name.

        The same track comes `races_per_track` times in a row; equal generators draw in turn from the same tracks. Where
        a new track cannot be written, as the disk is full, the generator's last one is driven once more.

        Raises:
            UserError: if the track cannot be written, and there is none before it.
        """
        assert entry.generator is not None
        key, number = generator_key(entry.generator), self.n_begun(entry.generator)
        recipe = self.recipe(entry.generator, number)
        try:
            drawn = self.concrete(entry, recipe)
        except UserError as error:
            last = self._driven.get(key)
            if last is None or last not in self._kept:
                raise
            log.warning("%s; the track before it is driven once more", error)
            recipe, drawn = last, self.concrete(entry, last)
        self._driven[key] = recipe
        self._n_begun[key] = number + 1
        return drawn

    def n_begun(self, generator: GeneratorSettings) -> int:
        """How many races were begun on a generator's tracks: the number of the next one."""
        return self._n_begun.get(generator_key(generator), 0)

    def recipe(self, generator: GeneratorSettings, number: int) -> TrackRecipe:
        """What a generator's race of this number is driven on."""
        words = np.frombuffer(hashlib.sha256(generator_key(generator).encode()).digest(), dtype="<u4").tolist()
        of_track = (*self._seeds.spawn_key, *words, number // generator.races_per_track)
        sequence = np.random.SeedSequence(self._seeds.entropy, spawn_key=of_track)
        return draw_recipe(generator, np.random.default_rng(sequence))

    def concrete(self, entry: MapEntry, recipe: TrackRecipe) -> MapEntry:
        """`entry` with the files of a recipe's track in place of its generator; they are written if they are not there.

        Raises:
            UserError: if the track cannot be written.
        """
        track_file = self._kept.get(recipe)
        if track_file is None:
            track_file = self._folder / f"{recipe.name}.toml"
            write_generated_track(recipe, track_file)
        self._kept[recipe] = track_file
        self._kept.move_to_end(recipe)
        while len(self._kept) > self._most_kept:
            _, oldest = self._kept.popitem(last=False)
            for file in (oldest, _line_file(oldest)):
                file.unlink(missing_ok=True)
        files = {"map_path": str(track_file), "reference_line": str(_line_file(track_file)), "generator": None}
        return entry.model_copy(update=files)


def generator_key(generator: GeneratorSettings) -> str:
    """A short name of a generator, the same for equal ones."""
    return hashlib.sha256(generator.model_dump_json().encode()).hexdigest()[:16]


def draw_recipe(generator: GeneratorSettings, rng: np.random.Generator) -> TrackRecipe:
    """A seed and a difficulty out of a generator's ranges."""
    seed = int(rng.integers(generator.first_seed, generator.last_seed, endpoint=True))
    return TrackRecipe(seed, float(rng.uniform(*generator.difficulty_range)))


def first_recipes(generator: GeneratorSettings, n_tracks: int) -> list[TrackRecipe]:
    """The first seeds of a generator, up to `n_tracks`, with difficulties spread evenly over its range."""
    n_tracks = min(n_tracks, generator.last_seed - generator.first_seed + 1)
    difficulties = np.linspace(*generator.difficulty_range, n_tracks)
    return [TrackRecipe(generator.first_seed + k, float(difficulty)) for k, difficulty in enumerate(difficulties)]


def write_in_folder(recipe: TrackRecipe, folder: Path) -> Path:
    """Write a recipe's track under its own name, once more if it is there; returns the track file.

    Raises:
        UserError: if it cannot be written.
    """
    track_file = folder.resolve() / f"{recipe.name}.toml"
    write_generated_track(recipe, track_file)
    return track_file


def write_generated_track(recipe: TrackRecipe, track_file: Path) -> None:
    """Make a recipe's track and write it; its line lies beside it.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        track_file.parent.mkdir(parents=True, exist_ok=True)
        generate_track(recipe).write(track_file)
    except OSError as error:
        with contextlib.suppress(OSError):
            _line_file(track_file).unlink(missing_ok=True)  # which is written first
        raise UserError(f"cannot write the generated track {track_file}: {error.strerror}") from error


def _line_file(track_file: Path) -> Path:
    return track_file.with_name(f"{track_file.stem}_0.5m.npy")
