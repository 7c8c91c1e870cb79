"""What many games' states look like to agent, rewards and statistics, made by one call of compiled code.

It goes through the same steps as the race machine does for one game, and through the same compiled functions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.race import cutoffs, known_road, observation_kernel, range_finder, zones
from trackmania_rl.race.cutoffs import CutoffRules, judge
from trackmania_rl.race.known_road import KnownRoad, look_along_road
from trackmania_rl.race.observation_kernel import (
    ABSENT,
    BEFORE_FIRST_STATE,
    GEARBOX_STATE_WORD,
    POSITION_WORD,
    VELOCITY_WORD,
    KernelLayout,
    count_gear_change,
    fill_features,
)
from trackmania_rl.race.range_finder import N_BEAMS, measure_ranges
from trackmania_rl.race.results import RaceColumns
from trackmania_rl.race.zones import VirtualCheckpoints, meters_along_line, move_zone

NOT_FINITE: Final = -1
"""Beside the verdicts of `cutoffs.judge`: a state with numbers that are not finite."""

_compiled = compiler_for(
    "in_process",
    [Path(__file__)]
    + [
        Path(str(module.__file__))
        for module in (observation_kernel, state_blob, cutoffs, zones, known_road, range_finder)
    ],
)


class RaceMemory(NamedTuple):
    """What a single state of K games does not tell; numba takes it as it is. N is the longest race's number of states.

    Attributes:
        zone_idx: (K,) int64, the current zone.
        furthest_zone_idx: (K,) int64, the highest zone reached.
        furthest_m: (K, N) float64, metres along the line at the furthest point reached until each state.
        window_row: (K,) int64, how far `cutoffs.judge` has come.
        actions_since_gear_change: (K,) float64.
        previous_actions: (K, n, W) float32, as the vector says them, oldest first.
        longer_than_ms: (K,) int64, with the three below the rules of each game's race, see `CutoffRules`.
        no_progress_within_ms: (K,) int64.
        progress_m: (K,) float64.
        horizon_actions: (K,) int64.
    """

    zone_idx: npt.NDArray[np.int64]
    furthest_zone_idx: npt.NDArray[np.int64]
    furthest_m: npt.NDArray[np.float64]
    window_row: npt.NDArray[np.int64]
    actions_since_gear_change: npt.NDArray[np.float64]
    previous_actions: npt.NDArray[np.float32]
    longer_than_ms: npt.NDArray[np.int64]
    no_progress_within_ms: npt.NDArray[np.int64]
    progress_m: npt.NDArray[np.float64]
    horizon_actions: npt.NDArray[np.int64]

    @classmethod
    def of_games(cls, n_games: int, n_states: int, n_previous_actions: int, n_parts: int) -> RaceMemory:
        """Return room for `n_games` games, W = `n_parts` floats an action; `begin` fills it in."""
        return cls(
            zone_idx=np.zeros(n_games, dtype=np.int64),
            furthest_zone_idx=np.zeros(n_games, dtype=np.int64),
            furthest_m=np.empty((n_games, n_states)),
            window_row=np.zeros(n_games, dtype=np.int64),
            actions_since_gear_change=np.zeros(n_games),
            previous_actions=np.zeros((n_games, n_previous_actions, n_parts), dtype=np.float32),
            longer_than_ms=np.zeros(n_games, dtype=np.int64),
            no_progress_within_ms=np.zeros(n_games, dtype=np.int64),
            progress_m=np.zeros(n_games),
            horizon_actions=np.zeros(n_games, dtype=np.int64),
        )

    def begin(self, game: int, zones: VirtualCheckpoints, forward: npt.NDArray[np.float32], rules: CutoffRules) -> None:
        """Forget a game's last race.

        Args:
            game: which game.
            zones: of the new race's map.
            forward: (W,) what the vector says of every action before the first one.
            rules: when the new race is cut off.
        """
        self.zone_idx[game] = self.furthest_zone_idx[game] = zones.first_zone_idx
        self.window_row[game] = 0
        self.actions_since_gear_change[game] = BEFORE_FIRST_STATE
        self.previous_actions[game] = forward
        self.longer_than_ms[game] = rules.longer_than_ms
        self.no_progress_within_ms[game] = rules.no_progress_within_ms
        self.progress_m[game] = rules.progress_m
        self.horizon_actions[game] = rules.horizon_actions

    def record_actions(self, games: npt.NDArray[np.int64], shown: npt.NDArray[np.float32]) -> None:
        """Remember the actions that lead from the last states of some games, (n,), to the next: (n, W)."""
        self.previous_actions[games, :-1] = self.previous_actions[games, 1:]
        self.previous_actions[games, -1] = shown


@_compiled
def _progress(
    game: int, row: int, head_f32: npt.NDArray[Any], zones: VirtualCheckpoints, memory: RaceMemory
) -> tuple[int, float]:
    """Follow a game's car to its zone, and along the line; return both."""
    position_m = head_f32[POSITION_WORD : POSITION_WORD + 3]
    zone_idx = move_zone(memory.zone_idx[game], position_m, zones)
    meters = meters_along_line(zone_idx, position_m, zones)
    memory.zone_idx[game] = zone_idx
    memory.furthest_zone_idx[game] = max(memory.furthest_zone_idx[game], zone_idx)
    furthest_m = memory.furthest_m[game]
    furthest_m[row] = meters if row == 0 else max(furthest_m[row - 1], meters)
    return zone_idx, meters


