"""The real game on Linux: Wine, Proton or Lutris start it through a command of the user's."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.places import SHIPPED_FOLDER
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.tmnf import StartCommand, TmnfLauncher
from trackmania_rl.tmi_interaction.launchers.x11_windows import open_x11_windows

PORT_PLACE: Final = "{port}"
START_SCRIPT: Final = SHIPPED_FOLDER / "scripts" / "start_game_linux.sh"
EXAMPLE: Final = f"sh {shlex.quote(str(START_SCRIPT))} {PORT_PLACE}"
"""The script that ships, which finds Wine or Proton by itself."""


def linux_launcher(port: int, user: UserSettings) -> TmnfLauncher:
    """Return the launcher of one game instance.

    Args:
        port: where the game is to listen.
        user: `game_command`, `trackmania_base_path`, `username`.
    """
    return TmnfLauncher(port, game_command(port, user), open_x11_windows, user)


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
