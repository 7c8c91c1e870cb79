"""Starting, finding, watching and ending one instance of the real game; what differs by system is handed in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from trackmania_rl.errors import UserError
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_processes import (
    GAME_NAME,
    MARK_VARIABLE,
    GameProcess,
    Launch,
    end_processes,
    find_started,
    identity_of,
    list_games,
    open_process,
)
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.tmi_interaction.launchers.game_windows import ShownWindow, WindowSystem
from trackmania_rl.tmi_interaction.launchers.launcher import check_port_is_free, port_is_listened_at
from trackmania_rl.tmi_interaction.transport import GameConnectionError

log = logging.getLogger(__name__)

FIND_WITHIN_S: Final = 60.0
"""How long the program that starts the game may take until there is a process of the game."""
POLL_INTERVAL_S: Final = 0.2
END_WITHIN_S: Final = 10.0
CHALLENGES: Final = Path("Tracks", "Challenges")
"""Where the game looks for maps, from its folder in the user's documents."""


@dataclass(frozen=True)
class StartCommand:
    """How this system starts a game.

    Attributes:
        arguments: the program and what it is given; one text for Windows, whose programs split it themselves.
        options: further keyword arguments of `subprocess.Popen`.
    """

    arguments: Sequence[str] | str
    options: dict[str, Any] = field(default_factory=dict)


