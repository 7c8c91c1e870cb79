"""Simulated games that misbehave on request, played by the manager as a collector plays them."""

from pathlib import Path

import pytest

from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers import launcher
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

from ..scripted_policies import playing


class Player:
    """Races on one game instance, always full throttle to the finish of a straight of 50 m."""

    def __init__(self, manager, straight, port):
        self.manager = manager
        self.port = port
        self.straight = straight

    def race(self):
        return self.manager.rollout(self.straight, playing([]))


@pytest.fixture(scope="session")
def settings(repository_root):
    # How fast a game seems to play depends on this machine's other work, and must cost no race.
    # Its first picture may have to be compiled, on a busy machine.
    overrides = ["image_width_px=0", "image_height_px=0", "tmi_protection_timeout_s=150"]
    overrides += ["game_reboot_below_speed_share=0"]
    return load_settings(repository_root / "config_files" / "config_tmnf.py", overrides)


@pytest.fixture
def make_player(settings, straight_folder, straight, tmp_path, monkeypatch):
    """`make_player("kill@race=2", name=value, ...)` plays on a game with these faults, each made once."""
    players = []
    monkeypatch.setattr(launcher, "SIMULATED_GAME_SCRIPT", Path(__file__).with_name("chaotic_game.py"))

    def make(chaos="", **changes):
        port = find_free_port()
        arguments = ("--map", straight.map_path)  # loaded before it listens: short timeouts begin with the races
        if chaos:
            arguments += ("--chaos", chaos, "--chaos-ledger", str(tmp_path / f"{port}.ledger"))
        changes = {"game": "simulated", "maps_folder": str(straight_folder), **changes}
        manager = GameInstanceManager(
            settings.game.model_copy(update=changes),
            settings.observation,
            SimulatedGameLauncher(port, straight_folder, arguments),
        )
        players.append(Player(manager, straight, port))
        return players[-1]

    yield make
    for player in players:
        player.manager.close()
