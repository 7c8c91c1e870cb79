"""Starting and ending game instances.

`GameLauncher` is what the manager needs of any game; `SimulatedGameLauncher` is the game that ships with the project.
The real game's launcher is in `tmnf`; `choice` picks one.
"""

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
from typing import IO, Final, Protocol

import psutil

from trackmania_rl.errors import PassingError
from trackmania_rl.places import SHIPPED_FOLDER
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.tminterface2 import LOOPBACK
from trackmania_rl.tmi_interaction.transport import GameConnectionError

SIMULATED_GAME_SCRIPT: Final = SHIPPED_FOLDER / "scripts" / "simulated_game.py"
LISTENS_WITHIN_S: Final = 120.0
"""How long a game of any kind may take from its start until it listens."""
POLL_INTERVAL_S: Final = 0.02
TERMINATE_WITHIN_S: Final = 2.0
LAST_WORDS_BYTES: Final = 2000
PR_SET_PDEATHSIG: Final = 1
OWN_PROCESS_GROUP: Final = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""Creation flag of Windows for a process that Ctrl-C in our terminal does not reach."""
_FREE_PORTS: Final = range(16_384, 32_700)


class PortInUseError(PassingError):
    """Somebody else listens where a game instance is to listen."""


class GameLauncher(Protocol):
    """One game instance as a process.

    Attributes:
        port: where it listens, on this machine.
        commands_on_connect: console commands that this kind of game wants to hear from every new client.
    """

    port: int
    commands_on_connect: tuple[str, ...]

    def check_map(self, map_path: str) -> None:
        """Make sure that the game can load a map, as far as that can be known without asking it.

        Raises:
            UserError: saying what is wrong with the map.
        """
        ...

    def map_argument(self, map_path: str) -> str:
        """Return a map as the game's `map` command takes it."""
        ...

    def start(self) -> None:
        """Start the game; it need not be reachable yet.

        Raises:
            UserError: if it can't be started: the port is in use, or the program is missing.
        """
        ...

    def is_alive(self) -> bool:
        """Whether the process started last still runs."""
        ...

    def kill(self) -> None:
        """End the game, whatever state it is in; nothing happens if there is none."""
        ...

    def show_window(self) -> None:
        """Make sure that the game draws its pictures, as far as that depends on its window.

        It never raises, and does not wait for the game, which may be waiting for us.
        """
        ...

    def focus_window(self) -> None:
        """Give the game the keyboard once, without which some do not go on; as `show_window` otherwise.

        Early in its start a game does not heed it: call this when a race has begun.
        """
        ...

    def wait_until_connectable(self, timeout_s: float) -> None:
        """Wait until it listens.

        Raises:
            GameConnectionError: if it ends before, or takes longer.
        """
        ...


