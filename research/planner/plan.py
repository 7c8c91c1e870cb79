"""Make or improve the yardsticks of tracks: the scripted driver's times, and a near-optimal plan of the planner.

    python -m research.planner.plan --tracks valley kart --minutes 5
    python -m research.planner.plan --tracks generated:0.5:7 my_tracks/mine.toml --output-folder my_tracks/yardsticks
    python -m research.planner.plan --tracks valley --begin-with save/simulated/best_runs/*/*.inputs --keys-only

Writes `research/planner/plans/{track}.inputs` and `benchmarks/driving/yardsticks.json`. What is stored already is where
the search begins; it is never replaced by a worse plan, so that running this again and again makes the yardsticks
better. Every plan is replayed from its file before its time is written down. The same stored plan, seed and number of
rounds give the same result.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.driving.tracks import find_tracks
from research.planner import climbing, line_search
from research.planner.driver_tuning import scripted_race, tune
from research.planner.plans import (
    Actions,
    Entry,
    actions_of_script,
    length_m,
    read_entries,
    replay_ms,
    script_of_actions,
    write_entry,
    write_whole,
)
from research.planner.racing import ACTION_MS, course_of, drive_actions
from trackmania_rl.argument_types import whole_number
from trackmania_rl.command_line import command, end_in_order_when_terminated
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings
from trackmania_rl.simulator.tracks.track_file import load_track

FOLDER: Final = Path(__file__).resolve().parent
YARDSTICKS_FOLDER: Final = FOLDER.parents[1] / "benchmarks" / "driving"
SHIPPED_TRACKS: Final = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")

DRIVES_OF_TUNING: Final = 1200
TRIALS_PER_ROUND: Final = 10_000
"""Half a minute of one core, on tracks of twenty seconds."""
ROUNDS_OF_A_CYCLE: Final = 8
FRESH_ROUNDS: Final = 5
"""A cycle's first rounds begin with the tuned driver; the next ones join what they found; the last one changes keys."""
_MOST_ELITES: Final = 6
_FRESH_TOLERANCE_MS: Final = 150.0
_JOINING_TOLERANCE_MS: Final = 80.0
_CLIMB_TOLERANCES_MS: Final = (0.0, 50.0, 100.0)
_MOST_ROOM: Final = 1.2
"""Room for a race in between, as a share of the first driver's."""


