"""Which launcher a game needs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GameSettings, UserSettings
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher, SimulatedGameLauncher
from trackmania_rl.tmi_interaction.launchers.linux import linux_launcher
from trackmania_rl.tmi_interaction.launchers.windows import windows_launcher


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
        return windows_launcher(port, user)
    if platform.startswith("linux"):
        return linux_launcher(port, user)
    raise UserError(
        f'game = "{game.game}": the real game has a launcher for Windows and Linux, not for {platform}; '
        'set game = "simulated"'
    )
