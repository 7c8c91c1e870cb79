"""A tiny game inside the test process, with a switch for each open point of the protocol."""

from dataclasses import dataclass, field

import numpy as np

from trackmania_rl.protocol.messages import NO_KEYS, HeldInputs, KeyState, MessageId
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE, StateView, new_state_blob
from trackmania_rl.tmi_interaction.tminterface2 import GameEvent

TICK_MS = 10
SPEED_M_S = 20.0
CM_PER_TICK = 20


@dataclass
class FakeGame:
    """A car on a straight line: 20 m/s while it accelerates, else standing. A checkpoint at 20 m, the finish behind.

    Has the methods of `TMInterface`. Each behaviour that a real game does not promise is a switch.
    """

    finish_m: float = 41.1
    checkpoint_before_step: bool = False
    step_repeated_after_rewind: bool = False
    finish_repeated: bool = False
    laps_reported: bool = False
    rewind_reports_checkpoints: bool = False
    finish_unreported: bool = False
    finish_told_later_ms: int = 0
    zero_step_missing_once: bool = False
    steps_before_give_up_takes_effect: int = 0
    in_menus: bool = True
    version: int = 0

    calls: list[str] = field(default_factory=list)
    driven: list[tuple[int, HeldInputs]] = field(default_factory=list)  # (race time before the tick, held in it)
    hidden_at_ms: list[int] = field(default_factory=list)  # when the race interface was hidden

    def __post_init__(self):
        self.map = None if self.in_menus else "another"
        self.time_ms, self.x_cm, self.times_ms = 500, 0, [-1, -1]
        self.keys = NO_KEYS
        self.speed, self.period_ms, self.timeout_ms = 1.0, 10, 2000
        self.frame_size = None
        self.is_over = False
        self.restart_in_steps = None
        self.is_rewound = False
        self.held = None
        self.state_wanted = False
        self.reports = []  # sent before anything else
        self.events = self._run()

    def _run(self):
        yield GameEvent(MessageId.ON_CONNECT)
        while True:
            if self.frame_size is not None:
                width, height = self.frame_size
                shade = np.full((height, width, 4), self.time_ms // 50 % 200, dtype=np.uint8)
                yield GameEvent(MessageId.REQUESTED_FRAME, frame=shade)
                self.frame_size = None
            elif self.speed == 0 or self.map is None:
                raise AssertionError("the game stands still and no report can wake it")
            if self.step_repeated_after_rewind and self.is_rewound:
                self.is_rewound = False
                yield GameEvent(MessageId.RUN_STEP, self.time_ms)
            elif self.speed > 0 and self.map is not None:
                yield from self._tick()

    def _tick(self):
        if self.restart_in_steps is not None:
            self.restart_in_steps -= 1
            if self.restart_in_steps < 0:
                self.restart_in_steps = None
                self.driven.clear()
                self.time_ms, self.x_cm, self.times_ms, self.is_over = -200, 0, [-1, -1], False
        if not self.is_over:
            if self.time_ms >= 0:
                self.driven.append((self.time_ms, self.keys))
                self.x_cm += CM_PER_TICK * self.accelerates
            self.time_ms += TICK_MS
        if self.zero_step_missing_once and self.time_ms == 0:
            self.zero_step_missing_once = False
            self.time_ms += TICK_MS
        passed = self._checkpoints()
        if self.checkpoint_before_step:
            yield from passed
        if self.time_ms % self.period_ms == 0 or self.is_over:
            yield GameEvent(MessageId.RUN_STEP, self.time_ms)
        if not self.checkpoint_before_step:
            yield from passed

    def _checkpoints(self):
        before = self.n_passed
        if self.x_cm >= 2000 and before == 0:
            self.times_ms[0] = self.time_ms
        if self.x_cm >= 100 * self.finish_m and self.n_passed == 1:
            self.times_ms[1] = self.time_ms + self.finish_told_later_ms
            self.is_over = self.finish_unreported
        if self.n_passed == before and not (self.finish_repeated and self.n_passed == 2):
            return []
        if self.n_passed == 2 and self.finish_unreported:
            return []
        laps = [GameEvent(MessageId.LAP_COUNT_CHANGED, current=1, target=1)] if self.n_passed == 2 else []
        return [GameEvent(MessageId.CHECKPOINT_COUNT_CHANGED, current=self.n_passed, target=2)] + (
            laps if self.laps_reported else []
        )

    @property
    def accelerates(self):
        return self.keys.accelerate if isinstance(self.keys, KeyState) else self.keys.gas > 0

    @property
    def n_passed(self):
        return sum(time_ms >= 0 for time_ms in self.times_ms)

    def limit_silence(self, within_s):
        pass

    def next_event(self, within_s=None):
        assert self.held is None, "an event was not answered"
        event = self.reports.pop() if self.reports else next(self.events)
        if self.state_wanted:
            event = GameEvent(event.id, event.race_time_ms, event.current, event.target, event.frame, self.get_state())
        self.state_wanted = False
        self.held = event
        return event

    def answer(self, event, then_get_state=False):
        assert self.held is event, "only the held event can be answered"
        self.held = None
        self.state_wanted = then_get_state

    def get_state(self):
        blob = new_state_blob(2, 2)
        head = np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]
        head["race_time_ms"] = self.time_ms
        head["position_m"] = (0, 0, self.x_cm / 100)
        head["rotation"] = np.eye(3)
        head["velocity_m_s"] = (0, 0, SPEED_M_S * self.accelerates)
        StateView(blob).checkpoint_times_ms[:] = self.times_ms
        return bytes(blob)

    def is_race_finished(self):
        return self.is_over

    def is_in_menus(self):
        return self.map is None

    def rewind_to_state(self, blob):
        view = StateView(blob)
        before = self.n_passed
        self.time_ms, self.x_cm = view.race_time_ms, round(100 * float(view.position_m[2]))
        self.times_ms = view.checkpoint_times_ms.tolist()
        self.is_over, self.is_rewound = False, True
        self.keys = NO_KEYS
        if self.time_ms == 0:
            self.driven.clear()
        if self.rewind_reports_checkpoints and self.n_passed != before:
            self.reports.append(GameEvent(MessageId.CHECKPOINT_COUNT_CHANGED, current=self.n_passed, target=2))
        self.calls.append(f"rewind to {self.time_ms}")

    def rewind_to_current_state(self):
        self.calls.append("rewind to current")

    def set_speed(self, speed):
        self.speed = speed

    def set_step_period(self, period_ms):
        self.calls.append(f"step period {period_ms}")
        self.period_ms = period_ms

    def set_timeout(self, timeout_ms):
        self.timeout_ms = timeout_ms

    def plugin_version(self):
        self.calls.append("version")
        return self.version

    def set_input(self, held):
        self.keys = held

    def give_up(self):
        self.calls.append("give up")
        self.restart_in_steps = self.steps_before_give_up_takes_effect

    def prevent_finish(self):
        self.times_ms[1] = -1

    def command(self, text):
        self.calls.append(text)
        if text.startswith("map "):
            self.map = text.removeprefix("map ").strip('"')
            self.restart_in_steps = self.steps_before_give_up_takes_effect

    def toggle_interface(self, shown):
        self.calls.append(f"interface {shown}")
        self.hidden_at_ms.append(self.time_ms)

    def request_frame(self, width_px, height_px):
        self.frame_size = (width_px, height_px)

    def unrequest_frame(self):
        self.frame_size = None

    def flush(self):
        """Nothing waits to be sent."""

    def close(self):
        """There is no connection."""
