"""Real game processes, and a game and owner record for each port.

The game is seldom the launcher's child (TMLoader, Wine, Lutris), so it is searched after the start. By the record, the
next start ends a game that outlived the owner.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from filelock import FileLock, Timeout

from trackmania_rl.errors import UserError
from trackmania_rl.paths import user_folder
from trackmania_rl.processes import descendants_of, end_processes, is_running
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

GAME_NAME: Final = "TmForever.exe"
MARK_VARIABLE: Final = "TRACKMANIA_RL_GAME"
"""Environment variable that identifies a game. Services do not pass it on."""
CLOCK_SLACK_S: Final = 2.0
"""Tolerance of a process's coarsely stored start time."""
SAME_START_WITHIN_S: Final = 1.0 if sys.platform == "win32" else 60.0
"""Largest difference between two readings of a start time. Linux derives it from the wall clock, which may be set.
Windows has a fixed one, and reuses process numbers soon."""
PROGRAM: Final = re.compile(r'"?([a-z]:\\.*)\\[^\\]*\.exe', re.IGNORECASE)
NAMED_PORT: Final = re.compile(r"custom_port\D{0,3}(\d+)")
LOCK_WITHIN_S: Final = 300.0
"""Longest wait for other launchers; each takes up to a minute."""


class ProcessIdentity(NamedTuple):
    """A process's number and start time; the number alone is reused."""

    pid: int
    created_at_s: float

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessIdentity:
        """Read a running process's identity."""
        return cls(process.pid, process.create_time())

    def is_same(self, other: ProcessIdentity) -> bool:
        """Return whether both identify one process."""
        return self.pid == other.pid and abs(self.created_at_s - other.created_at_s) < SAME_START_WITHIN_S

    def open(self) -> psutil.Process | None:
        """Return this process; None if it has ended, even if the number is in use again."""
        try:
            process = psutil.Process(self.pid)
            is_same = self.is_same(ProcessIdentity.of(process))
            return process if is_same and is_running(process) else None
        except psutil.Error:
            return None


@dataclass(frozen=True)
class GameProcess:
    """A running TmForever.exe."""

    identity: ProcessIdentity
    command_line: str = ""  # "" if unreadable
    mark: str | None = None  # `MARK_VARIABLE` value; None if absent or unreadable

    @property
    def named_port(self) -> int | None:
        """The port in the command line."""
        found = NAMED_PORT.search(self.command_line)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Launch:
    """Evidence for finding a game just started."""

    port: int  # `custom_port` in the command line
    mark: str  # `MARK_VARIABLE` in the environment
    at_s: float  # seconds since 1970
    before: frozenset[ProcessIdentity]  # games that already ran


def find_started(launch: Launch, games: Iterable[GameProcess]) -> list[GameProcess]:
    """Return the games that may be the one started, by the best evidence found: mark, port, being new."""
    new = [
        game
        for game in games
        if not any(game.identity.is_same(earlier) for earlier in launch.before)
        and game.identity.created_at_s >= launch.at_s - CLOCK_SLACK_S
        and game.mark in (None, launch.mark)
        and game.named_port in (None, launch.port)
    ]
    marked = [game for game in new if game.mark == launch.mark]
    of_port = [game for game in new if game.named_port == launch.port]
    return marked or of_port or new


def processes_with(mark: str) -> list[psutil.Process]:
    """Return the games with a mark, newest last, and what they have started: children, and programs in their folder.

    Wine's processes inherit the first game's mark, but serve all.
    """
    games = [game for game in list_games() if game.mark == mark]
    folders = {folder for game in games if (folder := _folder_of(game.command_line))}
    processes = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                _folder_of(" ".join(process.cmdline())) in folders
                and process.environ().get(MARK_VARIABLE) == mark
                and not _is_game(process)
            ):
                processes[process.pid] = process
    for game in sorted(games, key=lambda game: game.identity.created_at_s):
        if (opened := game.identity.open()) is not None:
            processes |= {child.pid: child for child in descendants_of(opened.pid)}
            processes.pop(opened.pid, None)
            processes[opened.pid] = opened
    return list(processes.values())


