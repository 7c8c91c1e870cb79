"""Time won and lost by section, of races made up so that every number can be worked out by hand."""

import math

import numpy as np
import pytest

from trackmania_rl.telemetry.sections import (
    checkpoint_names,
    compare_sections,
    equal_parts,
    part_names,
    spread_time,
    times_at,
)

BEST = (4000, 6000, 10_000)


def test_what_is_lost_in_each_section_adds_up_to_what_it_is_behind() -> None:
    sections = compare_sections(BEST, (4100, 6300, 10_150), checkpoint_names(3), [50.0, 70.0, 130.0])
    assert [section.name for section in sections] == ["CP 1", "CP 2", "finish"]
    assert [section.end_m for section in sections] == [50.0, 70.0, 130.0]
    assert [section.section_ms for section in sections] == [(4000, 4100), (2000, 2200), (4000, 3850)]
    assert [section.lost_ms for section in sections] == [100, 200, -150]
    assert [section.behind_ms for section in sections] == [100, 300, 150]


@pytest.mark.parametrize("n_passed", [0, 1, 2])
def test_a_race_that_did_not_finish_is_compared_as_far_as_it_came(n_passed: int) -> None:
    sections = compare_sections(BEST, (4500, 6100)[:n_passed], checkpoint_names(3))
    assert [section.name for section in sections] == ["CP 1", "CP 2"][:n_passed]
    assert [section.lost_ms for section in sections] == [500, -400][:n_passed]
    assert all(math.isnan(section.end_m) for section in sections)


def test_a_medal_is_the_best_race_slower_by_the_same_factor_everywhere() -> None:
    assert spread_time(12_500, BEST) == [5000, 7500, 12_500]
    assert spread_time(10_001, BEST)[-1] == 10_001
    medal = spread_time(12_500, BEST)
    sections = compare_sections(medal, BEST, checkpoint_names(3))
    shares = [section.lost_ms / section.section_ms[0] for section in sections]
    assert shares == pytest.approx([-0.2] * 3)
    assert sections[-1].behind_ms == -2500


def test_parts_of_a_line() -> None:
    ends_m = equal_parts(50.0, n_parts=4)
    assert ends_m.tolist() == [12.5, 25.0, 37.5, 50.0]
    assert part_names(ends_m) == ["12 m", "25 m", "38 m", "finish"]
    assert len(equal_parts(600.0)) == 10


def test_when_a_race_first_was_so_far() -> None:
    meters = np.array([0, 10, 20, 15, 12, 20, 30, 40], dtype=np.float32)  # it went back, and came again
    time_ms = np.arange(8, dtype=np.int32) * 50
    assert times_at(np.array([5.0, 20.0, 25.0, 39.0, 40.5]), meters, time_ms) == [25, 100, 200, 345, 350]
    assert times_at(np.array([5.0, 41.5]), meters, time_ms) == [25], "the second end was not reached"
    standing = np.zeros(5, dtype=np.float32)
    assert times_at(np.array([20.0]), standing, time_ms[:5]) == []


def test_names_of_a_race_that_is_no_finish() -> None:
    assert checkpoint_names(2, last_is_finish=False) == ["CP 1", "CP 2"]
    assert checkpoint_names(0) == []
