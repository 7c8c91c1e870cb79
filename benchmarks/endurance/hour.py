"""An hour with four socket games: memory of every process flat, descriptors and threads constant."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Final

from benchmarks.endurance.outcomes import Outcome, outcome_of
from benchmarks.memory_over_time import ProcessReading, Reading, train_and_read

SETTINGS: Final = (
    "game_transport=socket",
    "n_collectors=2",
    "games_per_collector=2",
    "memory_size_schedule=((0, 20_000),)",
    "checkpoint_interval_s=60",
    "terminal_view=off",
)
SETTLED_SHARE: Final = 1 / 3
"""Of the time, how long memories fill; forty minutes of an hour are left."""
LARGEST_GROWTH: Final = 0.02
AVERAGED_READINGS: Final = 5


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Train for so long and look at every process."""
    folder.mkdir(parents=True, exist_ok=True)
    minutes = asked.hour_minutes
    return [
        outcome_of(
            f"{minutes:g} minutes with four socket games",
            f"no process grows by {LARGEST_GROWTH:.0%} after a third of them, descriptors and threads constant",
            lambda: judge(train_and_read(folder, 60 * minutes, list(SETTINGS))),
        )
    ]


def judge(readings: list[Reading]) -> str:
    """Say how much each process has grown since it settled.

    Raises:
        AssertionError: if one has grown too much, holds more descriptors or threads, or was replaced.
    """
    settled = readings[int(SETTLED_SHARE * len(readings)) :]
    first, last = settled[:AVERAGED_READINGS], settled[-AVERAGED_READINGS:]
    told, found = [], []
    for pid in _processes(first[0]):
        before, after = _of(first, pid), _of(last, pid)
        name = f"{before[0].name} {pid}"
        if len(after) < len(last):
            found.append(f"{name} has ended")
            continue
        growth = _memory_mb(after) / _memory_mb(before) - 1
        told.append(f"{before[0].name} {_memory_mb(before):.0f} MB {growth:+.1%}")
        more = [(one.n_descriptors, one.n_threads) for one in (before[-1], after[-1])]
        if growth > LARGEST_GROWTH:
            found.append(f"{name} has grown from {_memory_mb(before):.1f} to {_memory_mb(after):.1f} MB")
        if more[0] != more[1]:
            found.append(f"{name} had {more[0]} descriptors and threads, and has {more[1]}")
    assert not found, "; ".join(found)
    return ", ".join(told)


def _processes(reading: Reading) -> list[int]:
    return [process.pid for process in (reading.learner, *reading.children)]


def _of(readings: list[Reading], pid: int) -> list[ProcessReading]:
    return [one for reading in readings for one in (reading.learner, *reading.children) if one.pid == pid]


def _memory_mb(readings: list[ProcessReading]) -> float:
    return statistics.median(one.memory_mb for one in readings)
