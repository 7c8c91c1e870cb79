"""Run log: `save/{run_name}/run.sqlite`, written by the learner and read by everything else.

Readers never write and create no file. They wait only while a training opens the log: it is in write-ahead mode.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from trackmania_rl.errors import UserError
from trackmania_rl.race.race import RaceFacts

MOST_WAITING: Final = 10_000
"""Most newest races, messages and figure sets kept in memory while the disk fails."""
RETRY_EVERY_S: Final = 5.0
"""Time between two tries to write what waits, because a try takes up to 0.1 s."""
OPEN_TIMEOUT_S: Final = 10.0
"""Wait for another program that locks the log at the start."""
WRITE_TIMEOUT_S: Final = 0.1
"""The same for a write: a connection that closes locks the log for a moment."""

READ_TIMEOUT_S: Final = 1.0
"""Wait of a reader while a training that was killed is started again, and restores the log."""

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
"""`RaceFacts` field by column. This is the only mapping between both."""

_BOOLEANS: Final = ("is_generated", "is_explo", "race_finished", "is_demonstration")
_COLUMNS: Final = ("session", "wall_s", "training_s", "frames_total", *FACTS)
_SCHEMA: Final = f"""
    BEGIN;
    CREATE TABLE IF NOT EXISTS races (
        id INTEGER PRIMARY KEY, is_undone INTEGER NOT NULL DEFAULT 0, {", ".join(_COLUMNS)}
    );
    CREATE TABLE IF NOT EXISTS figure_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS figure_values (
        id INTEGER PRIMARY KEY, is_undone INTEGER NOT NULL DEFAULT 0, frames_total INTEGER, name_id INTEGER, value REAL
    );
    CREATE VIEW IF NOT EXISTS figures AS
        SELECT v.id, v.is_undone, v.frames_total, n.name, v.value
        FROM figure_values v JOIN figure_names n ON n.id = v.name_id;
    CREATE INDEX IF NOT EXISTS figure_places ON figure_values (name_id, frames_total) WHERE NOT is_undone;
    CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, time_s REAL, level TEXT, process TEXT, text TEXT);
    CREATE TABLE IF NOT EXISTS status (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT);
    COMMIT;
"""
_INSERT_NAME: Final = "INSERT OR IGNORE INTO figure_names (name) VALUES (?)"
_INSERT_FIGURE: Final = """
    INSERT INTO figure_values (frames_total, name_id, value)
    VALUES (?, (SELECT id FROM figure_names WHERE name = ?), ?)
