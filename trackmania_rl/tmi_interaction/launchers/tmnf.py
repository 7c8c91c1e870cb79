"""Launcher for the real game, TrackMania Nations Forever with TMInterface.

TMLoader starts the game on Windows, a user's command (Wine, Proton, Lutris) on Linux.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

import psutil
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.paths import SHIPPED_FOLDER
from trackmania_rl.processes import descendants_of, end_processes, is_running
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_processes import (
    GAME_NAME,
    MARK_VARIABLE,
    GameProcess,
    GameRecords,
    Launch,
    ProcessIdentity,
    find_started,
    list_games,
    processes_with,
)
from trackmania_rl.tmi_interaction.launchers.game_windows import GameWindow
from trackmania_rl.tmi_interaction.launchers.launcher import OWN_PROCESS_GROUP, GameLauncher, check_port_is_free
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

log = logging.getLogger(__name__)

FIND_WITHIN_S: Final = 60.0
"""Longest time from the start command until a game process appears."""
APPEARS_WITHIN_S: Final = 15.0
"""Longest time from the start command's orderly end: it may have handed over to Steam or a service."""
STARTS_AGAIN_WITHIN_S: Final = 2.0
"""Longest time from a self-restarting game's end until the successor appears."""
NOISE: Final = re.compile(r"^[0-9a-f]{4}:(fixme|err|warn|trace):|^\s*$")
"""Wine's message lines."""
POLL_INTERVAL_S: Final = 0.2
CHALLENGES: Final = Path("Tracks", "Challenges")
"""Maps' folder in the game's folder in the user's documents."""
MOST_SAID_LINES: Final = 5
MOST_LINE_BYTES: Final = 1000
PORT_PLACE: Final = "{port}"
START_SCRIPT: Final = SHIPPED_FOLDER / "scripts" / "start_game_linux.sh"
EXAMPLE: Final = f"sh {shlex.quote(str(START_SCRIPT))} {PORT_PLACE}"
"""The shipped script, which finds Wine or Proton."""
USUAL_TMLOADER: Final = Path("AppData", "Local", "TMLoader", "TMLoader.exe")
"""TMLoader's default folder, below the user's home."""


