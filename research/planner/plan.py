"""The search for one track's fastest race with an agent's keys, and what is stored of it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from research.planner import climbing, line_search
from research.planner.driver_tuning import scripted_race, tune
from research.planner.plans import (
    KEPT_ENTRIES,
    Actions,
    Entry,
    StoredYardsticks,
    actions_of_script,
    length_m,
    read_entries,
    replay_ms,
    script_of_actions,
    write_entry,
    write_whole,
)
from research.planner.racing import ACTION_MS, course_of, drive_actions
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings
from trackmania_rl.simulator.tracks.track_file import load_track

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


BY_SEARCH: Final = "search"
BY_DRIVER: Final = "driver and search"
"""How a record was found: by the search from the scripted driver on, or on top of a race that was handed to it."""


class TrackPlanner:
    """One track's yardsticks, on disk and in work.

    Args:
        track_file: the track.
        stored: where yardsticks are read and written.
        seed: of everything that is drawn.
        drives_of_tuning: how many settings of the scripted driver are tried where none are stored.
        begin_with: inputs files of this track; the search begins with the fastest of these and the stored record.

    Attributes:
        name: the track's.
        track: the track.
        script: the record's file.
        plan: (T,) the fastest race's actions so far.
        entry: the track's yardsticks.

    Raises:
        UserError: if the track cannot be used, nothing gets to its finish, or a file of `begin_with` does not.
    """

    def __init__(
        self,
        track_file: Path,
        stored: StoredYardsticks,
        seed: int,
        drives_of_tuning: int,
        begin_with: Sequence[Path] = (),
    ) -> None:
        self.name = track_file.stem
        self.track = load_track(track_file)
        self._seed = seed
        self._stored = stored
        self.script = stored.records / f"{self.name}.inputs"
        self._line = stored.lines / f"{self.name}.npz"
        self._rounds = 0
        self._elites: list[line_search.LineDriver] = []  # the best first
        began_s = time.process_time()
        entry = read_entries(stored.yardsticks).get(self.name)
        self.plan, self.entry = self._begin(entry, drives_of_tuning, [self._race_of(file) for file in begin_with])
        self._store(time.process_time() - began_s)

    def play_round(self, n_trials: int, *, is_keys_only: bool = False) -> bool:
        """Search once; return whether the record became better.

        Args:
            n_trials: changes tried.
            is_keys_only: change keys whichever round of the cycle it is.
        """
        began_s = time.process_time()
        random = np.random.default_rng([self._seed, zlib.crc32(self.name.encode()), self._rounds])
        phase = self._rounds % ROUNDS_OF_A_CYCLE
        if is_keys_only or phase == ROUNDS_OF_A_CYCLE - 1:
            self._take(self._changed_keys(random, n_trials))
        elif self._take(self._changed_line(random, n_trials, phase < FRESH_ROUNDS)):
            self.entry["record_by"] = BY_SEARCH
        self._rounds += 1
        before_ms = self.entry["record_ms"]
        self._store(time.process_time() - began_s)
        return self.entry["record_ms"] < before_ms

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

    def _take(self, found: Actions) -> bool:
        """Make what a search found the plan, if it finishes no later; return whether it is earlier."""
        old, new = drive_actions(self.track, self.plan), drive_actions(self.track, found)
        was, is_ = (old.finish_ms, -old.overshoot_m), (new.finish_ms, -new.overshoot_m)
        if new.finish_ms >= 0 and is_ <= was:
            self.plan = found[: new.n_actions]
        return new.finish_ms >= 0 and is_ < was

    def _begin(self, stored: Entry | None, drives_of_tuning: int, races: Sequence[Actions]) -> tuple[Actions, Entry]:
        """The stored record and times, as far as they are this track's; the scripted driver's else."""
        stored_plan = self._stored_plan()
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
        candidates = [(tuned[2], BY_SEARCH), *((race, BY_DRIVER) for race in races)]
        if stored_plan is not None and stored is not None:
            candidates = [(stored_plan, stored["record_by"]), *candidates]
            entry |= {key: stored[key] for key in KEPT_ENTRIES if key in stored}
        drives = [(drive_actions(self.track, actions), actions, found_by) for actions, found_by in candidates]
        drives = [drive for drive in drives if drive[0].finish_ms >= 0]
        if not drives:
            raise UserError(f"{self.name}: no race that finishes was found; give one with --begin-with")
        best, plan, entry["record_by"] = min(drives, key=lambda one: one[0].finish_ms)
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

    def _store(self, spent_s: float) -> None:
        """Write record and times, the record replayed from its text first."""
        script = script_of_actions(self.plan)
        finish_ms = replay_ms(self.track, script)
        assert finish_ms == drive_actions(self.track, self.plan).finish_ms, "the replay differs from the search"
        self.entry["record_ms"] = finish_ms
        self.entry["search_s"] = round(self.entry.get("search_s", 0.0) + spent_s, 1)
        write_whole(self.script, script.encode())
        write_whole(self._line, line_search.written_driver(self._elites[0]))
        write_entry(self._stored.yardsticks, self.name, self.entry)
