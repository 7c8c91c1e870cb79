"""The real game on Windows: TMLoader starts it with TMInterface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.launcher import OWN_PROCESS_GROUP
from trackmania_rl.tmi_interaction.launchers.tmnf import StartCommand, TmnfLauncher
from trackmania_rl.tmi_interaction.launchers.win32_windows import open_win32_windows

USUAL_TMLOADER: Final = Path("AppData", "Local", "TMLoader", "TMLoader.exe")
"""Where TMLoader's installer puts it, from the user's home folder."""


def windows_launcher(port: int, user: UserSettings) -> TmnfLauncher:
    """Return the launcher of one game instance.

    Args:
        port: where the game is to listen.
        user: `tmloader_path`, `tmloader_profile_name`, `trackmania_base_path`, `username`.
    """
    return TmnfLauncher(port, tmloader_command(port, user), open_win32_windows, user)


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