class TmnfLauncher(GameLauncher):
    """Launcher for TrackMania Nations Forever with TMInterface.

    Args:
        port: game port, TMInterface's variable `custom_port`.
    """

    def __init__(
        self,
        port: int,
        user: UserSettings,
        platform: str = sys.platform,
        records: GameRecords | None = None,
        find_games: Callable[[], Sequence[GameProcess]] = list_games,
    ) -> None:
        super().__init__(port)
        autologin = (f"set autologin {user.username}",) if user.username else ()
        self.commands_on_connect = ("toggle_console", *autologin)  # starting leaves the console open
        self._user = user
        self._platform = platform
        self._records = records or GameRecords()
        self._find_games = find_games
        self._starter: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=MOST_SAID_LINES)
        self._launch: Launch | None = None
        self._is_over = False  # the game has ended, and no other has replaced it
        self._game: psutil.Process | None = None
        self._window: GameWindow | None = None

    @property
    def pid(self) -> int | None:
        """Number of the game process started last."""
        return self._game.pid if self._game else None

    @override
    def check_map(self, map_path: str) -> None:
        if not self._user.trackmania_base_path:
            return
        file = Path(self._user.trackmania_base_path).expanduser() / CHALLENGES / map_path.replace("\\", "/")
        if not file.is_file():
            raise UserError(
                f"{file}: the game has no such map: copy the .Challenge.Gbx file there, or correct map_path in "
                "map_cycle or trackmania_base_path in user_config.py"
            )

    @override
    def map_argument(self, map_path: str) -> str:
        return map_path.replace("/", "\\") if self._platform == "win32" else map_path.replace("\\", "/")

    @override
    def start(self) -> None:
        command = start_command(self.port, self._user, self._platform)
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
            self._starter, self._said = _run(command, mark)
            self._launch = Launch(self.port, mark, at_s, before)
            try:
                self._take(self._wait_for_game(self._launch, self._starter))
            except BaseException:
                self.kill()
                raise

    def _take(self, game: psutil.Process) -> None:
        self._game = game
        self._window = None
        self._is_over = False
        assert self._launch is not None
        self._records.add(self.port, ProcessIdentity.of(game), self._launch.mark)
        log.info("the game at port %d is process %d", self.port, game.pid)

    @override
    def is_alive(self) -> bool:
        if self._game is not None and not is_running(self._game) and not self._is_over:
            self._is_over = not self._takes_successor()
        return self._game is not None and is_running(self._game)

    def _takes_successor(self) -> bool:
        """Return whether an ended game had started a replacement, which is the game from now on."""
        assert self._launch is not None
        deadline_s = time.monotonic() + STARTS_AGAIN_WITHIN_S
        while True:
            found = [game for game in self._find_games() if game.mark == self._launch.mark]
            if (newest := _newest(found)) is not None:
                self._take(newest)
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_INTERVAL_S)

    @override
    def show_window(self) -> None:
        if (window := self._game_window()) is not None:
            window.show()

    @override
    def focus_window(self) -> None:
        if (window := self._game_window()) is not None:
            window.focus()

    def _game_window(self) -> GameWindow | None:
        if self._window is None and self._game is not None:
            self._window = GameWindow(self._game.pid)
        return self._window

    @override
    def kill(self) -> None:
        # The mark finds the game's successor, and what both have started.
        processes = [] if self._launch is None else processes_with(self._launch.mark)
        processes += [] if self._game is None or self._game in processes else [self._game]
        if self._starter is not None and self._starter.poll() is None:
            processes += [psutil.Process(self._starter.pid), *descendants_of(self._starter.pid)]
        for process in end_processes(processes):
            log.warning("process %d of the game at port %d does not end", process.pid, self.port)
        if self._starter is not None:
            self._starter.poll()
        if self._game is not None:
            self._records.remove(self.port)
        self._starter = self._launch = self._game = self._window = None

    @override
    def wait_until_connectable(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.is_alive():
            # Under Wine the socket's owner may be Wine's server process. The port was free at the start.
            sockets = psutil.net_connections("tcp")
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == self.port for one in sockets):
                return
            if time.monotonic() > deadline_s:
                raise GameConnectionError(
                    f"the game (process {self.pid}) does not listen at port {self.port} after {timeout_s:g} s: "
                    "is the plugin Python_Link.as in TMInterface's folder, and is TMInterface 2.1 or later loaded? See "
                    "scripts/doctor.py and docs/troubleshooting.rst"
                )
            time.sleep(POLL_INTERVAL_S)
        raise GameConnectionError(
            f"the game at port {self.port} ended while starting up{self._reason()}; start it by hand to see why"
        )

    def _reason(self) -> str:
        """Return what the start command wrote last, as ": TEXT"."""
        return f": {self._said[-1]}" if self._said else ""

    def _wait_for_game(self, launch: Launch, starter: subprocess.Popen[bytes]) -> psutil.Process:
        deadline_s = time.monotonic() + FIND_WITHIN_S
        has_ended = False
        while True:
            found = find_started(launch, self._find_games())
            is_only_one = len(found) == 1 or all(game.mark == launch.mark for game in found)
            if is_only_one and (process := _newest(found)) is not None:
                return process
            exit_code = starter.poll()
            if exit_code and not found:  # a starter that hands over exits with 0
                time.sleep(POLL_INTERVAL_S)  # the last line is being read
                raise GameConnectionError(
                    f"the command that starts the game ended with exit code {exit_code}{self._reason()}; run it by "
                    f"hand to see why: {_text(starter.args)}"
                )
            if exit_code == 0 and not has_ended:
                has_ended = True
                deadline_s = min(deadline_s, time.monotonic() + APPEARS_WITHIN_S)
            if time.monotonic() > deadline_s:
                raise GameConnectionError(self._not_found(found, starter))
            time.sleep(POLL_INTERVAL_S)

    def _not_found(self, found: Sequence[GameProcess], starter: subprocess.Popen[bytes]) -> str:
        if found:
            pids = ", ".join(str(game.identity.pid) for game in found)
            return (
                f"several games have begun since the one for port {self.port} was started (processes {pids}), and "
                "nothing tells which is it: start no game by hand while training starts one"
            )
        has_ended = starter.poll() is not None
        since = f"{APPEARS_WITHIN_S:g} s after the command ended" if has_ended else f"{FIND_WITHIN_S:g} s"
        return (
            f"no process {GAME_NAME} appeared within {since} that starts the game for port {self.port}, or it ended at "
            f"once{self._reason()}; run the command by hand to see why: {_text(starter.args)}"
        )


