"""One game for one environment: in this process, or an instance that is started and reached through its socket."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.types import Observation, RaceEnd
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.race_machine import RaceMachine


class RaceGame(Protocol):
    """A game, played one action at a time."""

    def begin(self, map_entry: MapEntry) -> Observation:
        """Begin a race at the start line, also in the middle of one.

        Raises:
            UserError: if map or line can't be used.
            GameError: if no game can be kept alive.
        """

    def step(self, action: int) -> Observation | RaceEnd:
        """Make one action of the race.

        Raises:
            GameError: if the game is lost; another race may be begun.
        """

    def picture(self, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        """The view from behind the car now, (height_px, width_px, 3) uint8, red, green, blue; None if it shows none."""

    def close(self) -> None:
        """End the game."""


class GameInProcess:
    """A simulated game in this process. `copy.deepcopy` makes another one in the same state."""

    def __init__(self, settings: Settings, maps_folder: Path) -> None:
        self._games = InProcessGames(1, settings.game, settings.observation, maps_folder)
        self._alone = np.zeros(1, dtype=np.int64)

    def begin(self, map_entry: MapEntry) -> Observation:
        """See `RaceGame.begin`."""
        self._games.begin(0, map_entry)
        return self._games.observation(0)

    def step(self, action: int) -> Observation | RaceEnd:
        """See `RaceGame.step`."""
        ends = self._games.step(self._alone, decided_elsewhere(np.array([action]), len(self._games.game.inputs)))
        return ends[0] if ends else self._games.observation(0)

    def picture(self, width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
        """See `RaceGame.picture`."""
        return self._games.picture(0, width_px, height_px)

    def close(self) -> None:
        """See `RaceGame.close`; there is nothing to end."""


class GameOfManager:
    """A game instance, simulated or real, that is started when it is needed and replaced when it is lost."""

    def __init__(self, manager: GameInstanceManager) -> None:
        self._manager = manager
        self._machine: RaceMachine | None = None

    def __reduce__(self) -> NoReturn:
        raise UserError(
            "an environment whose game is a program of its own can't be copied: make another one, or take the "
            'simulated game in this process, overrides={"game": "simulated", "game_transport": "in_process"}'
        )

    def begin(self, map_entry: MapEntry) -> Observation:
        """See `RaceGame.begin`."""
        self._machine, observation = self._manager.begin_race(map_entry)
        return observation

    def step(self, action: int) -> Observation | RaceEnd:
        """See `RaceGame.step`."""
        assert self._machine is not None, "begin comes first"
        return self._machine.step(action)

    def picture(self, width_px: int, height_px: int) -> None:
        """See `RaceGame.picture`: the game's own picture is asked for with the observation only."""

    def close(self) -> None:
        """See `RaceGame.close`."""
        self._manager.close()


def decided_elsewhere(actions: npt.NDArray[np.int64], n_actions: int) -> BatchDecision:
    """Actions (n,) of somebody who has no values to tell, out of `n_actions`."""
    n = len(actions)
    return BatchDecision(actions, np.ones(n, dtype=np.bool_), np.zeros((n, n_actions), dtype=np.float32))
