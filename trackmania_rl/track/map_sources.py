"""Map sources: tracks without end for a map cycle, such as generated ones, as files in a folder with bounded size."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import check_file_name
from trackmania_rl.parts import make_part
from trackmania_rl.settings import Generator, GeneratorSettings, MapEntry, Settings, SettingsError
from trackmania_rl.simulator.tracks.track_design import TrackDesign, lay_out, write_track
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.simulator.tracks.world import Track

log = logging.getLogger(__name__)

MOST_TRACKS_KEPT: Final = 1000
"""Some 25 MB in files: far more than are in use, since a restarted game loads the map again."""
TRACKS_FOLDER: Final = "generated_tracks"
"""In a run's folder: a folder of tracks for each collector."""
ORIGIN: Final = "a generator of a map cycle"


class MapSource(ABC):
    """Tracks without end under one map name. A part: `"generator": "my_tracks:Ovals"` in an entry of the map cycle."""

    races_per_track: int = 1
    """Races in a row on each track."""
    is_one_track: bool = False
    """True if all tracks are the same, so that their times compare."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> TrackDesign:
        """Draw a track. Its name is a file's, and two different tracks have different names."""

    def first(self, n_tracks: int) -> list[TrackDesign]:
        """Return up to `n_tracks` different tracks, always the same ones, for evaluation."""
        drawn = [self.draw(np.random.default_rng(seed)) for seed in range(n_tracks)]
        return list({design.name: design for design in drawn}.values())


class GeneratedTracks(MapSource):
    """The tracks that ship, from a range of seeds and difficulties."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        self.races_per_track = settings.races_per_track
        self.is_one_track = settings.is_one_track

    def draw(self, rng: np.random.Generator) -> TrackDesign:
        """Draw a seed and a difficulty, each evenly."""
        seed = int(rng.integers(self._settings.first_seed, self._settings.last_seed, endpoint=True))
        return generate_track(TrackRecipe(seed, float(rng.uniform(*self._settings.difficulty_range)))).design

    def first(self, n_tracks: int) -> list[TrackDesign]:
        """Return the first seeds, with difficulties spread evenly over the range."""
        first_seed = self._settings.first_seed
        n_tracks = min(n_tracks, self._settings.last_seed - first_seed + 1)
        difficulties = np.linspace(*self._settings.difficulty_range, n_tracks).tolist()
        return [generate_track(TrackRecipe(first_seed + k, d)).design for k, d in enumerate(difficulties)]


def map_source(generator: Generator) -> MapSource:
    """Return the source that a map cycle entry's `generator` names.

    Raises:
        SettingsError: if a part is missing, fails, makes no `MapSource`, or one without races.
    """
    if isinstance(generator, GeneratorSettings):
        return GeneratedTracks(generator)
    source: MapSource = make_part(generator, "generator", kinds=(MapSource,))
    if source.races_per_track < 1:
        raise SettingsError(
            f"generator = {str(generator)!r}: races_per_track is {source.races_per_track}, not 1 or more"
        )
    return source


def check_map_sources(settings: Settings) -> None:
    """Draw a track from each part in the map cycle, so a bad one is refused before any race.

    Raises:
        UserError: if a part cannot be used, or its track cannot be driven.
    """
    for entry in settings.game.map_cycle:
        if entry.generator is not None and not isinstance(entry.generator, GeneratorSettings):
            with tempfile.TemporaryDirectory() as folder:
                maps = GeneratedMaps(Path(folder), np.random.SeedSequence(settings.run.seed))
                maps.draw(entry)


class GeneratedMaps:
    """One process's tracks from map sources.

    Each track is drawn from the track number alone, so a run can continue from the race count.

    Args:
        folder: for this object alone; made when needed. Earlier tracks in it are deleted, and no other files.
        seeds: source for each track's random numbers.
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
        self._sources: dict[str, MapSource] = {}  # by `generator_key`
        self._newest: dict[str, tuple[int, Path]] = {}  # number and file of a generator's newest track
        self._kept: OrderedDict[Path, None] = OrderedDict()  # least recently used first
        for track_file in self._folder.glob("*.toml"):
            if ORIGIN in track_file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]:
                _remove(track_file)

    def draw(self, entry: MapEntry) -> MapEntry:
        """Return the next race's map: a track of the entry's generator, under the entry's name.

        Each track comes `races_per_track` times in a row; equal generators share tracks. If a new track cannot be
        drawn or written (disk full), the generator's last one is driven once more.

        Raises:
            UserError: if the track cannot be drawn or written, and there is none before it.
        """
        assert entry.generator is not None
        key = generator_key(entry.generator)
        number = self.n_begun(entry.generator)
        source = self.source(entry.generator)
        track_number = number // source.races_per_track
        last = self._newest.get(key)
        if last is not None and last[0] == track_number and last[1] in self._kept:
            track_file = last[1]
        else:
            try:
                track_file = self._write(_draw(source, self._rng(key, track_number)))
                self._newest[key] = track_number, track_file
            except UserError as error:
                if last is None or last[1] not in self._kept:
                    raise
                log.warning("%s; the track before it is driven once more", error)
                track_file = last[1]
        self._use(track_file)
        self._n_begun[key] = number + 1
        files = {"map_path": str(track_file), "reference_line": str(_line_file(track_file)), "generator": None}
        return entry.model_copy(update=files)

    def source(self, generator: Generator) -> MapSource:
        """Return a generator's source, made once. A `SettingsError` as from `map_source`."""
        key = generator_key(generator)
        if key not in self._sources:
            self._sources[key] = map_source(generator)
        return self._sources[key]

    def n_begun(self, generator: Generator) -> int:
        """Return how many races began on a generator's tracks."""
        return self._n_begun.get(generator_key(generator), 0)

    def _rng(self, key: str, track_number: int) -> np.random.Generator:
        words = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u4").tolist()
        of_track = (*self._seeds.spawn_key, *words, track_number)
        return np.random.default_rng(np.random.SeedSequence(self._seeds.entropy, spawn_key=of_track))

    def _write(self, design: TrackDesign) -> Path:
        track_file = self._folder / f"{design.name}.toml"
        if track_file not in self._kept:
            write_in_folder(design, self._folder)
            try:
                load_track(track_file)
            except UserError:
                _remove(track_file)
                raise
        return track_file

    def _use(self, track_file: Path) -> None:
        self._kept[track_file] = None
        self._kept.move_to_end(track_file)
        while len(self._kept) > self._most_kept:
            oldest, _ = self._kept.popitem(last=False)
            _remove(oldest)


