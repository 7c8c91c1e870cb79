r"""Train on tracks of the suite and measure the driving: score against wall-clock and frames, as table and picture.

Each variant is trained on each track with each seed by scripts/train.py, a command of its own: wall-clock counts from
its start, imports and compiling included. Every fifth race is an evaluation race; the score of a moment is the median
over the last ten of those, a race's score being the record's time / its time, 0 if it does not finish.

The same command resumes an interrupted benchmark: complete runs are kept. The report is about all complete runs in the
folder, so variants may be added one by one. See docs/benchmarks.rst.

Examples:
  python benchmarks/driving/run.py --tracks valley speedway --seeds 0 1 2 --minutes 10 --output benchmark
  python benchmarks/driving/run.py --tracks valley --seeds 0 1 2 --minutes 10 --output benchmark \
      --variant "default:" --variant "double: use_ddqn=True" --variant "slow: lr_schedule=((0, 1e-4),) batch_size=32"
  python benchmarks/driving/run.py --only-report --output benchmark
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from benchmarks.driving.report import compare_variants, comparison_table, markdown, table_of, write_report
from benchmarks.driving.runs import Run, commit, complete_notes, train
from benchmarks.driving.score import MeasuredRun, Yardstick, group_runs, read_yardsticks, run_figures
from benchmarks.driving.variants import Variant, find_tracks, read_variants
from trackmania_rl.cli import command, end_in_order_when_terminated, whole_number
from trackmania_rl.errors import ExitCode, PlainError, UserError
from trackmania_rl.runs.folder import RUN_LOG
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.telemetry.tables import PlainConsole

PROJECT = Path(__file__).resolve().parents[2]
YARDSTICKS_FILE = PROJECT / "benchmarks" / "driving" / "yardsticks.json"
DEFAULT_CONFIG = PROJECT / "config_files" / "config.py"
FIRST_PORT = 20_000
"""First port of games that are played through sockets; each run has its own ports."""


@command
def main() -> int:
    """Run the command line; return the exit code, 1 also if a run failed."""
    arguments = parse_arguments()
    end_in_order_when_terminated()
    console = PlainConsole(width=None if sys.stdout.isatty() else 180)
    failed = [] if arguments.only_report else train_all(runs_of(arguments), arguments.jobs, console)
    for run in failed:
        print(f"error: {run.name} failed: {run.last_line()} ({run.terminal_file})", file=sys.stderr)
    report(arguments, console)
    return ExitCode.FAILED if failed else ExitCode.DONE


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    tracks = "tracks of maps/, track files, or generated:DIFFICULTY:SEED (default valley)"
    add("--tracks", nargs="+", default=["valley"], metavar="NAME", help=tracks)
    add("--seeds", nargs="+", type=whole_number(0), default=[0, 1, 2], metavar="N", help="(default 0 1 2)")
    add("--minutes", type=whole_number(1), help="length of each training (default 10; of a report: all)")
    add("--config", type=Path, default=DEFAULT_CONFIG, help="configuration file (default config_files/config.py)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting in all variants")
    variant = (
        'a way to train, one curve; "NAME:" overrides nothing, config=FILE takes another configuration; may be '
        'repeated (default: one, "default:")'
    )
    add("--variant", action="append", default=[], metavar='"NAME: NAME=VALUE ..."', help=variant)
    variants = "variants from a file, such as research/options/variants.txt"
    add("--variants", type=Path, action="append", default=[], metavar="FILE", help=variants)
    add("--jobs", type=whole_number(1, 64), default=1, help="trainings at a time; more than one share the machine")
    yardsticks = "records and the scripted driver's times"
    add("--yardsticks", type=Path, default=YARDSTICKS_FILE, metavar="FILE", help=yardsticks)
    add("--against", metavar="NAME", help="variant to compare the others with (default: the one that was begun first)")
    add("--only-report", action="store_true", help="train nothing; report on the folder's complete runs")
    add("--output", type=Path, required=True, metavar="FOLDER", help="for runs, table and picture")
    return parser.parse_args()


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    """Return the runs of the command line, each with valid settings.

    Seeds come last to change, so that every variant has a first seed before any has a second.

    Raises:
        UserError: if an argument is wrong.
    """
    texts = [text for file in arguments.variants for text in read_variants(file)] + arguments.variant or ["default:"]
    variants = [Variant.read(text, arguments.config.resolve(), arguments.set) for text in texts]
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise UserError(f"--variant: {', '.join(names)}: each needs a name of its own")
    output = arguments.output.resolve()
    check_against(arguments.against, [*names, *(note["variant"] for note in complete_notes(output))])
    tracks = find_tracks(arguments.tracks, output / "generated_tracks")
    read_yardsticks(arguments.yardsticks, [track.stem for track in tracks])
    runs = []
    next_port = FIRST_PORT
    for seed, track, variant in itertools.product(dict.fromkeys(arguments.seeds), dict.fromkeys(tracks), variants):
        runs.append(Run(variant, track, seed, arguments.minutes or 10, output, next_port))
        next_port += len(runs[-1].settings().game.tmi_ports)
    return runs


def check_against(against: str | None, variants: Sequence[str]) -> None:
    """Raise UserError if there is no variant of this name."""
    if against is not None and against not in variants:
        names = ", ".join(dict.fromkeys(variants))
        raise UserError(f"--against {against}: there is no such variant, only {names}")


def train_all(runs: Sequence[Run], jobs: int, console: Console) -> list[Run]:
    """Train what is not complete, some runs at a time; return the runs that failed."""
    to_train = [run for run in runs if not run.is_complete()]
    try:
        (runs[0].output / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: cannot make {runs[0].output}: {error.strerror}") from error
    n_complete = len(runs) - len(to_train)
    console.print(f"{len(runs)} runs of {runs[0].minutes} minutes each, {n_complete} of them complete already")
    stop = threading.Event()

    def work(run: Run) -> bool:
        console.print(f"{run.name}: begins")
        try:
            return train(run, stop)
        except (PlainError, OSError) as error:  # a full disk, for example: the other runs continue
            console.print(f"{run.name}: {error}")
            return False

    with ThreadPoolExecutor(jobs) as workers:
        futures = {workers.submit(work, run): run for run in to_train}
        try:
            for future in as_completed(futures):
                console.print(f"{futures[future].name}: {'done' if future.result() else 'failed'}")
        except BaseException:  # Ctrl-C above all
            print("the same command resumes; runs that were under way begin anew", file=sys.stderr)
            stop.set()
            workers.shutdown(cancel_futures=True)
            raise
    return [run for future, run in futures.items() if not future.result()]


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Write and print the report of all complete runs.

    Raises:
        UserError: if there is none, or none of the variant to compare with, or a track has no yardstick.
    """
    folder = arguments.output.resolve()
    notes = complete_notes(folder)
    if not notes:
        raise UserError(f"{folder} holds no complete run")
    check_against(arguments.against, [note["variant"] for note in notes])
    if arguments.against is not None:
        notes.sort(key=lambda note: note["variant"] != arguments.against)  # first in tables and pictures
    yardsticks = read_yardsticks(arguments.yardsticks, list(dict.fromkeys(note["track"] for note in notes)))
    groups = group_runs([measured(folder, note, yardsticks[note["track"]], arguments.minutes) for note in notes])
    made = {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": commit(),
        "cores": os.cpu_count(),
    }
    files = write_report(folder, groups, yardsticks, made)
    console.print(Markdown(markdown(table_of(groups))))
    if comparisons := compare_variants(groups):
        console.print(Markdown(markdown(comparison_table(comparisons))))
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def measured(folder: Path, note: Mapping[str, Any], yardstick: Yardstick, minutes: int | None) -> MeasuredRun:
    """Judge a run of the folder, at most its first `minutes`."""
    length = min(note["minutes"], minutes or note["minutes"])
    races = [race for race in iterate_races(folder / "save" / note["name"] / RUN_LOG) if race["wall_s"] <= 60 * length]
    return MeasuredRun(note, races, run_figures(races, note["track"], yardstick, length))


if __name__ == "__main__":
    sys.exit(main())
