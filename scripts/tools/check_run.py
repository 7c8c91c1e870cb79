"""Check that a training run did what a training run does; for continuous integration.

`python scripts/tools/check_run.py save/my_run --min-races 20` exits with 1 and says what is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Read the run's races and files; return the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", type=Path, help="save/{run_name}")
    parser.add_argument("--min-races", type=int, default=1, help="races that must have been driven")
    parser.add_argument("--max-first-race-s", type=float, default=60.0, help="the first race must end by then")
    parser.add_argument("--must-advance", action="store_true", help="later races must come further than early ones")
    parser.add_argument("--must-finish", action="store_true", help="a greedy race must have reached the finish")
    arguments = parser.parse_args()

    problems = []
    races_file = arguments.run_folder / "races.jsonl"
    lines = races_file.read_text().splitlines(keepends=True) if races_file.is_file() else []
    races = [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be cut short
    if len(races) < arguments.min_races:
        problems.append(f"{len(races)} races in {races_file}, expected at least {arguments.min_races}")
    if races and races[0]["wall_s"] > arguments.max_first_race_s:
        problems.append(f"the first race ended after {races[0]['wall_s']:.0f} s")
    if arguments.must_advance and len(races) >= 2:
        fifth = max(1, len(races) // 5)
        early_m = sum(race["meters"] for race in races[:fifth]) / fifth
        late_m = sum(race["meters"] for race in races[-fifth:]) / fifth
        print(f"mean distance: {early_m:.0f} m in the first fifth of races, {late_m:.0f} m in the last")
        if late_m <= early_m:
            problems.append("the agent does not come further than at the start")
    if arguments.must_finish and not any(race["race_finished"] and not race["is_explo"] for race in races):
        problems.append("no greedy race has reached the finish")
    if not list((arguments.run_folder / "checkpoints").glob("*/manifest.json")):
        problems.append("no checkpoint")
    finished = sum(race["race_finished"] for race in races)
    print(f"{len(races)} races, {finished} finished, {races[-1]['frames_total'] if races else 0} frames")
    for problem in problems:
        print(f"{arguments.run_folder}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
