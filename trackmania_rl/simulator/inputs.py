"""Race inputs: values, change times, and the record as an input script."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.input_script import (
    ANALOG_FULL,
    ANALOG_STATE_INPUTS,
    PEDAL_PRESSED_FROM,
    Input,
    InputEvent,
    key_changes,
)
from trackmania_rl.protocol.messages import NO_KEYS, AnalogInput, HeldInputs, KeyState
from trackmania_rl.protocol.state_blob import (
    EVENT_TIME_ORIGIN_MS,
    InputSlot,
    StateBlobError,
    decode_analog,
    encode_analog,
)

_SLOTS: Final = {
    Input.ACCELERATE: InputSlot.ACCELERATE,
    Input.BRAKE: InputSlot.BRAKE,
    Input.LEFT: InputSlot.LEFT,
    Input.RIGHT: InputSlot.RIGHT,
    Input.STEER: InputSlot.STEER,
    Input.GAS: InputSlot.GAS,
}
"""Inputs that drive. The race handles respawns; horn and give up have no effect."""

_ANALOG: Final = (Input.STEER, Input.GAS)
_LEAST_STEER_BESIDE_KEYS: Final = ANALOG_FULL // 100
"""Wheel angle above which the wheel counts if it changes together with a key."""
_OTHER_KEYS_RELEASED: Final = dict.fromkeys((Input.LEFT, Input.RIGHT, Input.ACCELERATE), 0)
_NO_EVENT: Final = (0, 0)

Controls = tuple[float, float, float]  # gas 0 or 1, brake 0 or 1, steer -1 (left) .. 1 (right).


class InputState:
    """Inputs during one race.

    `slots` is (8, 2) uint32, one (time, data) pair per InputSlot as in a state blob, updated in place.

    Attributes:
        controls: Car controls from the next tick on.
        keys: The held keys.
        log: Every change since the race began, in order.
    """

    def __init__(self, slots: npt.NDArray[np.uint32]) -> None:
        self._slots = slots
        self.log: list[InputEvent] = []
        self.release_all()

    def release_all(self) -> None:
        """Reset to the race start."""
        self._slots[:] = _NO_EVENT
        self._slots[InputSlot.RACE_RUNNING] = EVENT_TIME_ORIGIN_MS - 10, 1
        self.log.clear()
        self._values = dict.fromkeys(_SLOTS, 0)
        self.keys: KeyState = NO_KEYS
        self.controls: Controls = (0.0, 0.0, 0.0)

    def hold(self, time_ms: int, held: HeldInputs) -> None:
        """Hold exactly these keys, or this wheel, gas and brake key, from race time `time_ms` on."""
        if isinstance(held, AnalogInput):
            values = dict(zip(ANALOG_STATE_INPUTS, map(int, held), strict=True)) | _OTHER_KEYS_RELEASED
            self.change(time_ms, values)
        elif held != self.keys:
            self.apply(key_changes(time_ms, self.keys, held))

    def change(self, time_ms: int, values: Mapping[Input, int]) -> None:
        """Set inputs from race time `time_ms` on."""
        events = [
            InputEvent(time_ms, input_, value) for input_, value in values.items() if self._values[input_] != value
        ]
        if events:
            self.apply(events)

    def apply(self, events: Sequence[InputEvent]) -> None:
        """Apply the changes in `events`, which share one time."""
        for event in events:
            if event.input in _SLOTS:
                data = encode_analog(event.value) if event.input in _ANALOG else event.value
                self._slots[_SLOTS[event.input]] = event.time_ms + EVENT_TIME_ORIGIN_MS, data
                self._values[event.input] = event.value
            if event.input in _SLOTS or event.input is Input.RESPAWN:
                self.log.append(event)
        self._derive()

    def restore(self, time_ms: int, slots: npt.NDArray[np.uint32]) -> None:
        """Restore the inputs from a state blob saved at race time `time_ms`.

        The log keeps the earlier events. Inputs that differ from it are logged at `time_ms`.

        Raises:
            StateBlobError: If an analog input is out of range; nothing is changed then.
        """
        values = {input_: _value(input_, int(slots[slot, 1])) for input_, slot in _SLOTS.items()}
        self._slots[:] = slots
        del self.log[bisect_left(self.log, time_ms, key=lambda event: event.time_ms) :]
        logged = dict.fromkeys(_SLOTS, 0) | {event.input: event.value for event in self.log}
        self.log += [
            InputEvent(time_ms, input_, values[input_]) for input_ in _SLOTS if values[input_] != logged[input_]
        ]
        self._values = values
        self._derive()

    def _derive(self) -> None:
        values = self._values
        self.keys = KeyState(
            left=bool(values[Input.LEFT]),
            right=bool(values[Input.RIGHT]),
            accelerate=bool(values[Input.ACCELERATE]),
            brake=bool(values[Input.BRAKE]),
        )
        pedal = values[Input.GAS]
        gas = self.keys.accelerate or pedal >= PEDAL_PRESSED_FROM
        brake = self.keys.brake or pedal <= -PEDAL_PRESSED_FROM
        self.controls = (float(gas), float(brake), self._steer())

    def _steer(self) -> float:
        """Return the newer of keys and wheel; if both keys are held, left wins."""
        times = self._slots[:, 0]
        turned = times[InputSlot.STEER]
        pressed = max(times[InputSlot.LEFT], times[InputSlot.RIGHT])
        steer = self._values[Input.STEER]
        if turned > pressed or (turned == pressed and abs(steer) > _LEAST_STEER_BESIDE_KEYS):
            return steer / ANALOG_FULL
        return -1.0 if self.keys.left else 1.0 if self.keys.right else 0.0


def controls_of_keys(keys: KeyState) -> Controls:
    """Return the controls while only these keys are pressed."""
    inputs = InputState(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    inputs.hold(0, keys)
    return inputs.controls


def _value(input_: Input, data: int) -> int:
    if input_ not in _ANALOG:
        return int(decode_analog(data) != 0)
    value = decode_analog(data)
    if abs(value) > ANALOG_FULL:
        raise StateBlobError(f"state blob whose input {input_.value} is {value}; {-ANALOG_FULL} to {ANALOG_FULL}")
    return value
