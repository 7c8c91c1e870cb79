"""Game instance launchers: interface, the simulated game's launcher, and free ports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import psutil
from typing_extensions import override

from trackmania_rl.errors import PassingError
from trackmania_rl.paths import SHIPPED_FOLDER
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.launchers.game_processes import GAME_NAME, list_games
from trackmania_rl.tmi_interaction.tminterface2 import LOOPBACK, GameConnectionError

SIMULATED_GAME_SCRIPT: Final = Path(
    os.environ.get("SIMULATED_GAME_SCRIPT", SHIPPED_FOLDER / "scripts" / "simulated_game.py")
)
LISTENS_WITHIN_S: Final = 120.0
"""Longest time from a game's start until it listens."""
PORT_FREE_WITHIN_S: Final = 3.0
POLL_INTERVAL_S: Final = 0.02
WINE_SERVER: Final = "wineserver"
TERMINATE_WITHIN_S: Final = 2.0
ERROR_TAIL_BYTES: Final = 2000
PR_SET_PDEATHSIG: Final = 1
OWN_PROCESS_GROUP: Final = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""Windows creation flag: Ctrl-C in our terminal does not reach the process."""
_FREE_PORTS: Final = range(16_384, 32_700)


class PortInUseError(PassingError):
    """Another program listens at a game's port."""


class GameLauncher:
    """One game instance as a process. These methods fit a game that another program starts and ends.

    Args:
        port: game port on this machine.

    Attributes:
        commands_on_connect: console commands for each new connection.
    """

    commands_on_connect: tuple[str, ...] = ()

    def __init__(self, port: int) -> None:
        self.port = port

    def check_map(self, map_path: str) -> None:
        """Raise `UserError` if the game cannot load a map. The game shows such errors only in the console."""

    def map_argument(self, map_path: str) -> str:
        """Return a map's argument for the game's `map` command."""
        return map_path

    def start(self) -> None:
        """Start the game. It need not listen yet.

        Raises:
            UserError: if the port is in use or the program is missing.
            GameConnectionError: if no game process appears.
        """

    def is_alive(self) -> bool:
        """Return whether the last started process still runs."""
        return True

    def kill(self) -> None:
        """End the game in any state."""

    def show_window(self) -> None:
        """Restore the window if minimised, as a minimised game draws no pictures. Never raises or blocks."""

    def focus_window(self) -> None:
        """Focus the game once. Without the keyboard some games stop early in a race. Never raises or blocks."""

    def wait_until_connectable(self, timeout_s: float) -> None:
        """Wait until the game listens.

        Raises:
            GameConnectionError: if it ends before, or times out.
        """


class SimulatedGameLauncher(GameLauncher):
    """Launcher for `scripts/simulated_game.py`, which ends with the thread (off Linux: process) that started it."""

    def __init__(self, port: int, maps_folder: Path, extra_arguments: tuple[str, ...] = ()) -> None:
        super().__init__(port)
        self._maps_folder = maps_folder
        self._command = [sys.executable, str(SIMULATED_GAME_SCRIPT), "--port", str(port)]
        self._command += ["--map", "none", "--maps-folder", str(maps_folder), *extra_arguments]  # none: in the menus
        if _die_with_parent() is None:
            self._command += ["--ends-with", str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process started last."""
        return self._process.pid if self._process else None

    @override
    def check_map(self, map_path: str) -> None:
        load_track(self._maps_folder / map_path)

    @override
    def start(self) -> None:
        check_port_is_free(self.port)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open while the game runs
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C must not reach the game
            creationflags=OWN_PROCESS_GROUP,
            preexec_fn=_die_with_parent(),
        )

    @override
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @override
    def kill(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(TERMINATE_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    @override
    def wait_until_connectable(self, timeout_s: float) -> None:
        # Read the socket table: a trial connection would be a client.
        deadline_s = time.monotonic() + timeout_s
        while self._process is not None and self._process.poll() is None:
            if _listens(self._process.pid, self.port):
                return
            if time.monotonic() > deadline_s:
                raise GameConnectionError(
                    f"the simulated game does not listen at port {self.port} after {timeout_s:g} s"
                )
            time.sleep(POLL_INTERVAL_S)
        raise GameConnectionError(f"the simulated game ended while starting up: {self._last_error()}")

    def _last_error(self) -> str:
        if self._errors is None:
            return "it was not started"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - ERROR_TAIL_BYTES, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote no error"


class RunningGame(GameLauncher):
    """Game started by another program, used and left running.

    Args:
        like: launcher with port and maps, never started.
    """

    # No commands_on_connect: the console is closed already, and `toggle_console` would open it.

    def __init__(self, like: GameLauncher) -> None:
        super().__init__(like.port)
        self._like = like

    @override
    def check_map(self, map_path: str) -> None:
        self._like.check_map(map_path)

    @override
    def map_argument(self, map_path: str) -> str:
        return self._like.map_argument(map_path)


def find_free_port(n_ports: int = 1) -> int:
    """Return the first of `n_ports` consecutive free ports.

    They are below the ephemeral ports (Linux from 32768, Windows and macOS from 49152), which the system could assign
    before the game listens.
    """
    while True:
        first = secrets.choice(_FREE_PORTS)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + n_ports):
                probes.enter_context(socket.create_server((LOOPBACK, port)))
            return first


def check_port_is_free(port: int, within_s: float = PORT_FREE_WITHIN_S) -> None:
    """Wait until a port is free: Wine's server keeps a dead game's port for a moment.

    Raises:
        PortInUseError: with the listening program, if the system shows it.
    """
    deadline_s = time.monotonic() + within_s
    while (error := _bind_error(port)) is not None:
        if time.monotonic() > deadline_s:
            raise PortInUseError(
                f"port {port} is in use by {_listener_text(port)}: end that program, or take another port, with --set "
                "base_tmi_port=N (train.py, doctor.py), --ports N (keep_games.py) or --port N (other commands) "
                f"({error.strerror})"
            ) from error
        time.sleep(POLL_INTERVAL_S)


def _bind_error(port: int) -> OSError | None:
    with socket.socket() as probe:
        if os.name == "posix":  # a connection that has just ended must not count; on Windows the flag means sharing
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error
    return None


def _listener_text(port: int) -> str:
    """Name the program at a port: for Wine the game with that port, never the server for all Wine programs."""
    for game in list_games():
        if game.named_port == port:
            return f"the game {GAME_NAME} (process {game.identity.pid})"
    with contextlib.suppress(psutil.Error):  # some systems show other processes' sockets to administrators only
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                if name.startswith(WINE_SERVER):
                    return f"a program under Wine (not {name}, with which all programs of Wine end)"
                return f"{name} (process {connection.pid})"
    return "another program"


def _listens(pid: int, port: int) -> bool:
    """Return whether a process or a child listens: on Windows a venv's Python starts the real one as a child."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            for connection in one.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def _die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` by which Linux kills the child when the thread that started it ends; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # before fork: afterwards only the call itself is safe
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return ask
