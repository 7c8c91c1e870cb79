"""What all processes of this user know of each other's games: one starts at a time, and each is on record.

The real game does not end with the process that started it: Wine and TMLoader hand it over. A record for each port says
which game runs there and for whom, so that a game whose owner was killed is ended before its port is used again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

from trackmania_rl.errors import UserError
from trackmania_rl.files import parse_json, read_bounded
from trackmania_rl.places import user_folder
from trackmania_rl.tmi_interaction.launchers.game_processes import (
    GAME_NAME,
    ProcessIdentity,
    end_processes,
    identity_of,
    open_process,
)
from trackmania_rl.tmi_interaction.transport import GameConnectionError

LOCK_WITHIN_S: Final = 300.0
"""How long others may be starting games: each takes up to a minute."""
END_WITHIN_S: Final = 10.0
LARGEST_RECORD_BYTES: Final = 10_000


def records_folder() -> Path:
    """Return where this user's records and lock are, for all checkouts of the project: ports belong to the machine.

    Raises:
        UserError: if that folder is not this user's alone.
    """
    return user_folder("games")


class GameRecords:
    """The games on record, by port.

    Args:
        folder: where they are kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._own_folder = folder

    @functools.cached_property
    def _folder(self) -> Path:
        """Raises `UserError` where it cannot be had."""
        return self._own_folder or records_folder()

    @contextlib.contextmanager
    def starting(self, within_s: float = LOCK_WITHIN_S) -> Iterator[None]:
        """Be the only one who starts a game, so that a new process is told from those that were there before.

        The operating system takes the lock back when its holder ends, however it ends.

        Raises:
            GameConnectionError: if others have kept it for so long.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    def add(self, port: int, game: ProcessIdentity) -> None:
        """Put on record that this process owns a game."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = self._folder / f"{port}.unfinished"
        unfinished.write_text(json.dumps({"game": game, "owner": identity_of(psutil.Process())}))
        os.replace(unfinished, self._file(port))

    def remove(self, port: int) -> None:
        """Forget the game at a port."""
        self._file(port).unlink(missing_ok=True)

    def left_behind(self, port: int) -> psutil.Process | None:
        """Return the game at a port, if it still runs while the process that started it has ended."""
        game, owner = self._read(self._file(port))
        return game if owner is None else None

    def end_left_behind(self, port: int) -> int | None:
        """End such a game; its process number, or None if there was none."""
        game = self.left_behind(port)
        if game is None:
            return None
        end_processes([game], END_WITHIN_S)
        self.remove(port)
        return game.pid

    def end_own(self) -> None:
        """End every game of this process, which is about to end itself."""
        self.end_games_of(os.getpid())

    def end_games_of(self, owner_pid: int) -> None:
        """End every game of a process that runs but may hang, or that has just ended."""
        own = []
        with contextlib.suppress(UserError):  # where no folder can be had, no game was put on record
            for file in self._folder.glob("*.json"):
                game, _ = self._read(file)
                if game is not None and _owner_pid(file) == owner_pid:
                    own.append(game)
                    file.unlink(missing_ok=True)
        end_processes(own, END_WITHIN_S)

    def _file(self, port: int) -> Path:
        return self._folder / f"{port}.json"

    def _read(self, file: Path) -> tuple[psutil.Process | None, psutil.Process | None]:
        """(game, owner) of a record, each None if it no longer runs."""
        try:
            record = parse_json(read_bounded(file, LARGEST_RECORD_BYTES))
            game, owner = ProcessIdentity(*record["game"]), ProcessIdentity(*record["owner"])
        except (UserError, ValueError, KeyError, TypeError):  # none, or none that can be trusted
            return None, None
        with contextlib.suppress(psutil.Error):
            process = open_process(game)
            if process is not None and process.name().lower() == GAME_NAME.lower():
                return process, open_process(owner)
        return None, None


def _owner_pid(file: Path) -> int | None:
    """The process number of a record's owner, whether it still runs or not."""
    try:
        return ProcessIdentity(*parse_json(read_bounded(file, LARGEST_RECORD_BYTES))["owner"]).pid
    except (UserError, ValueError, KeyError, TypeError):
        return None
