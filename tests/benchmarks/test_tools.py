"""The other benchmarks: their figures on made-up readings, and their commands."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import memory_over_time
from benchmarks.endurance import kills
from benchmarks.memory_over_time import ProcessReading, Reading, judge


def reading(minute: float, game_mb: float, n_descriptors: int = 9, pid: int = 7) -> Reading:
    learner = ProcessReading(5, "learner", 500.0 - minute, 31, 11)
    return Reading(minute, (learner, ProcessReading(pid, "game", game_mb, n_descriptors, 3)))


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
    flat = [reading(minute, 60.0) for minute in range(10, 30)]
    growths, found = judge([*(reading(minute, 50.0 + minute) for minute in range(10)), *flat])
    assert growths[-1] == "game 60 MB +0.0%"
    assert not found
    [found_text] = judge([*(reading(minute, 60.0) for minute in range(10)), *late])[1]
    assert re.search(said, found_text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_kills_are_survived(tmp_path: Path) -> None:
    outcomes = kills.measure(argparse.Namespace(seed=3, kills=8), tmp_path)
    assert sum(outcome.tries for outcome in outcomes) == 8
    assert [failure for outcome in outcomes for failure in outcome.failures] == []


@pytest.mark.slow
def test_a_short_training_is_read(monkeypatch, capsys, tmp_path):
    small = ("image_width_px=0", "image_height_px=0", "memory_size_schedule=((0, 4_000),)")
    arguments = ["--minutes", "0.4", "--json", str(tmp_path / "memory.json")]  # the memory fills: it may have grown
    for override in small:
        arguments += ["--set", override]
    monkeypatch.setattr(sys, "argv", ["memory_over_time", *arguments])
    memory_over_time.main()
    readings = json.loads((tmp_path / "memory.json").read_text())
    assert len(readings) > 3
    learner, *children = readings[-1]["processes"]
    assert learner["memory_mb"] > 10
    assert learner["n_descriptors"] > 5
    assert "collector" in {child["name"] for child in children}
    assert readings == sorted(readings, key=lambda reading: reading["minute"])
    assert "learner" in capsys.readouterr().out
