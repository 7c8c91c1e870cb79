"""The launcher that a game needs on this machine, and the command that starts the real game.

On Windows TMLoader starts the game with TMInterface; on Linux a command of the user does (Wine, Proton, Lutris).
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.places import SHIPPED_FOLDER
from trackmania_rl.settings import GameSettings, UserSettings
from trackmania_rl.tmi_interaction.launchers.game_windows import open_win32_windows, open_x11_windows
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import OWN_PROCESS_GROUP, GameLauncher, SimulatedGameLauncher
from trackmania_rl.tmi_interaction.launchers.tmnf import StartCommand, TmnfLauncher

PORT_PLACE: Final = "{port}"
START_SCRIPT: Final = SHIPPED_FOLDER / "scripts" / "start_game_linux.sh"
EXAMPLE: Final = f"sh {shlex.quote(str(START_SCRIPT))} {PORT_PLACE}"
"""The script that ships, which finds Wine or Proton by itself."""
USUAL_TMLOADER: Final = Path("AppData", "Local", "TMLoader", "TMLoader.exe")
"""Where TMLoader's installer puts it, from the user's home folder."""


def make_launcher(
    game: GameSettings, user: UserSettings, port: int, maps_folder: Path, platform: str = sys.platform
) -> GameLauncher:
    """Return the launcher of one game instance; with `games_are_kept` one that only waits for it.

    Args:
        game: which game, and whether somebody else keeps it.
        user: this machine's paths and names.
        port: where the instance is to listen.
        maps_folder: where the simulated game looks for tracks.
        platform: as `sys.platform` has it.

    Raises:
        UserError: if the real game does not run on this system.
    """
    if game.games_are_kept:
        return KeptGame(port, maps_folder if game.game == "simulated" else None)
    if game.game == "simulated":
        return SimulatedGameLauncher(port, maps_folder)
    if platform == "win32":
        return TmnfLauncher(port, tmloader_command(port, user), open_win32_windows, user)
    if platform.startswith("linux"):
        return TmnfLauncher(port, game_command(port, user), open_x11_windows, user)
    raise UserError(
        f'game = "{game.game}": the real game has a launcher for Windows and Linux, not for {platform}; '
        'set game = "simulated"'
    )


def split_game_command(command: str, which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return the words of `game_command`, as a shell would split them; `~/` at a word's beginning is the home folder.

    No shell runs it: for pipes and variables, name a script of your own, such as "sh start_game.sh {port}".

    Args:
        command: the setting.
        which: a program's path, None if it is not there.

    Raises:
        UserError: if it is empty, lacks `{port}`, has an unclosed quote, or names a program that is not there.
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
    if which(words[0]) is None:
        raise UserError(
            f"game_command begins with {words[0]!r}, and there is no such program: install it, or give its whole path "
            "in user_config.py"
        )
    return words


def game_command(port: int, user: UserSettings) -> Callable[[], StartCommand]:
    """Return what makes the command, once a game is to be started."""

    def make() -> StartCommand:
        words = split_game_command(user.game_command)
        # A session of its own, as Ctrl-C in the terminal is for us.
        return StartCommand([word.replace(PORT_PLACE, str(port)) for word in words], {"start_new_session": True})

    return make


def find_tmloader(user: UserSettings, home: Path | None = None) -> Path:
    """TMLoader's program: the one of the settings, or the one at its usual place.

    Raises:
        UserError: if it is not there.
    """
    if user.tmloader_path:
        program = Path(user.tmloader_path).expanduser()
        if not program.is_file():
            raise UserError(
                f"tmloader_path = {user.tmloader_path!r}: there is no such file, and the game's launcher is needed: "
                "correct it in user_config.py"
            )
        return program
    program = (home or Path.home()) / USUAL_TMLOADER
    if not program.is_file():
        raise UserError(
            f"the game's launcher TMLoader is not at its usual place {program}: install it, or set tmloader_path in "
            "user_config.py"
        )
    return program


def check_profile(profile: str) -> None:
    """Make sure that a profile's name can stand in a command line.

    Raises:
        UserError: if it cannot.
    """
    if not profile.strip() or '"' in profile:
        raise UserError(
            f'tmloader_profile_name = {profile!r}: it must be the name of a profile of TMLoader, such as "default", '
            "that loads TMInterface; set it in user_config.py"
        )


def tmloader_command(port: int, user: UserSettings, home: Path | None = None) -> Callable[[], StartCommand]:
    """Return what makes the command, once a game is to be started."""

    def make() -> StartCommand:
        program = find_tmloader(user, home)
        check_profile(user.tmloader_profile_name)
        # As one text, because the quotes have to stand within the last word, where TMLoader expects them.
        return StartCommand(
            f'"{program}" run TmForever "{user.tmloader_profile_name}" /configstring="set custom_port {port}"',
            {"creationflags": OWN_PROCESS_GROUP},
        )

    return make
