"""Cars and races in a running training: safetensors files in the run's folder `live/`, and a reader for them.

Collectors replace them while a reader asks, by the modification time on `asked`, and on `asked-{collector}-{game}` for
one game's races.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

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


def write_record(file: Path, values: Any, arrays: Arrays = MappingProxyType({})) -> None:
    """Write JSON values and arrays to a file, which replaces an older one. I/O errors are ignored."""
    part = file.with_suffix(".part")
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # others are stored wrongly
    with contextlib.suppress(OSError):  # the disk is full; on Windows, the file is being read
        part.write_bytes(save(contiguous, {VALUES: json.dumps(values)}))
        part.replace(file)


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

    collector: int
    game: int
    map_name: str
    track: str
    position: tuple[float, float, float]
    is_explo: bool
    timestamp_s: float

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
