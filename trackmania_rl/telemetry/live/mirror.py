"""Mirror for a collector's games on the live page: files that are written while a reader asks for them."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.race import Race
from trackmania_rl.settings import MapEntry
from trackmania_rl.telemetry.live.feed import (
    ASKED,
    ASKED_FOR_S,
    CARS_FILE,
    EVALUATED,
    RACE_FILE,
    LiveCar,
    LiveRace,
    write_record,
)
from trackmania_rl.track.game_map import map_file

log = logging.getLogger(__name__)

CARS_EVERY_S: Final = 0.1
RACES_EVERY_S: Final = 1.0
MOST_FRAME_BYTES: Final = 8 << 20
"""Most frames per race. If there are more, every second, third, ... frame is written."""
SIMULATED: Final = "simulated"
"""The game whose races are driven and drawn again by the reader."""

_GEAR: Final = CAR_COLUMNS.index("gear")


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
        self._cars_file = folder / CARS_FILE.format(collector=collector)
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
        for file in (self._cars_file, *races):
            self._remove(file)

    def _read_requests(self, now_s: float) -> None:
        self._is_asked = self._is_new(self._folder / ASKED, now_s)
        requests = self._folder.glob(f"{ASKED}-{self._collector}-*") if self._is_asked else ()
        watched = {int(file.name.rpartition("-")[2]) for file in requests if self._is_new(file, now_s)}
        for game in self._watched - watched:
            self._remove(self._folder / RACE_FILE.format(collector=self._collector, game=game))
        self._watched = watched

    @staticmethod
    def _is_new(request: Path, now_s: float) -> bool:
        try:
            return abs(now_s - request.stat().st_mtime) < ASKED_FOR_S
        except OSError:
            return False

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
            write_record(self._cars_file, [vars(car) for car in self._cars.values()])

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
