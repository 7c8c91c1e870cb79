"""Races under way, as arrays: compiled code makes each state's row of the columns from the game's state.

Games in this process keep all their races in one `Races` of K rows. A game behind a socket has one of K = 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.race import cutoffs, known_road, observation_kernel, range_finder, zones
from trackmania_rl.race.actions import Action, actions_of_game
from trackmania_rl.race.cutoffs import REASON_OF_VERDICT, cutoff_rules, judge
from trackmania_rl.race.known_road import KnownRoad, look_along_road
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import (
    ABSENT,
    BEFORE_FIRST_STATE,
    CAR_COLUMNS,
    GEARBOX_STATE_WORD,
    POSITION_WORD,
    VELOCITY_WORD,
    KernelLayout,
    count_gear_change,
    fill_features,
)
from trackmania_rl.race.range_finder import N_BEAMS, measure_ranges
from trackmania_rl.race.results import (
    DECISION_COLUMNS,
    EndedRace,
    GameTimings,
    Observation,
    RaceColumns,
    RaceEnd,
    end_race_stats,
    rollout_results,
)
from trackmania_rl.race.spaces import race_views
from trackmania_rl.race.zones import VirtualCheckpoints, meters_along_line, move_zone
from trackmania_rl.settings import RANGE_FINDER, GameSettings

NOT_FINITE: Final = -1
"""Verdict on a state with numbers that are not finite, beside those of `cutoffs.judge`."""

RaceIds = npt.NDArray[np.int64]
"""(n,) numbers of races, each once."""

_compiled = compiler_for(
    "races",
    [Path(__file__)]
    + [
        Path(str(module.__file__))
        for module in (observation_kernel, state_blob, cutoffs, zones, known_road, range_finder)
    ],
)


class RaceMemory(NamedTuple):
    """What K races carry from state to state, beside their columns; numba takes it as it is. N is as in the columns.

    Attributes:
        zone_idx: (K,) int64, the current zone.
        furthest_zone_idx: (K,) int64, the highest zone reached.
        furthest_m: (K, N) float64, metres along the line at the furthest point reached until each state.
        window_row: (K,) int64, how far `cutoffs.judge` has come.
        actions_since_gear_change: (K,) float64.
        previous_actions: (K, n, W) float32, as the vector says them, oldest first.
        rules: (K, 4) float64, see `cutoff_rules`.
    """

    zone_idx: npt.NDArray[np.int64]
    furthest_zone_idx: npt.NDArray[np.int64]
    furthest_m: npt.NDArray[np.float64]
    window_row: npt.NDArray[np.int64]
    actions_since_gear_change: npt.NDArray[np.float64]
    previous_actions: npt.NDArray[np.float32]
    rules: npt.NDArray[np.float64]


class Races:
    """K races.

    Args:
        n_races: K.
        game: actions, image and longest race, for which there is room.
        layout: every float of the observation.
        frames: (n, 1, H, W) uint8 room for the frames of a single race. Ignored if it is too small for the longest one.

    Attributes:
        layout: see above.
        columns: what is kept of the races, (K, N, ...) each; N is the number of states of the longest race.
        rows: (K,) int64, the row of each race's newest state: the number of actions before it.
        verdicts: (K,) int64, what `cutoffs.judge` says of the newest state, or `NOT_FINITE`.

    Raises:
        ValueError: if the layout is for other actions.
    """

    def __init__(
        self, n_races: int, game: GameSettings, layout: ObservationLayout, frames: npt.NDArray[np.uint8] | None = None
    ) -> None:
        self.layout = layout
        self._game = game
        self._actions = actions_of_game(game)
        if layout.parts_of_an_action != self._actions.parts:
            raise ValueError(f"the layout is for actions of {layout.parts_of_an_action}, not {self._actions.parts}")
        self._forward = self._actions.shown(np.array([self._actions.forward]))[0]
        self._kernel_layout = layout.for_kernel()
        self._views = race_views(layout, game)
        self._picture_range_finder = layout.picture_range_finder(game.image_width_px, game.image_height_px)
        n_states = game.cutoff_race_longer_than_ms // game.ms_per_action + 2
        self.columns = self._room(n_races, n_states, frames)
        self.rows = np.zeros(n_races, dtype=np.int64)
        self.verdicts = np.zeros(n_races, dtype=np.int64)
        self._maps: dict[int, tuple[VirtualCheckpoints, KnownRoad]] = {}  # of each race
        self._unseen_pictures = np.empty((n_races, 1, game.image_height_px, game.image_width_px), dtype=np.uint8)
        self._memory = RaceMemory(
            zone_idx=np.zeros(n_races, dtype=np.int64),
            furthest_zone_idx=np.zeros(n_races, dtype=np.int64),
            furthest_m=np.empty((n_races, n_states)),
            window_row=np.zeros(n_races, dtype=np.int64),
            actions_since_gear_change=np.zeros(n_races),
            previous_actions=np.zeros((n_races, layout.n_previous_actions, len(self._forward)), dtype=np.float32),
            rules=np.zeros((n_races, 4)),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Races:
        """Copy the races with the rows written so far; maps and other constants are shared."""
        for shared in (self.layout, self._actions, self._views, self._picture_range_finder, *self._maps.values()):
            memo[id(shared)] = shared
        n_rows = int(self.rows.max()) + 1
        memo[id(self.columns)] = RaceColumns._make(_copy_of_first_rows(column, n_rows) for column in self.columns)
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def begin(self, race: int, zones: VirtualCheckpoints, road: KnownRoad | None, game: GameSettings) -> None:
        """Begin a race; `observe` its first state next.

        Args:
            race: which one.
            zones: of the map.
            road: likewise; needed where the layout tells of it.
            game: when the race is cut off.
        """
        if road is None and self.layout.needs_road:
            raise ValueError("the observation needs the map's road")
        self._maps[race] = zones, road or KnownRoad.nowhere()
        self.rows[race] = 0
        memory = self._memory
        memory.zone_idx[race] = memory.furthest_zone_idx[race] = zones.first_zone_idx
        memory.window_row[race] = 0
        memory.actions_since_gear_change[race] = BEFORE_FIRST_STATE
        memory.previous_actions[race] = self._forward
        memory.rules[race] = cutoff_rules(game)

    def act(
        self,
        races: RaceIds | int,
        actions: npt.NDArray[Any] | Action,
        is_greedy: npt.NDArray[np.bool_] | bool,
        q_values: npt.NDArray[np.float32],
    ) -> None:
        """Record the decisions in the newest states of some races, or of one; their next states come one row later.

        Args:
            races: which ones.
            actions: see `BatchDecision`, or `PolicyDecision` for one race; likewise the other two.
            is_greedy: see there.
            q_values: see there.
        """
        if q_values.shape[-1] != self.columns.q_values.shape[-1]:  # a policy of one's own may give others
            values = np.zeros((*self.columns.q_values.shape[:2], q_values.shape[-1]), dtype=np.float32)
            self.columns = self.columns._replace(q_values=values)
        rows, columns, previous = self.rows[races], self.columns, self._memory.previous_actions
        columns.actions[races, rows] = actions
        columns.is_greedy[races, rows] = is_greedy
        columns.q_values[races, rows] = q_values
        previous[races, :-1] = previous[races, 1:]
        previous[races, -1] = self._actions.shown(actions)
        self.rows[races] = rows + 1

    def observe(
        self, races: RaceIds, race_times_ms: int | npt.NDArray[np.int64], heads: npt.NDArray[np.uint32]
    ) -> None:
        """Write the newest states of some races on one map, and the verdicts on them.

        Args:
            races: which ones.
            race_times_ms: of the states, (n,) or one for all.
            heads: (K, words) the heads of the state blobs.
        """
        self.columns.race_time_ms[races, self.rows[races]] = race_times_ms
        observe(
            races,
            self.rows,
            heads.view(np.float32),
            heads.view(np.int32),
            *self._maps[int(races[0])],
            self._kernel_layout,
            self._memory,
            self.columns,
            self.verdicts,
        )

    def look(self, races: RaceIds) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Return the newest states of some races as agents see them: images (n, S, H, W) and floats (n, F)."""
        columns = self.columns
        return self._views.look(columns.frames, columns.floats, columns.actions, races, self.rows[races])

    def newest(self, race: int) -> Observation:
        """Return a race's newest state; its arrays are views of the columns."""
        at = (race, self.rows[race])
        seen = self.columns
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

    def pictures(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return where pictures of the newest states belong: an array (K, R, H, W), and the row (K,) of each race."""
        if self._game.has_image:
            return self.columns.frames[:, :, 0], self.rows
        return self._unseen_pictures, np.zeros_like(self.rows)

    def measure_pictures(self, races: Iterable[int]) -> None:
        """Write the ranges that the range finder measures in the newest pictures, if it measures in pictures."""
        if self._picture_range_finder is None:
            return
        pictures, rows = self.pictures()
        for race in races:
            ranges_m = self._picture_range_finder.measure(pictures[race, rows[race]])
            self.columns.floats[race, self.rows[race], self.layout[RANGE_FINDER]] = ranges_m

    def add_extra_floats(self, races: RaceIds) -> None:
        """Compute the user's own floats of the newest states, once the states and their pictures are complete."""
        extra, end = self.layout.extra, self.layout.n_own_floats
        if extra is not None:
            at = races, self.rows[races]
            floats = self.columns.floats[at]
            floats[:, end:] = extra.compute(floats[:, :end])
            self.columns.floats[at] = floats

    def broken_blocks(self, race: int) -> str:
        """Name what is not finite in a race's newest state."""
        floats = self.columns.floats[race, self.rows[race]]
        broken = [block.name for block in self.layout.own_blocks if not np.isfinite(floats[block.slice]).all()]
        return ", ".join(broken) or "the car's place or motion"

    def cut_off(self, race: int, checkpoint_times_ms: tuple[int, ...]) -> RaceEnd:
        """End a race in its newest state, for the reason that the verdict gives."""
        row = self.rows[race]
        return RaceEnd(
            cutoff_reason=REASON_OF_VERDICT[int(self.verdicts[race])],
            race_time_ms=int(self.columns.race_time_ms[race, row]),
            furthest_zone_idx=int(self._memory.furthest_zone_idx[race]),
            furthest_m=float(self._memory.furthest_m[race, row]),
            checkpoint_times_ms=checkpoint_times_ms,
            last=self.newest(race),
        )

    def finish(self, race: int, race_time_ms: int, checkpoint_times_ms: tuple[int, ...]) -> RaceEnd:
        """End a race in its newest state, the one at the finish.

        A decision made at the very moment of the finish led nowhere; its row is overwritten.
        """
        columns, row = self.columns, self.rows[race]
        columns.race_time_ms[race, row] = race_time_ms
        if columns.race_time_ms[race, row - 1] < race_time_ms:
            columns.frames[race, row] = columns.frames[race, row - 1]  # see `RaceEnd.last`
        else:
            self._copy_state(race, row, row - 1)
            self.rows[race] -= 1
        zones, _ = self._maps[race]
        return RaceEnd(
            cutoff_reason=None,
            race_time_ms=race_time_ms,
            furthest_zone_idx=zones.finish_zone_idx,
            furthest_m=zones.finish_m,
            checkpoint_times_ms=checkpoint_times_ms,
            last=self.newest(race),
        )

    def stand_still(self, race: int) -> None:
        """Write the state before the last decision once more, as the one after it."""
        self._copy_state(race, self.rows[race] - 1, self.rows[race])

    def ended(self, race: int, end: RaceEnd, timings: GameTimings, policy_s: float) -> EndedRace:
        """Return a race that is over; its arrays are views of the columns."""
        columns = self.columns.of_race(race, range(int(self.rows[race]) + 1))
        zones, _ = self._maps[race]
        stats = end_race_stats(columns, end, zones, self._game, timings, policy_s)
        return EndedRace(end, rollout_results(columns, end, zones, self._game), stats)

    def under_way(self, race: int, states: range) -> dict[str, Any]:
        """Return a part of a race that goes on as `rollout_results`; the arrays are views of the columns."""
        zones, _ = self._maps[race]
        return rollout_results(self.columns.of_race(race, states), None, zones, self._game)

    def _copy_state(self, race: int, source: int, target: int) -> None:
        for name, column in self.columns._asdict().items():
            if name not in (*DECISION_COLUMNS, "frames"):
                column[race, target] = column[race, source]

    def _room(self, n_races: int, n_states: int, frames: npt.NDArray[np.uint8] | None) -> RaceColumns:
        """Return room for the longest race; the operating system provides a page when it is first written."""
        extra = self.layout.extra

        def room(dtype: type[np.generic], *shape: int) -> npt.NDArray[Any]:
            return np.empty((n_races, n_states, *shape), dtype=dtype)

        if frames is None or len(frames) < n_states or not frames.flags.c_contiguous:
            frames_of_races = room(np.uint8, 1, *self._game.image_shape[1:])
        else:
            frames_of_races = frames[None, :n_states]
        return RaceColumns(
            frames=frames_of_races,
            floats=room(np.float32, self.layout.n_own_floats + (extra.n if extra is not None else 0)),
            car=room(np.float32, len(CAR_COLUMNS)),
            zone_idx=room(np.int64),
            meters=room(np.float64),
            race_time_ms=room(np.int64),
            position_m=room(np.float32, 3),
            speed_m_s=room(np.float64),
            actions=room(self._actions.dtype, *self._actions.shape),
            is_greedy=room(np.bool_),
            q_values=room(np.float32, self._actions.n_values),
        )


def _copy_of_first_rows(column: npt.NDArray[Any], n_rows: int) -> npt.NDArray[Any]:
    """Return a column with its first rows: those beyond them, mostly memory never touched, hold no state yet."""
    copied = np.empty_like(column)
    copied[:, :n_rows] = column[:, :n_rows]
    return copied


@_compiled
def _progress(
    race: int, row: int, head_f32: npt.NDArray[Any], zones: VirtualCheckpoints, memory: RaceMemory
) -> tuple[int, float]:
    """Move a race's zone to the car; return it and the metres along the line."""
    position_m = head_f32[POSITION_WORD : POSITION_WORD + 3]
    zone_idx = move_zone(memory.zone_idx[race], position_m, zones)
    meters = meters_along_line(zone_idx, position_m, zones)
    memory.zone_idx[race] = zone_idx
    memory.furthest_zone_idx[race] = max(memory.furthest_zone_idx[race], zone_idx)
    furthest_m = memory.furthest_m[race]
    furthest_m[row] = meters if row == 0 else max(furthest_m[row - 1], meters)
    return zone_idx, meters


@_compiled
def _find_ranges(
    race: int,
    row: int,
    head_f32: npt.NDArray[Any],
    zone_idx: int,
    road: KnownRoad,
    layout: KernelLayout,
    columns: RaceColumns,
) -> None:
    """Write the ranges: measured on the track, or those of the state before until its picture is measured."""
    block = layout.at.range_finder_m
    floats = columns.floats[race, row, block : block + N_BEAMS]
    if layout.measures_on_track:
        measure_ranges(floats, head_f32, zone_idx, road, layout.range_finder_reach_m)
    else:
        for beam in range(N_BEAMS):
            floats[beam] = columns.floats[race, row - 1, block + beam] if row > 0 else 0.0


@_compiled
def _length(vector: npt.NDArray[np.float32]) -> float:
    """Return a vector's length, in double precision."""
    squared = 0.0
    for axis in range(3):
        squared += np.float64(vector[axis]) ** 2
    return math.sqrt(squared)


@_compiled
def observe(
    races: npt.NDArray[np.int64],
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
    """Write the newest states of some races on one map.

    Args:
        races: (n,) which ones.
        rows: (K,) the state's row in each race.
        heads_f32: (K, words) the heads of the state blobs.
        heads_i32: the same memory as integers.
        zones: of the map.
        road: likewise, where the layout needs it.
        layout: where the floats are.
        memory: of all races; updated.
        columns: (K, N, ...) each; race times are read, the states' other columns are written.
        verdicts: (K,) written: what `cutoffs.judge` says, or `NOT_FINITE`.
    """
    for i in range(len(races)):
        race = races[i]
        row = rows[race]
        head_f32, head_i32 = heads_f32[race], heads_i32[race]
        zone_idx, meters = _progress(race, row, head_f32, zones, memory)
        memory.actions_since_gear_change[race] = count_gear_change(
            head_i32[GEARBOX_STATE_WORD], memory.actions_since_gear_change[race]
        )
        if layout.at.range_finder_m != ABSENT:
            _find_ranges(race, row, head_f32, zone_idx, road, layout, columns)
        start = layout.at.road_ahead
        if start != ABSENT:
            ahead = columns.floats[race, row, start : start + layout.n_road_floats]
            look_along_road(ahead, zone_idx, layout.zone_stride, road)
        are_finite = fill_features(
            columns.floats[race, row, : layout.n_floats],
            columns.car[race, row],
            head_f32,
            head_i32,
            memory.previous_actions[race].reshape(-1),
            memory.actions_since_gear_change[race],
            zone_idx,
            zones.border_distance_m[zones.last_zone_idx] - meters,
            zones.centers_m,
            layout,
        )
        columns.zone_idx[race, row] = zone_idx
        columns.meters[race, row] = meters
        columns.position_m[race, row] = head_f32[POSITION_WORD : POSITION_WORD + 3]
        columns.speed_m_s[race, row] = _length(head_f32[VELOCITY_WORD : VELOCITY_WORD + 3])
        verdict, memory.window_row[race] = judge(
            columns.race_time_ms[race],
            memory.furthest_m[race],
            row,
            memory.window_row[race],
            memory.rules[race],
        )
        verdicts[race] = verdict if are_finite else NOT_FINITE
