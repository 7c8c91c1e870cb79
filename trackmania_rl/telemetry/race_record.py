"""Clock of the command, and the file with one line for each race."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from trackmania_rl.race.race import RaceFacts

UNDONE_FILE: Final = "races.undone.jsonl"
"""Lines of races that a resumed run does not know."""


class CommandClock:
    """Seconds since the user started the command, imports included."""

    def __init__(self) -> None:
        already_s = max(0.0, time.time() - psutil.Process().create_time())
        self._started_s = time.monotonic() - already_s

    def __call__(self) -> float:
        """Return the seconds until now."""
        return time.monotonic() - self._started_s


def facts_of_line(line: Mapping[str, Any]) -> RaceFacts:
    """Return the facts of a race that a line of `RaceLog` holds."""
    return RaceFacts(
        map_name=str(line["map"]),
        track=str(line.get("track", "")),
        is_explo=bool(line["is_explo"]),
        fill_buffer=True,
        is_generated="track" in line,
        is_demonstration=bool(line.get("is_demonstration", False)),
        collector=int(line.get("collector", 0)),
        n_actions=int(line.get("n_actions", 0)),
        race_finished=bool(line["race_finished"]),
        race_time_ms=int(line["race_time_ms"]),
        cutoff_reason=line.get("cutoff_reason"),
        meters=float(line.get("meters", 0.0)),
        progress_unit=str(line.get("progress_unit", "m")),
    )


class RaceLog:
    """`races.jsonl`: one JSON object for each race, flushed when it is written; docs/figures.rst lists the keys.

    A resumed run appends; its `wall_s` begins at 0 again. The `n_undone` lines of races after its checkpoint are moved
    to `UNDONE_FILE`, as nothing was learned from them.
    """

    def __init__(self, path: Path, clock: CommandClock, session: int, frames_total: int | None = None) -> None:
        """Open the file for a session. An incomplete last line is removed.

        Lines beyond `frames_total` of the checkpoint are moved; None keeps all.
        """
        self._clock = clock
        self._session = session
        self._path = path
        self._learning: dict[str, float] = {}
        self._file = path.open("ab")
        cut_off_torn_line(path)
        self.n_undone = 0 if frames_total is None else _move_away_after(path, frames_total)

    def write(self, race: RaceFacts, frames_total: int, learning: Mapping[str, float] | None = None) -> None:
        """Add a race, and figures of learning if they have changed. A file that was deleted is made again."""
        line = {
            "session": self._session,
            "wall_s": round(self._clock(), 3),
            "frames_total": frames_total,
            "map": race.map_name,
            "is_explo": race.is_explo,
            "race_finished": race.race_finished,
            "race_time_ms": race.race_time_ms,
            "meters": round(race.meters, 3),
            "collector": race.collector,
            "cutoff_reason": race.cutoff_reason,
            "is_demonstration": race.is_demonstration,
            "checkpoint_times_ms": list(race.checkpoint_times_ms),
        }
        if race.is_generated:
            line["track"] = race.track
        if race.is_of_environment:
            line |= {"progress_unit": race.progress_unit, "n_actions": race.n_actions}
        if learning and learning != self._learning:
            self._learning = dict(learning)
            line["learning"] = {name: float(f"{value:.6g}") for name, value in learning.items()}
        is_gone = not self._path.exists()
        if is_gone or (self._path.is_file() and not os.path.samefile(self._path, self._file.fileno())):
            self._file.close()
            self._file = self._path.open("ab")
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_session(path: Path) -> int:
    """Return the session of the last readable line of a race log; 0 without one."""
    for _, line in _lines_backwards(path) if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["session"])
    return 0


def cut_off_torn_line(path: Path) -> None:
    """Remove the bytes after the last line break."""
    with contextlib.closing(_lines_backwards(path)) as lines:
        offset, line = next(lines, (0, b""))
    if line:
        os.truncate(path, offset)


def _lines_backwards(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Yield offset and bytes of each line from the end, first the bytes after the last line break."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:  # which cannot be mapped
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            begin = len(content) + 1
            while begin > 0:
                end = begin - 1
                begin = content.rfind(b"\n", 0, end) + 1
                yield begin, content[begin:end]


def _move_away_after(path: Path, frames_total: int) -> int:
    """Move the last lines beyond `frames_total` to `UNDONE_FILE`; return their number."""
    undone: list[bytes] = []
    first_offset = 0
    with contextlib.closing(_lines_backwards(path)) as lines:
        for offset, line in lines:
            if line and not _is_beyond(line, frames_total):
                break
            if line:
                undone.append(line + b"\n")
                first_offset = offset
    if undone:
        with path.with_name(UNDONE_FILE).open("ab") as file:
            file.writelines(reversed(undone))
            file.flush()
            os.fsync(file.fileno())
        os.truncate(path, first_offset)
    return len(undone)


def _is_beyond(line: bytes, frames_total: int) -> bool:
    try:
        return bool(json.loads(line)["frames_total"] > frames_total)
    except (ValueError, KeyError, TypeError):
        return False
