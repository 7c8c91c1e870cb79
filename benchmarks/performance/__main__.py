"""Measure every part beside the classic way and beside its floor; see docs/benchmarks.rst.

python -m benchmarks.performance                          # all, about ten minutes
python -m benchmarks.performance --quick                  # about three minutes, coarser
python -m benchmarks.performance --only replay transport --json figures.json
python -m benchmarks.performance --device cuda --only replay learner_step inference
"""

from __future__ import annotations

import argparse
import os

# Before numpy and torch are imported: one thread in all libraries, unless asked for otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.performance import (
    client,
    collector_games,
    in_process_games,
    inference,
    learner_step,
    memory,
    replay,
    simulation,
    training,
    transport,
    weights,
)
from benchmarks.performance.machine import Machine, measure_machine
from benchmarks.performance.measuring import Figure, Options
from benchmarks.performance.report import print_report, write_json

PARTS: dict[str, Callable[[Options, Machine], list[Figure]]] = {
    "replay": replay.measure,
    "memory": memory.measure,
    "transport": transport.measure,
    "weights": weights.measure,
    "inference": inference.measure,
    "learner_step": learner_step.measure,
    "simulation": simulation.measure,
    "client": client.measure,
    "collector": collector_games.measure,
    "in_process": in_process_games.measure,
    "training": training.measure,
}
QUICK = Options(repetitions=10, seconds_per_figure=1.0, client_actions=500, training_s=30.0, compiled=False)


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    console = Console(width=None if sys.stdout.isatty() else 180)
    options = replace(QUICK if arguments.quick else Options(), device=arguments.device)
    machine = measure_machine(arguments.device)
    figures = []
    for name in arguments.only or PARTS:
        console.print(f"measuring {name} ...", style="dim")
        figures += PARTS[name](options, machine)
    print_report(figures, machine, console)
    if arguments.json:
        write_json(arguments.json, figures, machine, options)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, shorter training, no torch.compile")
    parser.add_argument("--device", default="cpu", help="where replay memory and networks live (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