class TmnfLauncher:
    """A `GameLauncher` of TrackMania Nations Forever with TMInterface; see `choice`.

    Args:
        port: where the game is to listen; TMInterface's variable `custom_port`.
        command: makes the command; it may raise `UserError`.
        windows: opens the window system.
        user: this machine's paths and names.
        records: the games on record.
        find_games: every running game.
    """

    def __init__(
        self,
        port: int,
        command: Callable[[], StartCommand],
        windows: Callable[[], WindowSystem],
        user: UserSettings,
        records: GameRecords | None = None,
        find_games: Callable[[], Sequence[GameProcess]] = list_games,
    ) -> None:
        self.port = port
        self.commands_on_connect = commands_on_connect(user)
        self._command = command
        self._open_windows = windows
        self._windows: WindowSystem | None = None
        self._base_path = user.trackmania_base_path
        self._records = records or GameRecords()
        self._find_games = find_games
        self._starter: subprocess.Popen[bytes] | None = None
        self._game: psutil.Process | None = None
        self._window: ShownWindow | None = None

    @property
    def pid(self) -> int | None:
        """The game's process started last."""
        return self._game.pid if self._game else None

    def check_map(self, map_path: str) -> None:
        """See `GameLauncher.check_map`; without `trackmania_base_path` nothing is known of the game's maps."""
        if not self._base_path:
            return
        file = Path(self._base_path).expanduser() / CHALLENGES / map_path.replace("\\", "/")
        if not file.is_file():
            raise UserError(
                f"{file}: the game has no such map: copy the .Challenge.Gbx file there, or correct map_path in "
                "map_cycle or trackmania_base_path in user_config.py"
            )

    def map_argument(self, map_path: str) -> str:
        """See `GameLauncher.map_argument`."""
        return with_own_separators(map_path)

    def start(self) -> None:
        """See `GameLauncher.start`; it takes until the game's process is there.

        Raises:
            UserError: if the port is in use or the program that starts the game cannot be run.
            GameConnectionError: if no game appears, or several that cannot be told apart.
        """
        command = self._command()
        with self._records.starting():
            ended_pid = self._records.end_left_behind(self.port)
            if ended_pid is not None:
                log.warning(
                    "ended the game (process %d) that an earlier run left behind at port %d", ended_pid, self.port
                )
            check_port_is_free(self.port)
            before = frozenset(game.identity for game in self._find_games())
            mark = f"port {self.port}, started by process {os.getpid()} at {time.time_ns()}"
            at_s = time.time()
            self._starter = _run(command, mark)
            launch = Launch(self.port, mark, self._starter.pid, at_s, before)
            try:
                self._game = self._wait_for_game(launch)
                self._records.add(self.port, identity_of(self._game))
            except BaseException:
                self.kill()
                raise
        log.info("the game at port %d is process %d", self.port, self._game.pid)

    def is_alive(self) -> bool:
        """See `GameLauncher.is_alive`."""
        if self._game is None or not self._game.is_running():
            return False
        try:
            return self._game.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def show_window(self) -> None:
        """See `GameLauncher.show_window`."""
        if (window := self._shown_window()) is not None:
            window.show()

    def focus_window(self) -> None:
        """See `GameLauncher.focus_window`."""
        if (window := self._shown_window()) is not None:
            window.focus()

    def kill(self) -> None:
        """See `GameLauncher.kill`; the starter goes too, with what it still has of its own."""
        processes = [] if self._game is None else [self._game]
        if self._starter is not None and self._starter.poll() is None:
            try:
                starter = psutil.Process(self._starter.pid)
                processes += [starter, *starter.children(recursive=True)]
            except psutil.NoSuchProcess:
                pass
        for process in end_processes(processes, END_WITHIN_S):
            log.warning("process %d of the game at port %d does not end", process.pid, self.port)
        if self._starter is not None:
            self._starter.poll()
        if self._game is not None:
            self._records.remove(self.port)
        self._starter = self._game = self._window = None

    def wait_until_connectable(self, timeout_s: float) -> None:
        """See `GameLauncher.wait_until_connectable`."""
        deadline_s = time.monotonic() + timeout_s
        while self.is_alive():
            # Whoever owns the socket: under Wine it may be its server process. The port was free at the start.
            if port_is_listened_at(self.port):
                return
            if time.monotonic() > deadline_s:
                raise GameConnectionError(
                    f"the game (process {self.pid}) does not listen at port {self.port} after {timeout_s:g} s: "
                    "is the plugin Python_Link.as in TMInterface's folder, and is TMInterface 2.1 or later loaded? See "
                    "scripts/doctor.py and docs/troubleshooting.rst"
                )
            time.sleep(POLL_INTERVAL_S)
        raise GameConnectionError(f"the game at port {self.port} ended while starting up; start it by hand to see why")

    def _shown_window(self) -> ShownWindow | None:
        if self._window is None and self._game is not None:
            self._windows = self._windows or self._open_windows()
            self._window = ShownWindow(self._windows, self._game.pid)
        return self._window

    def _wait_for_game(self, launch: Launch) -> psutil.Process:
        assert self._starter is not None
        deadline_s = time.monotonic() + FIND_WITHIN_S
        while True:
            found = find_started(launch, self._find_games())
            if len(found) == 1:
                process = open_process(found[0].identity)
                if process is not None:
                    return process
            exit_code = self._starter.poll()
            if exit_code and not found:  # a starter that hands over ends with 0
                raise GameConnectionError(
                    f"the command that starts the game ended with exit code {exit_code}: run it by hand to see why: "
                    f"{_text(self._starter.args)}"
                )
            if time.monotonic() > deadline_s:
                raise GameConnectionError(self._not_found(found))
            time.sleep(POLL_INTERVAL_S)

    def _not_found(self, found: Sequence[GameProcess]) -> str:
        if found:
            pids = ", ".join(str(game.identity.pid) for game in found)
            return (
                f"several games have begun since the one for port {self.port} was started (processes {pids}), and "
                "nothing tells which is it: start no game by hand while training starts one"
            )
        return (
            f"no process {GAME_NAME} appeared within {FIND_WITHIN_S:g} s after the game for port {self.port} was "
            f"started: run the command by hand to see why: {_text(self._starter.args if self._starter else '')}"
        )


def commands_on_connect(user: UserSettings) -> tuple[str, ...]:
    """Return what a new game needs: its console, which the start leaves in front, closed; its account, logged in."""
    autologin = (f"set autologin {user.username}",) if user.username else ()
    return ("toggle_console", *autologin)


def with_own_separators(map_path: str, platform: str = sys.platform) -> str:
    r"""Return a map's path as the real game takes it, whatever separators it has: `\` on Windows, else `/`."""
    return map_path.replace("/", "\\") if platform == "win32" else map_path.replace("\\", "/")


def _run(command: StartCommand, mark: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, MARK_VARIABLE: mark},
            **command.options,
        )
    except OSError as error:
        raise UserError(
            f"the game cannot be started by {_text(command.arguments)}: {error.strerror}; correct it in user_config.py"
        ) from error


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else " ".join(str(part) for part in arguments)
