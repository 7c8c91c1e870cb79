"""A race as a step machine over the game's reports: `reset(map)`, then `step(decision)` until the race ends.

Between calls the game waits for the answer to a report: the step's, or with a picture the frame's, for which the game
is frozen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import ANALOG_LINK_VERSION, MessageId
from trackmania_rl.protocol.state_blob import (
    HEAD_BYTES,
    StateBlobError,
    StateView,
    with_last_checkpoint_time_cleared,
)
from trackmania_rl.race.actions import PolicyDecision, actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import GOING_ON, NOT_FINITE
from trackmania_rl.race.race import Race
from trackmania_rl.race.races import GameTimings, Observation, Races
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.tmi_interaction.tminterface2 import GameEvent, GameProtocolError, GameTimeoutError, TMInterface
from trackmania_rl.track.game_map import GameMap

log = logging.getLogger(__name__)

CONNECT_COMMANDS: Final = (
    "set countdown_speed 80",
    "set unfocused_fps_limit false",
    "set skip_map_load_screens true",
    "set disable_forced_camera true",
    "set autorewind false",
    "set auto_reload_plugins false",
)
CONNECT_SPEED: Final = 1.0
RACING_SILENCE_S: Final = 30.0
"""Longest silence in a race, beyond which the game hangs. A map takes longer to load."""
WARM_AFTER_DECISIONS: Final = 20
"""Decisions after which a new game has compiled or loaded what a race needs."""
START_WITHIN_S: Final = 120.0
"""Timeout for loading a map and the countdown, wall clock."""
CLOCK_TOLERANCE_S: Final = 0.1
"""Allowance for system timeouts that end early."""
MAX_IGNORED_REPORTS: Final = 1000
"""Most consecutive reports without a decision."""
LATEST_FINISH_ACTIONS: Final = 20
"""Longest time from the last decision to a finish, in actions: normally one, but steps may be late."""
ONLY_RACE: Final = np.zeros(1, dtype=np.int64)
"""A game's race index in arrays with K = 1."""
HEAD_WORDS: Final = HEAD_BYTES // 4


def finish_time_ms(state: StateView) -> int:
    """Return the time at a finish just reached; the clock's if the game has not written it yet."""
    times_ms = state.checkpoint_times_ms
    return int(times_ms[-1]) if len(times_ms) > 0 and times_ms[-1] >= 0 else state.race_time_ms


def compile_ahead(settings: GameSettings, layout: ObservationLayout, entry: MapEntry, game_map: GameMap) -> None:
    """Compile a decision's functions, which takes seconds; a waiting game drops its client after 10 s."""
    races = Races(1, settings, layout)
    races.begin(0, entry, game_map.zones, game_map.road, settings)
    races.observe(ONLY_RACE, 0, np.zeros((1, HEAD_WORDS), dtype=np.uint32))


