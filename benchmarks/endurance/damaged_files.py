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
    "200 mutated checkpoints": ("tests/checkpoints/test_mutations.py",),
    "200 mutated driver files, 30 bombs": ("tests/strangers",),
    "killed within each step of writing a checkpoint, and within each lock": (
        "tests/checkpoints/test_interrupted_writes.py",
        "tests/channels/test_killed_within.py",
    ),
    "N steps, kill, resume, M steps equal N + M, byte for byte": ("tests/end_to_end/test_synchronous.py",),
}


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Run the tests; each is a try."""
    del asked  # their draws have seeds of their own
    folder.mkdir(parents=True, exist_ok=True)
    return [_run(what, tests, folder / f"{number}.xml") for number, (what, tests) in enumerate(TESTS.items())]


def _run(what: str, tests: tuple[str, ...], report: Path) -> Outcome:
    outcome = Outcome(what, "refused by name, or the same bytes")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", f"--junitxml={report}", *tests]
    subprocess.run(command, cwd=PROJECT, check=False, stdout=subprocess.DEVNULL)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            failure = case.find("failure") if case.find("failure") is not None else case.find("error")
            outcome.count(None if failure is None else f"{case.get('name')}: {failure.get('message')}")
    return outcome