"""
_INSERT_MESSAGE: Final = "INSERT INTO messages (time_s, level, process, text) VALUES (?, ?, ?, ?)"
_REPLACE_STATUS: Final = "INSERT OR REPLACE INTO status (id, json) VALUES (1, ?)"
_INSERT: Final = f"INSERT INTO races ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"

RaceRow = dict[str, Any]
"""A race by column, with the `id`."""


class CommandClock:
    """Seconds since the user started the command, imports included."""

    def __init__(self) -> None:
        already_s = max(0.0, time.time() - psutil.Process().create_time())
        self._started_s = time.monotonic() - already_s

    def __call__(self) -> float:
        """Return the seconds until now."""
        return time.monotonic() - self._started_s


class RunLog:
    """Writer for a run's log. There is one at a time, in the learner. Thread-safe.

    Each race, message and figure set is committed at once. Failed writes wait in memory for `RETRY_EVERY_S`. A deleted
    log is made again. `kill -9` loses no written race; a power cut may lose the newest ones.
    """

    def __init__(self, path: Path, clock: Callable[[], float], session: int) -> None:
        """Open the log for a session.

        Args:
            path: log file.
            clock: seconds since the session started.
            session: how often the run was started.

        Raises:
            UserError: if the log cannot be written.
        """
        self._path = path
        self._clock = clock
        self._session = session
        self._waiting: deque[tuple[str, list[tuple[Any, ...]]]] = deque(maxlen=MOST_WAITING)
        self._retry_at_s = -math.inf
        self._connection: sqlite3.Connection | None = None
        self._opened_file_id: tuple[int, int] | None = None
        self._lock = threading.Lock()
        with self._beginning():
            self._open()

    def undo_after(self, frames_total: int) -> int:
        """Mark races and figures after a checkpoint as undone, and return the race count.

        Raises:
            UserError: if the log cannot be written.
        """
        undo = "UPDATE {} SET is_undone = 1 WHERE frames_total > ? AND NOT is_undone"
        with self._beginning():
            connection = self._open()
            connection.execute(undo.format("figure_values"), (frames_total,))
            return connection.execute(undo.format("races"), (frames_total,)).rowcount

    def write(self, race: RaceFacts, frames_total: int, training_s: float = 0.0) -> None:
        """Add a race.

        Args:
            race: the race's facts.
            frames_total: frames in the run, this race included.
            training_s: the run's seconds, earlier sessions included.

        Raises:
            OSError: if the disk fails. The race is written later.
        """
        values = {column: getattr(race, field) for column, field in FACTS.items()}
        values["meters"] = round(race.meters, 3)
        values["checkpoint_times_ms"] = json.dumps(race.checkpoint_times_ms)
        times_s = round(self._clock(), 3), round(training_s, 3)
        self._add(_INSERT, [(self._session, *times_s, frames_total, *values.values())])

    def write_figures(self, figures: Mapping[str, float], frames_total: int) -> None:
        """Add finite figures by name.

        Raises:
            OSError: if the disk fails. The figures are written later.
        """
        rows = [(frames_total, name, float(value)) for name, value in figures.items() if math.isfinite(value)]
        self._add(_INSERT_FIGURE, rows)

    def write_message(self, record: logging.LogRecord, text: str) -> None:
        """Add a message.

        Raises:
            OSError: if the disk fails. The message is written later.
        """
        self._add(_INSERT_MESSAGE, [(record.created, record.levelname, record.processName, text)])

    def write_status(self, status: RunStatus) -> None:
        """Replace the training status.

        Raises:
            OSError: if the disk fails.
        """
        with self._writing():
            self._open().execute(_REPLACE_STATUS, (status.model_dump_json(),))

    def _add(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._writing():
            self._waiting.append((statement, rows))
            now_s = time.monotonic()
            if now_s >= self._retry_at_s:
                self._retry_at_s = now_s + RETRY_EVERY_S
                self._write_waiting()
                self._retry_at_s = -math.inf

    def close(self) -> None:
        """Write what waits, if the disk does not fail, and close the log. The last reader's files are removed."""
        with contextlib.suppress(OSError), self._writing():
            self._write_waiting()
            if self._connection is not None:
                self._connection.execute("PRAGMA journal_mode = DELETE")  # fails while a reader is connected
            self._close()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        connection = self._open()
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in self._waiting:
                if statement == _INSERT_FIGURE:
                    connection.executemany(_INSERT_NAME, [(name,) for _, name, _ in rows])
                connection.executemany(statement, rows)
        self._waiting.clear()

    def _open(self) -> sqlite3.Connection:
        """Return the connection. Open the log if it is closed, was deleted or replaced."""
        if self._connection is not None and self._file_id() == self._opened_file_id:
            return self._connection
        self._close()
        if self._path.exists() and not self._path.is_file():  # a pipe would block
            raise OSError(errno.EINVAL, f"{self._path.name} is no file")
        self._connection = sqlite3.connect(
            self._path, timeout=OPEN_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)
        self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * WRITE_TIMEOUT_S)}")
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
    def _writing(self) -> Iterator[None]:
        """Hold the lock. Turn errors of sqlite3 into `OSError`. The log is opened anew after one."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                self._close()
                raise OSError(errno.EIO, str(error)) from error

    @contextlib.contextmanager
    def _beginning(self) -> Iterator[None]:
        try:
            with self._writing():
                yield
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written to: {error.strerror}; free some space, or move it away"
            ) from error


class MessageHandler(logging.Handler):
    """`logging` handler that writes messages to a run log. I/O errors are ignored."""

    def __init__(self, run_log: RunLog) -> None:
        super().__init__()
        self._run_log = run_log

    @override
    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._run_log.write_message(record, self.format(record))


def last_written_s(log: Path) -> float | None:
    """Return when a log was last written, in seconds since the epoch; None without one."""
    files = (log, log.with_name(f"{log.name}-wal"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=None)


def query(log: Path, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield a query's rows. A log that was just begun has none.

    Raises:
        UserError: if the log is missing or damaged.
    """
    if not log.is_file():  # sqlite would wait for a pipe
        reason = "it is no file" if log.exists() else "No such file or directory"
        raise UserError(f"cannot read {log}: {reason}; give the folder of a run, save/...")
    is_open = log.with_name(f"{log.name}-wal").exists()  # otherwise files beside it would have to be made
    address = f"{log.absolute().as_uri()}?mode=ro" + ("" if is_open else "&immutable=1")
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=READ_TIMEOUT_S)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'races'").fetchone():
                yield from connection.execute(statement, values)
    except sqlite3.Error as error:
        raise UserError(f"cannot read {log}: {error}") from error


def newest_race(log: Path) -> tuple[int, int]:
    """Return the id of the newest race, which may be undone, and the session that drove it. Both are 0 without a race.

    Raises:
        UserError: if the log is damaged.
    """
    if not log.is_file():
        return 0, 0
    race_id, session = next(query(log, "SELECT id, session FROM races ORDER BY id DESC LIMIT 1"), (0, 0))
    return race_id, session


