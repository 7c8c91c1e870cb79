"""Races on one game instance, which is restarted as needed.

A game that dies, hangs or breaks the protocol is restarted, and the race repeated.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil

from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.race.actions import Policy
from trackmania_rl.race.observation import NO_CHANGES, ObservationChanges, ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.race.races import Observation
from trackmania_rl.settings import GameSettings, MapEntry, ObservationSettings
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher
from trackmania_rl.tmi_interaction.race_machine import ONLY_RACE, RaceMachine, compile_ahead
from trackmania_rl.tmi_interaction.tminterface2 import GameError, TMInterface
from trackmania_rl.track.game_map import GameMap, load_game_map

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""Most game instances for one race."""
MOST_MAPS_KEPT: Final = 16
"""Maps in memory (least recently used)."""
BUSY_PERCENT: Final = 95.0
"""CPU load (all cores) during a race from which on the game's speed is not judged."""
RACES_AVERAGED: Final = 5
"""Races in the mean speed: one slow race may have loaded a map."""

Connect = Callable[[int, float, Callable[[], None]], TMInterface]
"""(port, timeout in seconds, callback during silence) -> a connected game."""


class GameKeepsFailingError(GameError):
    """Several game instances failed in the same race; raised from the last error."""


class GameInstanceManager:
    """Player for whole races on one game instance.

    Args:
        extra: a user's floats per state.

    Attributes:
        layout: observation layout.
        game_starts: game instances started.

    Raises:
        SettingsError: if the observation's settings are inconsistent.
    """

    def __init__(
        self,
        game: GameSettings,
        observation: ObservationSettings,
        launcher: GameLauncher,
        connect: Connect = TMInterface,
        changes: ObservationChanges = NO_CHANGES,
    ) -> None:
        self.layout = ObservationLayout(observation, game.actions, changes)
        self.game_starts = 0
        self._game = game
        self._observation = observation
        self._launcher = launcher
        self._connect = connect
        self._maps: OrderedDict[MapEntry, GameMap] = OrderedDict()  # the last map raced on is last
        self._transport: TMInterface | None = None
        self._machine: RaceMachine | None = None
        self._started_at_s = 0.0
        self._speed = SpeedWatch()

    @property
    def game(self) -> GameSettings:
        """Settings from the next race on. Actions and image must stay the same."""
        return self._game

    @game.setter
    def game(self, settings: GameSettings) -> None:
        self._game = settings
        if self._machine is not None:
            self._machine.settings = settings

    def rollout(
        self,
        map_entry: MapEntry,
        policy: Policy,
        frames: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Play one race with a policy. If the game fails, restart it and repeat the race.

        Args:
            map_entry: the map.
            policy: chooses each action. Policy errors end the race and propagate.
            frames: (n, 1, H, W) uint8 storage, see `Races`.

        Returns:
            `(rollout_results, end_race_stats)`, see `Race.rollout_results` and `RaceFacts`.

        Raises:
            UserError: if map, line or port can't be used.
            GameKeepsFailingError: if `MAX_ATTEMPTS` game instances failed.
        """
        game_map = self._map(map_entry)
        if self._machine is None:
            compile_ahead(self._game, self.layout, map_entry, game_map)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                race = self._play(map_entry, game_map, self.ensure_running(), policy, frames)
                return race.rollout_results(), race.end_race_stats()
            except GameError as error:
                log.warning("race on %s lost (attempt %d of %d): %s", game_map.name, attempt, MAX_ATTEMPTS, error)
                self.close()
                last_error = error
        raise GameKeepsFailingError(
            f"{MAX_ATTEMPTS} game instances in a row failed on map {game_map.name}: {last_error}"
        ) from last_error

    @property
    def newest(self) -> Observation:
        """The current race's newest state, as views."""
        assert self._machine is not None, "no race is under way"
        return self._machine.races.newest(0)

    def under_way(self, states: range) -> Race:
        """Return states from the current race, see `Games.under_way`."""
        assert self._machine is not None, "no race is under way"
        return self._machine.races.under_way(0, states)

    def ensure_running(self) -> RaceMachine:
        """Return a running game's machine; start a game if there is none, or it is old or slow.

        Old is after `game_reboot_interval_s`, slow is below `game_reboot_below_speed_share` of the best speed. Kept
        games are restarted only by the keeper.

        Raises:
            UserError: if the game can't be started.
            GameError: if it can't be reached.
        """
        if self._machine is not None and self._launcher.is_alive() and not self._is_worn():
            return self._machine
        self.close()
        begin = "connecting to" if self._game.games_are_kept else "starting"
        log.info("%s a game at port %d", begin, self._launcher.port)
        self._launcher.start()
        self._started_at_s = time.monotonic()
        self.game_starts += 1
        self._launcher.wait_until_connectable(LISTENS_WITHIN_S)
        self._transport = self._connect(
            self._launcher.port, self._game.tmi_protection_timeout_s, self._launcher.show_window
        )
        self._machine = RaceMachine(self._transport, self._game, self.layout, self._launcher.commands_on_connect)
        return self._machine

    def close(self) -> None:
        """End connection and game. The next race starts another one."""
        if self._transport is not None:
            self._transport.close()
        self._transport = self._machine = None
        self._speed = SpeedWatch()
        self._launcher.kill()

    def _is_worn(self) -> bool:
        if self._game.games_are_kept:
            return False
        return time.monotonic() - self._started_at_s > self._game.game_reboot_interval_s or self._is_slow()

    def _is_slow(self) -> bool:
        share = self._speed.share_of_best()
        if share >= self._game.game_reboot_below_speed_share:
            return False
        log.warning("the game at port %d plays at %.0f %% of its best speed", self._launcher.port, 100 * share)
        return True

    def _play(
        self,
        entry: MapEntry,
        game_map: GameMap,
        machine: RaceMachine,
        policy: Policy,
        frames: npt.NDArray[np.uint8] | None,
    ) -> Race:
        self._launcher.show_window()
        reached: Observation | Race = machine.reset(entry, game_map, frames)
        self._launcher.focus_window()
        machine.races.add_extra_floats(ONLY_RACE)
        while not isinstance(reached, Race):
            began_s = time.perf_counter()
            images, floats = machine.races.agent_states(ONLY_RACE)
            decision = policy(images[0], floats[0])
            machine.timings.policy_s += time.perf_counter() - began_s
            reached = machine.step(decision)
            machine.races.add_extra_floats(ONLY_RACE)
        if psutil.cpu_percent() < BUSY_PERCENT:  # since the last race; on a busy machine all games are slow
            self._speed.add_race(reached.facts.race_time_ms / 1000, machine.timings.wait_game_s)
        return reached

    def _map(self, entry: MapEntry) -> GameMap:
        if entry not in self._maps:
            self._launcher.check_map(entry.map_path)
            folder = PROJECT_FOLDER / self._game.maps_folder
            game_map = load_game_map(entry, folder, self._observation)
            self._maps[entry] = replace(game_map, path=self._launcher.map_argument(game_map.path))
        self._maps.move_to_end(entry)
        if len(self._maps) > MOST_MAPS_KEPT:
            self._maps.popitem(last=False)
        return self._maps[entry]


class SpeedWatch:
    """A game instance's speed: race time per time spent waiting for it, averaged over the last races."""

    def __init__(self) -> None:
        self._races: deque[tuple[float, float]] = deque(maxlen=RACES_AVERAGED)  # (race time, waited) in s
        self._best = 0.0

    @property
    def ratio(self) -> float | None:
        """Race seconds per second waited; None before `RACES_AVERAGED` races."""
        race_s, waited_s = (sum(column) for column in zip(*self._races, strict=True)) if self._races else (0.0, 0.0)
        return race_s / waited_s if len(self._races) == RACES_AVERAGED and waited_s > 0 else None

    def share_of_best(self) -> float:
        """Return the ratio as a share of the maximum so far; 1 without a ratio."""
        ratio = self.ratio
        return 1.0 if ratio is None or self._best == 0 else ratio / self._best

    def add_race(self, race_s: float, waited_s: float) -> None:
        """Add a race: race time and wall-clock time spent waiting for the game."""
        self._races.append((race_s, waited_s))
        self._best = max(self._best, self.ratio or 0.0)
