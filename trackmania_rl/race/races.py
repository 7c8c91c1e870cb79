"""Arrays for K races in progress, and the race values made from them.

Games in this process share one `Races`; behind sockets each has one (K = 1).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import Action, BatchDecision, actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import (
    BEFORE_FIRST_STATE,
    CAR_COLUMNS,
    FINISHED,
    GOING_ON,
    NOT_FINITE,
    REASON_OF_VERDICT,
    CutoffReason,
    ObserverState,
    StateColumns,
    cutoff_rules,
    observe,
)
from trackmania_rl.race.race import Race, RaceFacts, highest_value
from trackmania_rl.race.road import KnownRoad, VirtualCheckpoints
from trackmania_rl.race.spaces import race_views
from trackmania_rl.settings import RANGE_FINDER, GameSettings, MapEntry

RaceIds = npt.NDArray[np.int64]
"""(n,) distinct race numbers."""
Draw = Callable[[RaceIds, npt.NDArray[np.uint8], npt.NDArray[np.int64]], object]
"""Draws the newest pictures for races (n,) into pictures (K, R, H, W), each at the race's row (K,)."""

DECISION_COLUMNS: Final = ("actions", "is_greedy", "q_values", "action_log_prob")
"""Columns without a row for the race's last state."""


class Observation(NamedTuple):
    """One race state; shapes as in `StateColumns`."""

    frame: npt.NDArray[np.uint8]  #: (1, H, W)
    floats: npt.NDArray[np.float32]
    car: npt.NDArray[np.float32]
    zone_idx: int
    meters: float
    race_time_ms: int
    position_m: npt.NDArray[np.float32]
    speed_m_s: float


@dataclass
class GameTimings:
    """A race's wall-clock time in seconds, by activity."""

    wait_game_s: float = 0.0
    answer_game_s: float = 0.0
    features_s: float = 0.0
    policy_s: float = 0.0


