"""Each process stopped for a minute (SIGSTOP), as by a machine that swaps, a debugger or a frozen game."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.outcomes import Outcome, outcome_of
from benchmarks.endurance.small_training import TormentedRun, end_in_order
from benchmarks.training_command import TrainCommand

STANDS_STILL_S: Final = 60.0
BACK_WITHIN_S: Final = 120.0
GAME_SILENCE_S: Final = 15.0
"""Of `tmi_protection_timeout_s`, which is 60 s as it ships: as long as the standstill itself."""


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Stop one process after the other."""
    del asked  # nothing is drawn
    cases: tuple[tuple[str, str, Callable[[Path], str]], ...] = (
        ("a collector stops for 60 s (SIGSTOP)", "replaced, the other drives on", _collector),
        ("a game stops for 60 s (SIGSTOP)", "replaced, the others drive on", _game),
        ("the learner stops for 60 s, not supervised", "goes on, no collector is replaced", _learner),
        ("the learner stops for good, --supervised", "restarted, resumes, nothing left", _supervised_learner),
        ("all processes stop for 60 s, as in a suspended machine", "all go on", _everything),
    )
    return [
        outcome_of(what, promised, lambda experiment=experiment, place=folder / str(number): experiment(place))  # type: ignore[misc]
        for number, (what, promised, experiment) in enumerate(cases)
    ]


def _collector(folder: Path) -> str:
    with TormentedRun(folder).training() as command:
        command.wait_for_races(8)
        return _stop_one(command, command.collectors()[0])


def _game(folder: Path) -> str:
    run = TormentedRun(folder, game_transport="socket", tmi_protection_timeout_s=GAME_SILENCE_S)
    with run.training() as command:
        command.wait_for_races(8)
        return _stop_one(command, command.games()[0])


def _stop_one(command: TrainCommand, victim: psutil.Process) -> str:
    """Stop it; its post must be filled anew within the minute, and races of both collectors come in."""
    n_races = len(command.races)
    victim.suspend()
    began_s = time.monotonic()
    try:
        command.wait_for(lambda: not _runs(victim), "the end of the stopped process", STANDS_STILL_S)
        replaced_s = time.monotonic() - began_s
        meanwhile = len(command.races) - n_races
        assert meanwhile > 0, "the others drove no race meanwhile"
        n_races = len(command.races)
        command.wait_for(
            lambda: len({race["collector"] for race in command.races[n_races:]}) == 2, "both collectors", BACK_WITHIN_S
        )
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.resume()
    end_in_order(command)
    return f"replaced after {replaced_s:.0f} s, {meanwhile} races of the others meanwhile"


def _learner(folder: Path) -> str:
    with TormentedRun(folder).training() as command:
        command.wait_for_races(8)
        collectors = {process.pid for process in command.collectors()}
        _stop_for_a_minute([psutil.Process(command.process.pid)])
        command.wait_for_races(8)
        assert {process.pid for process in command.collectors()} == collectors, "a healthy collector was replaced"
        end_in_order(command)
    return "races go on with the same collectors"


def _everything(folder: Path) -> str:
    with TormentedRun(folder, game_transport="socket").training() as command:
        command.wait_for_races(8)
        family = [psutil.Process(command.process.pid), *command.children("")]
        _stop_for_a_minute(family)
        command.wait_for_races(8)
        kept = sum(process.pid in {child.pid for child in command.children("")} for process in family[1:])
        end_in_order(command)
    return f"races go on; {kept} of {len(family) - 1} processes are the same"


def _supervised_learner(folder: Path) -> str:
    with TormentedRun(folder, learner_silence_s=20.0).training("--supervised") as command:
        command.wait_for_races(8)
        command.wait_for(lambda: list((command.run_folder / "checkpoints").glob("[0-9]*")), "a checkpoint")
        learner = next(child for child in command.children("train.py") if child.pid != command.process.pid)
        learner.suspend()
        began_s = time.monotonic()
        command.wait_for(lambda: not _runs(learner), "the end of the stopped learner", BACK_WITHIN_S)
        killed_s = time.monotonic() - began_s
        command.wait_for_races(4)
        assert "resumed" in command.output, command.output
        back_s = time.monotonic() - began_s
        end_in_order(command)
    return f"killed after {killed_s:.0f} s, the next races after {back_s:.0f} s"


def _stop_for_a_minute(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    time.sleep(STANDS_STILL_S)
    for process in reversed(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
