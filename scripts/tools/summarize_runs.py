"""Compare how fast runs learned: first greedy finish, regular finishing, times after some minutes.

`python scripts/tools/summarize_runs.py save/first save/second --minutes 1 2 5 10`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command
from trackmania_rl.telemetry.learning_summary import WINDOW_RACES, Driving, Race, summarize_learning
from trackmania_rl.telemetry.tables import print_table

from rich.table import Table


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folders", type=Path, nargs="+", metavar="RUN", help="save/{run_name}")
    parser.add_argument("--minutes", type=int, nargs="+", default=[1, 2, 5, 10], help="when to judge the driving")
    arguments = parser.parse_args()

    table = Table(title=f"greedy races; at each moment the last {WINDOW_RACES}: median time (finished/driven)")
    for header in ("run", "map", "first finish", f"{WINDOW_RACES - 1} of {WINDOW_RACES} finished"):
        table.add_column(header)
    for minutes in arguments.minutes:
        table.add_column(f"{minutes} min")
    table.add_column("best")
    for folder in arguments.run_folders:
        summaries = summarize_learning(folder / "races.jsonl", [60 * minutes for minutes in arguments.minutes])
        for map_name, summary in summaries.items():
            table.add_row(
                str(folder),
                map_name,
                _moment(summary.first_finish),
                _moment(summary.regular_finish),
                *(_driving(summary.driving.get(60 * minutes)) for minutes in arguments.minutes),
                "-" if summary.best_time_s is None else f"{summary.best_time_s:.2f} s",
            )
        if not summaries:
            table.add_row(str(folder), "no greedy race yet")
    print_table(table)


def _moment(race: Race | None) -> str:
    return "-" if race is None else f"{race['wall_s']:.0f} s ({race['frames_total']:,} frames)"


def _driving(driving: Driving | None) -> str:
    if driving is None:
        return "-"
    median = "-" if driving.median_time_s is None else f"{driving.median_time_s:.2f} s"
    return f"{median} ({driving.n_finished}/{driving.n_races})"


if __name__ == "__main__":
    sys.exit(main())
