"""Run log: `save/{run_name}/run.sqlite`, written by the learner and read by everything else.

Readers never write, create no file and do not wait: the log is in write-ahead mode while the training runs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from pydantic import ValidationError

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.race.race import RaceFacts

MOST_WAITING: Final = 10_000
"""Newest races that are kept in memory while the disk fails."""
OPEN_TIMEOUT_S: Final = 10.0
"""Wait for another program that locks the log at the start. Later writes do not wait."""

FACTS: Final = {
    "map": "map_name",
    "track": "track",
    "is_generated": "is_generated",
    "is_explo": "is_explo",
    "race_finished": "race_finished",
    "race_time_ms": "race_time_ms",
    "meters": "meters",
    "collector": "collector",
    "cutoff_reason": "cutoff_reason",
    "is_demonstration": "is_demonstration",
    "checkpoint_times_ms": "checkpoint_times_ms",
    "progress_unit": "progress_unit",
    "n_actions": "n_actions",
}
"""Field of `RaceFacts` by column. This is the only mapping between both."""

_BOOLEANS: Final = ("is_generated", "is_explo", "race_finished", "is_demonstration")
_JSON: Final = ("checkpoint_times_ms", "learning")
_COLUMNS: Final = ("session", "wall_s", "frames_total", *FACTS, "learning")
_SCHEMA: Final = f"""
    CREATE TABLE IF NOT EXISTS races (
        id INTEGER PRIMARY KEY, is_undone INTEGER NOT NULL DEFAULT 0, {", ".join(_COLUMNS)}
    )
