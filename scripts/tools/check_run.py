"""Check that a training run did what a training run does; for continuous integration.

`python scripts/tools/check_run.py save/my_run --min-races 20` exits with 1 and says what is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from pathlib import Path
from typing import Any


class RacesSeen:
    """What is looked at of a run's races, line by line: the file of a long run does not fit into memory.

    Args:
        races_file: of the run; one that is not there has no races.

    Attributes:
        n_finished: how many reached the finish; n_greedy_finished: those among them that were driven greedily.
        first_wall_s: when the first race ended, in seconds since the command; 0 without one.
        frames_total: actions of the run.
        meters: distance of each race.
    """

    def __init__(self, races_file: Path) -> None:
        self.n_finished = 0
        self.n_greedy_finished = 0
        self.first_wall_s = 0.0
        self.frames_total = 0
        self.meters = array("d")
        if races_file.is_file():
            with races_file.open(encoding="utf-8") as file:
                for line in file:
                    self._add(json.loads(line))

    @property
    def n_races(self) -> int:
        """How many races there are."""
        return len(self.meters)

    def _add(self, race: dict[str, Any]) -> None:
        if self.n_races == 0:
            self.first_wall_s = race["wall_s"]
        self.meters.append(race["meters"])
        self.n_finished += race["race_finished"]
        self.n_greedy_finished += race["race_finished"] and not race["is_explo"]
        self.frames_total = race["frames_total"]


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
    races = RacesSeen(races_file)
    if races.n_races < arguments.min_races:
        problems.append(f"{races.n_races} races in {races_file}, expected at least {arguments.min_races}")
    if races.first_wall_s > arguments.max_first_race_s:
        problems.append(f"the first race ended after {races.first_wall_s:.0f} s")
    if arguments.must_advance and races.n_races >= 2:
        fifth = max(1, races.n_races // 5)
        early_m, late_m = sum(races.meters[:fifth]) / fifth, sum(races.meters[-fifth:]) / fifth
        print(f"mean distance: {early_m:.0f} m in the first fifth of races, {late_m:.0f} m in the last")
        if late_m <= early_m:
            problems.append("the agent does not come further than at the start")
    if arguments.must_finish and races.n_greedy_finished == 0:
        problems.append("no greedy race has reached the finish")
    if not (arguments.run_folder / "checkpoint.pt").is_file():
        problems.append("no checkpoint.pt")
    print(f"{races.n_races} races, {races.n_finished} finished, {races.frames_total} frames")
    for problem in problems:
        print(f"{arguments.run_folder}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
