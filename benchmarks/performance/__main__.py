"""Measure each part beside the classic way and beside its floor; see docs/benchmarks.rst.

python -m benchmarks.performance                          # all, about ten minutes
python -m benchmarks.performance --quick                  # about three minutes, coarser
python -m benchmarks.performance --only replay transport --json figures.json
python -m benchmarks.performance --device cuda --only replay learner_step inference
python -m benchmarks.performance --only in_process environments --games 1 8 32
"""

from __future__ import annotations

import argparse
import os

# Before numpy and torch are imported: one thread in all libraries, unless asked for otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.performance import (
    client,
    inference,
    learner_step,
    replay,
    simulation,
    training,
    transport,
)
from benchmarks.performance.measuring import Figure, Machine, Options, measure_machine, print_report, write_json
from trackmania_rl.agents.devices import pick_device
from trackmania_rl.cli import command, new_file
from trackmania_rl.telemetry.tables import PlainConsole

PARTS: dict[str, Callable[[Options, Machine], list[Figure]]] = {
    "replay": replay.measure,
    "transport": transport.measure,
    "inference": inference.measure,
    "learner_step": learner_step.measure,
    "simulation": simulation.measure,
    "client": client.measure,
    "in_process": simulation.measure_in_process,
    "environments": simulation.measure_environments,
    "training": training.measure,
}
QUICK = Options(
    repetitions=10,
    seconds_per_figure=1.0,
    learner_batch_size=64,
    client_actions=500,
    training_s=30.0,
    compiled=False,
)


@command
def main() -> None:
    arguments = parse_arguments()
    device = str(pick_device(arguments.device))
    torch.set_num_threads(arguments.threads)
    console = PlainConsole(width=None if sys.stdout.isatty() else 180)
    options = replace(
        QUICK if arguments.quick else Options(),
        device=device,
        in_process_games=tuple(arguments.games),
    )
    machine = measure_machine(device)
    figures: list[Figure] = []
    try:
        for name in arguments.only or PARTS:
            console.print(f"measuring {name} ...", style="dim")
            figures += PARTS[name](options, machine)
    finally:  # also after an error or Ctrl-C
        print_report(figures, machine, console)
        if arguments.json:
            write_json(arguments.json, figures, machine, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, smaller batches, shorter training, no torch.compile"
    )
    parser.add_argument("--device", default="cpu", help="where replay memory and networks live (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")
    parser.add_argument(
        "--games", type=int, nargs="+", default=Options.in_process_games, help="of the parts in_process, environments"
    )
    parser.add_argument("--json", type=new_file, help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