def _draw(source: MapSource, rng: np.random.Generator) -> TrackDesign:
    try:
        design = source.draw(rng)
    except Exception as error:  # user code
        raise UserError(f"{_name(source)}.draw fails: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(design, TrackDesign):
        raise UserError(f"{_name(source)}.draw returned a {type(design).__name__} in place of a TrackDesign")
    return design


def _name(source: MapSource) -> str:
    return f"{type(source).__module__}.{type(source).__qualname__}"


def _remove(track_file: Path) -> None:
    for file in (track_file, _line_file(track_file)):
        file.unlink(missing_ok=True)


def _line_file(track_file: Path) -> Path:
    return track_file.with_name(f"{track_file.stem}_0.5m.npy")


def generator_key(generator: Generator) -> str:
    """Return a generator's short name, the same for equal generators."""
    text = generator.model_dump_json() if isinstance(generator, GeneratorSettings) else str(generator)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_in_folder(design: TrackDesign, folder: Path) -> Path:
    """Write a track under its name with the line beside it, replacing an earlier one; return the track file.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        track_file = folder.resolve() / f"{check_file_name(design.name)}.toml"
    except ValueError as error:
        raise UserError(f"a generated track's name {design.name!r}: {error}") from None
    try:
        track_file.parent.mkdir(parents=True, exist_ok=True)
        write_track(design, lay_out(design), track_file, ORIGIN)
    except OSError as error:
        with contextlib.suppress(OSError):
            _line_file(track_file).unlink(missing_ok=True)  # written first
        raise UserError(f"cannot write the generated track {track_file}: {error.strerror}") from error
    return track_file


def generated_track(name: str, run_folder: Path) -> str | None:
    """Return what `track_of` takes for a track that a run's collectors generated; None for any other name.

    Its file, or the name of a recipe, from which it is made again: files of old tracks, and of collectors on other
    machines, are not there.
    """
    try:
        file_name = f"{check_file_name(name)}.toml"
    except ValueError:
        return None
    for folder in (run_folder / TRACKS_FOLDER).glob("*"):
        if (folder / file_name).is_file():
            return str(folder / file_name)
    return name if TrackRecipe.from_name(name) is not None else None


def track_of(text: str) -> Track:
    """Return a track by file, or by a recipe's name. A `UserError` if the file cannot be used."""
    recipe = TrackRecipe.from_name(text)
    if recipe is None:
        return load_track(Path(text))
    with tempfile.TemporaryDirectory() as folder:
        return load_track(write_in_folder(generate_track(recipe).design, Path(folder)))
