"""Which process is the game that was just started, among several of the same name.

A launcher's own child is seldom the game: TMLoader starts it and may end, Wine hands processes over to init, Lutris
asks a service. So the game is found among the processes named TmForever.exe that began since, by the best evidence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import psutil

GAME_NAME: Final = "TmForever.exe"
MARK_VARIABLE: Final = "TRACKMANIA_RL_GAME"
"""Environment variable that a launcher gives the game. Programs in between pass it on; a service does not."""
CLOCK_SLACK_S: Final = 2.0
"""By how much a process's start time, which systems keep coarsely, may seem to lie before its launch."""
SAME_START_WITHIN_S: Final = 1.0 if sys.platform == "win32" else 60.0
"""How far apart two readings of one process's start time may lie. Linux reckons it from the clock, so it moves when the
clock is set: a game of ours must then not pass for a stranger's, nor its owner for dead. (Larger steps are not
covered.) On Windows it is fixed, and a process's number is soon used again."""
NAMED_PORT: Final = re.compile(r"custom_port\D{0,3}(\d+)")


class ProcessIdentity(NamedTuple):
    """A process for good: systems use a number again, but not with the same start time."""

    pid: int
    created_at_s: float

    def is_same(self, other: ProcessIdentity) -> bool:
        """Whether both are readings of one process."""
        return self.pid == other.pid and abs(self.created_at_s - other.created_at_s) < SAME_START_WITHIN_S


@dataclass(frozen=True)
class GameProcess:
    """A running TmForever.exe.

    Attributes:
        identity: number and start time.
        command_line: its arguments in one text; empty where the system does not show them.
        mark: value of `MARK_VARIABLE` in its environment, if it is there and can be read.
        ancestors: process numbers of its parent, the parent's parent and so on, as far as they still run; the parent
            even if it has ended.
    """

    identity: ProcessIdentity
    command_line: str = ""
    mark: str | None = None
    ancestors: tuple[int, ...] = ()

    @property
    def named_port(self) -> int | None:
        """The port that the command line's `custom_port` names."""
        found = NAMED_PORT.search(self.command_line)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Launch:
    """What a launcher knows of the game that it starts.

    Attributes:
        port: in the command line as `custom_port`.
        mark: in the environment as `MARK_VARIABLE`.
        starter_pid: the program that was run.
        at_s: when, in seconds since 1970.
        before: games that ran already.
    """

    port: int
    mark: str
    starter_pid: int
    at_s: float
    before: frozenset[ProcessIdentity]


def find_started(launch: Launch, games: Iterable[GameProcess]) -> list[GameProcess]:
    """Return the games that may be the one started, by the best evidence that any of them has.

    The mark in the environment proves it, then the port in the command line, then descent from the starter. Without any
    of these it is whatever game is new; starts exclude each other by a lock, so only a game that somebody starts by
    hand in the same moment can come in between.

    Returns:
        None so far: an empty list. One: that is it. Several: they cannot be told apart.
    """
    new = [game for game in games if _may_be(launch, game)]
    marked = [game for game in new if game.mark == launch.mark]
    of_port = [game for game in new if game.named_port == launch.port]
    descended = [game for game in new if launch.starter_pid in game.ancestors]
    return marked or of_port or descended or new


def _may_be(launch: Launch, game: GameProcess) -> bool:
    return (
        not any(game.identity.is_same(earlier) for earlier in launch.before)
        and game.identity.created_at_s >= launch.at_s - CLOCK_SLACK_S
        and game.mark in (None, launch.mark)
        and game.named_port in (None, launch.port)
    )


def list_games() -> list[GameProcess]:
    """Every running TmForever.exe of this machine; the game's own launcher, TmForeverLauncher.exe, is none."""
    games = []
    for process in psutil.process_iter():
        try:
            if process.name().lower() == GAME_NAME.lower() and process.status() != psutil.STATUS_ZOMBIE:
                games.append(_look_at(process))
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:  # of another user, so none of ours
            continue
    return games


def _look_at(process: psutil.Process) -> GameProcess:
    try:
        mark = process.environ().get(MARK_VARIABLE)
    except (psutil.AccessDenied, OSError):
        mark = None
    try:
        command_line = " ".join(process.cmdline())
    except (psutil.AccessDenied, OSError):
        command_line = ""
    ancestors = (process.ppid(), *(parent.pid for parent in process.parents()))
    return GameProcess(ProcessIdentity(process.pid, process.create_time()), command_line, mark, ancestors)


def open_process(identity: ProcessIdentity) -> psutil.Process | None:
    """Return that very process if it still runs; none that has its number now."""
    try:
        process = psutil.Process(identity.pid)
        is_same = identity.is_same(identity_of(process))
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def end_processes(processes: Collection[psutil.Process], within_s: float) -> Sequence[psutil.Process]:
    """Kill processes and wait for their end; a game has nothing to save.

    Returns:
        Those that still run after `within_s`, or may not be killed.
    """
    for process in processes:
        try:
            process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    _, running = psutil.wait_procs(list(processes), timeout=within_s)
    return running


def identity_of(process: psutil.Process) -> ProcessIdentity:
    """Return number and start time of a running process."""
    return ProcessIdentity(process.pid, process.create_time())
