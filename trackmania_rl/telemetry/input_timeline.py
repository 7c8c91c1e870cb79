"""What is held at each time of a race, by its inputs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from trackmania_rl.protocol.input_script import Input, InputEvent
from trackmania_rl.protocol.messages import NO_KEYS, KeyState
from trackmania_rl.protocol.state_blob import InputSlot
from trackmania_rl.simulator.inputs import Controls, RaceInputs


class Held(NamedTuple):
    """What is held at a time.

    Attributes:
        keys: the four keys.
        controls: gas 0 or 1, brake 0 or 1, steer -1 (left) .. 1 (right), as the car feels them.
    """

    keys: KeyState
    controls: Controls


NOTHING_HELD = Held(NO_KEYS, (0.0, 0.0, 0.0))


class InputTimeline:
    """What is held at each time of a race.

    Args:
        events: changes of inputs in order of time.

    Attributes:
        is_analog: whether a wheel or pedals are used; else keys say it all.
        ends_ms: race time of the last change; 0 without any.
    """

    def __init__(self, events: Sequence[InputEvent]) -> None:
        self.is_analog = any(event.input in (Input.STEER, Input.GAS) for event in events)
        self.ends_ms = events[-1].time_ms if events else 0
        inputs = RaceInputs(np.zeros((len(InputSlot), 2), dtype=np.uint32))
        self._times_ms: list[int] = []
        self._held: list[Held] = []
        for time_ms, of_time in groupby(events, key=lambda event: event.time_ms):
            inputs.apply(list(of_time))
            self._times_ms.append(time_ms)
            self._held.append(Held(inputs.keys, inputs.controls))

    def at(self, time_ms: float) -> Held:
        """Return what is held at a race time, that of a change included; nothing before the first."""
        index = bisect_right(self._times_ms, time_ms) - 1
        return self._held[index] if index >= 0 else NOTHING_HELD