class Races:
    """Arrays for K races.

    Args:
        frames: (n, 1, H, W) uint8 storage for a single race's frames, if large enough.

    Attributes:
        columns: (K, N, ...) each; N is the longest race's state count.
        rows: (K,) int64, row of the newest state in each race, equal to the action count before it.
        verdicts: (K,) int64, from `observe` on the newest state.

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
        n_states = game.most_states
        self.columns = self._room(n_races, n_states, frames)
        self.rows = np.zeros(n_races, dtype=np.int64)
        self.verdicts = np.zeros(n_races, dtype=np.int64)
        self._entries: dict[int, MapEntry] = {}
        self._maps: dict[int, tuple[VirtualCheckpoints, KnownRoad]] = {}
        self._map_numbers = np.zeros(n_races, dtype=np.int64)  # equal for races on the same map
        self._unseen_pictures = np.empty((n_races, 1, game.image_height_px, game.image_width_px), dtype=np.uint8)
        self._memory = ObserverState(
            zone_idx=np.zeros(n_races, dtype=np.int64),
            furthest_zone_idx=np.zeros(n_races, dtype=np.int64),
            furthest_m=np.empty((n_races, n_states)),
            window_row=np.zeros(n_races, dtype=np.int64),
            actions_since_gear_change=np.zeros(n_races),
            previous_actions=np.zeros((n_races, layout.n_previous_actions, len(self._forward)), dtype=np.float32),
            rules=np.zeros((n_races, 4)),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Races:
        """Copy the rows written so far; share constants."""
        of_maps = (*self._entries.values(), *self._maps.values())
        for shared in (self.layout, self._actions, self._views, self._picture_range_finder, *of_maps):
            memo[id(shared)] = shared
        n_rows = int(self.rows.max()) + 1

        def with_first_rows(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            copied = np.empty_like(column)
            copied[:, :n_rows] = column[:, :n_rows]
            return copied

        memo[id(self.columns)] = StateColumns._make([with_first_rows(column) for column in self.columns])
        races = object.__new__(type(self))
        memo[id(self)] = races
        vars(races).update(copy.deepcopy(vars(self), memo))
        return races

    def begin(
        self, race: int, entry: MapEntry, zones: VirtualCheckpoints, road: KnownRoad | None, game: GameSettings
    ) -> None:
        """Begin a race on a map with the cut-offs in `game`; `observe` the first state next."""
        if road is None and self.layout.needs_road:
            raise ValueError("the observation needs the map's road")
        self._entries[race] = entry
        self._maps[race] = zones, road or KnownRoad.nowhere()
        self._map_numbers[race] = id(zones)
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
        action_log_prob: npt.NDArray[np.float32] | float | None = None,
    ) -> None:
        """Record a `BatchDecision` in races' newest states, or a `PolicyDecision` in one."""
        if q_values.shape[-1] != self.columns.q_values.shape[-1]:  # a user's policy may return another number
            values = np.zeros((*self.columns.q_values.shape[:2], q_values.shape[-1]), dtype=np.float32)
            self.columns = self.columns._replace(q_values=values)
        rows = self.rows[races]
        columns = self.columns
        previous = self._memory.previous_actions
        columns.actions[races, rows] = actions
        columns.is_greedy[races, rows] = is_greedy
        columns.q_values[races, rows] = q_values
        columns.action_log_prob[races, rows] = np.nan if action_log_prob is None else action_log_prob
        previous[races, :-1] = previous[races, 1:]
        previous[races, -1] = self._actions.shown(actions)
        self.rows[races] = rows + 1

    def observe(
        self, races: RaceIds, race_times_ms: int | npt.NDArray[np.int64], heads: npt.NDArray[np.uint32]
    ) -> None:
        """Write these races' newest states and verdicts.

        Args:
            races: (n,).
            race_times_ms: (n,), or one for all.
            heads: (K, words) state blob heads.
        """
        self.columns.race_time_ms[races, self.rows[races]] = race_times_ms
        for places in self.by_map(races):
            of_map = races[places]
            observe(
                of_map,
                self.rows,
                heads.view(np.float32),
                heads.view(np.int32),
                *self._maps[int(of_map[0])],
                self._kernel_layout,
                self._memory,
                self.columns,
                self.verdicts,
            )

    def step(
        self,
        races: RaceIds,
        decision: BatchDecision,
        heads: npt.NDArray[np.uint32],
        is_due: npt.NDArray[np.bool_],
        is_finished: npt.NDArray[np.bool_],
        draw: Draw | None,
    ) -> npt.NDArray[np.int64]:
        """Record decisions for races (n,), and write the resulting states.

        Args:
            races: (n,).
            decision: for these races.
            heads: (K, words) state blob heads.
            is_due: (n,) whether the state is one action later; else the finish came before.
            is_finished: (n,) whether the car has passed the finish.
            draw: draws the states' pictures; None without pictures.

        Returns:
            (n,) verdicts. A cut-off at a decision precedes a finish at the same time.
        """
        self.act(races, decision.actions, decision.is_greedy, decision.q_values, decision.action_log_prob)
        self.observe(races, self.rows[races] * self._game.ms_per_action, heads)
        verdicts = self.verdicts[races]
        verdicts = np.where(is_due | (verdicts == NOT_FINITE), verdicts, GOING_ON)
        verdicts[(verdicts == GOING_ON) & is_finished] = FINISHED
        self.complete(races, races[verdicts != FINISHED], draw)
        return verdicts

    def complete(self, races: RaceIds, drawn: RaceIds, draw: Draw | None) -> None:
        """Add pictures (only for `drawn`) and the user's floats to these races' newest states."""
        if draw is not None and len(drawn) > 0:
            draw(drawn, *self.pictures())
            self.process_pictures(drawn)
        self.add_extra_floats(races)

    def by_map(self, races: RaceIds) -> list[Any]:
        """Return indices into races (n,), one index per map."""
        numbers = self._map_numbers[races]
        if (numbers == numbers[0]).all():
            return [slice(None)]
        return [np.flatnonzero(numbers == number) for number in dict.fromkeys(numbers.tolist())]

    def agent_states(self, races: RaceIds) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Return the newest states for agents: images (n, S, H, W) and floats (n, F)."""
        columns = self.columns
        return self._views.of_states(columns.frames, columns.floats, columns.actions, races, self.rows[races])

    def newest(self, race: int) -> Observation:
        """Return a race's newest state as views of the columns."""
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
        """Return the destination for the newest pictures, (K, R, H, W), and each picture's row (K,)."""
        if self._game.has_image:
            return self.columns.frames[:, :, 0], self.rows
        return self._unseen_pictures, np.zeros_like(self.rows)

    def process_pictures(self, races: RaceIds) -> None:
        """Measure ranges in the newest pictures, if the range finder uses pictures. Then change the pictures."""
        pictures, rows = self.pictures()
        if self._picture_range_finder is not None:
            for race in races.tolist():
                ranges_m = self._picture_range_finder.measure(pictures[race, rows[race]])
                self.columns.floats[race, self.rows[race], self.layout[RANGE_FINDER]] = ranges_m
        if self.layout.changes.images is not None:
            at = races, rows[races]
            pictures[at] = self.layout.changes.images(pictures[at])

    def add_extra_floats(self, races: RaceIds) -> None:
        """Compute the user's floats for the newest states, after states and pictures."""
        extra_floats = self.layout.changes.extra_floats
        end = self.layout.n_row_floats
        if extra_floats is not None:
            at = races, self.rows[races]
            floats = self.columns.floats[at]
            floats[:, end:] = extra_floats(floats[:, :end])
            self.columns.floats[at] = floats

    def broken_blocks(self, race: int) -> str:
        """Return the non-finite blocks' names in a race's newest state."""
        floats = self.columns.floats[race, self.rows[race]]
        broken = [block.name for block in self.layout.row_blocks if not np.isfinite(floats[block.slice]).all()]
        return ", ".join(broken) or "the car's place or motion"

    def cut_off(self, race: int, checkpoint_times_ms: tuple[int, ...], timings: GameTimings) -> Race:
        """Return a race that ends in the newest state for the reason in the verdict; see `_ended`."""
        row = self.rows[race]
        return self._ended(
            race,
            timings,
            cutoff_reason=REASON_OF_VERDICT[int(self.verdicts[race])],
            race_time_ms=int(self.columns.race_time_ms[race, row]),
            furthest_zone_idx=int(self._memory.furthest_zone_idx[race]),
            furthest_m=float(self._memory.furthest_m[race, row]),
            checkpoint_times_ms=checkpoint_times_ms,
        )

    def finish(self, race: int, race_time_ms: int, checkpoint_times_ms: tuple[int, ...], timings: GameTimings) -> Race:
        """Return a race that ends in the newest state, the finish; see `_ended`. Drop a decision at that time."""
        columns = self.columns
        row = self.rows[race]
        columns.race_time_ms[race, row] = race_time_ms
        if columns.race_time_ms[race, row - 1] < race_time_ms:
            columns.frames[race, row] = columns.frames[race, row - 1]  # see `Race`
        else:
            self._copy_state(race, row, row - 1)
            self.rows[race] -= 1
        zones, _ = self._maps[race]
        return self._ended(
            race,
            timings,
            cutoff_reason=None,
            race_time_ms=race_time_ms,
            furthest_zone_idx=zones.finish_zone_idx,
            furthest_m=zones.finish_m,
            checkpoint_times_ms=checkpoint_times_ms,
        )

    def stand_still(self, race: int) -> None:
        """Repeat the state before the last decision as the one after it."""
        self._copy_state(race, self.rows[race] - 1, self.rows[race])

    def under_way(self, race: int, states: range) -> Race:
        """Return states from a race under way and the actions between them, as views of the columns."""
        columns = self._of_race(race, states)
        facts = RaceFacts.of_entry(
            self._entries[race], n_actions=len(columns.actions), furthest_zone_idx=int(columns.zone_idx.max())
        )
        return Race(self._race_columns(columns), facts)

    def _ended(
        self,
        race: int,
        timings: GameTimings,
        *,
        cutoff_reason: CutoffReason | None,
        race_time_ms: int,
        furthest_zone_idx: int,
        furthest_m: float,
        checkpoint_times_ms: tuple[int, ...],
    ) -> Race:
        """Return an ended race as views of the columns, whose last state may still be completed."""
        columns = self._of_race(race, range(int(self.rows[race]) + 1))
        zones, _ = self._maps[race]
        n_actions = len(columns.actions)
        is_finished = cutoff_reason is None
        facts = RaceFacts.of_entry(
            self._entries[race],
            n_actions=n_actions,
            race_finished=is_finished,
            race_time_ms=race_time_ms,
            cutoff_reason=cutoff_reason,
            terminated=is_finished,
            meters=max(furthest_m - zones.start_m, 0.0),
            furthest_zone_idx=furthest_zone_idx,
            checkpoint_times_ms=checkpoint_times_ms,
            mean_speed_m_s=float(columns.speed_m_s[:-1].mean()),
            fraction_greedy=float(columns.is_greedy.mean()),
            first_value=highest_value(columns.q_values[0]),
            timings_ms={
                name.removesuffix("_s"): 1000.0 * spent_s / n_actions for name, spent_s in vars(timings).items()
            },
            inputs=write_input_script(self._actions.events(columns.race_time_ms[:-1], columns.actions)),
        )
        if is_finished:
            zone_idx = np.append(columns.zone_idx[:-1], zones.finish_zone_idx)
            meters = np.append(columns.meters[:-1], zones.finish_m)
            columns = columns._replace(zone_idx=zone_idx, meters=meters)
        return Race(self._race_columns(columns), facts)

    def _race_columns(self, columns: StateColumns) -> dict[str, npt.NDArray[Any]]:
        return {
            "frames": columns.frames,
            "state_float": columns.floats,
            "actions": columns.actions,
            "action_was_greedy": columns.is_greedy,
            "input_w": self._actions.presses_gas(columns.actions),
            "q_values": columns.q_values,
            "action_log_prob": columns.action_log_prob,
            "car_gear_and_wheels": columns.car,
            "position_m": columns.position_m,
            "speed_m_s": columns.speed_m_s,
            "current_zone_idx": columns.zone_idx,
            "meters_advanced_along_centerline": columns.meters,
        }

    def _of_race(self, race: int, states: range) -> StateColumns:
        return StateColumns(
            **{
                name: column[race, states.start : states.stop - 1 if name in DECISION_COLUMNS else states.stop]
                for name, column in self.columns._asdict().items()
            }
        )

    def _copy_state(self, race: int, source: int, target: int) -> None:
        for name, column in self.columns._asdict().items():
            if name not in (*DECISION_COLUMNS, "frames"):
                column[race, target] = column[race, source]

    def _room(self, n_races: int, n_states: int, frames: npt.NDArray[np.uint8] | None) -> StateColumns:
        """Return storage for the longest race; memory is used when first written."""

        def room(dtype: type[np.generic], *shape: int) -> npt.NDArray[Any]:
            return np.empty((n_races, n_states, *shape), dtype=dtype)

        if frames is None or len(frames) < n_states or not frames.flags.c_contiguous:
            frames_of_races = room(np.uint8, 1, *self._game.image_shape[1:])
        else:
            frames_of_races = frames[None, :n_states]
        return StateColumns(
            frames=frames_of_races,
            floats=room(np.float32, self.layout.n_row_floats + self.layout.changes.n_extra_floats),
            car=room(np.float32, len(CAR_COLUMNS)),
            zone_idx=room(np.int64),
            meters=room(np.float64),
            race_time_ms=room(np.int64),
            position_m=room(np.float32, 3),
            speed_m_s=room(np.float64),
            actions=room(self._actions.dtype, *self._actions.shape),
            is_greedy=room(np.bool_),
            q_values=room(np.float32, self._actions.n_values),
            action_log_prob=room(np.float32),
        )
