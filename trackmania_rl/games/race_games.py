"""The part `games`, which makes a run's games; the default one makes races on the map cycle's maps."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from trackmania_rl.games.alternating import games_for
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import Games
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.parts import load_part, make_part
from trackmania_rl.race.observation import ExtraFloats
from trackmania_rl.race.spaces import Spaces, race_spaces
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import GameLauncher

log = logging.getLogger(__name__)


class GamesBuilder(Protocol):
    """Makes a run's games; called with its settings, in every process.

    Attributes:
        spaces: of all of its games.
    """

    spaces: Spaces

    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        """Make the games that a collector plays, in its process.

        Args:
            collector: its number, from 0.
            maps_folder: folder of tracks and reference lines.
            rng: for games with randomness; the simulated game has none.
        """


MakeGamesBuilder = Callable[[Settings], GamesBuilder]


class RaceGames:
    """Races in the simulated game, in this process or behind sockets, or in the real one.

    Args:
        settings: of the run.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._extra: ExtraFloats | None = None  # a subclass may have some
        self.spaces = race_spaces(settings)

    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        """Make the games that a collector plays, as `GamesBuilder` says."""
        sync, game, user = self._settings.sync, self._settings.game, self._settings.user
        name = "compiling the simulator" if game.is_in_process else "starting the games"
        log.info("collector %d: %s", collector, name, extra={"phase": name})
        if game.is_in_process:
            numbers = range(game.games_per_collector)
            return games_for(sync, numbers, lambda some: self.in_process(len(some), maps_folder))
        launchers = [make_launcher(game, user, port, maps_folder) for port in game.tmi_ports_of(collector)]
        return games_for(sync, launchers, self.behind_sockets)

    def in_process(self, n_games: int, maps_folder: Path) -> InProcessGames:
        """Make simulated games in this process."""
        return InProcessGames(n_games, self._settings.game, self._settings.observation, maps_folder, self._extra)

    def behind_sockets(self, launchers: Sequence[GameLauncher]) -> SocketGames:
        """Make games that are programs of their own, one for each launcher."""
        game, observation = self._settings.game, self._settings.observation
        managers = [GameInstanceManager(game, observation, launcher, extra=self._extra) for launcher in launchers]
        return SocketGames(managers, all_together=self._settings.sync.is_synchronous)


def make_race_games(settings: Settings) -> RaceGames:
    """Make the part `games` if it plays races; plain `RaceGames` if it plays something else.

    Raises:
        SettingsError: if the part can't be loaded.
    """
    part = load_part(settings.game.games, "games")
    made_by = part.func if isinstance(part, functools.partial) else part
    if isinstance(made_by, type) and issubclass(made_by, RaceGames):
        builder = make_games_builder(settings)
        assert isinstance(builder, RaceGames)
        return builder
    return RaceGames(settings)


def make_games_builder(settings: Settings) -> GamesBuilder:
    """Make the part that the setting `games` names.

    Raises:
        SettingsError: if the part makes no games.
    """
    builder = make_part(settings.game.games, "games", settings, takes="settings")
    if not isinstance(getattr(builder, "spaces", None), Spaces) or not hasattr(builder, "make_games"):
        raise SettingsError(
            f"games = {str(settings.game.games)!r} made a {type(builder).__name__}; it needs spaces and make_games: "
            "see GamesBuilder (trackmania_rl/games/race_games.py)"
        )
    return builder  # type: ignore[no-any-return]
