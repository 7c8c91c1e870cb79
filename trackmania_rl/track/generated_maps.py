"""Maps for a map cycle's generators: tracks made on demand, as files in a folder that never grows beyond a bound.

The game loads them like any other map, so both transports and every tool treat them alike.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GeneratorSettings, MapEntry
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track

log = logging.getLogger(__name__)

MOST_TRACKS_KEPT: Final = 1000
"""Tracks whose files stay, some 25 MB: far more than are driven at a time, since a game that failed loads its map
again."""


@dataclass
class _DrivenTrack:
    """The track that a generator's races are on now."""

    recipe: TrackRecipe
    races_left: int


class GeneratedMaps:
    """The generated tracks of one process.

    Args:
        folder: for their files; this object's alone. It is made when it is needed, and what an earlier process left in
            it is removed.
        rng: draws each track's seed and difficulty.
        most_kept: tracks whose files stay there, those used last.
    """

    def __init__(self, folder: Path, rng: np.random.Generator, most_kept: int = MOST_TRACKS_KEPT) -> None:
        self._folder = folder.resolve()
        self._rng = rng
        self._most_kept = most_kept
        self._driven: dict[GeneratorSettings, _DrivenTrack] = {}
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
        driven = self._driven.get(entry.generator)
        if driven is None or driven.races_left == 0:
            recipe = draw_recipe(entry.generator, self._rng)
            try:
                self.concrete(entry, recipe)
            except UserError as error:
                if driven is None or driven.recipe not in self._kept:
                    raise
                log.warning("%s; the track before it is driven once more", error)
                recipe = driven.recipe
            driven = self._driven[entry.generator] = _DrivenTrack(recipe, entry.generator.races_per_track)
        driven.races_left -= 1
        return self.concrete(entry, driven.recipe)

    def leave_out(self, entry: MapEntry) -> None:
        """Count a race as `draw` does, without its track: it was driven before."""
        assert entry.generator is not None
        driven = self._driven.get(entry.generator)
        if driven is None or driven.races_left == 0:
            recipe = draw_recipe(entry.generator, self._rng)
            driven = self._driven[entry.generator] = _DrivenTrack(recipe, entry.generator.races_per_track)
        driven.races_left -= 1

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
