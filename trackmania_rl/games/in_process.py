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

from trackmania_rl.games.observing import NOT_FINITE, RaceMemory, observe
from trackmania_rl.games.protocol import FramesRoom, GameIds, Motion, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.cutoffs import GOING_ON, REASON_OF_VERDICT, CutoffReason, CutoffRules
from trackmania_rl.race.known_road import KnownRoad
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import DECISION_COLUMNS, EndedRace, RaceColumns, end_race_stats, rollout_results
from trackmania_rl.race.spaces import race_views
from trackmania_rl.race.types import GameTimings, Observation, RaceEnd
from trackmania_rl.settings import RANGE_FINDER, GameSettings, MapEntry, ObservationSettings
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
    road: KnownRoad


class InProcessGames:
    """K games.

    Args:
        n_games: K.
        game: how races are played. May be replaced at any time: see `game`.
        observation: what the agent sees of them.
        maps_folder: where tracks and reference lines lie.

    Attributes:
        game: settings of the races begun from now on; actions, image and longest race must stay the same.
        layout: every float of the observation.
        n_games: K.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """

    def __init__(self, n_games: int, game: GameSettings, observation: ObservationSettings, maps_folder: Path) -> None:
        self.game = game
        self.layout = ObservationLayout.from_settings(observation, game.actions)
        self.n_games = n_games
        self._observation = observation
        self._maps_folder = maps_folder
        self._kernel_layout = self.layout.for_kernel()
        self._picture_range_finder = self.layout.picture_range_finder(game.image_width_px, game.image_height_px)
        self._actions = actions_of_game(game)
        self._views = race_views(self.layout, game)
        n_states = game.cutoff_race_longer_than_ms // game.ms_per_action + 2
        self._races = RaceBatch(n_games)
        self._memory = RaceMemory.of_games(n_games, n_states, self.layout.n_previous_actions, len(self._actions.parts))
        self._columns = _columns(n_games, n_states, game, self.layout)
        size_px = (game.image_height_px, game.image_width_px)
        self._picture_of_game = np.empty((n_games, 1, *size_px), dtype=np.uint8)
        self._rows = np.zeros(n_games, dtype=np.int64)
        self._waits = np.zeros(n_games, dtype=np.bool_)  # for a decision
        self._ended: dict[int, EndedRace] = {}  # since the last `recv`
        self._verdicts = np.zeros(n_games, dtype=np.int64)
        self._maps: list[_Map] = []
        self._map_numbers: OrderedDict[tuple[str, str], int] = OrderedDict()  # the map begun last is last
        self._map_of_game = np.full(n_games, -1, dtype=np.int64)
        self._clock = _Clock()
        self._clock_at_begin = [_Clock()] * n_games

    def __deepcopy__(self, memo: dict[int, Any]) -> InProcessGames:
        """Return games in the same states, which go on by themselves; what never changes is shared, maps above all."""
        for shared in (STADIUM_CAR, self.layout, self._actions, *self._maps):
            memo[id(shared)] = shared
        n_rows = int(self._rows.max()) + 1
        memo[id(self._columns)] = RaceColumns._make(_copy_of_first_rows(column, n_rows) for column in self._columns)
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """See `Games.begin`; what the game's last race left behind is overwritten, and `frames` is not needed here."""
        self._waits[game] = False  # also where the race can't begin
        self._ended.pop(game, None)
        number = self._map_number(map_entry)
        self._map_of_game[game] = number
        self._rows[game] = 0
        self._columns.race_time_ms[game, 0] = 0
        self._races.begin(game, self._maps[number].track)
        forward = self._actions.shown(np.array([self._actions.forward]))[0]
        self._memory.begin(game, self._maps[number].map.zones, forward, CutoffRules.from_settings(self.game))
        self._clock_at_begin[game] = self._clock.copy()
        self._look_at(np.array([game]), number)
        if self.game.takes_pictures:
            self._take_pictures([game])
        self._waits[game] = True

    def recv(self) -> Received:
        """See `Games.recv`: all games that are in a race, at once."""
        ids = np.flatnonzero(self._waits)
        rows = self._rows[ids]
        seen = self._columns
        images, floats = self._views.look(seen.frames, seen.floats, seen.actions, ids, rows)
        ended, self._ended = self._ended, {}
        return Received(ids, images, floats, rows == 0, ended)

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """See `Games.send`: the games drive on until their next decision, or the race's end."""
        if len(ids) == 0:
            return
        for game, end in self._step(ids, decision, policy_s).items():
            self._waits[game] = False
            self._ended[game] = self._ended_race(game, end)

    def under_way(self, game: int, states: range) -> dict[str, Any]:
        """See `Games.under_way`; the arrays are views, as in `recv`."""
        zones = self._maps[self._map_of_game[game]].map.zones
        return rollout_results(self._columns.of_race(game, states), None, zones, self.game)

    def motion(self, ids: GameIds) -> Motion:
        """See `Games.motion`."""
        rows = self._rows[ids]
        return Motion._make(getattr(self._columns, name)[ids, rows] for name in Motion._fields)

    def close(self) -> bool:
        """See `Games.close`; there is nothing to end."""
        return True

    def _newest_state(self, game: int) -> Observation:
        """Return a game's newest state, as the race machine tells it; its arrays are views, as in `recv`."""
        at = (game, self._rows[game])
        seen = self._columns
        return Observation(
            frame=seen.frames[at],
            floats=seen.floats[at],
            car=seen.car[at],
            zone_idx=int(seen.zone_idx[at]),
            meters=float(seen.meters[at]),
            race_time_ms=int(seen.race_time_ms[at]),
            position_m=seen.position_m[at],
            speed_m_s=float(seen.speed_m_s[at]),
        )

    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
        """Draw the view from behind a game's car now, in colour, whatever the observation holds.

        Returns:
            (height_px, width_px, 3) uint8, red, green, blue; a new array.

        Raises:
            ValueError: if a side is not 1 to 4096 pixels.
        """
        car, passed_count = self._races.cars[game], int(self._races.passed_count[game])
        renderer = self._maps[self._map_of_game[game]].track.renderer
        blue_green_red_alpha = renderer.render(
            car["position_m"], car["rotation"], car["ribbon_index"], width_px, height_px, passed_count
        )
        return np.ascontiguousarray(blue_green_red_alpha[:, :, 2::-1])

    def _step(self, games: GameIds, decision: BatchDecision, policy_s: float) -> dict[int, RaceEnd]:
        """Make one action in some games, all of which are in a race; return those whose race ended now, and how."""
        began_s = time.perf_counter()
        rows = self._rows[games]
        self._columns.actions[games, rows] = decision.actions
        self._columns.is_greedy[games, rows] = decision.is_greedy
        self._columns.q_values[games, rows] = decision.q_values
        self._memory.record_actions(games, self._actions.shown(decision.actions))
        by_map = self._by_map(games)
        controls = self._actions.controls(decision.actions)
        n_ticks = self.game.engine_ticks_per_action
        for number, places in by_map:
            self._races.advance(games[places], self._maps[number].track, controls[places], n_ticks)
        self._races.write_heads()
        driven_s = time.perf_counter()
        self._rows[games] = rows + 1
        self._columns.race_time_ms[games, rows + 1] = (rows + 1) * self.game.ms_per_action
        for number, places in by_map:
            self._look_at(games[places], number)
        looked_s = time.perf_counter()
        ends = self._ends(games, is_due=self._races.ticks[games] == n_ticks)
        if self.game.takes_pictures:
            self._take_pictures([game for game in games.tolist() if game not in ends or not ends[game].is_finished])
        drawn_s = time.perf_counter()
        self._clock.add(driven_s - began_s + drawn_s - looked_s, looked_s - driven_s, policy_s, len(games))
        return ends

    def _ended_race(self, game: int, end: RaceEnd) -> EndedRace:
        """Return the race that has just ended in a game; its arrays are views that the game's next race overwrites."""
        columns = self._columns.of_race(game, range(int(self._rows[game]) + 1))
        zones = self._maps[self._map_of_game[game]].map.zones
        timings, policy_s = self._clock.since(self._clock_at_begin[game])
        stats = end_race_stats(columns, end, zones, self.game, timings, policy_s)
        return EndedRace(end, rollout_results(columns, end, zones, self.game), stats)

    def _by_map(self, games: GameIds) -> list[tuple[int, Any]]:
        """Return the maps that some games are on, and at which places in `games` those on each stand."""
        numbers = self._map_of_game[games]
        if (numbers == numbers[0]).all():
            return [(int(numbers[0]), slice(None))]
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]

    def _look_at(self, games: GameIds, map_number: int) -> None:
        heads = self._races.heads
        observe(
            games,
            self._rows,
            heads.view(np.float32),
            heads.view(np.int32),
            self._maps[map_number].map.zones,
            self._maps[map_number].road,
            self._kernel_layout,
            self._memory,
            self._columns,
            self._verdicts,
        )

    def _ends(self, games: GameIds, is_due: npt.NDArray[np.bool_]) -> dict[int, RaceEnd]:
        """Find the races that ended; a cut-off at a decision comes before a finish in that very moment.

        Where no decision `is_due` (n,), the finish came before the next one.
        """
        verdicts = self._verdicts[games]
        verdicts = np.where(is_due | (verdicts == NOT_FINITE), verdicts, GOING_ON)
        is_finished = self._races.passed_count[games] == self._n_gates[self._map_of_game[games]]
        ends = {}
        for place in np.flatnonzero((verdicts != GOING_ON) | is_finished).tolist():
            verdict, game = int(verdicts[place]), int(games[place])
            if verdict == NOT_FINITE:
                name = self._maps[self._map_of_game[game]].map.name
                raise FloatingPointError(f"the simulated car on {name} left the world of finite numbers")
            ends[game] = self._end(game, REASON_OF_VERDICT.get(verdict))
        return ends

    def _end(self, game: int, reason: CutoffReason | None) -> RaceEnd:
        zones = self._maps[self._map_of_game[game]].map.zones
        times_ms = self._races.checkpoint_times_ms(game)
        is_finished = reason is None
        if is_finished:
            self._arrive_at_finish(game, times_ms[-1])
        row = self._rows[game]
        return RaceEnd(
            cutoff_reason=reason,
            race_time_ms=int(self._columns.race_time_ms[game, row]),
            furthest_zone_idx=zones.finish_zone_idx if is_finished else int(self._memory.furthest_zone_idx[game]),
            furthest_m=zones.finish_m if is_finished else float(self._memory.furthest_m[game, row]),
            checkpoint_times_ms=times_ms,
            last=self._newest_state(game),
        )

    def _arrive_at_finish(self, game: int, race_time_ms: int) -> None:
        """Keep a finish's state as the race's last; a decision made at that very moment led nowhere, and goes."""
        columns, row = self._columns, self._rows[game]
        columns.race_time_ms[game, row] = race_time_ms
        if columns.race_time_ms[game, row - 1] < race_time_ms:
            columns.frames[game, row] = columns.frames[game, row - 1]  # see `RaceEnd.last`
            return
        for name, column in columns._asdict().items():
            if name not in (*DECISION_COLUMNS, "frames"):
                column[game, row - 1] = column[game, row]
        self._rows[game] -= 1

    def _take_pictures(self, games: list[int]) -> None:
        if games:
            numbers, frames = np.array(games, dtype=np.int64), self._pictures
            rows = self._rows if self.game.has_image else np.zeros_like(self._rows)
            for number, places in self._by_map(numbers):
                self._races.render_gray(numbers[places], self._maps[number].track, frames, rows)
            if self._picture_range_finder is not None:
                for game in games:
                    ranges_m = self._picture_range_finder.measure(frames[game, rows[game]])
                    self._columns.floats[game, self._rows[game], self.layout[RANGE_FINDER]] = ranges_m

    @property
    def _pictures(self) -> npt.NDArray[np.uint8]:
        """(K, R, H, W), where pictures are drawn: the column of frames, or one of each game if nothing else looks."""
        if self.game.has_image:
            return self._columns.frames[:, :, 0]
        return self._picture_of_game

    def _map_number(self, entry: MapEntry) -> int:
        key = (entry.map_path, entry.reference_line)
        if key not in self._map_numbers:
            track = TrackForBatch(load_track(self._maps_folder / entry.map_path))
            game_map = load_game_map(entry, self._maps_folder, self._observation)
            map_ = _Map(game_map, track, game_map.road or KnownRoad.nowhere())
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


def _columns(n_games: int, n_states: int, game: GameSettings, layout: ObservationLayout) -> RaceColumns:
    """Return room for the longest race of every game; the operating system provides a page when it is first written."""
    actions = actions_of_game(game)

    def room(dtype: type[np.generic], *shape: int) -> npt.NDArray[Any]:
        return np.empty((n_games, n_states, *shape), dtype=dtype)

    return RaceColumns(
        frames=room(np.uint8, 1, *game.image_shape[1:]),
        floats=room(np.float32, layout.n_own_floats),
        car=room(np.float32, len(CAR_COLUMNS)),
        zone_idx=room(np.int64),
        meters=room(np.float64),
        race_time_ms=room(np.int64),
        position_m=room(np.float32, 3),
        speed_m_s=room(np.float64),
        actions=room(actions.dtype, *actions.shape),
        is_greedy=room(np.bool_),
        q_values=room(np.float32, actions.n_values),
    )


def _copy_of_first_rows(column: npt.NDArray[Any], n_rows: int) -> npt.NDArray[Any]:
    """Return a column with its first rows: those beyond them, mostly memory never touched, hold no state yet."""
    copied = np.empty_like(column)
    copied[:, :n_rows] = column[:, :n_rows]
    return copied
