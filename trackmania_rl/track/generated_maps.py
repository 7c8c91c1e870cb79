"""Generated tracks in a map cycle, as files in a folder with bounded size."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GeneratorSettings, MapEntry
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import GeneratedTrack, TrackRecipe, generate_track
from trackmania_rl.simulator.tracks.world import Track

log = logging.getLogger(__name__)

MOST_TRACKS_KEPT: Final = 1000
"""Some 25 MB in files: far more than are in use, since a restarted game loads the map again."""
MOST_NAMED_TRACKS: Final = 32
"""Tracks that `generated_track` keeps."""
TRACK_FILES: Final = "generated_*.toml"


class GeneratedMaps:
    """One process's generated tracks.

    Each track is drawn from the track number alone, so a run can continue from the race count.

    Args:
        folder: for this object alone; made when needed. Earlier tracks in it are deleted, and no other files.
        seeds: source for each track's seed and difficulty.
        most_kept: limit on kept tracks; those used last stay.
        n_begun: earlier races on each generator's tracks, by `generator_key`.
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
        self._driven: dict[str, TrackRecipe] = {}
        self._kept: OrderedDict[TrackRecipe, Path] = OrderedDict()  # least recently used first
        for track_file in self._folder.glob(TRACK_FILES):
            for file in (track_file, _line_file(track_file)):
                file.unlink(missing_ok=True)

    def draw(self, entry: MapEntry) -> MapEntry:
        """Return the next race's map: a track in the generator's range, under the entry's name.

        Each track comes `races_per_track` times in a row; equal generators share tracks. If a new track cannot be
        written (disk full), the generator's last one is driven once more.

        Raises:
            UserError: if the track cannot be written, and there is none before it.
        """
        assert entry.generator is not None
        key = generator_key(entry.generator)
        number = self.n_begun(entry.generator)
        recipe = self.recipe(entry.generator, number)
        try:
            drawn = self.concrete(entry, recipe)
        except UserError as error:
            last = self._driven.get(key)
            if last is None or last not in self._kept:
                raise
            log.warning("%s; the track before it is driven once more", error)
            recipe = last
            drawn = self.concrete(entry, last)
        self._driven[key] = recipe
        self._n_begun[key] = number + 1
        return drawn

    def n_begun(self, generator: GeneratorSettings) -> int:
        """Return how many races began on a generator's tracks."""
        return self._n_begun.get(generator_key(generator), 0)

    def recipe(self, generator: GeneratorSettings, number: int) -> TrackRecipe:
        """Return the recipe for a generator's race with this number."""
        words = np.frombuffer(hashlib.sha256(generator_key(generator).encode()).digest(), dtype="<u4").tolist()
        of_track = (*self._seeds.spawn_key, *words, number // generator.races_per_track)
        sequence = np.random.SeedSequence(self._seeds.entropy, spawn_key=of_track)
        return draw_recipe(generator, np.random.default_rng(sequence))

    def concrete(self, entry: MapEntry, recipe: TrackRecipe) -> MapEntry:
        """Return `entry` with a recipe's track files instead of the generator, writing them if needed.

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
    """Return a generator's short name, the same for equal generators."""
    return hashlib.sha256(generator.model_dump_json().encode()).hexdigest()[:16]


def draw_recipe(generator: GeneratorSettings, rng: np.random.Generator) -> TrackRecipe:
    """Draw a seed and a difficulty from a generator's ranges."""
    seed = int(rng.integers(generator.first_seed, generator.last_seed, endpoint=True))
    return TrackRecipe(seed, float(rng.uniform(*generator.difficulty_range)))


def first_recipes(generator: GeneratorSettings, n_tracks: int) -> list[TrackRecipe]:
    """Return a generator's first seeds, up to `n_tracks`, with difficulties spread evenly over the range."""
    n_tracks = min(n_tracks, generator.last_seed - generator.first_seed + 1)
    difficulties = np.linspace(*generator.difficulty_range, n_tracks)
    return [TrackRecipe(generator.first_seed + k, float(difficulty)) for k, difficulty in enumerate(difficulties)]


def is_generated_track(name: str) -> bool:
    """Return whether a name belongs to a generated track; does not make the track."""
    return TrackRecipe.from_name(name) is not None


@functools.lru_cache(maxsize=MOST_NAMED_TRACKS)
def generated_track(name: str) -> GeneratedTrack | None:
    """Return a generated track by name; None for any other name."""
    recipe = TrackRecipe.from_name(name)
    return None if recipe is None else generate_track(recipe)


def track_of(text: str) -> Track:
    """Return a track by file, or a generated track by name. A `UserError` if the file cannot be used."""
    generated = generated_track(text)
    if generated is None:
        return load_track(Path(text))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{text}.toml"
        generated.write(file)
        return load_track(file)


def write_in_folder(recipe: TrackRecipe, folder: Path) -> Path:
    """Write a recipe's track under the recipe's name, replacing an earlier one; return the track file.

    Raises:
        UserError: if it cannot be written.
    """
    track_file = folder.resolve() / f"{recipe.name}.toml"
    write_generated_track(recipe, track_file)
    return track_file


def write_generated_track(recipe: TrackRecipe, track_file: Path) -> None:
    """Make a recipe's track and write it, with the line beside it.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        track_file.parent.mkdir(parents=True, exist_ok=True)
        generate_track(recipe).write(track_file)
    except OSError as error:
        with contextlib.suppress(OSError):
            _line_file(track_file).unlink(missing_ok=True)  # written first
        raise UserError(f"cannot write the generated track {track_file}: {error.strerror}") from error


def _line_file(track_file: Path) -> Path:
    return track_file.with_name(f"{track_file.stem}_0.5m.npy")
