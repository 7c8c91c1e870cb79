"""Cars and races in a running training: safetensors files in the run's folder `live/`, a writer and a reader.

Collectors replace them while a reader asks, by the modification time on `asked`, and on `asked-{collector}-{game}` for
one game's races.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.race import Race
from trackmania_rl.settings import MapEntry
from trackmania_rl.settings.values import FileName
from trackmania_rl.track.game_map import map_file

log = logging.getLogger(__name__)

FOLDER: Final = "live"
ASKED: Final = "asked"
CARS_FILE: Final = "cars-{collector}.safetensors"
RACE_FILE: Final = "race-{collector}-{game}.safetensors"
VALUES: Final = "values"
EVALUATED: Final = "evaluated"
"""Name used instead of the game for a collector's newest evaluation race."""
ASKED_FOR_S: Final = 5.0
"""Collectors write for this time after a reader asked."""
ASK_EVERY_S: Final = 1.0
CAR_IS_OLD_S: Final = 15.0

Arrays = Mapping[str, npt.NDArray[np.generic]]

CARS_EVERY_S: Final = 0.1
RACES_EVERY_S: Final = 1.0
MOST_FRAME_BYTES: Final = 8 << 20
"""Most frames per race. If there are more, every second, third, ... frame is written."""
SIMULATED: Final = "simulated"
"""The game whose races are driven and drawn again by the reader."""

_GEAR: Final = CAR_COLUMNS.index("gear")


def write_record(file: Path, values: Any, arrays: Arrays = MappingProxyType({})) -> None:
    """Write JSON values and arrays to a file, which replaces an older one. I/O errors are ignored."""
    part = file.with_suffix(".part")
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # others are stored wrongly
    with contextlib.suppress(OSError):  # the disk is full; on Windows, the file is being read
        part.write_bytes(save(contiguous, {VALUES: json.dumps(values)}))
        part.replace(file)


def write_cars(folder: Path, collector: int, cars: Iterable[LiveCar]) -> None:
    """Replace a collector's file of cars in a `live/` folder."""
    write_record(folder / CARS_FILE.format(collector=collector), [vars(car) for car in cars])


def is_asked(request: Path, now_s: float) -> bool:
    """Return whether a reader has asked a short time ago."""
    try:
        return abs(now_s - request.stat().st_mtime) < ASKED_FOR_S
    except OSError:
        return False


