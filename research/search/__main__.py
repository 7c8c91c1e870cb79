"""Search for settings that drive better, with Ray Tune: each trial is a training with the driving benchmark's score.

The space is a TOML file that names settings with ranges; research/search/spaces/ has one. The same command continues an
interrupted search. At the end it writes the best trial's settings as a configuration and prints the command that
compares them with the default: the best of many trials with one seed is partly luck. See docs/benchmarks.rst.

Examples:
  python -m research.search --space research/search/spaces/learning.toml --scheduler pbt --trials 8 --jobs 4
  python -m research.search --space my_space.toml --scheduler asha --trials 32 --jobs 8 --minutes 30 --cluster auto
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.driving.run import YARDSTICKS_FILE
from benchmarks.driving.score import read_yardsticks
from benchmarks.driving.variants import find_tracks
from research.search.outcome import Outcome, command_against_default, table, write_best
from research.search.space import read_space
from research.search.trial import Plan
from trackmania_rl.cli import command, whole_number
from trackmania_rl.errors import ExitCode, UserError
from trackmania_rl.paths import WORKING_FOLDER

PROJECT: Final = Path(__file__).resolve().parents[2]
ASKED_FILE: Final = "search.json"
MOST_PIECES: Final = 6
NOT_ASKED: Final = frozenset({"output", "cluster"})
"""Options that may change when a search continues."""


@command
def main() -> int:
    """Run the command line; return the exit code, 1 also if a trial failed."""
    arguments = parse_arguments()
    if importlib.util.find_spec("ray") is None:
        raise UserError("the search needs Ray Tune: python -m pip install -r requirements-cluster.txt")
    plan = plan_of(arguments)
    record_arguments(arguments, plan)
    from research.search.tuning import cores_for, ray_running, search  # imports ray, which is optional

    cores_each = 1 + plan.space.base["n_collectors"]
    print(f"{arguments.trials} trials of {arguments.minutes:g} minutes, {arguments.jobs} at a time: {plan.output}")
    with ray_running(arguments.cluster, arguments.jobs * cores_each):
        cores = cores_for(arguments.jobs, cores_each)
        search(plan, arguments.scheduler, arguments.trials, arguments.pieces, cores)
    return conclude(plan, arguments.trials, arguments.minutes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--space", type=Path, required=True, metavar="FILE", help="settings with ranges, TOML")
    schedulers = (
        "pbt: bad trials go on with copies of good ones, their settings changed a little; asha: the worse half is "
        "ended early; random: all go to their end (default pbt)"
    )
    add("--scheduler", choices=("pbt", "asha", "random"), default="pbt", help=schedulers)
    add("--trials", type=whole_number(1, 10_000), default=8, help="(default 8)")
    add("--jobs", type=whole_number(1, 1_000), default=1, help="trials at a time (default 1)")
    add("--minutes", type=float, default=60.0, help="length of each training (default 60)")
    reports = f"pieces of each training, after each of which it is judged (default {MOST_PIECES}, a minute at least)"
    add("--pieces", type=whole_number(1, 1_000), help=reports)
    add("--tracks", nargs="+", default=["valley"], metavar="NAME", help="as for benchmarks/driving/run.py")
    config = "configuration to search around (default config_files/config.py)"
    add("--config", type=Path, default=PROJECT / "config_files" / "config.py", help=config)
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting in all trials")
    add("--seed", type=whole_number(0), default=0, help="of all trainings, and of what is drawn (default 0)")
    add("--cluster", metavar="ADDRESS", help="a Ray cluster, as train.py --cluster takes it (default: this machine)")
    output = "the search's folder, on a cluster one that all machines see (default searches/SPACE_SCHEDULER)"
    add("--output", type=Path, metavar="FOLDER", help=output)
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        parser.error("--minutes: a number above 0")
    arguments.pieces = arguments.pieces or max(1, min(MOST_PIECES, int(arguments.minutes)))
    return arguments


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Validate the arguments and return what all trials have in common.

    Raises:
        UserError: if an argument is invalid.
    """
    config_file, overrides = arguments.config.resolve(), tuple(arguments.set)
    space = read_space(arguments.space, config_file, overrides, clones=arguments.scheduler == "pbt")
    default_output = WORKING_FOLDER / "searches" / f"{arguments.space.stem}_{arguments.scheduler}"
    output = (arguments.output or default_output).resolve()
    tracks = tuple(dict.fromkeys(find_tracks(arguments.tracks, output / "generated_tracks")))
    return Plan(
        space=space,
        config_file=config_file,
        overrides=overrides,
        tracks=tracks,
        yardsticks=read_yardsticks(YARDSTICKS_FILE, [track.stem for track in tracks]),
        seed=arguments.seed,
        piece_s=60 * arguments.minutes / arguments.pieces,
        output=output,
        working_folder=Path.cwd(),
    )


def record_arguments(arguments: argparse.Namespace, plan: Plan) -> None:
    """Write the arguments into the search's folder.

    Raises:
        UserError: if another search is there, or the folder cannot be made.
    """
    asked: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name not in NOT_ASKED}
    asked |= {"space": {name: entry.model_dump() for name, entry in plan.space.entries.items()}}
    text = json.dumps(asked, indent=1, default=str) + "\n"
    file = plan.output / ASKED_FILE
    try:
        plan.output.mkdir(parents=True, exist_ok=True)
        before = file.read_text(encoding="utf-8") if file.is_file() else None
        if before is None:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {plan.output}: {error.strerror}; choose another folder") from error
    if before not in (None, text):
        raise UserError(f"{file} tells of a search that was asked for otherwise: choose another --output, or delete it")


def conclude(plan: Plan, trials: int, minutes: float) -> int:
    """Print the outcome; of a complete search write the best as a configuration. Return the exit code."""
    outcome = Outcome(plan.output)
    print(table(outcome))
    over = [name for name, trial in outcome.trials.items() if trial.status != "under way"]
    if len(over) < trials:
        print(f"{len(over)} of {trials} trials are over: the same command goes on", file=sys.stderr)
        return ExitCode.FAILED
    failed = [name for name, trial in outcome.trials.items() if trial.status == "failed"]
    for name in failed:
        print(f"error: {name}: {outcome.trials[name].why}", file=sys.stderr)
    if (best := outcome.best()) is not None:
        name, trial = best
        file = write_best(plan, trial.drawn, trial.scores[-1], name)
        print(f"the best, {name}, is {file}; measure it against the default:")
        print(command_against_default(plan, file, minutes))
    return ExitCode.FAILED if failed else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
