"""K simulated games in this process, each in its own race, stepped together.

A race's rollout equals, byte for byte, that of the same actions through the socket.
"""

from __future__ import annotations

import copy
import time
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.actions import BatchDecision, actions_of_game
from trackmania_rl.race.observation import NO_CHANGES, ObservationChanges, ObservationLayout
from trackmania_rl.race.observation_kernel import FINISHED, GOING_ON, NOT_FINITE
from trackmania_rl.race.race import Race
from trackmania_rl.race.races import Draw, GameTimings, Races
from trackmania_rl.settings import GameSettings, MapEntry, ObservationSettings
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.race_batch import CarBatch, TrackForBatch
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.game_map import GameMap, load_game_map

SPARE_MAPS: Final = 16
"""Maps in memory beside one for each game. The one begun longest ago is dropped."""


@dataclass(frozen=True, eq=False)
class _Map:
    map: GameMap
    track: TrackForBatch


class InProcessGames(Games):
    """K games.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """

    def __init__(
        self,
        n_games: int,
        game: GameSettings,
        observation: ObservationSettings,
        maps_folder: Path,
        changes: ObservationChanges = NO_CHANGES,
    ) -> None:
        self.game = game
        self.layout = ObservationLayout(observation, game.actions, changes)
        self.n_games = n_games
        self.races = Races(n_games, game, self.layout)
        self._observation = observation
        self._maps_folder = maps_folder
        self._actions = actions_of_game(game)
        self._cars = CarBatch(n_games)
        self._waits = np.zeros(n_games, dtype=np.bool_)  # for a decision
        self._ended: dict[int, Race] = {}  # since the last `recv`
        self._maps: dict[tuple[str, str], _Map] = {}  # the map begun last is last
        self._map_of_game = np.full(n_games, None, dtype=object)
        self._n_gates = np.zeros(n_games, dtype=np.int64)
        self._clock = GameTimings()  # one game's share of each step
        self._clock_at_begin = [GameTimings()] * n_games
        self._drawing_s = 0.0  # of the newest step

    def __deepcopy__(self, memo: dict[int, Any]) -> InProcessGames:
        """Return independent games in the same states; share constants, above all maps."""
        for shared in (STADIUM_CAR, self.layout, self._actions, *self._maps.values(), *self._map_of_game):
            memo[id(shared)] = shared
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        self._waits[game] = False  # even after an error
        self._ended.pop(game, None)
        self._map_of_game[game] = map_ = self._map(map_entry)
        self._n_gates[game] = map_.track.n_gates
        self._cars.begin(game, map_.track)
        self._clock_at_begin[game] = replace(self._clock)
        ids = np.array([game])
        self.races.begin(game, map_entry, map_.map.zones, map_.map.road, self.game)
        self.races.observe(ids, 0, self._cars.heads)
        self.races.complete(ids, ids, self._draw)
        self._waits[game] = True

    @override
    def recv(self) -> Received:
        ids = np.flatnonzero(self._waits)
        images, floats = self.races.agent_states(ids)
        ended = self._ended
        self._ended = {}
        return Received(ids, images, floats, self.races.rows[ids] == 0, ended)

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        if len(ids) == 0:
            return
        began_s = time.perf_counter()
        self._drive(ids, decision)
        driven_s = time.perf_counter()
        self._drawing_s = 0.0
        verdicts = self.races.step(
            ids,
            decision,
            self._cars.heads,
            is_due=self._cars.ticks[ids] == self.game.engine_ticks_per_action,
            is_finished=self._cars.passed_count[ids] == self._n_gates[ids],
            draw=self._draw,
        )
        observed_s = time.perf_counter() - driven_s - self._drawing_s
        self._clock.wait_game_s += (driven_s - began_s + self._drawing_s) / len(ids)
        self._clock.features_s += observed_s / len(ids)
        self._clock.policy_s += policy_s / len(ids)
        for place in np.flatnonzero(verdicts != GOING_ON).tolist():
            game = int(ids[place])
            self._waits[game] = False
            self._ended[game] = self._end(game, int(verdicts[place]))

    @override
    def under_way(self, game: int, states: range) -> Race:
        return self.races.under_way(game, states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        rows = self.races.rows[ids]
        return Motion._make(getattr(self.races.columns, name)[ids, rows] for name in Motion._fields)

    @override
    def close(self) -> bool:
        return True

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
        """Draw the colour view from behind a game's car, (height_px, width_px, 3) uint8 RGB.

        Raises:
            ValueError: if a side is not 1 to 4096 pixels.
        """
        car = self._cars.cars[game]
        passed_count = int(self._cars.passed_count[game])
        renderer = self._map_of_game[game].track.renderer
        blue_green_red_alpha = renderer.render(
            car["position_m"], car["rotation"], car["surface_index"], width_px, height_px, passed_count
        )
        return np.ascontiguousarray(blue_green_red_alpha[:, :, 2::-1])

    def _drive(self, games: GameIds, decision: BatchDecision) -> None:
        """Hold each decision for the ticks of an action, or until the finish."""
        controls = self._actions.controls(decision.actions)
        for places in self.races.by_map(games):
            of_map = games[places]
            track = self._map_of_game[of_map[0]].track
            self._cars.advance(of_map, track, controls[places], self.game.engine_ticks_per_action)
        self._cars.write_heads()

    def _end(self, game: int, verdict: int) -> Race:
        if verdict == NOT_FINITE:
            name = self._map_of_game[game].map.name
            raise FloatingPointError(f"the simulated car on {name} left the world of finite numbers")
        now = astuple(self._clock)
        began = astuple(self._clock_at_begin[game])
        timings = GameTimings(*(passed_s - before_s for passed_s, before_s in zip(now, began, strict=True)))
        times_ms = self._cars.checkpoint_times_ms(game)
        if verdict == FINISHED:
            return self.races.finish(game, times_ms[-1], times_ms, timings)
        return self.races.cut_off(game, times_ms, timings)

    @property
    def _draw(self) -> Draw | None:
        return self._draw_pictures if self.game.image_width_px > 0 else None

    def _draw_pictures(self, games: GameIds, pictures: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> None:
        began_s = time.perf_counter()
        for places in self.races.by_map(games):
            of_map = games[places]
            self._cars.render_gray(of_map, self._map_of_game[of_map[0]].track, pictures, rows)
        self._drawing_s = time.perf_counter() - began_s

    def _map(self, entry: MapEntry) -> _Map:
        key = (entry.map_path, entry.reference_line)
        map_ = self._maps.pop(key, None)
        if map_ is None:
            track = TrackForBatch(load_track(self._maps_folder / entry.map_path))
            map_ = _Map(load_game_map(entry, self._maps_folder, self._observation), track)
        self._maps[key] = map_
        if len(self._maps) > self.n_games + SPARE_MAPS:
            del self._maps[next(iter(self._maps))]
        return map_
