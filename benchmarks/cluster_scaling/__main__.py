"""How many collectors one learner feeds on many machines, and which part is full first; see docs/cluster.rst.

python -m benchmarks.cluster_scaling
python -m benchmarks.cluster_scaling --machines 2 4 8 --collectors-per-machine 8 --gigabits 10 --gpu-update-ms 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.cluster_scaling.capacity import WHAT_TO_CHANGE, collectors_served
from benchmarks.cluster_scaling.simulation import Outcome, Simulation
from benchmarks.cluster_scaling.workloads import GIGABIT_BYTES_PER_S, Machines, Workload, workloads
from trackmania_rl.cli import command, whole_number

PARTS = ("learner", "link in", "link out", "machine's link", "relay")
FEWEST_RACES = 20


def simulated(workload: Workload, machines: Machines, seconds: float) -> Outcome:
    """Simulate so long after the rooms had time to fill."""
    driven_s = (workload.rooms + 1) * 2 * workload.rows_per_race / workload.collector_actions_per_s
    trained_s = FEWEST_RACES * workload.rows_per_race / workload.learner_actions_per_s
    return Simulation(workload, machines).run(max(seconds, trained_s), max(driven_s, workload.publish_every_s))


def capacity_table(cases: Sequence[Workload], machines: Machines) -> Table:
    """Tabulate how many collectors each part could serve alone."""
    table = Table(
        "workload", title="collectors that fill each part alone; the least of them is first", title_justify="left"
    )
    for part in PARTS:
        table.add_column(part, justify="right")
    for case in cases:
        served = collectors_served(case, machines)
        table.add_row(case.name + (" *" if case.is_assumed else ""), *(f"{served[part]:,.3g}" for part in PARTS))
    return table


def simulation_table(cases: Sequence[Workload], sizes: Sequence[Machines], seconds: float) -> Table:
    """Tabulate what was simulated for each workload and number of machines."""
    table = Table("workload", title="simulated; shares of the time that each part is busy", title_justify="left")
    for heading in ("machines", "collectors", "learned/s", *PARTS, "collectors drive", "race's age", "weights' age"):
        table.add_column(heading, justify="right")
    table.add_column("full")
    for case in cases:
        for machines in sizes:
            outcome = simulated(case, machines, seconds)
            table.add_row(
                case.name + (" *" if case.is_assumed else ""),
                str(machines.n),
                str(machines.n_collectors),
                f"{outcome.learned_per_s:,.0f}",
                *(f"{outcome.busy[part]:.0%}" for part in (*PARTS, "collectors")),
                f"{outcome.race_age_s:,.1f} s",
                f"{outcome.weights_age_s:,.1f} s",
                ", ".join(outcome.full),
            )
    return table


def positive(text: str) -> float:
    """Read a number above zero."""
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: it must be above 0")
    return number


@command
def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster_scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--machines", type=whole_number(1, 1000), nargs="+", default=[1, 10, 100], metavar="N", help="with collectors")
    add("--collectors-per-machine", type=whole_number(1, 1000), default=4, metavar="N", help="(default %(default)s)")
    add("--gigabits", type=positive, default=1.0, help="a second, of each machine's network (%(default)s)")
    add(
        "--relay-calls-per-s",
        type=positive,
        default=Machines(1).relay_calls_per_s,
        metavar="N",
        help="(default %(default)s, assumed)",
    )
    gpu = "one full-size update of 512 on your GPU (default %(default)s, assumed)"
    add("--gpu-update-ms", type=positive, default=20.0, metavar="MS", help=gpu)
    add("--seconds", type=positive, default=60.0, help="simulated for each figure (default %(default)s)")
    arguments = parser.parse_args()
    link_bytes_per_s = arguments.gigabits * GIGABIT_BYTES_PER_S
    each, calls = arguments.collectors_per_machine, arguments.relay_calls_per_s
    sizes = [Machines(n, each, link_bytes_per_s, calls) for n in arguments.machines]
    cases = workloads(arguments.gpu_update_ms)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(capacity_table(cases, sizes[0]))
    console.print(simulation_table(cases, sizes, arguments.seconds))
    console.print("* with a GPU whose update was not measured: --gpu-update-ms", highlight=False)
    for part, change in WHAT_TO_CHANGE.items():
        console.print(f"{part} full: {change}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