def read_record(file: Path) -> tuple[Any, Arrays] | None:
    """Read a `write_record` file; None if missing or damaged."""
    try:
        with safe_open(file, "numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
            return json.loads(opened.metadata()[VALUES]), arrays
    except (OSError, SafetensorError, TypeError, KeyError, ValueError):
        return None


@dataclass(frozen=True)
class LiveCar:
    """A game car's newest place.

    Attributes:
        track: map file name without the ending, or a generated track's name.
        position: x, y (up) and z in metres, world axes.
        is_explo: exploration race, or else evaluation race.
        timestamp_s: the state's `time.time`.
    """

    collector: Annotated[int, Field(ge=0, lt=2**31)]
    game: Annotated[int, Field(ge=0, lt=2**31)]
    map_name: FileName
    track: FileName
    position: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    is_explo: bool
    timestamp_s: FiniteFloat

    @property
    def age_s(self) -> float:
        """State age in seconds."""
        return max(time.time() - self.timestamp_s, 0.0)


@dataclass(frozen=True, eq=False)
class LiveRace:
    """Race as S states one action apart. The last one is the end, with the last decision repeated.

    Attributes:
        race_time_ms: time at the finish or the cut-off.
        map_file: path of the map's file on the collector's machine.
        time_ms: (S,), race time.
        position: (S, 3) as in `LiveCar`.
        speed_mps: (S,), mean until the next state.
        steer: (S,), -1 (left) .. 1 (right).
        gear: (S,), 0 is reverse.
        meters_advanced: (S,), along the reference line.
        was_greedy: (S,), whether the action has the highest value.
        q_values: (S, A), or (S, 1) for only the action taken.
        frames: (n, H, W) gray at `frame_time_ms` (n,), from a game that cannot be drawn again.
    """

    collector: int
    game: int
    map_name: str
    track: str
    is_explo: bool
    race_finished: bool
    race_time_ms: int
    timestamp_s: float
    map_file: str
    time_ms: npt.NDArray[np.int32]
    position: npt.NDArray[np.float32]
    speed_mps: npt.NDArray[np.float32]
    steer: npt.NDArray[np.float32]
    gas: npt.NDArray[np.bool_]
    brake: npt.NDArray[np.bool_]
    was_greedy: npt.NDArray[np.bool_]
    gear: npt.NDArray[np.int16]
    meters_advanced: npt.NDArray[np.float32]
    q_values: npt.NDArray[np.float32]
    frames: npt.NDArray[np.uint8] | None
    frame_time_ms: npt.NDArray[np.int32]

    def save(self, file: Path) -> None:
        """Replace a file by the race."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        write_record(file, {name: value for name, value in vars(self).items() if name not in arrays}, arrays)

    @classmethod
    def load(cls, file: Path) -> LiveRace | None:
        """Read a `save` file; None if missing or damaged."""
        record = read_record(file)
        if record is None:
            return None
        values, arrays = record
        with contextlib.suppress(TypeError):  # from another version
            return cls(**values | arrays)
        return None


class LiveReader:
    """Reader for a run's games during training."""

    def __init__(self, run_folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = run_folder / FOLDER
        self._clock = clock
        self._asked_s: dict[str, float] = {}
        self._read: dict[Path, tuple[int, LiveRace | None]] = {}
        self._evaluated: LiveRace | None = None

    def cars(self) -> list[LiveCar]:
        """Return all games' newest states. Collectors begin to write after the first call."""
        self._ask(ASKED)
        cars = []
        for file in self._folder.glob(CARS_FILE.format(collector="*")):
            values, _ = read_record(file) or ([], {})
            with contextlib.suppress(TypeError):  # from another version
                cars += [LiveCar(**car | {"position": tuple(car["position"])}) for car in values]
        oldest_s = self._clock() - CAR_IS_OLD_S
        return sorted((car for car in cars if car.timestamp_s > oldest_s), key=lambda car: (car.collector, car.game))

    def race_of(self, collector: int, game: int) -> LiveRace | None:
        """Return a game's newest race. The collector begins to write races after the first call."""
        self._ask(ASKED)
        self._ask(f"{ASKED}-{collector}-{game}")
        return self._race(self._folder / RACE_FILE.format(collector=collector, game=game))

    def evaluated(self) -> LiveRace | None:
        """Return the run's newest evaluation race, also after the training."""
        files = self._folder.glob(RACE_FILE.format(collector="*", game=EVALUATED))
        races = [race for file in files if (race := self._race(file)) is not None]
        self._evaluated = max(races, key=lambda race: race.timestamp_s, default=self._evaluated)
        return self._evaluated

    def _ask(self, name: str) -> None:
        now_s = self._clock()
        if now_s - self._asked_s.get(name, -np.inf) >= ASK_EVERY_S:
            self._asked_s[name] = now_s
            with contextlib.suppress(OSError):  # the training does not run
                file = self._folder / name
                file.touch()
                os.utime(file, (now_s, now_s))

    def _race(self, file: Path) -> LiveRace | None:
        """Read a race; the object is the same until there is another race."""
        try:
            written_ns = file.stat().st_mtime_ns
        except OSError:
            return None
        if self._read.get(file, (0, None))[0] != written_ns:
            self._read = {known: read for known, read in self._read.items() if known.exists()}
            self._read[file] = written_ns, LiveRace.load(file)
        return self._read[file][1]


class LiveMirror:
    """Listener that writes the states of a collector's games to files."""

    def __init__(
        self,
        games: Games,
        folder: Path,
        collector: int,
        maps_folder: Path,
        has_frames: bool,
        line_begins_m: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._games = games
        self._folder = folder
        self._collector = collector
        self._maps_folder = maps_folder
        self._writes_frames = has_frames and games.game.game != SIMULATED
        self._line_begins_m = line_begins_m
        self._clock = clock
        self._entries: list[MapEntry | None] = [None] * games.n_games
        self._has_motion = True
        self._is_asked = False
        self._watched: set[int] = set()
        self._next_look_s = -math.inf
        self._cars: dict[int, LiveCar] = {}
        self._next_write_s = -math.inf
        self._next_car_s = np.full(games.n_games, -math.inf)
        self._next_race_s: dict[int | str, float] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("collector %d: the live page cannot show its races: %s: %s", collector, folder, error.strerror)
        self.close()  # files from a killed collector

    def begins(self, game: int, map_entry: MapEntry) -> None:
        """Note the map for a game's next race."""
        self._entries[game] = map_entry

    def received(self, received: Received) -> None:
        """Write the cars' places, and the races that have ended."""
        now_s = self._clock()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + CARS_EVERY_S
            self._read_requests(now_s)
        if not self._is_asked:
            return
        self._update_cars(received.ids, now_s)
        for game, race in received.ended.items():
            entry = self._entries[game]
            if entry is None or race.facts.is_of_environment:
                continue
            for name in [EVALUATED] * (not entry.is_explo) + [game] * (game in self._watched):
                if now_s >= self._next_race_s.get(name, -math.inf):
                    self._next_race_s[name] = now_s + RACES_EVERY_S
                    self._write_race(name, game, entry, race)

    def close(self) -> None:
        """Remove the files."""
        races = self._folder.glob(RACE_FILE.format(collector=self._collector, game="*"))
        for file in (self._folder / CARS_FILE.format(collector=self._collector), *races):
            self._remove(file)

    def _read_requests(self, now_s: float) -> None:
        self._is_asked = is_asked(self._folder / ASKED, now_s)
        requests = self._folder.glob(f"{ASKED}-{self._collector}-*") if self._is_asked else ()
        watched = {int(file.name.rpartition("-")[2]) for file in requests if is_asked(file, now_s)}
        for game in self._watched - watched:
            self._remove(self._folder / RACE_FILE.format(collector=self._collector, game=game))
        self._watched = watched

    @staticmethod
    def _remove(file: Path) -> None:
        with contextlib.suppress(OSError):  # on Windows, while it is read
            file.unlink()

    def _update_cars(self, ids: GameIds, now_s: float) -> None:
        due = ids[self._next_car_s[ids] <= now_s]
        if not self._has_motion or len(due) == 0:
            return
        self._next_car_s[due] = now_s + CARS_EVERY_S
        try:
            positions_m = self._games.motion(due).position_m.tolist()
        except TypeError:  # a custom environment has no car
            self._has_motion = False
            return
        for game, position_m in zip(due.tolist(), positions_m, strict=True):
            if (entry := self._entries[game]) is not None:
                self._cars[game] = LiveCar(
                    collector=self._collector,
                    game=game,
                    map_name=entry.map_name,
                    track=_track(entry),
                    position=position_m,
                    is_explo=entry.is_explo,
                    timestamp_s=now_s,
                )
        if now_s >= self._next_write_s:
            self._next_write_s = now_s + CARS_EVERY_S
            write_cars(self._folder, self._collector, self._cars.values())

    def _write_race(self, name: int | str, game: int, entry: MapEntry, race: Race) -> None:
        results = race.columns
        settings = self._games.game
        n_actions = race.n_actions
        decided = np.append(np.arange(n_actions), n_actions - 1)
        time_ms = np.append(np.arange(n_actions) * settings.ms_per_action, race.facts.race_time_ms).astype(np.int32)
        gas, brake, steer = actions_of_game(settings).controls(results["actions"][decided]).T
        meters = results["meters_advanced_along_centerline"]
        every = 1
        frames = None
        if self._writes_frames:
            every = -(-results["frames"].nbytes // MOST_FRAME_BYTES)
            frames = results["frames"][::every, 0]
        columns: dict[str, Any] = {
            "time_ms": time_ms,
            "position": results["position_m"].astype(np.float32),
            "speed_mps": results["speed_m_s"].astype(np.float32),
            "steer": steer.astype(np.float32),
            "gas": gas > 0,
            "brake": brake > 0,
            "was_greedy": results["action_was_greedy"][decided].astype(bool),
            "gear": results["car_gear_and_wheels"][:, _GEAR].astype(np.int16),
            "meters_advanced": (meters - self._line_begins_m).astype(np.float32),
            "q_values": results["q_values"][decided].astype(np.float32),
            "frames": frames,
            "frame_time_ms": time_ms[::every][: 0 if frames is None else len(frames)],
        }
        LiveRace(
            collector=self._collector,
            game=game,
            map_name=entry.map_name,
            track=_track(entry),
            is_explo=entry.is_explo,
            race_finished=race.facts.race_finished,
            race_time_ms=race.facts.race_time_ms,
            timestamp_s=self._clock(),
            map_file=str(map_file(entry, self._maps_folder).resolve()),
            **columns,
        ).save(self._folder / RACE_FILE.format(collector=self._collector, game=name))


def _track(entry: MapEntry) -> str:
    return Path(entry.map_path.replace("\\", "/")).stem