def _folder_of(command_line: str) -> str:
    r"""Return a Windows program's folder, such as C:\games for `C:\games\TmForever.exe /option`."""
    found = PROGRAM.match(command_line)
    return found[1].lower() if found else ""


def list_games() -> list[GameProcess]:
    """Return this user's running TmForever.exe processes."""
    games = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _is_game(process) and is_running(process):
                games.append(_read_process(process))
    return games


def _is_game(process: psutil.Process) -> bool:
    return bool(process.name().lower() == GAME_NAME.lower())


def _read_process(process: psutil.Process) -> GameProcess:
    command_line, mark = "", None
    with contextlib.suppress(psutil.AccessDenied, OSError):
        mark = process.environ().get(MARK_VARIABLE)
    with contextlib.suppress(psutil.AccessDenied, OSError):
        command_line = " ".join(process.cmdline())
    return GameProcess(ProcessIdentity.of(process), command_line, mark)


class GameRecords:
    """Running games' records by port, shared by all processes of this user."""

    def __init__(self, folder: Path | None = None) -> None:
        self._own_folder = folder

    @functools.cached_property
    def _folder(self) -> Path:
        return self._own_folder or user_folder("games")

    @contextlib.contextmanager
    def starting(self, within_s: float = LOCK_WITHIN_S) -> Iterator[None]:
        """Hold the lock for starting a game. Raise `GameConnectionError` after `within_s`."""
        lock = FileLock(self._folder / "starting.lock")
        try:
            lock.acquire(timeout=within_s)
        except Timeout as error:
            raise GameConnectionError(
                f"another process has been starting a game for {within_s:g} s ({lock.lock_file} is locked): end it"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def add(self, port: int, game: ProcessIdentity, mark: str = "") -> None:
        """Record a game owned by this process, and the mark on the game's processes."""
        unfinished = self._folder / f"{port}.unfinished"
        record = {"game": game, "mark": mark, "owner": ProcessIdentity.of(psutil.Process())}
        unfinished.write_text(json.dumps(record))
        os.replace(unfinished, self._file(port))

    def remove(self, port: int) -> None:
        """Remove a port's record."""
        self._file(port).unlink(missing_ok=True)

    def left_behind(self, port: int) -> psutil.Process | None:
        """Return the game at a port if it outlived the owner."""
        games, owner = self._read(self._file(port))
        return games[-1] if games and (owner is None or owner.open() is None) else None

    def end_left_behind(self, port: int) -> int | None:
        """End the game that outlived the owner, if any; return the process number."""
        game = self.left_behind(port)
        if game is None:
            return None
        end_processes(self._read(self._file(port))[0])
        self.remove(port)
        return game.pid

    def end_games_of(self, owner_pid: int) -> None:
        """End every game owned by a process that may hang or have ended."""
        games = []
        with contextlib.suppress(UserError):  # without a folder no game was recorded
            for file in self._folder.glob("*.json"):
                of_record, owner = self._read(file)
                if owner is not None and owner.pid == owner_pid:
                    games += of_record
                    file.unlink(missing_ok=True)
        end_processes(games)

    def _file(self, port: int) -> Path:
        return self._folder / f"{port}.json"

    def _read(self, file: Path) -> tuple[list[psutil.Process], ProcessIdentity | None]:
        """Return (processes, owner) from a record, the game last: none if it has ended, no owner if it is unusable."""
        try:
            record = json.loads(file.read_text())
            game = ProcessIdentity(*record["game"]).open()
            owner = ProcessIdentity(*record["owner"])
            processes = processes_with(record["mark"]) if record["mark"] else []
            if game is not None and _is_game(game) and game not in processes:
                processes = [*processes, game]
            return processes, owner
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return [], None