"""
_INSERT: Final = f"INSERT INTO races ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"

RaceRow = dict[str, Any]
"""A race by column, with its `id`."""


class CommandClock:
    """Seconds since the user started the command, imports included."""

    def __init__(self) -> None:
        already_s = max(0.0, time.time() - psutil.Process().create_time())
        self._started_s = time.monotonic() - already_s

    def __call__(self) -> float:
        """Return the seconds until now."""
        return time.monotonic() - self._started_s


class RunLog:
    """Writer of a run's log. There is one at a time, in the learner.

    Each race is committed at once. Races that cannot be written wait for the next call. A log that was deleted is made
    again. `kill -9` loses no race; a power cut may lose the newest ones.

    Attributes:
        n_undone: races after the checkpoint that the run resumed from. They stay in the log, marked as undone.
    """

    def __init__(self, path: Path, clock: Callable[[], float], session: int, frames_total: int | None = None) -> None:
        """Open the log for a session.

        Args:
            path: file of the log.
            clock: seconds since the start of the session.
            session: number of starts of the run.
            frames_total: of the checkpoint. None marks no race as undone.

        Raises:
            OSError: if the log cannot be written.
        """
        self._path = path
        self._clock = clock
        self._session = session
        self._learning: dict[str, float] = {}
        self._waiting: deque[tuple[Any, ...]] = deque(maxlen=MOST_WAITING)
        self._connection: sqlite3.Connection | None = None
        self._opened_file_id: tuple[int, int] | None = None
        self.n_undone = 0
        with self._raising_os_error():
            connection = self._open()
            if frames_total is not None:
                undo = "UPDATE races SET is_undone = 1 WHERE frames_total > ? AND NOT is_undone"
                self.n_undone = connection.execute(undo, (frames_total,)).rowcount

    def write(self, race: RaceFacts, frames_total: int, learning: Mapping[str, float] | None = None) -> None:
        """Add a race, and figures of learning if they have changed.

        Raises:
            OSError: if the disk fails. The race is written with the next one.
        """
        values = {column: getattr(race, field) for column, field in FACTS.items()}
        values["meters"] = round(race.meters, 3)
        values["checkpoint_times_ms"] = json.dumps(race.checkpoint_times_ms)
        changed = None
        if learning and learning != self._learning:
            self._learning = dict(learning)
            changed = json.dumps({name: float(f"{value:.6g}") for name, value in learning.items()})
        self._waiting.append((self._session, round(self._clock(), 3), frames_total, *values.values(), changed))
        with self._raising_os_error():
            self._write_waiting()

    def close(self) -> None:
        """Write the waiting races and close the log. The last reader's files beside it are removed.

        Raises:
            OSError: if the disk fails.
        """
        with self._raising_os_error():
            self._write_waiting()
            if self._connection is not None:
                with contextlib.suppress(sqlite3.OperationalError):  # a reader is connected
                    self._connection.execute("PRAGMA journal_mode = DELETE")
        self._close()

    def _write_waiting(self) -> None:
        connection = self._open()
        if self._waiting:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_INSERT, self._waiting)
            self._waiting.clear()

    def _open(self) -> sqlite3.Connection:
        """Return the connection. Open the log if it is closed, was deleted or replaced."""
        if self._connection is not None and self._file_id() == self._opened_file_id:
            return self._connection
        self._close()
        if self._path.exists() and not self._path.is_file():  # a pipe would block
            raise OSError(errno.EINVAL, f"{self._path.name} is no file")
        self._connection = sqlite3.connect(self._path, timeout=OPEN_TIMEOUT_S, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(_SCHEMA)
        self._connection.execute("PRAGMA busy_timeout = 0")
        self._opened_file_id = self._file_id()
        return self._connection

    def _file_id(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    @contextlib.contextmanager
    def _raising_os_error(self) -> Iterator[None]:
        """Turn errors of sqlite3 into `OSError`. The log is opened anew after one."""
        try:
            yield
        except sqlite3.Error as error:
            self._close()
            raise OSError(errno.EIO, str(error)) from error


def last_written_s(log: Path) -> float | None:
    """Return when a log was last written, in seconds since the epoch; None without one."""
    files = (log, log.with_name(f"{log.name}-wal"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=None)


class NewestRace(NamedTuple):
    """Number of the newest race in a log, and the session that drove it. Both are 0 without a race."""

    id: int
    session: int


def newest_race(log: Path) -> NewestRace:
    """Find the newest race, which may be undone.

    Raises:
        UserError: if the log is damaged.
    """
    if not log.is_file():
        return NewestRace(0, 0)
    newest = _select(log, "SELECT id, session FROM races ORDER BY id DESC LIMIT 1")
    return next((NewestRace(*values) for values in newest), NewestRace(0, 0))


def race_rows(log: Path, after_id: int = 0, most: int = -1) -> Iterator[RaceRow]:
    """Yield the races in their order, without undone ones.

    Args:
        log: file of a run.
        after_id: id of the last race that was read.
        most: number of races at most; -1 for all.

    Raises:
        UserError: if the log is missing or damaged.
    """
    columns = ("id", *_COLUMNS)
    select = f"SELECT {', '.join(columns)} FROM races WHERE id > ? AND NOT is_undone ORDER BY id LIMIT ?"
    for values in _select(log, select, after_id, most):
        row = dict(zip(columns, values, strict=True))
        for name in _BOOLEANS:
            row[name] = bool(row[name])
        for name in _JSON:
            if row[name] is not None:
                row[name] = json.loads(row[name])
        yield row


def facts_of(row: RaceRow) -> RaceFacts:
    """Return the facts of a race in the log. Raise `UserError` if the log was edited to values that no race has."""
    try:
        return RaceFacts(fill_buffer=True, **{field: row[column] for column, field in FACTS.items()})
    except ValidationError as error:
        raise UserError(f"race {row['id']} of the run log is damaged: {one_line(error)}") from error


def iterate_races(log: Path) -> Iterator[dict[str, Any]]:
    """Yield a dictionary for each race, see `race_rows`; docs/figures.rst lists the keys."""
    for row in race_rows(log):
        del row["id"]
        if not row.pop("is_generated"):
            del row["track"]
        if row["progress_unit"] == "m":
            del row["progress_unit"], row["n_actions"]
        if row["learning"] is None:
            del row["learning"]
        yield row


def _select(log: Path, statement: str, *values: object) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query. A log that was just begun has none."""
    if not log.is_file():  # sqlite would wait for a pipe
        reason = "it is no file" if log.exists() else "No such file or directory"
        raise UserError(f"cannot read {log}: {reason}; give the folder of a run, save/...")
    is_open = log.with_name(f"{log.name}-wal").exists()  # otherwise files beside it would have to be made
    address = f"{log.absolute().as_uri()}?mode=ro" + ("" if is_open else "&immutable=1")
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0.0)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'races'").fetchone():
                yield from connection.execute(statement, values)
    except sqlite3.Error as error:
        raise UserError(f"cannot read {log}: {error}") from error