class SimulatedGameLauncher:
    """Runs `scripts/simulated_game.py`, which dies with the thread that started it; off Linux, with the process.

    Args:
        port: where it is to listen.
        maps_folder: where it looks for tracks.
        extra_arguments: further command line arguments.
    """

    commands_on_connect: tuple[str, ...] = ()

    def __init__(self, port: int, maps_folder: Path, extra_arguments: tuple[str, ...] = ()) -> None:
        self.port = port
        self._maps_folder = maps_folder
        self._command = [sys.executable, str(SIMULATED_GAME_SCRIPT), "--port", str(port)]
        self._command += ["--map", "none", "--maps-folder", str(maps_folder), *extra_arguments]  # none: in the menus
        if _die_with_parent() is None:
            self._command += ["--ends-with", str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process started last."""
        return self._process.pid if self._process else None

    def check_map(self, map_path: str) -> None:
        """See `GameLauncher.check_map`; a game that can't load a map stays in the menus and says so only in its log."""
        load_track(self._maps_folder / map_path)

    def map_argument(self, map_path: str) -> str:
        """See `GameLauncher.map_argument`; it reads the file itself."""
        return map_path

    def start(self) -> None:
        """See `GameLauncher.start`."""
        check_port_is_free(self.port)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the game runs
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in the terminal is for us, and we end the game
            creationflags=OWN_PROCESS_GROUP,  # the same on Windows
            preexec_fn=_die_with_parent(),
        )

    def is_alive(self) -> bool:
        """See `GameLauncher.is_alive`."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """See `GameLauncher.kill`."""
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

    def show_window(self) -> None:
        """See `GameLauncher.show_window`; it has none."""

    def focus_window(self) -> None:
        """See `GameLauncher.focus_window`; likewise."""

    def wait_until_connectable(self, timeout_s: float) -> None:
        """See `GameLauncher.wait_until_connectable`."""
        # Looking for the listening socket disturbs nobody; a trial connection would be a client to the game.
        deadline_s = time.monotonic() + timeout_s
        while self._process is not None and self._process.poll() is None:
            if _listens(self._process.pid, self.port):
                return
            if time.monotonic() > deadline_s:
                raise GameConnectionError(
                    f"the simulated game does not listen at port {self.port} after {timeout_s:g} s"
                )
            time.sleep(POLL_INTERVAL_S)
        raise GameConnectionError(f"the simulated game ended while starting up: {self._last_words()}")

    def _last_words(self) -> str:
        """Return the end of what the game wrote to its standard error."""
        if self._errors is None:
            return "it was not started"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - LAST_WORDS_BYTES, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def find_free_port(n_ports: int = 1) -> int:
    """Return a port that nobody listens at, the first of `n_ports` such ports in a row.

    It is below those that systems hand out to whoever asks for any (Linux from 32768, Windows and macOS from 49152): a
    game takes seconds until it listens, and nobody shall be given its port meanwhile.
    """
    while True:
        first = secrets.choice(_FREE_PORTS)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + n_ports):
                probes.enter_context(socket.create_server((LOOPBACK, port)))
            return first


def check_port_is_free(port: int) -> None:
    """Make sure that a game can listen at a port.

    Raises:
        PortInUseError: naming who listens there, as far as the system tells.
    """
    with socket.socket() as probe:
        if os.name == "posix":  # a connection that has just ended must not count; on Windows the flag means sharing
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise PortInUseError(
                f"port {port} is in use{_listener_text(port)}: end that program, or take another port, with --set "
                "base_tmi_port=N (train.py, doctor.py), --ports N (keep_games.py) or --port N (other commands) "
                f"({error.strerror})"
            ) from error


def _listener_text(port: int) -> str:
    with contextlib.suppress(psutil.Error):  # some systems show other processes' sockets to administrators only
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""


def port_is_listened_at(port: int) -> bool:
    """Whether any process listens at a port of this machine."""
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in psutil.net_connections("tcp"))


def _listens(pid: int, port: int) -> bool:
    """Whether a process listens, or a child of it: on Windows a virtual environment's Python starts the real one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            for connection in one.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def _die_with_parent() -> Callable[[], None] | None:
    """Do first in a child process, on Linux: ask the kernel for a SIGKILL when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec only the call itself is safe
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return ask


class RunningGame:
    """A game that another program has started: it is used as it is, and left running.

    Args:
        like: the launcher that would start such a game; it says which port and maps there are, and is never started.
    """

    commands_on_connect: tuple[str, ...] = ()
    """None: whoever started the game has closed its console and logged in; `toggle_console` would open it."""

    def __init__(self, like: GameLauncher) -> None:
        self.port = like.port
        self._like = like

    def check_map(self, map_path: str) -> None:
        """See `GameLauncher.check_map`."""
        self._like.check_map(map_path)

    def map_argument(self, map_path: str) -> str:
        """See `GameLauncher.map_argument`."""
        return self._like.map_argument(map_path)

    def start(self) -> None:
        """See `GameLauncher.start`; it runs."""

    def is_alive(self) -> bool:
        """See `GameLauncher.is_alive`; nothing else is known."""
        return True

    def kill(self) -> None:
        """See `GameLauncher.kill`; it is not ours to end."""

    def show_window(self) -> None:
        """See `GameLauncher.show_window`; whoever started it sees to it."""

    def focus_window(self) -> None:
        """See `GameLauncher.focus_window`; likewise."""

    def wait_until_connectable(self, timeout_s: float) -> None:
        """See `GameLauncher.wait_until_connectable`."""
