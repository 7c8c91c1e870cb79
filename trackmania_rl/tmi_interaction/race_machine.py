"""A race as a step machine over the game's reports: `reset(map)`, then `step(decision)` until the race ends.

The machine knows no process and no policy. Between two calls the game stands still, because one of its reports is held
back unanswered.

With a picture a decision takes two reports: at the step the game is frozen and a frame requested, and the decision is
made while the frame's report is held. Without a picture the decision is made while the step's own report is held: the
game cannot run on before the answer, so neither freezing nor a frame is needed, and one exchange is enough.
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

from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.protocol.state_blob import (
    HEAD_BYTES,
    StateBlobError,
    StateView,
    with_last_checkpoint_time_cleared,
)
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import GOING_ON, NOT_FINITE
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.race.races import GameTimings, Observation, RaceEnd, Races, times_passed
from trackmania_rl.settings import GameSettings
from trackmania_rl.tmi_interaction.race_start import RaceStart
from trackmania_rl.tmi_interaction.tminterface2 import GameEvent, GameProtocolError, TMInterface
from trackmania_rl.track.game_map import GameMap

log = logging.getLogger(__name__)

TIMEOUT_BETWEEN_RACES_MS: Final = 600_000_000
"""Time for which a game waits for an answer between two races."""
MAX_IGNORED_REPORTS: Final = 1000
"""Reports in a row that bring no decision nearer, before the game is taken to be broken."""
LATEST_FINISH_ACTIONS: Final = 20
"""Longest time from the last decision to a finish, in actions: one, but steps may come late."""
ONLY_RACE: Final = np.zeros(1, dtype=np.int64)
"""The race of a game, in arrays of K = 1."""
HEAD_WORDS: Final = HEAD_BYTES // 4


def finish_time_ms(state: StateView) -> int:
    """Return the time of a finish just reached; that of the clock where the game has not written it yet."""
    times_ms = state.checkpoint_times_ms
    return int(times_ms[-1]) if len(times_ms) > 0 and times_ms[-1] >= 0 else state.race_time_ms


def compile_ahead(settings: GameSettings, layout: ObservationLayout, game_map: GameMap) -> None:
    """Compile everything that a decision needs. Later calls take microseconds.

    Compiling takes seconds, while a game that waits for an answer drops its client after 10 s.

    Args:
        settings: of the races.
        layout: of their observation.
        game_map: any map.
    """
    races = Races(1, settings, layout)
    races.begin(0, game_map.zones, game_map.road, settings)
    races.observe(ONLY_RACE, 0, np.zeros((1, HEAD_WORDS), dtype=np.uint32))


class RaceMachine:
    """Plays races on one connected game, one action at a time.

    An exception out of `reset` or `step` that is a `GameError` means that this connection is lost.

    Args:
        transport: the game.
        settings: actions, image, speed, timeouts and cut-offs.
        layout: every float of the observation.
        commands_on_connect: console commands for this game instance, beside `race_start.CONNECT_COMMANDS`.

    Attributes:
        settings: may be replaced between two races by settings with the same actions and image.
        races: the current race, number 0, in arrays of its own; each race gets new ones.
        timings: where the time of the current race went.
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
        self._start = RaceStart(transport, commands_on_connect)
        self._actions = actions_of_game(settings)
        self._heads = np.empty((1, HEAD_WORDS), dtype=np.uint32)
        self._held: GameEvent | None = None
        self._clock_ms = 0  # race time when the last decision was due
        self._seen_row = 0  # of the newest state observed

    def reset(self, game_map: GameMap, frames: npt.NDArray[np.uint8] | None = None) -> Observation:
        """Bring the car to the start of a map at race time 0; also in the middle of a race.

        Args:
            game_map: the map.
            frames: room for the race's frames, see `Races`.

        Raises:
            GameError: if the game is gone, silent or speaks nonsense.
            UserError: if it cannot be steered as the setting `actions` says.
        """
        self.timings = GameTimings()
        with _state_errors_as_protocol_errors():
            held, blob = self._start.reach(game_map.path, self._held, self.settings)
            self._held = held
            self.races = Races(1, self.settings, self._layout, frames)
            self.races.begin(0, game_map.zones, game_map.road, self.settings)
            observation = self._arrive(held, 0, StateView(blob))
        assert isinstance(observation, Observation), "no race ends in its first state"
        return observation

    def step(self, decision: PolicyDecision) -> Observation | RaceEnd:
        """Hold an action until the next decision, or the end of the race.

        Raises:
            GameError: if the game is gone, silent or speaks nonsense.
            FloatingPointError: if an analog action is not finite.
            RuntimeError: if no race is under way.
        """
        if self._held is None:
            raise RuntimeError("step needs a race under way: call reset first")
        self._transport.set_input(self._actions.held(np.asarray([decision.action]))[0])
        if self.settings.takes_pictures:
            self._transport.set_speed(self.settings.running_speed)
        self._answer(self._held, then_get_state=True)
        self.races.act(0, decision.action, decision.is_greedy, decision.q_values)
        with _state_errors_as_protocol_errors():
            for _ in range(MAX_IGNORED_REPORTS):
                event = self._next_event()
                if event.id == MessageId.RUN_STEP and self._is_next_decision(event.race_time_ms):
                    return self._arrive(event, event.race_time_ms, StateView(event.state or b""))
                if self._ends_the_race(event):
                    return self._finish(event)
                self._answer(event, then_get_state=True)
        raise GameProtocolError(f"{MAX_IGNORED_REPORTS} reports after race time {self._clock_ms} ms, but no next step")

    def _is_next_decision(self, clock_ms: int) -> bool:
        late_ms = clock_ms - self._clock_ms - self.settings.ms_per_action
        if late_ms > 0 and clock_ms % self.settings.ms_per_action == 0:
            log.warning("the step at %d ms came %d ms late", clock_ms, late_ms)
            return True
        # Earlier ones are repeated after a rewind, or stem from ticks that go on when the race is over.
        return late_ms == 0

    def _ends_the_race(self, event: GameEvent) -> bool:
        if event.is_finish:
            if self._clock_ms > 0:
                return True
            self._transport.prevent_finish()  # nobody finishes in a race's first action: it is the last race's echo
        # An unexpected step may be one of a race that is over without a word.
        return event.id == MessageId.RUN_STEP and self._transport.is_race_finished()

    def _arrive(self, event: GameEvent, clock_ms: int, state: StateView) -> Observation | RaceEnd:
        """Observe a state in which a decision is due, while its step is held."""
        self._held = event
        self._clock_ms = clock_ms
        is_cut_off = self._observe(clock_ms, state)
        if self.settings.takes_pictures:
            finish = self._take_frame(event, is_cut_off)
            if finish is not None:
                return self._finish(finish)
        if not is_cut_off:
            return self.races.newest(0)
        self._leave_waiting()
        return self.races.cut_off(0, times_passed(state.checkpoint_times_ms.tolist()))

    def _observe(self, clock_ms: int, state: StateView) -> bool:
        """Write the race's newest state; return whether the race is cut off in it."""
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
        """Freeze the game in a step and wait for its picture, which becomes that of the newest state.

        Args:
            step: in which a decision is due.
            is_cut_off: whether the race ends there, so that no finish counts any more.

        Returns:
            The report of a finish, if one comes first.
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
                self.races.measure_pictures([0])
                return None
            if is_cut_off:
                if event.is_finish:
                    self._transport.prevent_finish()
            elif self._ends_the_race(event):
                self._transport.unrequest_frame()
                return event
            self._answer(event)
        raise GameProtocolError(f"{MAX_IGNORED_REPORTS} reports at race time {self._clock_ms} ms, but no frame")

    def _finish(self, event: GameEvent) -> RaceEnd:
        """End a finished race: undo the finish in the game, so that it stays in the race."""
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
        return self.races.finish(0, clock_ms, times_passed(state.checkpoint_times_ms.tolist()))

    def _leave_waiting(self) -> None:
        """Leave the game waiting on the report that is held for as long as it takes until the next race."""
        self._transport.set_timeout(TIMEOUT_BETWEEN_RACES_MS)
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
    """Take a state that cannot be read for a game that speaks nonsense."""
    try:
        yield
    except StateBlobError as error:
        raise GameProtocolError(str(error)) from error
