"""Races that can be watched at their own pace: the newest of a running training, and the records of any run."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.telemetry.films import track_of
from trackmania_rl.telemetry.input_picture import InputTimeline
from trackmania_rl.telemetry.live import LiveRace, RacePlayback
from trackmania_rl.telemetry.page.best_runs import BestRun

MOST_RACES: Final = 12
"""Races that are kept: those asked for last."""
MOST_PICTURES: Final = 100
PICTURE_EVERY_MS: Final = 100
"""Pictures are of multiples of this race time, so that tabs which show the same race share them."""
PICTURES_PER_S: Final = 20
PICTURE_PX: Final = (320, 240)
JPEG_QUALITY: Final = 80

_STATE_MS: Final = 50


class WatchedRaces:
    """Races by an id, with their columns and pictures. Any thread may ask."""

    def __init__(self) -> None:
        self._playbacks: OrderedDict[str, RacePlayback] = OrderedDict()
        self._pictures: OrderedDict[tuple[str, int], bytes | None] = OrderedDict()
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._next_drawing_s = 0.0

    def keep(self, race: LiveRace) -> str:
        """Keep a race of a running training; returns its id."""
        name = f"live-{race.collector}-{race.game}-{int(race.told_s * 1000)}"
        with self._lock:
            self._keep(name, lambda: race)
        return name

    def record(self, best: BestRun, track: str) -> str:
        """Drive a record again, on a track of the simulated game by its file; returns its id.

        Raises:
            UserError: if its inputs or the track cannot be used.
        """
        name = f"best-{best.folder.name}-{int(best.driven_s * 1000)}"
        with self._lock:
            self._keep(name, lambda: race_of_inputs(best, track))
        return name

    def race(self, name: str) -> LiveRace | None:
        """A race; None if it is not kept (any more)."""
        with self._lock:
            playback = self._playbacks.get(name)
        return None if playback is None else playback.race

    def columns(self, name: str) -> dict[str, Any] | None:
        """A race's states as lists, for drawing; None if it is not kept (any more)."""
        race = self.race(name)
        return None if race is None else columns_of(race) | {"id": name}

    def picture(self, name: str, time_ms: int) -> bytes | None:
        """What is seen at a race time, as JPEG; None if nothing is, or the race is not kept (any more).

        All tabs together are drawn `PICTURES_PER_S`; more wishes wait.
        """
        time_ms = time_ms // PICTURE_EVERY_MS * PICTURE_EVERY_MS
        with self._lock:
            playback = self._playbacks.get(name)
        if playback is None:
            return None
        with self._drawing:
            if (name, time_ms) not in self._pictures:
                time.sleep(max(0.0, self._next_drawing_s - time.monotonic()))
                self._next_drawing_s = time.monotonic() + 1 / PICTURES_PER_S
                picture = playback.picture(min(time_ms, playback.duration_ms), *PICTURE_PX)
                self._pictures[name, time_ms] = None if picture is None else jpeg(picture)
                while len(self._pictures) > MOST_PICTURES:
                    self._pictures.popitem(last=False)
            return self._pictures[name, time_ms]

    def _keep(self, name: str, make: Callable[[], LiveRace]) -> None:
        if name not in self._playbacks:
            self._playbacks[name] = RacePlayback(make())
        self._playbacks.move_to_end(name)
        while len(self._playbacks) > MOST_RACES:
            self._playbacks.popitem(last=False)


def columns_of(race: LiveRace) -> dict[str, Any]:
    """A race's states as lists: race time in ms, x and z in m, speed in m/s, inputs, gear, distance in m, Q values."""
    columns = {
        "t": race.time_ms,
        "x": race.position[:, 0].round(2),
        "z": race.position[:, 2].round(2),
        "speed": race.speed_mps.round(2),
        "steer": race.steer.round(3),
        "gas": race.gas.astype(int),
        "brake": race.brake.astype(int),
        "greedy": race.was_greedy.astype(int),
        "gear": race.gear,
        "m": race.meters_advanced.round(2),
    }
    has_values = race.q_values.size > 0 and bool(np.isfinite(race.q_values).all())
    return {
        "map": race.map_name,
        "track": race.track,
        "kind": "explored" if race.is_explo else "evaluated",
        "collector": race.collector,
        "game": race.game,
        "finished": race.race_finished,
        "time_ms": race.race_time_ms,
        **{name: np.nan_to_num(column.astype(np.float64)).round(3).tolist() for name, column in columns.items()},
        "q": race.q_values.astype(np.float64).round(5).tolist() if has_values else [],
    }


def race_of_inputs(best: BestRun, track_file: str) -> LiveRace:
    """Drive a record's inputs on the simulated game.

    Raises:
        UserError: if the inputs or the track cannot be used.
    """
    race, events = SimulatedRace(track_of(track_file)), read_input_script(best.inputs)
    race.play_script(events)
    while race.tick_time_ms < 0:
        race.advance(-race.tick_time_ms // TICK_MS)
    states: list[tuple[Any, ...]] = []
    while True:
        car = race.car[0]
        speed, at = float(np.linalg.norm(car["velocity_m_s"])), car["position_m"].tolist()
        states.append((race.tick_time_ms, at, speed, int(car["gear"]), float(car["station_m"])))
        ends_ms = race.tick_time_ms + _STATE_MS
        if race.is_finished or race.tick_time_ms >= best.race_time_ms:
            break
        while race.tick_time_ms < ends_ms and not race.is_finished:
            race.advance((ends_ms - race.tick_time_ms) // TICK_MS)
    times_ms, positions, speeds, gears, stations = zip(*states, strict=True)
    gas, brake, steer = InputTimeline(events).controls_at(times_ms).T
    return LiveRace(
        collector=-1,
        game=-1,
        map_name=best.map_name,
        track=Path(track_file).stem,
        is_explo=False,
        race_finished=race.is_finished,
        race_time_ms=best.race_time_ms,
        told_s=best.driven_s,
        map_file=track_file,
        time_ms=np.array(times_ms, np.int32),
        position=np.array(positions, np.float32),
        speed_mps=np.array(speeds, np.float32),
        steer=steer.astype(np.float32),
        gas=gas > 0,
        brake=brake > 0,
        was_greedy=np.ones(len(states), bool),
        gear=np.array(gears, np.int16),
        zone=np.zeros(len(states), np.int32),
        meters_advanced=np.array(stations, np.float32),
        q_values=_q_values(best, len(states)),
        frames=None,
        frame_time_ms=np.zeros(0, np.int32),
    )


def _q_values(best: BestRun, n_states: int) -> Any:
    """(S, A) its Q values; (S, 0) where they are not known."""
    values = best.q_values()
    if not values:
        return np.zeros((n_states, 0), np.float32)
    array = np.array(values, np.float32)
    return array[np.minimum(np.arange(n_states), len(array) - 1)]


def jpeg(picture: Any) -> bytes:
    """A picture, (H, W) gray or (H, W, 3) RGB uint8, as JPEG."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