def race_rows(log: Path, after_id: int = 0, most: int = -1) -> Iterator[RaceRow]:
    """Yield the races in order, without undone ones.

    Args:
        log: a run's log file.
        after_id: id of the race last read.
        most: most races; -1 for all.

    Raises:
        UserError: if the log is missing or damaged.
    """
    columns = ("id", *_COLUMNS)
    select = f"SELECT {', '.join(columns)} FROM races WHERE id > ? AND NOT is_undone ORDER BY id LIMIT ?"
    for values in query(log, select, (after_id, most)):
        row = dict(zip(columns, values, strict=True))
        for name in _BOOLEANS:
            row[name] = bool(row[name])
        row["checkpoint_times_ms"] = json.loads(row["checkpoint_times_ms"])
        yield row


class Message(NamedTuple):
    """Message of a training. `time_s` is since the epoch; `process` is the process name."""

    id: int
    time_s: float
    level: str
    process: str
    text: str


def newest_messages(log: Path, most: int, after_id: int = 0) -> list[Message]:
    """Return the newest messages after one, at most `most`, in order.

    Raises:
        UserError: if the log is missing or damaged.
    """
    select = "SELECT id, time_s, level, process, text FROM messages WHERE id > ? ORDER BY id DESC LIMIT ?"
    return [Message(*values) for values in query(log, select, (after_id, most))][::-1]


class RunStatus(BaseModel):
    """A training's status. Times are from `time.monotonic`.

    Attributes:
        is_over: whether the training has ended in order.
        timestamp_s: this record's time; `silence_s` is the timeout for it.
        ticked_at_s: newest training loop pass; `stall_s` is the timeout for it.
        raced_at_s: newest race; None before the session's first one.
        saved_at_s: newest checkpoint; None before the first one.
        figures: numbers by name; those that only rise end with `_total`.
        losses: newest means over the updates' losses and other figures, by name.
        maps: see `TrainingStatistics.map_rows`.
    """

    model_config = ConfigDict(frozen=True)

    is_over: bool
    timestamp_s: float = 0.0
    ticked_at_s: float = 0.0
    raced_at_s: float | None = None
    saved_at_s: float | None = None
    silence_s: float = 0.0
    stall_s: float = 0.0
    figures: dict[str, float] = Field(default={}, max_length=100)
    losses: dict[str, float] = Field(default={}, max_length=100)
    maps: list[dict[str, Any]] = Field(default=[], max_length=100)

    def what_is_wrong(self, now_s: float) -> str | None:
        """Return why the training is not healthy; None if it is."""
        if self.is_over:
            return "the training has ended"
        silent_s, stalled_s = now_s - self.timestamp_s, now_s - self.ticked_at_s
        if silent_s < 0:  # the clock began anew
            return "the machine was restarted since the last status"
        if silent_s > self.silence_s:
            return f"no status for {silent_s:.0f} s: the training hangs or was killed, or its disk is full"
        if stalled_s > self.stall_s:
            return f"no progress for {stalled_s:.0f} s"
        return None


def read_status(log: Path) -> RunStatus | None:
    """Return the newest status from `RunLog.write_status`; None if there is none, or log or status are damaged."""
    with contextlib.suppress(UserError, ValidationError):
        for (text,) in query(log, "SELECT json FROM status"):
            return RunStatus.model_validate_json(text)
    return None


class Figure(NamedTuple):
    """A figure's value at a frame count."""

    id: int
    frames_total: int
    name: str
    value: float


def logged_figures(log: Path, after_id: int = 0, most: int = -1, like: str = "%") -> Iterator[Figure]:
    """Yield figures in order, without undone ones.

    Args:
        log: a run's log file.
        after_id: id of the figure last read.
        most: most figures; -1 for all.
        like: name pattern, as in SQL.

    Raises:
        UserError: if the log is missing or damaged.
    """
    select = """
        SELECT id, frames_total, name, value FROM figures
        WHERE id > ? AND NOT is_undone AND name LIKE ? ORDER BY id LIMIT ?
    """
    return (Figure(*values) for values in query(log, select, (after_id, like, most)))


def iterate_races(log: Path) -> Iterator[dict[str, Any]]:
    """Yield a dictionary for each race, see `race_rows`; docs/figures.rst lists the keys but `learning`."""
    for row in race_rows(log):
        del row["id"], row["training_s"]
        if not row.pop("is_generated"):
            del row["track"]
        if row["progress_unit"] == "m":
            del row["progress_unit"], row["n_actions"]
        yield row


def races_with_learning(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the races from `iterate_races`, with `learning`: figures `train/...` since the race before, if any.

    This reads all figures in the log.
    """
    figures = logged_figures(log, like="train/%")
    figure = next(figures, None)
    for race in iterate_races(log):
        learning = {}
        while figure is not None and figure.frames_total < race["frames_total"]:
            if figure.name.count("/") == 1:
                learning[figure.name] = float(f"{figure.value:.6g}")
            figure = next(figures, None)
        yield race | ({"learning": learning} if learning else {})
