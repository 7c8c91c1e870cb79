"""Compare how fast runs learned: first greedy finish, regular finishing, times after some minutes.

`python scripts/tools/summarize_runs.py save/first save/second --minutes 1 2 5 10`
`python scripts/tools/summarize_runs.py save/first --races first.jsonl`
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command
from trackmania_rl.errors import UserError
from trackmania_rl.runs.folder import RUN_LOG
from trackmania_rl.runs.log import races_with_learning
from trackmania_rl.telemetry.learning_summary import Driving, Moment, summarize_learning
from trackmania_rl.telemetry.statistics import RECENT_RACES
from trackmania_rl.telemetry.tables import print_table

from rich.table import Table


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folders", type=Path, nargs="+", metavar="RUN", help="save/{run_name}")
    parser.add_argument("--minutes", type=int, nargs="+", default=[1, 2, 5, 10], help="when to judge the driving")
    parser.add_argument("--races", type=Path, metavar="FILE", help="write a JSON line for each race of one run")
    arguments = parser.parse_args()
    if arguments.races is not None:
        if len(arguments.run_folders) != 1:
            raise UserError("--races takes one run")
        write_races(arguments.run_folders[0] / RUN_LOG, arguments.races)
        return

    table = Table(title=f"greedy races; at each moment the last {RECENT_RACES}: median time (finished/driven)")
    for header in ("run", "map", "first finish", f"{RECENT_RACES - 1} of {RECENT_RACES} finished"):
        table.add_column(header)
    for minutes in arguments.minutes:
        table.add_column(f"{minutes} min")
    table.add_column("best")
    for folder in arguments.run_folders:
        summaries = summarize_learning(folder / RUN_LOG, [60 * minutes for minutes in arguments.minutes])
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


def write_races(log: Path, file: Path) -> None:
    """Write a JSON line for each race in a run."""
    try:
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(race) + "\n" for race in races_with_learning(log))
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error


def _moment(moment: Moment | None) -> str:
    return "-" if moment is None else f"{moment.training_s:.0f} s ({moment.frames_total:,} frames)"


def _driving(driving: Driving | None) -> str:
    if driving is None:
        return "-"
    median = "-" if driving.median_time_s is None else f"{driving.median_time_s:.2f} s"
    return f"{median} ({driving.n_finished}/{driving.n_races})"


if __name__ == "__main__":
    sys.exit(main())
