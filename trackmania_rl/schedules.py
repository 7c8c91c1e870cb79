"""Values that change over a run: ((frame count, value), ...) entries and three ways to read between them.

A frame is one action. The frame counts ascend and begin at 0 (`settings` checks it). From the last entry on, its value
holds. Which of the three readings a setting uses is said beside it in the configuration file.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value", int, float)

ScheduleEntries = Sequence[tuple[int, float]]
"""((frame count, value), ...), ascending in the frame count."""


def staircase(schedule: Sequence[tuple[int, Value]], frame_count: int) -> Value:
    """The value of the last entry that has been reached.

    Args:
        schedule: ((frame count, value), ...), ascending, the first one at frame 0.
        frame_count: actions played so far, >= 0.

    Raises:
        ValueError: if `frame_count` lies before the first entry.
    """
    return schedule[_last_reached(schedule, frame_count)][1]


def linear(schedule: ScheduleEntries, frame_count: int) -> float:
    """The value on the straight line between the two entries around `frame_count`; see `staircase` for the rest."""
    begin_value, end_value, share = _segment(schedule, frame_count)
    return begin_value + (end_value - begin_value) * share


def exponential(schedule: ScheduleEntries, frame_count: int) -> float:
    """The value that changes by a constant factor per frame between two entries; see `staircase` for the rest.

    No such curve leads to or from zero or below: between entries of which one is not positive, the line is straight.
    """
    begin_value, end_value, share = _segment(schedule, frame_count)
    if begin_value <= 0 or end_value <= 0:
        return begin_value + (end_value - begin_value) * share
    return begin_value * math.exp(math.log(end_value / begin_value) * share)


def _last_reached(schedule: ScheduleEntries, frame_count: int) -> int:
    index = bisect_right(schedule, frame_count, key=lambda entry: entry[0]) - 1
    if index < 0:
        raise ValueError(f"frame {frame_count} lies before the schedule's first entry, {schedule[0]}")
    return index


def _segment(schedule: ScheduleEntries, frame_count: int) -> tuple[float, float, float]:
    """Values at both ends of the segment that holds `frame_count`, and the share (0..1) of it that is over."""
    index = _last_reached(schedule, frame_count)
    begin_frame, begin_value = schedule[index]
    if index == len(schedule) - 1:
        return begin_value, begin_value, 0.0
    end_frame, end_value = schedule[index + 1]
    return begin_value, end_value, (frame_count - begin_frame) / (end_frame - begin_frame)
