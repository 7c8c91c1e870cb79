"""Make or improve the yardsticks of tracks: the scripted driver's times, and a near-optimal plan of the planner.

    python -m benchmarks.driving.plan --tracks valley kart --minutes 5
    python -m benchmarks.driving.plan --track-file generated/seed_7.toml --output-folder generated/yardsticks

Writes `plans/{track}.inputs` and `yardsticks.json`. What is stored already is where the search begins; it is never
replaced by a worse plan, so that running this again and again makes the yardsticks better. Every plan is replayed from
its file before its time is written down. The same stored plan, seed and number of rounds give the same result.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.driving.beam import BeamSettings, search
from benchmarks.driving.climbing import N_DRAWS, climb
from benchmarks.driving.cost_to_go import EstimateSettings, estimate_of
from benchmarks.driving.driver_tuning import scripted_race, tune
from benchmarks.driving.plans import (
    FOLDER,
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
from benchmarks.driving.racing import ACTION_MS, KEYS, Drive, course_of, drive_actions
from trackmania_rl.argument_types import whole_number
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings
from trackmania_rl.simulator.track_file import find_track_file, load_track
from trackmania_rl.simulator.world import Track

PROJECT: Final = FOLDER.parent.parent
SHIPPED_TRACKS: Final = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")
INTERRUPTED: Final = 130
"""Exit code of a command that was interrupted, as shells have it."""

DRIVES_OF_TUNING: Final = 1200
TRIALS_PER_ROUND: Final = 30_000
"""Some fifteen seconds of one core."""
ROUNDS_PER_BEAM: Final = 4
"""Every so many rounds a beam search looks for what small changes do not find."""
_TOLERANCES_MS: Final = (0.0, 20.0, 50.0, 100.0, 200.0)
_NOISE_NUMBERS: Final = 9973


def improve(track: Track, plan: Actions, random: np.random.Generator, number: int, n_trials: int) -> Actions:
    """One round of the search: return a plan that finishes no later than the one given, which finishes."""
    course = course_of(track)
    incumbent = drive_actions(track, plan)
    plan = plan[: incumbent.n_actions]
    if number % ROUNDS_PER_BEAM == ROUNDS_PER_BEAM - 1:
        return _better_of(track, plan, incumbent, _beam_search(track, plan, incumbent, random))
    highest_ms = random.choice(_TOLERANCES_MS)
    tolerance_ms = np.linspace(highest_ms, 0.0, n_trials)
    behind_m = random.uniform(0.5, 1.5) + 0.05 * highest_ms
    found = climb(course, incumbent, plan, random.random((n_trials, N_DRAWS)), tolerance_ms, behind_m)
    return _better_of(track, plan, incumbent, found)


def _beam_search(track: Track, plan: Actions, incumbent: Drive, random: np.random.Generator) -> Actions | None:
    """A beam from a random place on, with a random taste."""
    estimate_settings = EstimateSettings(
        speed_share=random.uniform(1.0, 1.1),
        speed_penalty_s3_m3=10.0 ** random.uniform(-3.5, -2.0),
        lateral_penalty_s_m2=10.0 ** random.uniform(-3.0, -1.5),
        angle_penalty_s_rad2=10.0 ** random.uniform(-1.0, 0.5),
        wall_penalty_s=random.uniform(0.0, 0.1),
    )
    course = course_of(track)
    return search(
        course,
        incumbent,
        plan,
        estimate_of(track, course, incumbent, estimate_settings),
        BeamSettings(width=int(random.integers(50, 150)), per_cell=int(random.integers(1, 4))),
        random.permutation(len(KEYS))[: random.integers(9, len(KEYS) + 1)],
        random.normal(0.0, 0.002, _NOISE_NUMBERS),
        int(random.integers(0, len(plan))),
    )


def _better_of(track: Track, plan: Actions, incumbent: Drive, found: Actions | None) -> Actions:
    """Drive what a search found, and take it if it is no worse."""
    if found is None:
        return plan
    drive = drive_actions(track, found)
    is_no_worse = drive.finish_ms >= 0 and (drive.finish_ms, -drive.overshoot_m) <= (
        incumbent.finish_ms,
        -incumbent.overshoot_m,
    )
    return found[: drive.n_actions] if is_no_worse else plan


class TrackPlanner:
    """One track's yardsticks, on disk and in work.

    Args:
        track_file: the track.
        output_folder: where `yardsticks.json` and `plans/` lie.
        seed: of everything that is drawn.
        drives_of_tuning: how many settings of the scripted driver are tried where none are stored.

    Raises:
        UserError: if the track cannot be used, or nothing gets to its finish.
    """

    def __init__(self, track_file: Path, output_folder: Path, seed: int, drives_of_tuning: int) -> None:
        self.name = track_file.stem
        self.track = load_track(track_file)
        self._seed = seed
        self._yardsticks = output_folder / "yardsticks.json"
        self._script = output_folder / "plans" / f"{self.name}.inputs"
        self._rounds = 0
        stored = read_entries(self._yardsticks).get(self.name)
        self.plan, self.entry = self._begin(stored, drives_of_tuning)
        self._store()

    def play_round(self, n_trials: int) -> bool:
        """Search once; return whether the plan's time became better."""
        random = np.random.default_rng([self._seed, zlib.crc32(self.name.encode()), self._rounds])
        self.plan = improve(self.track, self.plan, random, self._rounds, n_trials)
        self._rounds += 1
        before_ms = self.entry["planner_ms"]
        self._store()
        return self.entry["planner_ms"] < before_ms

    def _begin(self, stored: Entry | None, drives_of_tuning: int) -> tuple[Actions, Entry]:
        """The stored plan and times, as far as they are this track's; the scripted driver's else."""
        stored_plan = self._stored_plan()
        candidates = [] if stored_plan is None else [stored_plan]
        entry = {"length_m": round(length_m(self.track), 1)}
        for key, settings in (("scripted_careful_ms", CAREFUL_DRIVER), ("scripted_fast_ms", FAST_DRIVER)):
            race = scripted_race(self.track, settings)
            entry[key] = None if race is None else race[0]
        tuned = self._stored_settings(stored) if stored is not None else None
        if tuned is None:
            tuned = tune(self.track, drives_of_tuning, self._seed)
        if tuned is None:
            raise UserError(f"{self.name}: the scripted driver never gets to the finish, whatever its settings")
        entry["scripted_tuned_ms"], entry["scripted_tuned_settings"] = tuned[1], tuned[0]._asdict()
        plan = min([*candidates, tuned[2]], key=lambda actions: drive_actions(self.track, actions).finish_ms)
        return plan[: drive_actions(self.track, plan).n_actions], entry

    def _stored_settings(self, stored: Entry) -> tuple[DriverSettings, int, Actions] | None:
        """The stored settings of the scripted driver, if they still give the stored time."""
        settings = DriverSettings(**stored["scripted_tuned_settings"])
        race = scripted_race(self.track, settings)
        return (settings, *race) if race is not None and race[0] == stored["scripted_tuned_ms"] else None

    def _stored_plan(self) -> Actions | None:
        """The stored plan, if it finishes."""
        if not self._script.is_file():
            return None
        text = self._script.read_text(encoding="utf-8")
        finish_ms = replay_ms(self.track, text)
        if finish_ms is None:
            print(f"{self.name}: {self._script} does not finish, so this track has changed; beginning anew")
            return None
        return actions_of_script(text, finish_ms // ACTION_MS + 1)

    def _store(self) -> None:
        """Write plan and times, the plan replayed from its text first."""
        script = script_of_actions(self.plan)
        finish_ms = replay_ms(self.track, script)
        assert finish_ms == drive_actions(self.track, self.plan).finish_ms, "the replay differs from the search"
        self.entry["planner_ms"] = finish_ms
        self.entry["planner_inputs"] = f"plans/{self.name}.inputs"
        write_whole(self._script, script)
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
    add("--tracks", nargs="+", default=[], metavar="NAME", help="tracks of maps/ (default: all that ship)")
    add("--track-file", nargs="+", default=[], type=Path, metavar="FILE", help="other tracks, .toml or .npy")
    add("--minutes", type=float, default=5.0, help="of each track, by the clock (default %(default)s)")
    add("--rounds", type=whole_number(0), help="of each track, instead of --minutes; repeatable to the byte")
    add("--seed", type=whole_number(0, 2**31 - 1), default=0, help="of the search (default %(default)s)")
    add("--trials", type=whole_number(1), default=TRIALS_PER_ROUND, help="changes tried per round")
    add("--tuning-drives", type=whole_number(2), default=DRIVES_OF_TUNING, help="of the scripted driver")
    add("--output-folder", type=Path, default=FOLDER, help="for yardsticks.json and plans/ (default: this folder)")
    return parser.parse_args(arguments)


def main(command_line: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = parse_arguments(command_line)
    names = arguments.tracks or ([] if arguments.track_file else SHIPPED_TRACKS)
    try:
        files = [find_track_file(str(name), PROJECT / "maps") for name in [*names, *arguments.track_file]]
        for file in files:
            plan_track(file, arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def plan_track(track_file: Path, arguments: argparse.Namespace) -> None:
    """Make or improve one track's yardsticks, and say how it goes."""
    planner = TrackPlanner(track_file, arguments.output_folder, arguments.seed, arguments.tuning_drives)
    entry = planner.entry
    print(
        f"{planner.name}: {entry['length_m']:.0f} m, scripted careful {entry['scripted_careful_ms']} ms, "
        f"fast {entry['scripted_fast_ms']} ms, tuned {entry['scripted_tuned_ms']} ms; plan {entry['planner_ms']} ms",
        flush=True,
    )
    for number in rounds(arguments.minutes, arguments.rounds):
        if planner.play_round(arguments.trials):
            print(f"{planner.name}: round {number}: {planner.entry['planner_ms']} ms", flush=True)
    print(f"{planner.name}: {planner.entry['planner_ms']} ms in {planner.entry['planner_inputs']}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as with Ctrl-C
    sys.exit(main())
