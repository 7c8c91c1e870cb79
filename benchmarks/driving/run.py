r"""Train on tracks of the suite and measure the driving: score against wall-clock and frames, as table and picture.

Each variant is trained on each track with each seed by scripts/train.py, a command of its own: wall-clock counts from
its start, imports and compiling included. Every fifth race is greedy; the score of a moment is the median over the last
ten of those, a race's score being the record's time / its time, 0 where it does not finish.

The same command goes on with a benchmark that was interrupted: complete runs are kept. The report is of all complete
runs in the folder, so variants may be added one by one. See docs/driving_benchmark.rst.

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
import json
import os
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from benchmarks.driving.comparison import check_against  # noqa: E402
from benchmarks.driving.measured import MeasuredRun, compare_variants, group_runs  # noqa: E402
from benchmarks.driving.report import comparison_table, markdown, table_of, write_report  # noqa: E402
from benchmarks.driving.runs import (  # noqa: E402
    Run,
    blind_files_of,
    commit,
    complete_notes,
    evaluate,
    evaluate_blind,
    evaluate_each_minute,
    final_file_of,
    make_folder,
    minute_files_of,
    read_note,
    train,
)
from benchmarks.driving.score import Yardstick, greedy_races, read_yardsticks, scores_at  # noqa: E402
from benchmarks.driving.tracks import find_tracks  # noqa: E402
from benchmarks.driving.variants import Variant, read_variants  # noqa: E402
from trackmania_rl.cli import (  # noqa: E402
    command,
    end_in_order_when_terminated,
    whole_number,
)
from trackmania_rl.errors import (  # noqa: E402
    ExitCode,
    PlainError,
    UserError,
)
from trackmania_rl.telemetry.learning_summary import WINDOW_RACES, Race, read_races  # noqa: E402

YARDSTICKS_FILE = PROJECT / "benchmarks" / "driving" / "yardsticks.json"
DEFAULT_CONFIG = PROJECT / "config_files" / "config.py"
FIRST_PORT = 20_000
"""Where games listen that are played through sockets: each run has its own ports, for several may go on at a time."""
LOOK_EVERY_S = 2.0
SEEN_BYTES = 16_384
"""How much of a race log's end the terminal's progress looks at."""


@command
def main() -> int:
    """Run the command line; return the exit code, 1 also if a run failed."""
    arguments = parse_arguments()
    end_in_order_when_terminated()
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        failed = [] if arguments.only_report else train_all(runs_of(arguments), arguments, console)
    except KeyboardInterrupt:
        print("the same command goes on, with the runs that were under way from their start", file=sys.stderr)
        raise
    for run in failed:
        print(f"error: {run.name} failed: {run.last_words()} ({run.terminal_file})", file=sys.stderr)
    report(arguments, console)
    return ExitCode.FAILED if failed else ExitCode.DONE


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--tracks",
        nargs="+",
        default=["valley"],
        metavar="NAME",
        help="tracks of maps/, track files, or generated:DIFFICULTY:SEED (default valley)",
    )
    add("--seeds", nargs="+", type=whole_number(0), default=[0, 1, 2], metavar="N", help="(default 0 1 2)")
    add("--minutes", type=whole_number(1), help="length of each training (default 10; of a report: all)")
    add("--config", type=Path, default=DEFAULT_CONFIG, help="configuration file (default config_files/config.py)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting in all variants")
    add(
        "--variant",
        action="append",
        default=[],
        metavar='"NAME: NAME=VALUE ..."',
        help='a way to train, one curve; "NAME:" overrides nothing, config=FILE takes another configuration; may be '
        'repeated (default: one, "default:")',
    )
    add(
        "--variants",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="variants from a file, such as research/options/variants.txt",
    )
    add("--jobs", type=whole_number(1, 64), default=1, help="trainings at a time; more than one share the machine")
    add(
        "--final-races",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="races of each last checkpoint with varied starts, by scripts/evaluate.py (default none)",
    )
    add(
        "--races-each-minute",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="afterwards drive N races, with varied starts, with what was learned by the end of each minute (default "
        "none)",
    )
    add(
        "--blind",
        nargs=2,
        metavar=("DIFFICULTY", "FIRST-LAST"),
        help="also drive generated tracks of these seeds with each last checkpoint, once each",
    )
    add(
        "--yardsticks",
        type=Path,
        default=YARDSTICKS_FILE,
        metavar="FILE",
        help="records and the scripted driver's times",
    )
    add("--against", metavar="NAME", help="variant to hold the others against (default: the one that was begun first)")
    add("--only-report", action="store_true", help="train nothing; report on the folder's complete runs")
    add("--output", type=Path, required=True, metavar="FOLDER", help="for runs, table and picture")
    return parser.parse_args()


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    """The runs that the command line asks for, each with settings that were looked at.

    Seeds come last to change, so that every variant has a first seed before any has a second.

    Raises:
        UserError: if something on the command line cannot be.
    """
    texts = [text for file in arguments.variants for text in read_variants(file)] + arguments.variant or ["default:"]
    variants = [Variant.read(text, arguments.config.resolve(), arguments.set) for text in texts]
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise UserError(f"--variant: {', '.join(names)}: each needs a name of its own")
    stored = [note["variant"] for note in complete_notes(arguments.output.resolve())]
    check_against(arguments.against, [*names, *stored])
    tracks = find_tracks(arguments.tracks, arguments.output / "generated_tracks")
    read_yardsticks(arguments.yardsticks, [track.stem for track in tracks])
    each = itertools.product(dict.fromkeys(arguments.seeds), dict.fromkeys(tracks), variants)
    runs = []
    next_port = FIRST_PORT
    for seed, track, variant in each:
        run = Run(
            variant,
            track,
            seed,
            arguments.minutes or 10,
            arguments.output.resolve(),
            next_port,
            keeps_drivers=arguments.races_each_minute > 0,
        )
        next_port += len(run.settings().game.tmi_ports)
        runs.append(run)
    if arguments.blind and not re.fullmatch(r"\d*\.?\d+:\d+-\d+", ":".join(arguments.blind)):
        raise UserError(
            f"--blind {' '.join(arguments.blind)}: write --blind DIFFICULTY FIRST-LAST, as in 0.5 20000-20049"
        )
    return runs


def train_all(runs: Sequence[Run], arguments: argparse.Namespace, console: Console) -> list[Run]:
    """Train what is not complete, some at a time, and evaluate what is to be; return the runs that failed."""
    complete = [run for run in runs if run.is_complete()]
    record_ms = {
        name: yardstick.record_ms
        for name, yardstick in read_yardsticks(arguments.yardsticks, [run.track.stem for run in runs]).items()
    }
    make_folder(runs[0].output)
    console.print(f"{len(runs)} runs of {runs[0].minutes} minutes each, {len(complete)} of them complete already")
    stop = threading.Event()

    def work(run: Run) -> bool:
        try:
            is_trained = run in complete or train(run, stop)
            if not is_trained:
                return False
            n_final, n_each_minute = arguments.final_races, arguments.races_each_minute
            return (
                (n_final == 0 or evaluate(run, n_final, stop))
                and (n_each_minute == 0 or evaluate_each_minute(run, n_each_minute, stop))
                and (arguments.blind is None or evaluate_blind(run, ":".join(arguments.blind), stop))
            )
        except (PlainError, OSError) as error:  # a full disk, for example: one run that failed, the others go on
            console.print(f"{run.name}: {error}", highlight=False)
            return False

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[driving]}"))
    with (
        ThreadPoolExecutor(arguments.jobs) as workers,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        total = progress.add_task("all", total=len(runs), driving="")
        futures: dict[Future[bool], Run] = {workers.submit(work, run): run for run in runs}
        shown: dict[Run, TaskID] = {}
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, LOOK_EVERY_S)
                for future in done:
                    run = futures[future]
                    progress.update(total, advance=1)
                    if run in shown:
                        progress.remove_task(shown.pop(run))
                    if run not in complete or not future.result():
                        result = driving_now(run, record_ms[run.track.stem])[1] if future.result() else "failed"
                        console.print(f"{run.name}: {result}", highlight=False)
                for future in pending:
                    run = futures[future]
                    if future.running() and run not in complete:
                        if run not in shown:
                            shown[run] = progress.add_task(run.name, total=60 * run.minutes, driving="")
                        wall_s, driving = driving_now(run, record_ms[run.track.stem])
                        progress.update(shown[run], completed=wall_s, driving=driving)
        except BaseException:  # Ctrl-C above all: else all other trainings would be waited for
            stop.set()
            for future in pending:
                future.cancel()
            raise
    return [run for future, run in futures.items() if not future.result()]


def driving_now(run: Run, record_ms: int) -> tuple[float, str]:
    """How far a run is, in seconds, and how it drives, from the end of its race log alone."""
    try:
        with run.races_file.open("rb") as file:
            file.seek(max(0, run.races_file.stat().st_size - SEEN_BYTES))
            lines = file.read().split(b"\n")[1:-1]  # whole lines only
    except FileNotFoundError:
        return 0.0, "starting"
    races: list[Race] = [json.loads(line) for line in lines]
    greedy = greedy_races(races, run.track.stem)
    if not greedy:
        return 0.0, "no greedy race yet"
    recent, wall_s = greedy[-WINDOW_RACES:], races[-1]["wall_s"]
    score = scores_at(greedy, record_ms, "wall_s", [wall_s])[0]
    n_finished = sum(race["race_finished"] for race in recent)
    return wall_s, f"score {score:.3f}, {n_finished}/{len(recent)} finished, {races[-1]['frames_total']:,} frames"


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Write and print the report of all complete runs.

    Raises:
        UserError: if there is none, or none of the variant to hold the others against, or a track has no yardstick.
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
        console.print(f"wrote {file}", soft_wrap=True, highlight=False)


def measured(folder: Path, note: dict[str, object], yardstick: Yardstick, minutes: int | None) -> MeasuredRun:
    """Judge a run of the folder, at most its first `minutes`."""
    length = int(str(note["minutes"]))
    name = str(note["name"])
    races = read_races(folder / "save" / name / "races.jsonl")
    note_file = folder / "runs" / f"{name}.json"
    final = read_note(final_file_of(note_file))
    blind = {file.stem.removeprefix(f"{name}-"): read_note(file) or {} for file in blind_files_of(note_file)}
    each_minute = [read_note(file) or {} for file in minute_files_of(note_file)]
    return MeasuredRun.judge(note, races, yardstick, min(length, minutes or length), final, blind, each_minute)


if __name__ == "__main__":
    sys.exit(main())