@_compiled
def _find_ranges(
    game: int,
    row: int,
    head_f32: npt.NDArray[Any],
    zone_idx: int,
    road: KnownRoad,
    layout: KernelLayout,
    columns: RaceColumns,
) -> None:
    """Write the range finder's floats: measured on the track, or the state before's, until a picture is there."""
    block = layout.at.range_finder_m
    floats = columns.floats[game, row, block : block + N_BEAMS]
    if layout.measures_on_track:
        measure_ranges(floats, head_f32, zone_idx, road, layout.range_finder_reach_m)
    else:
        for beam in range(N_BEAMS):
            floats[beam] = columns.floats[game, row - 1, block + beam] if row > 0 else 0.0


@_compiled
def _length(vector: npt.NDArray[np.float32]) -> float:
    """Return a vector's length, in double precision."""
    squared = 0.0
    for axis in range(3):
        squared += np.float64(vector[axis]) ** 2
    return math.sqrt(squared)


@_compiled
def observe(
    games: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    heads_f32: npt.NDArray[np.float32],
    heads_i32: npt.NDArray[np.int32],
    zones: VirtualCheckpoints,
    road: KnownRoad,
    layout: KernelLayout,
    memory: RaceMemory,
    columns: RaceColumns,
    verdicts: npt.NDArray[np.int64],
) -> None:
    """Look at the next state of some games on one map.

    Args:
        games: (n,) which ones.
        rows: (K,) the number of each game's state, from 0 in each race: where in the columns it is written.
        heads_f32: (K, words) the heads of the state blobs.
        heads_i32: the same memory as integers.
        zones: of the map.
        road: likewise, where the layout needs it.
        layout: where the floats are.
        memory: of all games; brought up to date. Race times are read from the columns.
        columns: (K, N, ...) each; the states' own are written.
        verdicts: (K,) written: what `cutoffs.judge` says, or `NOT_FINITE`.
    """
    for i in range(len(games)):
        game = games[i]
        row = rows[game]
        head_f32, head_i32 = heads_f32[game], heads_i32[game]
        zone_idx, meters = _progress(game, row, head_f32, zones, memory)
        memory.actions_since_gear_change[game] = count_gear_change(
            head_i32[GEARBOX_STATE_WORD], memory.actions_since_gear_change[game]
        )
        if layout.at.range_finder_m != ABSENT:
            _find_ranges(game, row, head_f32, zone_idx, road, layout, columns)
        start = layout.at.road_ahead
        if start != ABSENT:
            ahead = columns.floats[game, row, start : start + layout.n_road_floats]
            look_along_road(ahead, zone_idx, layout.zone_stride, road)
        are_finite = fill_features(
            columns.floats[game, row],
            columns.car[game, row],
            head_f32,
            head_i32,
            memory.previous_actions[game].reshape(-1),
            memory.actions_since_gear_change[game],
            zone_idx,
            zones.border_distance_m[zones.last_zone_idx] - meters,
            zones.centers_m,
            layout,
        )
        columns.zone_idx[game, row] = zone_idx
        columns.meters[game, row] = meters
        columns.position_m[game, row] = head_f32[POSITION_WORD : POSITION_WORD + 3]
        columns.speed_m_s[game, row] = _length(head_f32[VELOCITY_WORD : VELOCITY_WORD + 3])
        verdict, memory.window_row[game] = judge(
            columns.race_time_ms[game],
            memory.furthest_m[game],
            row,
            memory.window_row[game],
            memory.longer_than_ms[game],
            memory.no_progress_within_ms[game],
            memory.progress_m[game],
            memory.horizon_actions[game],
        )
        verdicts[game] = verdict if are_finite else NOT_FINITE
