"""One game instance and the races played on it: started, watched, restarted, and always one race further.

`GameInstanceManager.rollout` is a loop over the race machine. A game that dies, hangs or speaks nonsense costs the race
that was under way: it is killed, started again, and the race is played once more.
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

from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.race.observation import ExtraFloats, ObservationLayout
from trackmania_rl.race.policy import Policy, PolicyDecision
from trackmania_rl.race.races import EndedRace, Observation, RaceEnd
from trackmania_rl.settings import GameSettings, MapEntry, ObservationSettings
from trackmania_rl.tmi_interaction.launchers.keeper import REBOOT_INTERVAL_S
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S, GameLauncher, PortInUseError
from trackmania_rl.tmi_interaction.race_machine import ONLY_RACE, RaceMachine, compile_ahead
from trackmania_rl.tmi_interaction.tminterface2 import GameError, TMInterface
from trackmania_rl.track.game_map import GameMap, load_game_map

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""Game instances that one race may cost."""
PORT_FREE_WITHIN_S: Final = 10.0
"""How long a game that is replaced may take to let go of its port."""
PORT_RETRY_S: Final = 0.2
MOST_MAPS_KEPT: Final = 16
"""Reference lines that stay in memory; the one raced on longest ago gives way."""

RACES_AVERAGED: Final = 5
"""One slow race says little: it may have loaded a map, or the machine was busy."""

Connect = Callable[[int, float, Callable[[], None]], TMInterface]
"""(port, timeout in seconds, what helps a game that is silent) -> a connected game."""
Decide = Callable[[npt.NDArray[np.uint8], Observation], PolicyDecision]
"""What decides, told all that there is to know of a state: (its image (S, H, W), the observation with the floats that
views make)."""


class GameKeepsFailingError(GameError):
    """Several game instances in a row failed in the same race; the last one's error is the cause."""