class RaceMachine:
    """Player for races on one connected game, one action at a time.

    After a `GameError` in `reset` or `step` the connection is lost.

    Args:
        commands_on_connect: console commands beside `CONNECT_COMMANDS`.

    Attributes:
        settings: replaceable between races; actions and image must stay the same.
        races: the current race's arrays, number 0; new for each race.
        timings: for the current race.
    """

    races: Races

    def __init__(
        self,
        transport: TMInterface,
        settings: GameSettings,
        layout: ObservationLayout,
        commands_on_connect: tuple[str, ...] = (),
    ) -> None:
        self.settings = settings
        self.timings = GameTimings()
        self._transport = transport
        self._layout = layout
        self._start = Countdown(transport, commands_on_connect)
        self._actions = actions_of_game(settings)
        self._heads = np.empty((1, HEAD_WORDS), dtype=np.uint32)
        self._held: GameEvent | None = None
        self._clock_ms = 0  # race time at the last decision
        self._seen_row = 0  # newest observed state
        self._n_decisions = 0  # since the connection

    def reset(self, entry: MapEntry, game_map: GameMap, frames: npt.NDArray[np.uint8] | None = None) -> Observation:
        """Bring the car to a map's start at race time 0, even during a race.

        Args:
            entry: from the map cycle.
            game_map: the map.
            frames: storage, see `Races`.

        Raises:
            GameError: if the game is gone, silent or breaks the protocol.
            UserError: if the plugin lacks inputs that `actions` needs.
        """
        self.timings = GameTimings()
        self._transport.limit_silence(START_WITHIN_S)
        with _state_errors_as_protocol_errors():
            held, blob = self._start.reach(game_map.path, self._held, self.settings)
            self._held = held
            self.races = Races(1, self.settings, self._layout, frames)
            self.races.begin(0, entry, game_map.zones, game_map.road, self.settings)
            observation = self._arrive(held, 0, StateView(blob))
        assert isinstance(observation, Observation), "no race ends in its first state"
        self._limit_silence_if_warm()
        return observation

    def step(self, decision: PolicyDecision) -> Observation | Race:
        """Hold an action until the next decision or the race's end.

        Raises:
            GameError: if the game is gone, silent or breaks the protocol.
            FloatingPointError: if an analog action is not finite.
            RuntimeError: if no race is in progress.
        """
        if self._held is None:
            raise RuntimeError("step needs a race under way: call reset first")
        self._n_decisions += 1
        if self._n_decisions == WARM_AFTER_DECISIONS:
            self._limit_silence_if_warm()
        self._transport.set_input(self._actions.held(np.asarray([decision.action]))[0])
        if self.settings.image_width_px > 0:
            self._transport.set_speed(self.settings.running_speed)
        self._answer(self._held, then_get_state=True)
        self.races.act(0, decision.action, decision.is_greedy, decision.q_values, decision.action_log_prob)
        with _state_errors_as_protocol_errors():
            for _ in range(MAX_IGNORED_REPORTS):
                event = self._next_event()
                if event.id == MessageId.RUN_STEP and self._is_next_decision(event.race_time_ms):
                    return self._arrive(event, event.race_time_ms, StateView(event.state or b""))
                if self._ends_the_race(event):
                    return self._finish(event)
                self._answer(event, then_get_state=True)
        raise GameProtocolError(f"{MAX_IGNORED_REPORTS} reports after race time {self._clock_ms} ms, but no next step")

    def _limit_silence_if_warm(self) -> None:
        if self._n_decisions >= WARM_AFTER_DECISIONS:
            self._transport.limit_silence(RACING_SILENCE_S)

    def _is_next_decision(self, clock_ms: int) -> bool:
        late_ms = clock_ms - self._clock_ms - self.settings.ms_per_action
        if late_ms > 0 and clock_ms % self.settings.ms_per_action == 0:
            log.warning("the step at %d ms came %d ms late", clock_ms, late_ms)
            return True
        # Earlier ones repeat after a rewind, or are ticks after the race's end.
        return late_ms == 0

    def _ends_the_race(self, event: GameEvent) -> bool:
        if event.is_finish:
            if self._clock_ms > 0:
                return True
            self._transport.prevent_finish()  # in a race's first action it repeats the last race's report
        # An unexpected step may follow an unreported finish.
        return event.id == MessageId.RUN_STEP and self._transport.is_race_finished()

    def _arrive(self, event: GameEvent, clock_ms: int, state: StateView) -> Observation | Race:
        """Observe a state with a decision due, while the step is held."""
        self._held = event
        self._clock_ms = clock_ms
        is_cut_off = self._observe(clock_ms, state)
        if self.settings.image_width_px > 0:
            finish = self._take_frame(event, is_cut_off)
            if finish is not None:
                return self._finish(finish)
        if not is_cut_off:
            return self.races.newest(0)
        self._leave_waiting()
        return self.races.cut_off(0, state.times_passed_ms, self.timings)

    def _observe(self, clock_ms: int, state: StateView) -> bool:
        """Write the race's newest state; return whether the race is cut off."""
        began_s = time.perf_counter()
        self._heads[0] = np.frombuffer(state.blob, dtype="<u4", count=HEAD_WORDS)
        self.races.observe(ONLY_RACE, clock_ms, self._heads)
        self._seen_row = int(self.races.rows[0])
        verdict = self.races.verdicts[0]
        self.timings.features_s += time.perf_counter() - began_s
        if verdict == NOT_FINITE:
            broken = self.races.broken_blocks(0)
            raise StateBlobError(f"the game sent a state with numbers that are not finite, in {broken}")
        return bool(verdict != GOING_ON)

    def _take_frame(self, step: GameEvent, is_cut_off: bool) -> GameEvent | None:
        """Freeze the game in a step and store its picture with the newest state.

        Args:
            step: the report.
            is_cut_off: whether the race ends there, so a finish no longer counts.

        Returns:
            The report for a finish that comes first.
        """
        self._transport.rewind_to_current_state()
        self._transport.set_speed(0.0)
        self._transport.request_frame(self.settings.image_width_px, self.settings.image_height_px)
        self._answer(step)
        for _ in range(MAX_IGNORED_REPORTS):
            event = self._next_event()
            if event.frame is not None:
                self._held = event
                pictures, rows = self.races.pictures()
                cv2.cvtColor(event.frame, cv2.COLOR_BGRA2GRAY, dst=pictures[0, rows[0]])
                self.races.process_pictures(ONLY_RACE)
                return None
            if is_cut_off:
                if event.is_finish:
                    self._transport.prevent_finish()
            elif self._ends_the_race(event):
                self._transport.unrequest_frame()
                return event
            self._answer(event)
        raise GameProtocolError(f"{MAX_IGNORED_REPORTS} reports at race time {self._clock_ms} ms, but no frame")

    def _finish(self, event: GameEvent) -> Race:
        """End a finished race. Undo the finish, so the game stays in the race."""
        self._held = event
        blob = event.state or self._transport.get_state()
        state = StateView(blob)
        clock_ms = finish_time_ms(state)
        since_decision_ms = clock_ms - self._clock_ms
        if not -1 < since_decision_ms / self.settings.ms_per_action <= LATEST_FINISH_ACTIONS:
            raise GameProtocolError(
                f"a finish at {clock_ms} ms, but the last decision was at {self._clock_ms} ms of the race"
            )
        n_actions = int(self.races.rows[0])
        if n_actions == 0:
            raise GameProtocolError("the race was over at its start")
        self._transport.rewind_to_state(with_last_checkpoint_time_cleared(blob))
        if not np.array_equal(state.position_m, self.races.columns.position_m[0, self._seen_row]):
            self._observe(clock_ms, state)
        elif self._seen_row < n_actions:
            self.races.stand_still(0)
        self._leave_waiting()
        return self.races.finish(0, clock_ms, state.times_passed_ms, self.timings)

    def _leave_waiting(self) -> None:
        self._transport.set_timeout(self.settings.timeout_between_races_ms)
        self._transport.flush()

    def _next_event(self) -> GameEvent:
        began_s = time.perf_counter()
        event = self._transport.next_event()
        self.timings.wait_game_s += time.perf_counter() - began_s
        return event

    def _answer(self, event: GameEvent, then_get_state: bool = False) -> None:
        began_s = time.perf_counter()
        self._held = None
        self._transport.answer(event, then_get_state)
        self.timings.answer_game_s += time.perf_counter() - began_s


