"""One of two collectors killed every ten seconds: the run must never end, and must keep most of its pace."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.outcomes import Outcome, outcome_of
from benchmarks.endurance.small_training import TormentedRun
from benchmarks.training_command import TrainCommand

EVERY_S: Final = 10.0
LEAST_SHARE: Final = 0.6
UNDISTURBED_SHARE: Final = 0.3
"""Of the time, how long it is watched undisturbed first."""


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Watch a training undisturbed, then kill collectors in turn."""
    return [
        outcome_of(
            f"one of two collectors killed every 10 s for {asked.death_minutes:g} minutes",
            f"the run goes on with {LEAST_SHARE:.0%} of its frames/s",
            lambda: _experiment(folder, 60 * asked.death_minutes),
        )
    ]


def _experiment(folder: Path, duration_s: float) -> str:
    # The default configuration's own games and network: what is lost is what a user would lose.
    with TormentedRun(folder, games_per_collector=8, checkpoint_interval_s=60.0).training() as command:
        command.wait_for_races(20)
        undisturbed = _frames_per_s(command, UNDISTURBED_SHARE * duration_s, kill_every_s=None)
        disturbed = _frames_per_s(command, duration_s, kill_every_s=EVERY_S)
        command.stop(signal.SIGTERM)
        assert command.process.returncode == 0, f"exit code {command.process.returncode}: {command.output[-3000:]}"
    share = disturbed / undisturbed
    assert share >= LEAST_SHARE, f"{disturbed:.0f} of {undisturbed:.0f} frames/s: {share:.0%}"
    return f"{disturbed:,.0f} of {undisturbed:,.0f} frames/s: {share:.0%}"


def _frames_per_s(command: TrainCommand, duration_s: float, kill_every_s: float | None) -> float:
    frames, began_s, number = _frames(command), time.monotonic(), 0
    while time.monotonic() - began_s < duration_s:
        time.sleep(kill_every_s or 1.0)
        assert command.process.poll() is None, f"it ended: {command.output[-3000:]}"
        if kill_every_s is not None and (collectors := command.collectors()):
            with contextlib.suppress(psutil.NoSuchProcess):
                collectors[number % len(collectors)].kill()
            number += 1
    return (_frames(command) - frames) / (time.monotonic() - began_s)


def _frames(command: TrainCommand) -> int:
    races = command.races
    return int(races[-1]["frames_total"]) if races else 0
