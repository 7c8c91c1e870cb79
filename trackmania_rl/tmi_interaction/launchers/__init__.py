"""Launchers of game instances: the simulated game, the real one, and games that another program keeps."""

import sys
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.settings import GameSettings, Settings, UserSettings
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher, SimulatedGameLauncher
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher
from trackmania_rl.track.game_map import load_reference_lines, named_maps


def make_launcher(
    game: GameSettings, user: UserSettings, port: int, maps_folder: Path, platform: str = sys.platform
) -> GameLauncher:
    """Return the launcher of one game instance.

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


def check_edited_maps(settings: Settings, maps_folder: Path) -> None:
    """Check the maps of an edited map cycle before collectors play them.

    Raises:
        UserError: if a file of a map is missing or damaged, or the real game has no such map.
    """
    load_reference_lines(settings, maps_folder)
    if settings.game.game != "simulated":
        launcher = make_launcher(settings.game, settings.user, settings.game.base_tmi_port, maps_folder)
        for entry in named_maps(settings):
            launcher.check_map(entry.map_path)
