"""Race playback in real time."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.race_batch import CarBatch, TrackForBatch
from trackmania_rl.telemetry.live.feed import LiveRace
from trackmania_rl.track.map_sources import track_of

ELSEWHERE_M: Final = 1.0
"""Largest distance from the recorded position; beyond it, the track is another one."""
MOST_TRACKS: Final = 8

_drawing = threading.Lock()  # a track's renderer has scratch memory


class RacePlayback:
    """Plays a race back. A race in the simulated game is driven again."""

    def __init__(self, race: LiveRace) -> None:
        self.race = race
        self._again: _DrivenAgain | None = None
        self._can_be_driven = race.frames is None

    @property
    def duration_ms(self) -> int:
        """Race time at the end."""
        return int(self.race.time_ms[-1])

    def picture(self, time_ms: float, width_px: int = 320, height_px: int = 240) -> npt.NDArray[np.uint8] | None:
        """Return the picture at a race time. Going back drives the race again from the start.

        Returns:
            (height_px, width_px, 3) uint8 RGB for a simulated game's race; the frame (H, W) uint8 for another game;
            None if there is neither.
        """
        race = self.race
        if race.frames is not None:
            return race.frames[max(int(np.searchsorted(race.frame_time_ms, time_ms, side="right")) - 1, 0)]
        if self._again is None and self._can_be_driven:
            track = _track(race.track, race.map_file)
            self._again = None if track is None else _DrivenAgain(race, track)
        if self._again is None or not self._again.drive_to(time_ms):
            self._again, self._can_be_driven = None, False
            return None
        return self._again.picture(width_px, height_px)


class _DrivenAgain:
    def __init__(self, race: LiveRace, track: TrackForBatch) -> None:
        self._race = race
        self._track = track
        self._controls = np.stack((race.gas, race.brake, race.steer), axis=1).astype(np.float64)
        self._batch = CarBatch(1)
        self._begin()

    def drive_to(self, time_ms: float) -> bool:
        """Drive to a race time; return False if the positions differ from the race's."""
        race, until_ms = self._race, min(time_ms, int(self._race.time_ms[-1]))
        if until_ms < self._time_ms:
            self._begin()
        while self._time_ms + TICK_MS <= until_ms:
            ends_ms = min(int(race.time_ms[self._state + 1]), until_ms)
            n_ticks = max(int(ends_ms - self._time_ms) // TICK_MS, 1)
            self._batch.advance(np.zeros(1, np.int64), self._track, self._controls[[self._state]], n_ticks)
            self._time_ms += n_ticks * TICK_MS
            if self._time_ms == race.time_ms[self._state + 1]:
                self._state += 1
                away_m = np.linalg.norm(self._batch.cars["position_m"][0] - race.position[self._state])
                if away_m > ELSEWHERE_M:
                    return False
        return True

    def picture(self, width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
        car, passed_count = self._batch.cars[0], int(self._batch.passed_count[0])
        with _drawing:
            drawn = self._track.renderer.render(
                car["position_m"], car["rotation"], car["surface_index"], width_px, height_px, passed_count
            )
        return np.ascontiguousarray(drawn[:, :, 2::-1])

    def _begin(self) -> None:
        self._batch.begin(0, self._track)
        self._state, self._time_ms = 0, 0


@functools.lru_cache(maxsize=MOST_TRACKS)
def _track(name: str, map_file: str) -> TrackForBatch | None:
    is_there = map_file.endswith(".toml") and Path(map_file).is_file()
    try:
        return TrackForBatch(track_of(map_file if is_there else name))
    except UserError:  # no generated track, or the file has changed meanwhile
        return None
