"""Check whether this machine can run a training; each line has a finding and, if needed, a remedy.

With --play a game is started, driven forward for 5 seconds and ended; its picture is written to a file.
docs/troubleshooting.rst has a section for each line. The exit code is 0 if there is no problem, else 1.

Examples:
  python scripts/doctor.py
  python scripts/doctor.py --config config_files/config_tmnf.py --play
  python scripts/doctor.py --connect https://learner:8470 --token-file token --certificate learner.crt
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.cli import (
    add_configuration_arguments,
    add_connection_options,
    command,
    png_file,
    worker_token,
)
from trackmania_rl.errors import ExitCode
from trackmania_rl.paths import PROJECT_FOLDER, WORKING_FOLDER
from trackmania_rl.start import INSTALL

if TYPE_CHECKING:
    from trackmania_rl.doctor.findings import Finding


@command
def main() -> int:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        from trackmania_rl.doctor.examination import examine
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        # Windows' messages for a missing system library that torch needs.
        is_of_windows = sys.platform == "win32" and (isinstance(error, OSError) or "DLL" in str(error))
        remedy = (
            "install the Microsoft Visual C++ Redistributable (https://aka.ms/vs/17/release/vc_redist.x64.exe)"
            if is_of_windows
            else INSTALL
        )
        print(f"problem: packages: {error}: {remedy}", file=sys.stderr)
        return ExitCode.FAILED
    picture_file = arguments.picture if arguments.play else None
    findings = examine(arguments.config, arguments.set, arguments.output_folder, PROJECT_FOLDER, picture_file)
    if arguments.cluster is not None:
        findings = itertools.chain(findings, findings_of_cluster(arguments))
    if arguments.connect is not None:
        findings = itertools.chain(findings, findings_of_learner(arguments))
    return write_json(findings) if arguments.json else show(findings)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_configuration_arguments(parser, PROJECT_FOLDER / "config_files")
    add("--output-folder", type=Path, default=WORKING_FOLDER, help="where a run would write (default: the project)")
    add("--play", action="store_true", help="start one game and drive 5 s forward")
    add(
        "--picture",
        type=png_file,
        default=Path("doctor.png"),
        metavar="FILE.png",
        help="where --play writes the game's picture (default %(default)s)",
    )
    add("--cluster", metavar="CLUSTER", help="also check a Ray cluster: auto, HOST:PORT or local:N")
    add_connection_options(parser)
    add("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args()


def findings_of_cluster(arguments: argparse.Namespace) -> Iterator[Finding]:
    from trackmania_rl.doctor.findings import Check, problem
    from trackmania_rl.errors import UserError
    from trackmania_rl.multiprocess.run_setup import require_ray
    from trackmania_rl.settings import load_settings

    try:
        require_ray()
    except UserError as error:
        yield problem(Check.CLUSTER, str(error))
        return
    from trackmania_rl.multiprocess.cluster import check_cluster

    yield from check_cluster(arguments.cluster, load_settings(arguments.config, arguments.set))


def findings_of_learner(arguments: argparse.Namespace) -> Iterator[Finding]:
    from trackmania_rl.doctor.findings import Check, problem
    from trackmania_rl.errors import UserError

    try:
        token = worker_token(arguments.token_file)
        from trackmania_rl.multiprocess.worker import LearnerAddress, check_learner

        learner = LearnerAddress.of_command(arguments.connect, token, arguments.certificate, arguments.insecure)
        yield from check_learner(learner)
    except UserError as error:
        yield problem(Check.LEARNER, error)


def show(findings: Iterator[Finding]) -> int:
    """Print each finding as soon as it is known; return the exit code."""
    from trackmania_rl.doctor.findings import GUIDE, Level
    from trackmania_rl.telemetry.tables import PlainConsole

    colours = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
    counts = dict.fromkeys(Level, 0)
    console = PlainConsole()
    for finding in findings:
        counts[finding.level] += 1
        console.print(f"{finding.level.value:<8}", style=colours[finding.level], end="")
        console.print(f"{finding.check.value}: {finding.text}", soft_wrap=True)
    n_problems, n_warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    guide = f"; see {GUIDE}" if n_problems + n_warnings else ""
    console.print(f"{count(n_problems, 'problem')}, {count(n_warnings, 'warning')}{guide}")
    return int(n_problems > 0)


def count(number: int, name: str) -> str:
    """Return a count in words: 0 problems, 1 problem."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def write_json(findings: Iterator[Finding]) -> int:
    """Print all findings as one JSON object; return the exit code."""
    found = [dataclasses.asdict(finding) for finding in findings]
    n_problems = sum(finding["level"] == "problem" for finding in found)
    print(json.dumps({"problems": n_problems, "findings": found}, indent=2))
    return int(n_problems > 0)


if __name__ == "__main__":
    sys.exit(main())