class GameInstanceManager:
    """Plays whole races on one game instance.

    Args:
        game: how races are played. May be replaced between races: see `game`.
        observation: what the agent sees of them.
        launcher: starts and ends the game; its port is where the game is reached.
        connect: makes the connection; by default over a socket.
        extra: a user's own floats of each state.

    Attributes:
        layout: every float of the observation.
        game_starts: how often a game instance was started.

    Raises:
        SettingsError: if the observation's settings contradict each other.
    """

    def __init__(
        self,
        game: GameSettings,
        observation: ObservationSettings,
        launcher: GameLauncher,
        connect: Connect = TMInterface,
        extra: ExtraFloats | None = None,
    ) -> None:
        self.layout = ObservationLayout(observation, game.actions, extra)
        self.game_starts = 0
        self._game = game
        self._observation = observation
        self._launcher = launcher
        self._connect = connect
        self._maps: OrderedDict[MapEntry, GameMap] = OrderedDict()  # the one raced on last is last
        self._transport: TMInterface | None = None
        self._machine: RaceMachine | None = None
        self._started_at_s = 0.0
        self._speed = SpeedWatch()

    @property
    def game(self) -> GameSettings:
        """How races are played. New settings hold from the next race on; actions and image must stay the same."""
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
        """Play one race with a policy; arguments and errors otherwise as of `play`.

        Returns:
            `(rollout_results, end_race_stats)`: see `Races.rollout_results` and `Races.ended`.
        """
        race = self.play(map_entry, lambda image, seen: policy(image, seen.floats), frames)
        return race.rollout_results, race.end_race_stats

    def play(self, map_entry: MapEntry, decide: Decide, frames: npt.NDArray[np.uint8] | None = None) -> EndedRace:
        """Play one race; if its game is lost, start another game and play it once more.

        Args:
            map_entry: the map.
            decide: chooses each action; what it raises ends the race and passes through.
            frames: (n, 1, H, W) uint8 room for the race's frames, see `Races`.

        Raises:
            UserError: if map, line or port can't be used.
            GameKeepsFailingError: if `MAX_ATTEMPTS` game instances failed.
        """
        game_map = self._map(map_entry)
        if self._machine is None:
            compile_ahead(self._game, self.layout, game_map)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._play(game_map, self.ensure_running(), decide, frames)
            except GameError as error:
                log.warning("race on %s lost (attempt %d of %d): %s", game_map.name, attempt, MAX_ATTEMPTS, error)
                self.close()
                last_error = error
        raise GameKeepsFailingError(
            f"{MAX_ATTEMPTS} game instances in a row failed on map {game_map.name}: {last_error}"
        ) from last_error

    def under_way(self, states: range) -> dict[str, Any]:
        """Return a part of the race under way, while it waits for a decision; see `Games.under_way`."""
        assert self._machine is not None, "no race is under way"
        return self._machine.races.rollout_results(0, states)

    def ensure_running(self) -> RaceMachine:
        """Connect to a game that runs; start one if there is none, or if it has become old or slow.

        Old is what has run for `REBOOT_INTERVAL_S`, slow what plays at less than `game_reboot_below_speed_share`
        of its own best speed. A kept game is left to whoever keeps it.

        Raises:
            UserError: if the game can't be started.
            GameError: if it is started, but can't be reached.
        """
        if self._machine is not None and self._launcher.is_alive() and not self._is_worn():
            return self._machine
        self.close()
        begin = "connecting to" if self._game.games_are_kept else "starting"
        log.info("%s a game at port %d", begin, self._launcher.port)
        self._start_game()
        self._started_at_s = time.monotonic()
        self.game_starts += 1
        self._launcher.wait_until_connectable(LISTENS_WITHIN_S)
        self._transport = self._connect(
            self._launcher.port, self._game.tmi_protection_timeout_s, self._launcher.show_window
        )
        self._machine = RaceMachine(self._transport, self._game, self.layout, self._launcher.commands_on_connect)
        return self._machine

    def close(self) -> None:
        """End connection and game; the next race starts another one."""
        if self._transport is not None:
            self._transport.close()
        self._transport = self._machine = None
        self._speed = SpeedWatch()
        self._launcher.kill()

    def _start_game(self) -> None:
        """Start the launcher's game; the port of the one before may be in use for a moment longer."""
        deadline_s = time.monotonic() + (PORT_FREE_WITHIN_S if self.game_starts else 0.0)
        while True:
            try:
                return self._launcher.start()
            except PortInUseError:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(PORT_RETRY_S)

    def _is_worn(self) -> bool:
        """Whether another game is to take this one's place."""
        if self._game.games_are_kept:
            return False
        return time.monotonic() - self._started_at_s > REBOOT_INTERVAL_S or self._is_slow()

    def _is_slow(self) -> bool:
        share = self._speed.share_of_best()
        if share >= self._game.game_reboot_below_speed_share:
            return False
        log.warning("the game at port %d plays at %.0f %% of its best speed", self._launcher.port, 100 * share)
        return True

    def _play(
        self, game_map: GameMap, machine: RaceMachine, decide: Decide, frames: npt.NDArray[np.uint8] | None
    ) -> EndedRace:
        self._launcher.show_window()
        seen: Observation | RaceEnd = machine.reset(game_map, frames)
        self._launcher.focus_window()
        machine.races.add_extra_floats(ONLY_RACE)
        while not isinstance(seen, RaceEnd):
            began_s = time.perf_counter()
            images, floats = machine.races.look(ONLY_RACE)
            decision = decide(images[0], seen._replace(floats=floats[0]))
            machine.timings.policy_s += time.perf_counter() - began_s
            seen = machine.step(decision)
            machine.races.add_extra_floats(ONLY_RACE)
        self._speed.add_race(seen.race_time_ms / 1000, machine.timings.wait_game_s)
        return machine.races.ended(0, seen, machine.timings)

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
    """Speed of one game instance: race time by the time spent waiting for the game, averaged over the last races.

    The real game becomes slow over hours, and is fast again after a restart.
    """

    def __init__(self) -> None:
        self._races: deque[tuple[float, float]] = deque(maxlen=RACES_AVERAGED)  # (race time, waited), both in s
        self._best = 0.0

    @property
    def ratio(self) -> float | None:
        """Seconds of race per second of waiting over the last races; None as long as they are too few."""
        race_s, waited_s = (sum(column) for column in zip(*self._races, strict=True)) if self._races else (0.0, 0.0)
        return race_s / waited_s if len(self._races) == RACES_AVERAGED and waited_s > 0 else None

    def share_of_best(self) -> float:
        """Return the ratio now as a share of the best one since the game's start; 1 as long as there is none."""
        ratio = self.ratio
        return 1.0 if ratio is None or self._best == 0 else ratio / self._best

    def add_race(self, race_s: float, waited_s: float) -> None:
        """Take a race into account.

        Args:
            race_s: the race time driven, in seconds.
            waited_s: wall-clock seconds for which the game was waited for meanwhile; own work does not count.
        """
        self._races.append((race_s, waited_s))
        self._best = max(self._best, self.ratio or 0.0)