@contextmanager
def _state_errors_as_protocol_errors() -> Iterator[None]:
    try:
        yield
    except StateBlobError as error:
        raise GameProtocolError(str(error)) from error


class Countdown:
    """One game car's way to race time 0 on a map.

    A map's first race begins with a countdown. Later races rewind to the countdown's end.
    """

    def __init__(self, transport: TMInterface, commands_on_connect: tuple[str, ...]) -> None:
        self._transport = transport
        self._commands = (*CONNECT_COMMANDS, *commands_on_connect)
        self._has_seen_a_step = False
        self._is_interface_shown = True
        self._loaded_map: str | None = None
        self._start_state: bytes | None = None

    def reach(self, map_path: str, held: GameEvent | None, settings: GameSettings) -> tuple[GameEvent, bytes]:
        """Bring the car to the start from any game state.

        Args:
            map_path: argument for the game's `map` command.
            held: the last race's unanswered report.
            settings: speed, step period.

        Returns:
            The unanswered RUN_STEP report at race time 0, and the state blob.
        """
        self._is_countdown_expected = self._is_countdown_seen = False
        self._last_time_ms: int | None = None
        if held is not None:
            self._transport.set_timeout(settings.timeout_during_race_ms)
            self._transport.set_speed(settings.running_speed)
            if held.id != MessageId.RUN_STEP:
                self._transport.answer(held)
                held = None
        deadline_s = time.monotonic() + START_WITHIN_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                event = held or self._transport.next_event(left_s)
            except GameTimeoutError:
                if time.monotonic() < deadline_s - CLOCK_TOLERANCE_S:
                    raise  # the game's shorter timeout
                break
            held = None
            if event.id == MessageId.ON_CONNECT:
                self._greet(map_path, settings)
            elif event.id == MessageId.RUN_STEP:
                if not self._has_seen_a_step:
                    self._settle_in(settings)
                state = self._state_at_start(event.race_time_ms, map_path)
                self._last_time_ms = event.race_time_ms
                if state is not None:
                    return event, state
            elif event.is_finish:  # from an earlier race
                self._transport.prevent_finish()
            self._transport.answer(event)
        raise GameTimeoutError(
            f"no race began on map {map_path!r} within {START_WITHIN_S:g} s: does the game have this map?"
        )

    def _greet(self, map_path: str, settings: GameSettings) -> None:
        self._transport.set_speed(CONNECT_SPEED)
        self._transport.set_step_period(settings.ms_per_action)
        if settings.actions == "analog":
            self._check_that_it_steers()
        for command in self._commands:
            self._transport.command(command)
        if self._transport.is_in_menus():
            self._load(map_path)

    def _check_that_it_steers(self) -> None:
        """Reject a plugin without analog inputs, which would read them as other messages."""
        version = self._transport.plugin_version()
        if version < ANALOG_LINK_VERSION:
            runs = f"version {version} of this project's plugin" if version else "another plugin than this project's"
            raise UserError(
                f'actions = "analog": the game runs {runs}, which knows keys only; version {ANALOG_LINK_VERSION} is '
                "needed: remove other plugins that listen from TMInterface's folder Plugins, and start the game again "
                '(scripts/doctor.py installs the plugin); or set actions = "keys"'
            )

    def _settle_in(self, settings: GameSettings) -> None:
        self._has_seen_a_step = True
        self._transport.set_timeout(settings.timeout_during_race_ms)
        self._transport.set_speed(settings.running_speed)
        self._transport.command(f"cam {settings.game_camera_number}")

    def _load(self, map_path: str) -> None:
        self._transport.command(f'map "{map_path}"')
        self._loaded_map = map_path
        self._start_state = None
        self._is_interface_shown = True  # each map shows it again
        self._is_countdown_expected, self._is_countdown_seen = True, False

    def _state_at_start(self, race_time_ms: int, map_path: str) -> bytes | None:
        """Proceed towards the start at a step; return the state if the car is there."""
        if self._loaded_map != map_path:
            self._load(map_path)
        elif self._start_state is not None:
            self._transport.rewind_to_state(self._start_state)
            return self._start_state
        elif not self._is_countdown_expected:
            self._give_up()
        elif race_time_ms < 0:
            self._is_countdown_seen = True
            self._hide_interface()
        elif race_time_ms == 0 and (self._last_time_ms is None or self._last_time_ms > 0):
            log.warning("a race began without a countdown")
            self._hide_interface()
            self._start_state = self._transport.get_state()
            return self._start_state
        elif self._is_countdown_seen and race_time_ms == 0:
            self._start_state = self._transport.get_state()
            return self._start_state
        elif self._is_countdown_seen:
            log.warning("the step at race time 0 did not come, but one at %d ms; waiting for a new race", race_time_ms)
            self._give_up()
        # Else a step from the old race: a new map or race takes effect later.
        return None

    def _hide_interface(self) -> None:
        """Remove the race interface from the pictures, once per loaded map."""
        if self._is_interface_shown:
            self._transport.toggle_interface(shown=False)
            self._is_interface_shown = False

    def _give_up(self) -> None:
        self._transport.give_up()
        self._is_countdown_expected, self._is_countdown_seen = True, False