class TrackPlanner:
    """One track's yardsticks, on disk and in work.

    Args:
        track_file: the track.
        yardsticks: the file of all tracks' times.
        plans: the folder of plans.
        seed: of everything that is drawn.
        drives_of_tuning: how many settings of the scripted driver are tried where none are stored.
        begin_with: inputs files of this track; the search begins with the fastest of these and the stored plan.

    Raises:
        UserError: if the track cannot be used, nothing gets to its finish, or a file of `begin_with` does not.
    """

    def __init__(
        self,
        track_file: Path,
        yardsticks: Path,
        plans: Path,
        seed: int,
        drives_of_tuning: int,
        begin_with: Sequence[Path] = (),
    ) -> None:
        self.name = track_file.stem
        self.track = load_track(track_file)
        self._seed = seed
        self._yardsticks = yardsticks
        self.script = plans / f"{self.name}.inputs"
        self._line = plans / f"{self.name}.line.npz"
        self._rounds = 0
        self._elites: list[line_search.LineDriver] = []  # the best first
        stored = read_entries(self._yardsticks).get(self.name)
        self.plan, self.entry = self._begin(stored, drives_of_tuning, [self._race_of(file) for file in begin_with])
        self._store()

    def play_round(self, n_trials: int, *, is_keys_only: bool = False) -> bool:
        """Search once; return whether the plan's time became better.

        Args:
            n_trials: changes tried.
            is_keys_only: change keys whichever round of the cycle it is.
        """
        random = np.random.default_rng([self._seed, zlib.crc32(self.name.encode()), self._rounds])
        phase = self._rounds % ROUNDS_OF_A_CYCLE
        if is_keys_only or phase == ROUNDS_OF_A_CYCLE - 1:
            self._take(self._changed_keys(random, n_trials))
        else:
            self._take(self._changed_line(random, n_trials, phase < FRESH_ROUNDS))
        self._rounds += 1
        before_ms = self.entry["planner_ms"]
        self._store()
        return self.entry["planner_ms"] < before_ms

    def _changed_line(self, random: np.random.Generator, n_trials: int, is_fresh: bool) -> Actions:
        """Improve the tuned driver's line and speeds, or the best ones so far with those of the others; drive it."""
        settings = DriverSettings(**self.entry["scripted_tuned_settings"])
        driver = line_search.line_driver(self.track, settings) if is_fresh else self._elites[0]
        highest_ms = _FRESH_TOLERANCE_MS if is_fresh else _JOINING_TOLERANCE_MS
        driver, actions = line_search.improve_line(
            self.track,
            driver,
            [] if is_fresh else self._elites[1:],
            random.random((n_trials, line_search.N_DRAWS)),
            np.linspace(highest_ms, 0.0, n_trials),
            behind_ms=100.0 + 1.5 * highest_ms,
            max_actions=self._room,
        )
        self._elites = sorted([*self._elites, driver], key=self._driven)[:_MOST_ELITES]
        return actions

    def _driven(self, driver: line_search.LineDriver) -> tuple[int, float]:
        """Finish time of a driver and metres beyond it, the best one the smallest."""
        drive = drive_actions(self.track, line_search.drive_line(self.track, driver, self._room))
        return drive.finish_ms, -drive.overshoot_m

    def _changed_keys(self, random: np.random.Generator, n_trials: int) -> Actions:
        """Improve the plan itself."""
        highest_ms = random.choice(_CLIMB_TOLERANCES_MS)
        return climbing.climb(
            course_of(self.track),
            drive_actions(self.track, self.plan),
            self.plan,
            random.random((n_trials, climbing.N_DRAWS)),
            np.linspace(highest_ms, 0.0, n_trials),
            behind_m=1.0 + 0.05 * highest_ms,
        )

    def _take(self, found: Actions) -> None:
        """Make what a search found the plan, if it finishes no later."""
        old, new = drive_actions(self.track, self.plan), drive_actions(self.track, found)
        if new.finish_ms >= 0 and (new.finish_ms, -new.overshoot_m) <= (old.finish_ms, -old.overshoot_m):
            self.plan = found[: new.n_actions]

    def _begin(self, stored: Entry | None, drives_of_tuning: int, races: Sequence[Actions]) -> tuple[Actions, Entry]:
        """The stored plan and times, as far as they are this track's; the scripted driver's else."""
        stored_plan = self._stored_plan()
        candidates = [*races] if stored_plan is None else [stored_plan, *races]
        entry: Entry = {"length_m": round(length_m(self.track), 1)}
        for key, settings in (("scripted_careful_ms", CAREFUL_DRIVER), ("scripted_fast_ms", FAST_DRIVER)):
            race = scripted_race(self.track, settings)
            entry[key] = None if race is None else race[0]
        tuned = self._stored_settings(stored) if stored is not None else None
        if tuned is None:
            tuned = tune(self.track, drives_of_tuning, self._seed)
        if tuned is None:
            raise UserError(f"{self.name}: the scripted driver never gets to the finish, whatever its settings")
        self._room = int(_MOST_ROOM * len(tuned[2]))
        self._elites = [self._stored_driver(tuned[0])]
        entry["scripted_tuned_ms"], entry["scripted_tuned_settings"] = tuned[1], tuned[0]._asdict()
        # A race that finishes in the game may be given up by the search, as it went far past a gate that it missed.
        drives = [(drive_actions(self.track, actions), actions) for actions in (*candidates, tuned[2])]
        drives = [(drive, actions) for drive, actions in drives if drive.finish_ms >= 0]
        if not drives:
            raise UserError(f"{self.name}: no race that finishes was found; give one with --begin-with")
        best, plan = min(drives, key=lambda one: one[0].finish_ms)
        return plan[: best.n_actions], entry

    def _stored_settings(self, stored: Entry) -> tuple[DriverSettings, int, Actions] | None:
        """The stored settings of the scripted driver, if they still give the stored time."""
        settings = DriverSettings(**stored["scripted_tuned_settings"])
        race = scripted_race(self.track, settings)
        return (settings, *race) if race is not None and race[0] == stored["scripted_tuned_ms"] else None

    def _stored_plan(self) -> Actions | None:
        """The stored plan, if it finishes."""
        if not self.script.is_file():
            return None
        plan = self._actions_of(self.script.read_text(encoding="utf-8"))
        if plan is None:
            print(f"{self.name}: {self.script} does not finish, so this track has changed; beginning again")
        return plan

    def _race_of(self, file: Path) -> Actions:
        """The actions of an inputs file that finishes."""
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--begin-with: cannot read {file}: {error}") from error
        race = self._actions_of(text)
        if race is None:
            raise UserError(f"--begin-with: {file} does not finish on {self.name}")
        return race

    def _actions_of(self, script: str) -> Actions | None:
        """The actions of a script up to the finish; None where it does not get there."""
        finish_ms = replay_ms(self.track, script)
        return None if finish_ms is None else actions_of_script(script, finish_ms // ACTION_MS + 1)

    def _stored_driver(self, settings: DriverSettings) -> line_search.LineDriver:
        """The driver that the last search ended with, if it was made of the same settings; else one to begin with."""
        driver = line_search.line_driver(self.track, settings)
        stored = line_search.read_driver(self._line) if self._line.is_file() else driver
        is_fitting = stored.settings == settings and stored.aside_m.shape == driver.aside_m.shape
        return stored if is_fitting and len(line_search.drive_line(self.track, stored, self._room)) else driver

    def _store(self) -> None:
        """Write plan and times, the plan replayed from its text first."""
        script = script_of_actions(self.plan)
        finish_ms = replay_ms(self.track, script)
        assert finish_ms == drive_actions(self.track, self.plan).finish_ms, "the replay differs from the search"
        self.entry["planner_ms"] = finish_ms
        write_whole(self.script, script.encode())
        write_whole(self._line, line_search.written_driver(self._elites[0]))
        write_entry(self._yardsticks, self.name, self.entry)


def rounds(minutes: float, limit: int | None) -> Iterator[int]:
    """Numbers from 0 on, until the time is over or `limit` is reached."""
    ends_s = time.monotonic() + 60.0 * minutes
    number = 0
    while (limit is None and time.monotonic() < ends_s) or (limit is not None and number < limit):
        yield number
        number += 1


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--tracks",
        nargs="+",
        default=SHIPPED_TRACKS,
        metavar="NAME",
        help="tracks of maps/, track files (.toml or .npy), or generated:DIFFICULTY:SEED (default: all that ship)",
    )
    add("--minutes", type=float, default=5.0, help="of each track, by the clock (default %(default)s)")
    add("--rounds", type=whole_number(0), help="of each track, instead of --minutes; repeatable to the byte")
    add("--seed", type=whole_number(0, 2**31 - 1), default=0, help="of the search (default %(default)s)")
    add("--trials", type=whole_number(1), default=TRIALS_PER_ROUND, help="changes tried per round")
    add("--tuning-drives", type=whole_number(2), default=DRIVES_OF_TUNING, help="of the scripted driver")
    add(
        "--begin-with",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE.inputs",
        help="races of one track, an agent's for example, to improve on where one is faster than the stored plan",
    )
    add("--keys-only", action="store_true", help="improve the plan itself, and look for no other lines")
    add(
        "--output-folder",
        type=Path,
        help="for yardsticks.json and plans/ (default: benchmarks/driving/ and this script's folder)",
    )
    return parser.parse_args(arguments)


