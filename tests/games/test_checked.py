"""Check sums of races in games of both kinds: they are those of the columns that the learner is given."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.games.checked import CHECK_SUMS, CheckedGames, sums_of_actions, sums_of_states
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port


@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_sums_are_those_of_the_columns(
    transport: str,
    maps_folder: Path,
    make_settings: Callable[..., Settings],
    entry_of: Callable[[str], MapEntry],
) -> None:
    settings = make_settings(True, f"game_transport={transport}", f"maps_folder={maps_folder}")
    games: Games
    if transport == "in_process":
        games = InProcessGames(1, settings.game, settings.observation, maps_folder)
    else:
        launcher = SimulatedGameLauncher(find_free_port(), maps_folder)
        games = SocketGames([GameInstanceManager(settings.game, settings.observation, launcher)])
    checked = CheckedGames(games)
    values = np.zeros(len(settings.game.inputs), dtype=np.float32)
    try:
        race = rollout(checked, entry_of("straight"), lambda: lambda *_: PolicyDecision(0, True, values))
    finally:
        checked.close()
    columns = race.rollout_results
    n_actions = len(columns["actions"])
    sums = columns[CHECK_SUMS]
    assert len(sums) in (n_actions, n_actions + 1)
    states = sums_of_states(columns["frames"][:n_actions], columns["state_float"][:n_actions])
    assert sums[:n_actions].tolist() == np.array([states, sums_of_actions(columns["actions"])]).T.tolist()
