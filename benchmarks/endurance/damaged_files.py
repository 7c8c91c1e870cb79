"""Damaged and hostile files: the tests that read them by the hundred, counted."""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Final

from benchmarks.endurance.outcomes import Outcome
from benchmarks.training_command import PROJECT

TESTS: Final = {
    "damaged and forged checkpoints, over 200": ("tests/runs/test_hostile.py",),
    "200 mutated driver files, 33 bombs": ("tests/hostile", "-m", "slow or not slow"),
    "killed at each step of writing a checkpoint, and within what processes share": (
        "tests/runs/test_crashes.py",
        "tests/channels/test_critical_sections.py",
    ),
    "N steps, kill, resume, M steps equal N + M, byte for byte": ("tests/training/test_turns.py",),
}
"""By name, what pytest is asked for; the last one of whole trainings, which takes half an hour, is
`python -m pytest -m slow tests/end_to_end/test_synchronous.py`."""


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Run the tests; each is a try."""
    del asked  # their draws have seeds of their own
    folder.mkdir(parents=True, exist_ok=True)
    return [_run(what, tests, folder / f"{number}.xml") for number, (what, tests) in enumerate(TESTS.items())]


def _run(what: str, tests: tuple[str, ...], report: Path) -> Outcome:
    outcome = Outcome(what, "refused by name, or the same bytes")
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
    subprocess.run(command, cwd=PROJECT, check=False, stdout=subprocess.DEVNULL)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            failure = case.find("failure") if case.find("failure") is not None else case.find("error")
            outcome.count(None if failure is None else f"{case.get('name')}: {failure.get('message')}")
    return outcome