@command
def main(command_line: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = parse_arguments(command_line)
    if arguments.begin_with and len(arguments.tracks) != 1:
        raise UserError("--begin-with is about one track: name it with --tracks")
    with tempfile.TemporaryDirectory(prefix="trackmania_rl_tracks_") as folder:
        for file in find_tracks(arguments.tracks, Path(folder)):
            plan_track(file, arguments)


def plan_track(track_file: Path, arguments: argparse.Namespace) -> None:
    """Make or improve one track's yardsticks, and say how it goes."""
    planner = TrackPlanner(
        track_file,
        (arguments.output_folder or YARDSTICKS_FOLDER) / "yardsticks.json",
        (arguments.output_folder or FOLDER) / "plans",
        arguments.seed,
        arguments.tuning_drives,
        arguments.begin_with,
    )
    entry = planner.entry
    print(
        f"{planner.name}: {entry['length_m']:.0f} m, scripted careful {entry['scripted_careful_ms']} ms, "
        f"fast {entry['scripted_fast_ms']} ms, tuned {entry['scripted_tuned_ms']} ms; plan {entry['planner_ms']} ms",
        flush=True,
    )
    for number in rounds(arguments.minutes, arguments.rounds):
        if planner.play_round(arguments.trials, is_keys_only=arguments.keys_only):
            print(f"{planner.name}: round {number}: {planner.entry['planner_ms']} ms", flush=True)
    print(f"{planner.name}: {planner.entry['planner_ms']} ms in {planner.script}", flush=True)


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
