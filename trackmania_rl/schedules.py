"""Schedules, ((frame count, value), ...) with ascending frame counts from 0, and three interpolations.

A frame is one action of the run. The last value holds. A setting's description names the interpolation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value", int, float)

ScheduleEntries = Sequence[tuple[int, float]]


def staircase(schedule: Sequence[tuple[int, Value]], frame_count: int) -> Value:
    """Return the last reached entry's value."""
    return _segment(schedule, frame_count)[0]


def linear(schedule: ScheduleEntries, frame_count: int) -> float:
    """Interpolate linearly between the two entries around `frame_count`."""
    begin_value, end_value, share = _segment(schedule, frame_count)
    return begin_value + (end_value - begin_value) * share


def exponential(schedule: ScheduleEntries, frame_count: int) -> float:
    """Interpolate exponentially between the two entries around `frame_count`, linearly if one is not positive."""
    begin_value, end_value, share = _segment(schedule, frame_count)
    if begin_value <= 0 or end_value <= 0:
        return begin_value + (end_value - begin_value) * share
    return begin_value * math.exp(math.log(end_value / begin_value) * share)


def _segment(schedule: Sequence[tuple[int, Value]], frame_count: int) -> tuple[Value, Value, float]:
    """Return the values at both ends of the segment around `frame_count`, and the segment's elapsed share (0..1)."""
    index = bisect_right(schedule, frame_count, key=lambda entry: entry[0])
    begin_frame, begin_value = schedule[index - 1]
    if index == len(schedule):
        return begin_value, begin_value, 0.0
    end_frame, end_value = schedule[index]
    return begin_value, end_value, (frame_count - begin_frame) / (end_frame - begin_frame)
