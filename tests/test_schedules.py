"""Schedules against figures worked out by hand and against numpy's own interpolation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl import schedules

EPSILON = ((0, 1.0), (50_000, 1.0), (300_000, 0.1), (3_000_000, 0.03))
READINGS = (schedules.staircase, schedules.linear, schedules.exponential)


@pytest.mark.parametrize("reading", READINGS)
def test_entries_are_met_and_the_last_one_holds(reading):
    for frame_count, value in EPSILON:
        assert reading(EPSILON, frame_count) == pytest.approx(value, rel=1e-12)
    assert reading(EPSILON, 10**9) == 0.03
    assert reading(((0, 7.5),), 0) == reading(((0, 7.5),), 123) == 7.5


def test_values_between_entries():
    assert schedules.staircase(EPSILON, 299_999) == 1.0
    assert schedules.linear(EPSILON, 175_000) == pytest.approx(0.55)
    assert schedules.exponential(EPSILON, 175_000) == pytest.approx(np.sqrt(1.0 * 0.1))
    assert schedules.exponential(((0, 1.0), (10, 0.0)), 5) == 0.5, "linear where a value is not positive"
    assert schedules.exponential(((0, -1.0), (10, 1.0)), 5) == 0.0


@given(
    steps=st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-6, 1e3)), min_size=1, max_size=6),
    frame_count=st.integers(0, 8000),
)
def test_interpolation_equals_numpys(steps, frame_count):
    frames = np.cumsum([0] + [gap for gap, _ in steps[1:]])
    values = [value for _, value in steps]
    schedule = tuple(zip(frames.tolist(), values, strict=True))
    assert schedules.linear(schedule, frame_count) == pytest.approx(np.interp(frame_count, frames, values), rel=1e-9)
    in_logs = np.exp(np.interp(frame_count, frames, np.log(values)))
    assert schedules.exponential(schedule, frame_count) == pytest.approx(in_logs, rel=1e-9)
