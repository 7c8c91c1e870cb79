"""Games that `scripts/keep_games.py` keeps on this or another machine: greeting, and the collector's launcher.

The operating system accepts connections even for a hanging game; only a greeting shows that it runs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from typing_extensions import override

from trackmania_rl.paths import user_folder
from trackmania_rl.protocol.messages import LINK_VERSION, MessageId
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher
from trackmania_rl.tmi_interaction.tminterface2 import (
    GameConnectionError,
    GameError,
    GameProtocolError,
    GameTimeoutError,
    TMInterface,
)

log = logging.getLogger(__name__)

ANSWERS_WITHIN_S: Final = 5.0
"""Timeout for answers from a game that has greeted."""
EVENT_WITHIN_S: Final = 0.02
GREETS_WITHIN_S: Final = 30.0
"""Timeout for a greeting before a new connection is tried."""
RETRY_AFTER_S: Final = 0.5
"""Long enough for the keeper to greet a new game first."""


@dataclass(frozen=True)
class Greeting:
    """A game's first answers.

    Attributes:
        version: of this project's plugin or of the simulated game; 0 for another plugin.
        is_in_menus: whether no map is loaded.
    """

    version: int
    is_in_menus: bool


class GreetingAttempt:
    """Connection that waits for the game's greeting. The game drops the previous client for it.

    Args:
        port: game port on this machine.

    Attributes:
        local_port: this end's.

    Raises:
        GameConnectionError: if no process listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._link = TMInterface(port, ANSWERS_WITHIN_S, connect_within_s=0.0)
        self.local_port = self._link.local_port

    def poll(self, commands: Sequence[str] = ()) -> Greeting | None:
        """Poll for the greeting. After it, run console commands in the game and close the connection.

        Returns:
            None before the greeting.

        Raises:
            GameError: if the game is gone, drops the connection, or breaks the protocol.
        """
        try:
            event = self._link.next_event(EVENT_WITHIN_S)
        except GameTimeoutError:
            return None
        if event.id != MessageId.ON_CONNECT:
            raise GameProtocolError(f"what listens at port {self._port} does not greet as a game does")
        for command in commands:
            self._link.command(command)
        greeting = Greeting(self._link.plugin_version(), self._link.is_in_menus())
        # The game reads the goodbye instead of an answer.
        self.close()
        return greeting

    def close(self) -> None:
        """Send goodbye and close; never raises."""
        self._link.close()


def greet(port: int, within_s: float) -> Greeting:
    """Wait for a game's greeting. Raise `GameError` if no process listens or greets in time."""
    deadline_s = time.monotonic() + within_s
    with contextlib.closing(GreetingAttempt(port)) as attempt:
        while (greeting := attempt.poll()) is None:
            if time.monotonic() > deadline_s:
                raise GameTimeoutError(f"the game at port {port} does not greet within {within_s:g} s")
        return greeting


class KeptGame(GameLauncher):
    """Launcher that only connects to a game kept elsewhere, perhaps by SSH.

    Starting locks the game for this collector. Connecting waits until it greets.

    Args:
        tracks_folder: tracks for the simulated game; None for the real game, whose maps are on the game's machine.
        locks_folder: for the locks, one per game.
    """

    # No commands_on_connect: the keeper has closed the console and logged in.

    def __init__(self, port: int, tracks_folder: Path | None = None, locks_folder: Path | None = None) -> None:
        super().__init__(port)
        self._tracks_folder = tracks_folder
        self._lock = lock_of_kept_game(port, locks_folder)
        self._has_greeted = False
        self._is_version_logged = False

    @override
    def check_map(self, map_path: str) -> None:
        if self._tracks_folder is not None:
            load_track(self._tracks_folder / map_path)

    @override
    def start(self) -> None:
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise GameConnectionError(taken_text(self.port)) from error

    @override
    def kill(self) -> None:
        self._lock.release()

    @override
    def wait_until_connectable(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                greeting = greet(self.port, min(GREETS_WITHIN_S, max(deadline_s - time.monotonic(), 0.0)))
                break
            except GameError as error:
                if time.monotonic() + RETRY_AFTER_S > deadline_s:
                    raise GameConnectionError(absent_text(self.port, error)) from error
                time.sleep(RETRY_AFTER_S)
        if not self._is_version_logged and (text := version_text(self.port, greeting)) is not None:
            log.warning("%s", text)
        if self._has_greeted and not greeting.is_in_menus:
            log.warning(
                "the kept game at port %d runs on, but had let go of this collector: either the way to it broke, or "
                "another collector has connected to it, in this training or another one: each kept game is for one",
                self.port,
            )
        self._has_greeted = self._is_version_logged = True


def lock_of_kept_game(port: int, folder: Path | None = None) -> FileLock:
    """Return a collector's lock on the kept game at a port."""
    file = (folder or user_folder("games")) / f"kept_{port}.lock"
    return FileLock(file, thread_local=False)  # `close` may come from another thread


def taken_text(port: int) -> str:
    """Return the error for a kept game in use by a collector."""
    return (
        f"another collector of this machine plays on the kept game at port {port}: each kept game is for one; keep "
        "more of them, and give this training ports of its own with --set base_tmi_port=N"
    )


def absent_text(port: int, error: GameError) -> str:
    """Return the error for a port without a kept game."""
    return (
        f"no kept game greets at port {port} ({error}), but games_are_kept = True: run python scripts/keep_games.py "
        f"--ports {port} where the game is and, if that is another machine, ssh -N -R {port}:127.0.0.1:{port} "
        "USER@THIS_MACHINE there as well; see docs/other_machines.rst"
    )


def version_text(port: int, greeting: Greeting) -> str | None:
    """Return a warning if a kept game's plugin has another version."""
    if greeting.version == LINK_VERSION:
        return None
    runs = f"version {greeting.version} of this project's plugin" if greeting.version else "another plugin"
    return (
        f"the kept game at port {port} runs {runs}, and version {LINK_VERSION} is what this training was made for: "
        "have the same version of this project on both machines, and restart keep_games.py, which installs the plugin"
    )