def _newest(games: Sequence[GameProcess]) -> psutil.Process | None:
    for game in sorted(games, key=lambda game: game.identity.created_at_s, reverse=True):
        if (process := game.identity.open()) is not None:
            return process
    return None


def start_command(port: int, user: UserSettings, platform: str = sys.platform) -> list[str] | str:
    """Return the command that starts one game: a list of words, on Windows one text.

    Raises:
        UserError: if a setting is wrong or a program missing.
    """
    if platform != "win32":
        return [word.replace(PORT_PLACE, str(port)) for word in split_game_command(user.game_command)]
    program = find_tmloader(user)
    check_profile(user.tmloader_profile_name)
    # One text, because TMLoader expects the quotes within the last word.
    return f'"{program}" run TmForever "{user.tmloader_profile_name}" /configstring="set custom_port {port}"'


def split_game_command(command: str, which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Split the setting `game_command` as a shell does; a leading `~/` of a word is the home folder.

    No shell runs it: for pipes and variables, name a script like "sh start_game.sh {port}".

    Raises:
        UserError: if it is empty, lacks `{port}`, has an unclosed quote, or names a missing program.
    """
    if not command.strip():
        raise UserError(
            "game_command is empty, so the real game has no launcher: set it in user_config.py to the command that "
            f"starts one game with TMInterface, such as: {EXAMPLE}"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"game_command = {command!r}: {error}; correct it in user_config.py") from error
    if PORT_PLACE not in command:
        raise UserError(
            f"game_command = {command!r} has no {{port}} in it: put it where the port belongs, such as: {EXAMPLE}"
        )
    words = [str(Path(word).expanduser()) if word.startswith("~/") else word for word in words]
    for word in words[1:]:
        is_file = word.startswith("/") or word.endswith(".sh")
        if is_file and not any(letter in word for letter in "={") and not Path(word).exists():
            raise UserError(f"game_command = {command!r}: there is no {word}; correct it in user_config.py")
    if which(words[0]) is None:
        raise UserError(
            f"game_command begins with {words[0]!r}, and there is no such program: install it, or give its whole path "
            "in user_config.py"
        )
    return words


def find_tmloader(user: UserSettings) -> Path:
    """Return TMLoader's program from the settings or the default place.

    Raises:
        UserError: if missing.
    """
    if user.tmloader_path:
        program = Path(user.tmloader_path).expanduser()
        if not program.is_file():
            raise UserError(
                f"tmloader_path = {user.tmloader_path!r}: there is no such file, and the game's launcher is needed: "
                "correct it in user_config.py"
            )
        return program
    program = Path.home() / USUAL_TMLOADER
    if not program.is_file():
        raise UserError(
            f"the game's launcher TMLoader is not at its usual place {program}: install it, or set tmloader_path in "
            "user_config.py"
        )
    return program


def check_profile(profile: str) -> None:
    """Check that a TMLoader profile's name fits into a command line.

    Raises:
        UserError: if not.
    """
    if not profile.strip() or '"' in profile:
        raise UserError(
            f'tmloader_profile_name = {profile!r}: it must be the name of a profile of TMLoader, such as "default", '
            "that loads TMInterface; set it in user_config.py"
        )


def _run(command: list[str] | str, mark: str) -> tuple[subprocess.Popen[bytes], deque[str]]:
    """Start a command; return it, and the last lines that it and the game write as errors."""
    try:
        starter = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK_VARIABLE: mark},
            start_new_session=True,  # Ctrl-C must not reach the game
            creationflags=OWN_PROCESS_GROUP,
        )
    except OSError as error:
        raise UserError(
            f"the game cannot be started by {_text(command)}: {error.strerror}; correct it in user_config.py"
        ) from error
    said: deque[str] = deque(maxlen=MOST_SAID_LINES)
    assert starter.stderr is not None
    threading.Thread(target=_keep_last_lines, args=(starter.stderr, said), name="game's errors", daemon=True).start()
    return starter, said


def _keep_last_lines(stream: IO[bytes], said: deque[str]) -> None:
    """Read a stream to the end, as the game must not wait for a reader."""
    with stream:
        while line := stream.readline(MOST_LINE_BYTES):
            text = one_line(line.decode(errors="replace"))
            if not NOISE.match(text):
                said.append(text)


def _text(command: object) -> str:
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)
