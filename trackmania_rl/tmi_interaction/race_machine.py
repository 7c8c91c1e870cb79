"""A race as a step machine over the game's reports: `reset(map)`, then `step(action)` until the race ends.

The machine talks to a `GameTransport` and knows no socket, no process and no policy. Between two calls the game stands
still, because one of its reports is held back unanswered. What it copes with is listed in
reference/tminterface2_protocol.md, "Open points".

With a picture a decision takes two reports: at the step the game is frozen and a frame requested, and the decision is
made while the frame's report is held. Without a picture the decision is made while the step's own report is held: the
game cannot run on before the answer, so neither freezing nor a frame is needed, and one exchange is enough.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.messages import MessageId
from trackmania_rl.protocol.state_blob import (
    StateBlobError,
    StateView,
    new_state_blob,
    with_last_checkpoint_time_cleared,
)
from trackmania_rl.race.actions import Action, actions_of_game
from trackmania_rl.race.cutoffs import CutoffReason, CutoffWatch
from trackmania_rl.race.observation import FeatureBuilder
from trackmania_rl.race.types import GameTimings, Observation, RaceEnd, times_passed
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.settings import GameSettings
from trackmania_rl.tmi_interaction.race_start import RaceStart
from trackmania_rl.tmi_interaction.transport import GameEvent, GameProtocolError, GameTransport
from trackmania_rl.track.game_map import GameMap

log = logging.getLogger(__name__)

MAX_IGNORED_REPORTS: Final = 1000
"""Reports in a row that bring no decision nearer, before the game is taken to be broken."""
LATEST_FINISH_ACTIONS: Final = 20
"""Longest time from the last decision to a finish, in actions: one, but steps may come late."""


def finish_time_ms(state: StateView) -> int:
    """Return the time of a finish just reached; that of the clock where the game has not written it yet."""
    times_ms = state.checkpoint_times_ms
    return int(times_ms[-1]) if len(times_ms) > 0 and times_ms[-1] >= 0 else state.race_time_ms


def compile_ahead(features: FeatureBuilder, settings: GameSettings, game_map: GameMap) -> None:
    """Have everything compiled that a decision goes through, which costs microseconds where that is done.

    Compiling takes seconds, while a game that waits for an answer drops its client after 10 s.

    Args:
        features: whose next race begins with a `reset` as any other.
        settings: the cut-offs.
        game_map: any map.
    """
    features.reset(game_map.zones, game_map.road)
    features.build(StateView(bytes(new_state_blob(1, 1))))  # read-only, as those of a game: numba tells the two apart
    CutoffWatch(settings).check(0, 0.0)


@dataclass
class _RaceUnderWay:
    """What the machine remembers of the race that it plays.

    Attributes:
        zones: of the map.
        cutoffs: when to give the race up.
        clock_ms: race time when the last decision was due.
        furthest_m: the most metres along the line so far.
        seen: what there was to see then; with the picture before until its own is there.
    """

    zones: VirtualCheckpoints
    cutoffs: CutoffWatch
    clock_ms: int = 0
    furthest_m: float = -math.inf
    seen: Observation | None = None


class RaceMachine:
    """Plays races on one connected game, one action at a time.

    An exception out of `reset` or `step` that is a `GameError` means that this connection is lost.

    Args:
        transport: the game.
        settings: actions, image, speed, timeouts and cut-offs.
        features: makes the floats.
        commands_on_connect: console commands for this game instance, beside `race_start.CONNECT_COMMANDS`.

    Attributes:
        settings: may be replaced between two races by settings with the same actions and image.
        timings: where the time of the current race went.
    """

    def __init__(
        self,
        transport: GameTransport,
        settings: GameSettings,
        features: FeatureBuilder,
        commands_on_connect: tuple[str, ...] = (),
    ) -> None:
        self.settings = settings
        self.timings = GameTimings()
        self._transport = transport
        self._features = features
        self._start = RaceStart(transport, commands_on_connect)
        self._actions = actions_of_game(settings)
        self._no_frame = np.empty((1, 0, 0), dtype=np.uint8)
        self._held: GameEvent | None = None
        self._under_way: _RaceUnderWay | None = None

    def reset(self, game_map: GameMap) -> Observation:
        """Bring the car to the start of a map at race time 0; also in the middle of a race.

        Raises:
            GameError: if the game is gone, silent or speaks nonsense.
            UserError: if it cannot be steered as the setting `actions` says.
        """
        self.timings = GameTimings()
        with _state_errors_as_protocol_errors():
            held, blob = self._start.reach(game_map.path, self._held, self.settings)
            self._held = held
            self._under_way = _RaceUnderWay(game_map.zones, CutoffWatch(self.settings))
            self._features.reset(game_map.zones, game_map.road)
            observation = self._arrive(held, 0, StateView(blob))
        if isinstance(observation, RaceEnd):
            raise GameProtocolError("the race was over at its start")
        return observation

    def step(self, action: Action) -> Observation | RaceEnd:
        """Hold an action until the next decision, or the end of the race.

        Args:
            action: index into `settings.inputs`, or an analog action.

        Raises:
            GameError: if the game is gone, silent or speaks nonsense.
            FloatingPointError: if an analog action is not finite.
            RuntimeError: if no race is under way.
        """
        if self._held is None:
            raise RuntimeError("step needs a race under way: call reset first")
        self._transport.set_input(self._actions.held(np.asarray([action]))[0])
        if self.settings.takes_pictures:
            self._transport.set_speed(self.settings.running_speed)
        self._answer(self._held, then_get_state=True)
        self._features.record_action(action)
        with _state_errors_as_protocol_errors():
            for _ in range(MAX_IGNORED_REPORTS):
                event = self._next_event()
                if event.id == MessageId.RUN_STEP and self._is_next_decision(event.race_time_ms):
                    return self._arrive(event, event.race_time_ms, StateView(event.state or b""))
                if self._ends_the_race(event):
                    return self._finish(event)
                self._answer(event, then_get_state=True)
        raise GameProtocolError(
            f"{MAX_IGNORED_REPORTS} reports after race time {self._race.clock_ms} ms, but no next step"
        )

    @property
    def _race(self) -> _RaceUnderWay:
        assert self._under_way is not None, "call reset first"
        return self._under_way

    def _is_next_decision(self, clock_ms: int) -> bool:
        late_ms = clock_ms - self._race.clock_ms - self.settings.ms_per_action
        if late_ms > 0 and clock_ms % self.settings.ms_per_action == 0:
            log.warning("the step at %d ms came %d ms late", clock_ms, late_ms)
            return True
        # Earlier ones are repeated after a rewind, or stem from ticks that go on when the race is over.
        return late_ms == 0

    def _ends_the_race(self, event: GameEvent) -> bool:
        if event.is_finish:
            if self._race.clock_ms > 0:
                return True
            self._transport.prevent_finish()  # nobody finishes in a race's first action: it is the last race's echo
        # An unexpected step may be one of a race that is over without a word.
        return event.id == MessageId.RUN_STEP and self._transport.is_race_finished()

    def _arrive(self, event: GameEvent, clock_ms: int, state: StateView) -> Observation | RaceEnd:
        """Look at a state in which a decision is due, while its step is held."""
        race = self._race
        self._held = event
        race.clock_ms = clock_ms
        seen = self._look(clock_ms, state)
        race.furthest_m = max(race.furthest_m, seen.meters)
        reason = race.cutoffs.check(clock_ms, race.furthest_m)
        if self.settings.takes_pictures:
            frame = self._take_frame(event, is_cut_off=reason is not None)
            if isinstance(frame, GameEvent):
                return self._finish(frame)
            self._features.look(frame, seen.floats)
            race.seen = seen = seen._replace(frame=frame if self.settings.has_image else self._no_frame)
        return seen if reason is None else self._end(reason, clock_ms, state, seen)

    def _look(self, clock_ms: int, state: StateView) -> Observation:
        """See the race's next state, with the last picture there is."""
        race = self._race
        began_s = time.perf_counter()
        features = self._features.build(state)
        self.timings.features_s += time.perf_counter() - began_s
        race.seen = Observation(
            frame=self._no_frame if race.seen is None else race.seen.frame,
            floats=features.floats,
            car=features.car,
            zone_idx=features.zone_idx,
            meters=features.meters,
            race_time_ms=clock_ms,
            position_m=state.position_m.copy(),
            speed_m_s=math.hypot(*state.velocity_m_s.tolist()),
        )
        return race.seen

    def _take_frame(self, step: GameEvent, is_cut_off: bool) -> npt.NDArray[np.uint8] | GameEvent:
        """Freeze the game in a step and wait for its picture; or for the report of a finish that comes in between.

        Args:
            step: in which a decision is due.
            is_cut_off: whether the race ends there, so that no finish counts any more.
        """
        self._transport.rewind_to_current_state()
        self._transport.set_speed(0.0)
        self._transport.request_frame(self.settings.image_width_px, self.settings.image_height_px)
        self._answer(step)
        for _ in range(MAX_IGNORED_REPORTS):
            event = self._next_event()
            if event.frame is not None:
                self._held = event
                gray = np.empty((1, *event.frame.shape[:2]), dtype=np.uint8)
                cv2.cvtColor(event.frame, cv2.COLOR_BGRA2GRAY, dst=gray[0])
                return gray
            if is_cut_off:
                if event.is_finish:
                    self._transport.prevent_finish()
            elif self._ends_the_race(event):
                self._transport.unrequest_frame()
                return event
            self._answer(event)
        raise GameProtocolError(f"{MAX_IGNORED_REPORTS} reports at race time {self._race.clock_ms} ms, but no frame")

    def _finish(self, event: GameEvent) -> RaceEnd:
        """End a finished race: undo the finish in the game, so that it stays in the race."""
        race = self._race
        self._held = event
        blob = event.state or self._transport.get_state()
        state = StateView(blob)
        clock_ms = finish_time_ms(state)
        since_decision_ms = clock_ms - race.clock_ms
        if not -1 < since_decision_ms / self.settings.ms_per_action <= LATEST_FINISH_ACTIONS:
            raise GameProtocolError(
                f"a finish at {clock_ms} ms, but the last decision was at {race.clock_ms} ms of the race"
            )
        self._transport.rewind_to_state(with_last_checkpoint_time_cleared(blob))
        last = race.seen
        is_where_last_decided = last is not None and np.array_equal(state.position_m, last.position_m)
        if last is None or not is_where_last_decided:
            last = self._look(clock_ms, state)
        return self._end(None, clock_ms, state, last._replace(race_time_ms=clock_ms))

    def _end(self, reason: CutoffReason | None, clock_ms: int, state: StateView, last: Observation) -> RaceEnd:
        """Leave the game waiting on the report that is held for as long as it takes until the next race."""
        race = self._race
        self._transport.set_timeout(self.settings.timeout_between_races_ms)
        self._transport.flush()
        assert self._features.tracker is not None
        is_finished = reason is None
        return RaceEnd(
            cutoff_reason=reason,
            race_time_ms=clock_ms,
            furthest_zone_idx=race.zones.finish_zone_idx if is_finished else self._features.tracker.furthest_zone_idx,
            furthest_m=race.zones.finish_m if is_finished else race.furthest_m,
            checkpoint_times_ms=times_passed(state.checkpoint_times_ms.tolist()),
            last=last,
        )

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
