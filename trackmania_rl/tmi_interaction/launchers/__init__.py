"""Launchers for the simulated game, the real one, and games kept by another program."""

import sys
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GameSettings, UserSettings
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher, SimulatedGameLauncher
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher


def make_launcher(
    game: GameSettings, user: UserSettings, port: int, maps_folder: Path, platform: str = sys.platform
) -> GameLauncher:
    """Return the launcher for one game instance.

    Raises:
        UserError: if the real game does not run on this system.
    """
    if game.games_are_kept:
        return KeptGame(port, maps_folder if game.game == "simulated" else None)
    if game.game == "simulated":
        return SimulatedGameLauncher(port, maps_folder)
    if platform == "win32" or platform.startswith("linux"):
        return TmnfLauncher(port, user, platform)
    raise UserError(
        f'game = "{game.game}": the real game has a launcher for Windows and Linux, not for {platform}; '
        'set game = "simulated"'
    )
