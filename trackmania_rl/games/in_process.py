"""K simulated games in this process, each in a race of its own, all stepped by one action at a time.

What comes out of a race is, byte for byte, what the race machine makes of the same actions through the socket.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.cutoffs import GOING_ON
from trackmania_rl.race.observation import ExtraFloats, ObservationLayout
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.races import NOT_FINITE, Races
from trackmania_rl.race.results import EndedRace, GameTimings, RaceEnd
from trackmania_rl.settings import GameSettings, MapEntry, ObservationSettings
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.race_batch import RaceBatch, TrackForBatch
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.game_map import GameMap, load_game_map

SPARE_MAPS: Final = 16
"""So many maps stay in memory beside those that are driven; the one driven longest ago gives way."""


class _Map(NamedTuple):
    """A map with the track that the simulator makes of it."""

    map: GameMap
    track: TrackForBatch


class InProcessGames(Games):
    """K games.

    Args:
        n_games: K.
        game: how races are played. May be replaced at any time: see `game`.
        observation: what the agent sees of them.
        maps_folder: where tracks and reference lines lie.
        extra: a user's own floats of each state.

    Attributes:
        game: settings of the races begun from now on; actions, image and longest race must stay the same.
        layout: every float of the observation.
        n_games: K.
        races: under way.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """

    def __init__(
        self,
        n_games: int,
        game: GameSettings,
        observation: ObservationSettings,
        maps_folder: Path,
        extra: ExtraFloats | None = None,
    ) -> None:
        self.game = game
        self.layout = ObservationLayout.from_settings(observation, game.actions, extra)
        self.n_games = n_games
        self.races = Races(n_games, game, self.layout)
        self._observation = observation
        self._maps_folder = maps_folder
        self._actions = actions_of_game(game)
        self._cars = RaceBatch(n_games)
        self._waits = np.zeros(n_games, dtype=np.bool_)  # for a decision
        self._ended: dict[int, EndedRace] = {}  # since the last `recv`
        self._maps: list[_Map] = []
        self._map_numbers: OrderedDict[tuple[str, str], int] = OrderedDict()  # the map begun last is last
        self._map_of_game = np.full(n_games, -1, dtype=np.int64)
        self._clock = _Clock()
        self._clock_at_begin = [_Clock()] * n_games

    def __deepcopy__(self, memo: dict[int, Any]) -> InProcessGames:
        """Return games in the same states, which go on by themselves; what never changes is shared, maps above all."""
        for shared in (STADIUM_CAR, self.layout, self._actions, *self._maps):
            memo[id(shared)] = shared
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        self._waits[game] = False  # also where the race can't begin
        self._ended.pop(game, None)
        number = self._map_number(map_entry)
        self._map_of_game[game] = number
        game_map, track = self._maps[number]
        self._cars.begin(game, track)
        self._clock_at_begin[game] = self._clock.copy()
        ids = np.array([game])
        self.races.begin(game, game_map.zones, game_map.road, self.game)
        self.races.observe(ids, 0, self._cars.heads)
        if self.game.takes_pictures:
            self._take_pictures([game])
        self.races.add_extra_floats(ids)
        self._waits[game] = True

    @override
    def recv(self) -> Received:
        ids = np.flatnonzero(self._waits)
        images, floats = self.races.look(ids)
        ended, self._ended = self._ended, {}
        return Received(ids, images, floats, self.races.rows[ids] == 0, ended)

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        if len(ids) == 0:
            return
        for game, end in self._step(ids, decision, policy_s).items():
            self._waits[game] = False
            self._ended[game] = self.races.ended(game, end, *self._clock.since(self._clock_at_begin[game]))

    @override
    def under_way(self, game: int, states: range) -> dict[str, Any]:
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
        """Draw the view from behind a game's car now, in colour, whatever the observation holds.

        Returns:
            (height_px, width_px, 3) uint8, red, green, blue; a new array.

        Raises:
            ValueError: if a side is not 1 to 4096 pixels.
        """
        car, passed_count = self._cars.cars[game], int(self._cars.passed_count[game])
        renderer = self._maps[self._map_of_game[game]].track.renderer
        blue_green_red_alpha = renderer.render(
            car["position_m"], car["rotation"], car["ribbon_index"], width_px, height_px, passed_count
        )
        return np.ascontiguousarray(blue_green_red_alpha[:, :, 2::-1])

    def _step(self, games: GameIds, decision: BatchDecision, policy_s: float) -> dict[int, RaceEnd]:
        """Make one action in some games, all of which are in a race; return those whose race ended now, and how."""
        began_s = time.perf_counter()
        self.races.act(games, decision.actions, decision.is_greedy, decision.q_values)
        by_map = self._by_map(games)
        controls = self._actions.controls(decision.actions)
        n_ticks = self.game.engine_ticks_per_action
        for number, places in by_map:
            self._cars.advance(games[places], self._maps[number].track, controls[places], n_ticks)
        self._cars.write_heads()
        driven_s = time.perf_counter()
        due_ms = self.races.rows[games] * self.game.ms_per_action
        for _, places in by_map:
            self.races.observe(games[places], due_ms[places], self._cars.heads)
        looked_s = time.perf_counter()
        ends = self._ends(games, is_due=self._cars.ticks[games] == n_ticks)
        if self.game.takes_pictures:
            self._take_pictures([game for game in games.tolist() if game not in ends or not ends[game].is_finished])
        self.races.add_extra_floats(games)
        drawn_s = time.perf_counter()
        self._clock.add(driven_s - began_s + drawn_s - looked_s, looked_s - driven_s, policy_s, len(games))
        return ends

    def _by_map(self, games: GameIds) -> list[tuple[int, Any]]:
        """Return the maps that some games are on, and at which places in `games` those on each stand."""
        numbers = self._map_of_game[games]
        if (numbers == numbers[0]).all():
            return [(int(numbers[0]), slice(None))]
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]

    def _ends(self, games: GameIds, is_due: npt.NDArray[np.bool_]) -> dict[int, RaceEnd]:
        """Find the races that ended; a cut-off at a decision comes before a finish in that very moment.

        Where no decision `is_due` (n,), the finish came before the next one.
        """
        verdicts = self.races.verdicts[games]
        verdicts = np.where(is_due | (verdicts == NOT_FINITE), verdicts, GOING_ON)
        is_finished = self._cars.passed_count[games] == self._n_gates[self._map_of_game[games]]
        ends = {}
        for place in np.flatnonzero((verdicts != GOING_ON) | is_finished).tolist():
            game = int(games[place])
            if verdicts[place] == NOT_FINITE:
                name = self._maps[self._map_of_game[game]].map.name
                raise FloatingPointError(f"the simulated car on {name} left the world of finite numbers")
            times_ms = self._cars.checkpoint_times_ms(game)
            if verdicts[place] == GOING_ON:
                ends[game] = self.races.finish(game, times_ms[-1], times_ms)
            else:
                ends[game] = self.races.cut_off(game, times_ms)
        return ends

    def _take_pictures(self, games: list[int]) -> None:
        if not games:
            return
        ids = np.array(games)
        pictures, rows = self.races.pictures()
        for number, places in self._by_map(ids):
            self._cars.render_gray(ids[places], self._maps[number].track, pictures, rows)
        self.races.measure_pictures(games)

    def _map_number(self, entry: MapEntry) -> int:
        key = (entry.map_path, entry.reference_line)
        if key not in self._map_numbers:
            track = TrackForBatch(load_track(self._maps_folder / entry.map_path))
            game_map = load_game_map(entry, self._maps_folder, self._observation)
            map_ = _Map(game_map, track)
            if len(self._maps) < self.n_games + SPARE_MAPS:
                self._map_numbers[key] = len(self._maps)
                self._maps.append(map_)
            else:  # there are more maps than games, so one is not driven
                in_use = set(self._map_of_game.tolist())
                oldest = next(old for old, number in self._map_numbers.items() if number not in in_use)
                self._map_numbers[key] = self._map_numbers.pop(oldest)
                self._maps[self._map_numbers[key]] = map_
            self._n_gates = np.array([map_.track.n_gates for map_ in self._maps])
        self._map_numbers.move_to_end(key)
        return self._map_numbers[key]


class _Clock:
    """Wall-clock time of all games together, counted as one game's share of each step."""

    def __init__(self, game_s: float = 0.0, features_s: float = 0.0, policy_s: float = 0.0) -> None:
        self._game_s = game_s
        self._features_s = features_s
        self._policy_s = policy_s

    def add(self, game_s: float, features_s: float, policy_s: float, n_games: int) -> None:
        """Count a step of so many games that took so long."""
        self._game_s += game_s / n_games
        self._features_s += features_s / n_games
        self._policy_s += policy_s / n_games

    def copy(self) -> _Clock:
        """Return what it shows now."""
        return _Clock(self._game_s, self._features_s, self._policy_s)

    def since(self, earlier: _Clock) -> tuple[GameTimings, float]:
        """Return a race's share of the time since an earlier reading: for the game, and for deciding."""
        timings = GameTimings(
            wait_game_s=self._game_s - earlier._game_s, features_s=self._features_s - earlier._features_s
        )
        return timings, self._policy_s - earlier._policy_s
