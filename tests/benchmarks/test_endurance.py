"""What the endurance benchmark says of what it saw; its trainings are run by name."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.endurance import kills
from benchmarks.endurance.hour import judge
from benchmarks.endurance.outcomes import Outcome, outcome_of, read_outcomes, write_outcomes
from benchmarks.memory_over_time import ProcessReading, Reading


def reading(minute: float, game_mb: float, n_descriptors: int = 9, pid: int = 7) -> Reading:
    learner = ProcessReading(5, "learner", 500.0 - minute, 31, 11)
    return Reading(minute, learner, (ProcessReading(pid, "game", game_mb, n_descriptors, 3),))


def test_memory_that_stays_is_told_with_its_growth() -> None:
    filling = [reading(minute, 50.0 + minute) for minute in range(10)]
    flat = [reading(minute, 60.0) for minute in range(10, 30)]
    assert judge([*filling, *flat]) == "learner 488 MB -3.1%, game 60 MB +0.0%"


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ([reading(minute, 60.0 + minute) for minute in range(10, 30)], "game 7 has grown from 72.0 to 87.0 MB"),
        ([reading(minute, 60.0, 9 + (minute > 20)) for minute in range(10, 30)], r"had \(9, 3\).* and has \(10, 3\)"),
        ([reading(minute, 60.0, pid=7 + (minute > 20)) for minute in range(10, 30)], "game 7 has ended"),
    ],
    ids=["grows", "leaks descriptors", "was replaced"],
)
def test_what_grows_or_goes_is_named(late: list[Reading], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        judge([*(reading(minute, 60.0) for minute in range(10)), *late])


def test_an_experiment_that_fails_is_a_finding_and_is_kept(tmp_path: Path) -> None:
    def fails() -> str:
        raise OSError("no such luck")

    outcomes = [outcome_of("tried", "to go well", lambda: "3.5 s"), outcome_of("tried again", "likewise", fails)]
    file = tmp_path / "part.json"
    write_outcomes(file, outcomes)
    good, bad = read_outcomes(file)
    assert good == Outcome("tried", "to go well", tries=1, survived=1, told="3.5 s")
    assert (bad.tries, bad.survived) == (1, 0)
    assert "no such luck" in bad.failures[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_kills_are_survived(tmp_path: Path) -> None:
    outcomes = kills.measure(argparse.Namespace(seed=3, kills=8), tmp_path)
    assert sum(outcome.tries for outcome in outcomes) == 8
    assert [failure for outcome in outcomes for failure in outcome.failures] == []
