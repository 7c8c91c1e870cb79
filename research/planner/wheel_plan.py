"""The search for one track's fastest race with a wheel, a row of its own beside the record with keys."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from research.planner import wheel
from research.planner.plans import StoredYardsticks, read_entries, replay_ms, write_entry, write_whole
from research.planner.racing import ACTION_MS
from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded_text
from trackmania_rl.protocol.input_script import MAX_SCRIPT_BYTES
from trackmania_rl.simulator.tracks.track_file import load_track

_TOLERANCES_MS: Final = (0.0, 30.0, 60.0)


class WheelPlanner:
    """One track's record with a wheel, on disk and in work.

    Args:
        track_file: the track.
        stored: where yardsticks are read and written.
        seed: of everything that is drawn.
        begin_with: inputs files of this track, with keys or a wheel; the search begins with the fastest of these, the
            record with keys and the one with a wheel.

    Attributes:
        name: the track's.
        script: the record's file.
        controls: (T, 3) of the fastest race so far.
        entry: the track's yardsticks.

    Raises:
        UserError: if the track cannot be used, it has no record with keys, or a file of `begin_with` does not finish.
    """

    def __init__(self, track_file: Path, stored: StoredYardsticks, seed: int, begin_with: Sequence[Path] = ()) -> None:
        self.name = track_file.stem
        self.track = load_track(track_file)
        self._seed = seed
        self._stored = stored
        self._rounds = 0
        self.script = stored.records / f"{self.name}.wheel.inputs"
        entry = read_entries(stored.yardsticks).get(self.name)
        with_keys = stored.records / f"{self.name}.inputs"
        if entry is None or not with_keys.is_file():
            raise UserError(f"{self.name} has no record with keys to begin with: search without --wheel first")
        self.entry = entry
        files = [*begin_with, with_keys, *([self.script] if self.script.is_file() else ())]
        self.controls = min(map(self._race_of, files), key=self._driven)
        self._store(0.0)

    def play_round(self, n_trials: int) -> bool:
        """Search once; return whether the record became better."""
        began_s = time.process_time()
        random = np.random.default_rng([self._seed, zlib.crc32(self.script.name.encode()), self._rounds])
        highest_ms = _TOLERANCES_MS[self._rounds % len(_TOLERANCES_MS)]
        draws, tolerance_ms = random.random((n_trials, wheel.N_DRAWS)), np.linspace(highest_ms, 0.0, n_trials)
        self.controls = wheel.climb_with_wheel(
            self.track, self.controls, draws, tolerance_ms, behind_m=1.0 + 0.05 * highest_ms
        )
        self._rounds += 1
        before_ms = self.entry["wheel_ms"]
        self._store(time.process_time() - began_s)
        return self.entry["wheel_ms"] < before_ms

    def _driven(self, controls: wheel.Controls) -> tuple[int, float]:
        """Finish time and metres beyond it, the best race the smallest."""
        drive = wheel.drive_controls(self.track, controls)
        return drive.finish_ms, -drive.overshoot_m

    def _race_of(self, file: Path) -> wheel.Controls:
        text = read_bounded_text(file, MAX_SCRIPT_BYTES)
        finish_ms = replay_ms(self.track, text)
        if finish_ms is None:
            raise UserError(f"{file} does not finish on {self.name}")
        return wheel.controls_of_script(text, finish_ms // ACTION_MS + 1)

    def _store(self, spent_s: float) -> None:
        """Write record and time, the record replayed from its text first."""
        script = wheel.script_of_controls(self.controls)
        finish_ms = replay_ms(self.track, script)
        assert finish_ms == self._driven(self.controls)[0], "the replay differs from the search"
        self.entry["wheel_ms"] = finish_ms
        self.entry["wheel_search_s"] = round(self.entry.get("wheel_search_s", 0.0) + spent_s, 1)
        write_whole(self.script, script.encode())
        write_entry(self._stored.yardsticks, self.name, self.entry)
