"""The collector's end of a game that `scripts/keep_games.py` keeps, on this machine or on another one.

Nothing is started or ended here. To start such a game is to wait until it greets, which it does again some time after
it has died, hung or been restarted; where it does not, it is a game that fails, as any other.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.greeting import Greeting, greet
from trackmania_rl.tmi_interaction.launchers.game_records import records_folder
from trackmania_rl.tmi_interaction.launchers.plugin_files import PLUGIN_FILE, read_version
from trackmania_rl.tmi_interaction.transport import GameConnectionError, GameError

log = logging.getLogger(__name__)

GREETS_WITHIN_S: Final = 30.0
"""How long one connection waits to be greeted before another one is tried."""
TRY_AGAIN_AFTER_S: Final = 0.5
"""Not sooner: who keeps the game greets it first, when it is new."""


class KeptGame:
    """One game that is kept elsewhere and listens, perhaps through SSH, at a port of this machine.

    Args:
        port: of this machine.
        tracks_folder: where the simulated game's tracks are; None for the real game, whose maps are on its machine.
        locks_folder: where this user's collectors say which games they play on.
    """

    commands_on_connect: tuple[str, ...] = ()
    """None: keep_games.py has closed the console and logged in; `toggle_console` would open it."""

    def __init__(self, port: int, tracks_folder: Path | None = None, locks_folder: Path | None = None) -> None:
        self.port = port
        self._tracks_folder = tracks_folder
        self._lock = lock_of_kept_game(port, locks_folder)
        self._has_greeted = False
        self._is_version_told = False

    def check_map(self, map_path: str) -> None:
        """See `GameLauncher.check_map`; the real game's maps are on its own machine."""
        if self._tracks_folder is not None:
            load_track(self._tracks_folder / map_path)

    def map_argument(self, map_path: str) -> str:
        """See `GameLauncher.map_argument`; as it is, since this side does not know that system's separators."""
        return map_path

    def start(self) -> None:
        """See `GameLauncher.start`; it is started elsewhere, and from now on no other collector's.

        Raises:
            GameConnectionError: if another collector of this machine plays on it.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise GameConnectionError(taken_text(self.port)) from error

    def is_alive(self) -> bool:
        """See `GameLauncher.is_alive`; nothing is known but what the connection says."""
        return True

    def kill(self) -> None:
        """See `GameLauncher.kill`; it is not ours to end, and may be another collector's from now on."""
        self._lock.release()

    def show_window(self) -> None:
        """See `GameLauncher.show_window`; who keeps it sees to it."""

    def focus_window(self) -> None:
        """See `GameLauncher.focus_window`; likewise."""

    def wait_until_connectable(self, timeout_s: float) -> None:
        """See `GameLauncher.wait_until_connectable`; through SSH everything is connectable, so it has to greet."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                greeting = greet(self.port, min(GREETS_WITHIN_S, max(deadline_s - time.monotonic(), 0.0)))
                break
            except GameError as error:
                if time.monotonic() + TRY_AGAIN_AFTER_S > deadline_s:
                    raise GameConnectionError(absent_text(self.port, error)) from error
                time.sleep(TRY_AGAIN_AFTER_S)
        if not self._is_version_told and (text := version_text(self.port, greeting)) is not None:
            log.warning("%s", text)
        if self._has_greeted and not greeting.is_in_menus:
            log.warning(
                "the kept game at port %d runs on, but had let go of this collector: either the way to it broke, or "
                "another collector has connected to it, in this training or another one: each kept game is for one",
                self.port,
            )
        self._has_greeted = self._is_version_told = True


def lock_of_kept_game(port: int, folder: Path | None = None) -> FileLock:
    """Make the lock of whoever plays on the kept game at a port of this machine; the system releases it at its end."""
    folder = folder or records_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(folder / f"kept_{port}.lock", thread_local=False)  # `close` may come from another thread


def taken_text(port: int) -> str:
    """Say that a kept game has its collector."""
    return (
        f"another collector of this machine plays on the kept game at port {port}: each kept game is for one; keep "
        "more of them, and give this training ports of its own with --set base_tmi_port=N"
    )


def absent_text(port: int, error: GameError) -> str:
    """Say that no kept game is at a port, and what to do."""
    return (
        f"no kept game greets at port {port} ({error}), but games_are_kept = True: run python scripts/keep_games.py "
        f"--ports {port} where the game is and, if that is another machine, ssh -N -R {port}:127.0.0.1:{port} "
        "USER@THIS_MACHINE there as well; see docs/game_machines.rst"
    )


def version_text(port: int, greeting: Greeting) -> str | None:
    """Say what is wrong with the version of a kept game's plugin; None if nothing is."""
    wanted = read_version(PLUGIN_FILE)
    if greeting.version == wanted:
        return None
    runs = f"version {greeting.version} of this project's plugin" if greeting.version else "another plugin"
    return (
        f"the kept game at port {port} runs {runs}, and version {wanted} is what this training was made for: have the "
        "same version of this project on both machines, and restart keep_games.py, which installs the plugin"
    )
