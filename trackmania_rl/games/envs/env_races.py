"""Races of an environment on K games: maps, states, rewards and infos."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Dict

from trackmania_rl.errors import UserError
from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.race.actions import BatchDecision, actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.race.rewards import Arrival, ProgressReward, RaceReward, StepReward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.tminterface2 import GameError

Array = npt.NDArray[Any]
Shown = npt.NDArray[np.float32] | dict[str, Array]
"""The floats, or a dictionary of `image` and `floats`."""

PROGRESS: Final = "progress"
TRAINER: Final = "trainer"
REWARDS: Final[dict[str, Callable[[Settings, Spaces, SeedTree], StepReward]]] = {
    PROGRESS: ProgressReward,
    TRAINER: RaceReward,
}
"""Rewards of environments, by name."""

MAP_OPTION: Final = "map"
"""Option of `reset`: the name of the map."""


class EnvRaces:
    """Races on K games; row k of the arrays is game k's newest state.

    Args:
        games: closed with this object.
        maps: of the races; entries of the same map are one map.
        map_weights: relative frequency of each; None: all equal.
        tracks_folder: of generated tracks; deleted with this object, but not with its copies.
        normalize: whether shown floats are (x - mean) / standard deviation.

    Attributes:
        map_names: maps for `reset(options={"map": name})`.
        observation_space: of one game.
        is_under_way: (K,) bool, race in progress.
        has_race: (K,) bool, race in progress or ended.
        images: (K, S, H, W) uint8.
        floats: (K, F) float32, not normalized.
        meters: (K,) float64, along the line.
        race_time_ms: (K,) int64.
        position_m: (K, 3) float32, world axes.
        speed_m_s: (K,) float32; in double precision, transports differ in the last bit.

    Raises:
        UserError: if two maps have the same name, or the reward is unknown.
    """

    def __init__(
        self,
        settings: Settings,
        games: Games,
        spaces: Spaces,
        maps: Sequence[MapEntry],
        map_weights: Sequence[float] | None,
        tracks_folder: str,
        *,
        reward: str,
        normalize: bool,
    ) -> None:
        if reward not in REWARDS:
            raise UserError(f"reward = {reward!r}: choose one of {', '.join(REWARDS)}")
        self.settings = settings
        self.layout = ObservationLayout(settings.observation, settings.game.actions)
        self.games = games
        self._delete_tracks = weakref.finalize(self, shutil.rmtree, tracks_folder, ignore_errors=True)
        self.actions = actions_of_game(settings.game)
        self._maps, self._shares = _maps_by_name(maps, map_weights or [1.0] * len(maps))
        self.map_names = tuple(self._maps)
        self._reward = REWARDS[reward](settings, spaces, SeedTree(settings.run.seed))
        self._views = spaces.views
        self._mean = np.array(spaces.float_mean, dtype=np.float32)
        self._std = np.array(spaces.float_std, dtype=np.float32)
        self._normalize = normalize
        floats = Box(-np.inf, np.inf, (spaces.n_floats,), np.float32)
        self.observation_space: gymnasium.Space[Any] = floats
        if spaces.has_image:
            self.observation_space = Dict({"image": Box(0, 255, spaces.image_shape, np.uint8), "floats": floats})
        n_games = games.n_games
        self.n_games = n_games
        self._has_image = spaces.has_image
        self._is_closed = False
        self._n_actions_made = 0
        self.is_under_way = np.zeros(n_games, dtype=np.bool_)
        self.has_race = np.zeros(n_games, dtype=np.bool_)
        self._map_of_game = np.full(n_games, None, dtype=object)
        self._began_m = np.empty(n_games)
        self.images = np.empty((n_games, *spaces.image_shape), dtype=np.uint8)
        self.floats = np.empty((n_games, spaces.n_floats), dtype=np.float32)
        self.meters = np.empty(n_games)
        self.race_time_ms = np.empty(n_games, dtype=np.int64)
        self.position_m = np.empty((n_games, 3), dtype=np.float32)
        self.speed_m_s = np.empty(n_games, dtype=np.float32)

    def begin(self, games: GameIds, rng: np.random.Generator, options: Mapping[str, Any] | None) -> None:
        """Begin a race in some games (n,), on the map `options["map"]` or one drawn by `rng`.

        `receive` or `advance` reads the first states. After an error, the previous races of all these games have ended.

        Raises:
            UserError: if map or line can't be used, or the map is unknown.
        """
        self.has_race[games] = self.is_under_way[games] = False
        name = (options or {}).get(MAP_OPTION)
        if name is not None and name not in self._maps:
            raise UserError(
                f'reset(options={{"{MAP_OPTION}": {name!r}}}): the maps of this environment are '
                f"{', '.join(self.map_names)}"
            )
        for game in games.tolist():
            drawn = name or self.map_names[int(rng.choice(len(self.map_names), p=self._shares))]
            self.games.begin(game, self._maps[drawn])
            self._map_of_game[game] = drawn
        self.has_race[games] = self.is_under_way[games] = True

    def receive(self) -> None:
        """Wait for the states of races that have begun."""
        self._take(self._wait())

    def advance(self, games: GameIds, actions: Array) -> tuple[Array, dict[int, Race]]:
        """Make an action, (n,) or (n, 3), in some games; wait for their states and those of begun races.

        Returns:
            Rewards (K,) float64, 0 in other games, and the ends of races.

        Raises:
            GameError: if a game lost its race; its state does not change.
        """
        before = self.floats.copy()
        before_m = self.meters.copy()
        before_ms = self.race_time_ms.copy()
        n = len(games)
        if n > 0:
            self._n_actions_made += n
            no_values = np.zeros((n, self.actions.n_values), dtype=np.float32)
            self.games.send(games, BatchDecision(actions, np.ones(n, dtype=np.bool_), no_values))
        received = self._wait()
        if received.is_first.any() and np.isin(received.ids[received.is_first], games).any():
            self.is_under_way[games] = False
            raise GameError("the game lost its race")
        self._take(received)
        some: Any = games if n < self.n_games else slice(None)
        rewards = np.zeros(self.n_games)
        rewards[some] = self._reward.of_actions(
            before[some], self.floats[some], self.meters[some] - before_m[some], self._n_actions_made
        )
        for game, race in received.ended.items():
            self.is_under_way[game] = False
            if race.facts.race_finished:
                finish_m = race.columns["meters_advanced_along_centerline"][-1]
                race_time_ms = race.facts.race_time_ms
                rewards[game] = self._reward.of_arrival(
                    Arrival(
                        advanced_m=float(finish_m - before_m[game]),
                        duration_ms=int(race_time_ms - before_ms[game]),
                        race_m=float(finish_m - self._began_m[game]),
                        race_time_ms=race_time_ms,
                    )
                )
        return rewards, dict(received.ended)

    def show(self, games: int | slice = slice(None)) -> Shown:
        """Return the observation of one game, or of all, as new arrays."""
        floats = self.floats[games]
        shown = (floats - self._mean) / self._std if self._normalize else floats.copy()
        return {"image": self.images[games].copy(), "floats": shown} if self._has_image else shown

    def columns(self) -> dict[str, Array]:
        """Return the infos of all games, (K, ...) each, as new arrays."""
        return {
            "map": self._map_of_game.copy(),
            "meters": self.meters - self._began_m,
            "race_time_ms": self.race_time_ms.copy(),
            "position_m": self.position_m.copy(),
            "speed_m_s": self.speed_m_s.copy(),
            "race_finished": np.zeros(self.n_games, dtype=np.bool_),
            "cutoff_reason": np.full(self.n_games, "", dtype=object),
        }

    def info_of_end(self, race: Race) -> dict[str, Any]:
        """Return the entries of `info` that the end of a race changes."""
        facts = race.facts
        meters = race.columns["meters_advanced_along_centerline"]
        return {
            "meters": float(meters.max() - meters[0]),
            "race_time_ms": facts.race_time_ms,
            "race_finished": facts.race_finished,
            "cutoff_reason": facts.cutoff_reason or "",
        }

    def infos(self, ends: Mapping[int, Race], **more: Array) -> list[dict[str, Any]]:
        """Return the `info` of every game.

        Args:
            ends: of races just ended.
            more: (K,) entries to add.
        """
        columns = self.columns() | more
        values = [list(column) if column.dtype == np.float32 else column.tolist() for column in columns.values()]
        infos = [dict(zip(columns, of_game, strict=True)) for of_game in zip(*values, strict=True)]
        for game, race in ends.items():
            infos[game] |= self.info_of_end(race)
        return infos

    def check_open(self) -> None:
        """Raise `ClosedEnvironmentError` after `close`."""
        if self._is_closed:
            raise ClosedEnvironmentError("this environment was closed: make another one")

    def check_can_render(self) -> None:
        """Raise `ClosedEnvironmentError` after `close`, and `ResetNeeded` if a game has no race."""
        self.check_open()
        if not self.has_race.all():
            raise ResetNeeded("there is no race to show: call reset first")

    def close(self) -> None:
        """End the games."""
        self._is_closed = True
        self.games.close()
        self._delete_tracks()

    def _wait(self) -> Received:
        while True:
            received = self.games.recv()
            if len(received.ids) > 0 or received.ended:
                return received

    def _take(self, received: Received) -> None:
        """Copy the states of waiting games and of ended races into the arrays."""
        ids = received.ids
        if len(ids) > 0:
            self.images[ids] = received.images
            self.floats[ids] = received.floats
            motion = self.games.motion(ids)
            self.meters[ids] = motion.meters
            self.race_time_ms[ids] = motion.race_time_ms
            self.position_m[ids] = motion.position_m
            self.speed_m_s[ids] = motion.speed_m_s
            begun = ids[received.is_first]
            self._began_m[begun] = self.meters[begun]
        for game, race in received.ended.items():
            self.images[game], self.floats[game] = self._views.last_state(race.columns)
            self.meters[game] = race.columns["meters_advanced_along_centerline"][-1]
            self.race_time_ms[game] = race.facts.race_time_ms
            self.position_m[game] = race.columns["position_m"][-1]
            self.speed_m_s[game] = race.columns["speed_m_s"][-1]


def _maps_by_name(maps: Sequence[MapEntry], weights: Sequence[float]) -> tuple[dict[str, MapEntry], Array]:
    by_name: dict[str, MapEntry] = {}
    weight_of: dict[str, float] = {}
    for entry, weight in zip(maps, weights, strict=True):
        other = by_name.setdefault(entry.map_name, entry)
        if (other.map_path, other.reference_line) != (entry.map_path, entry.reference_line):
            raise UserError(
                f"maps: {other.map_path} and {entry.map_path} are both named {entry.map_name}, so that nothing could "
                "tell their races apart; rename one of them"
            )
        weight_of[entry.map_name] = weight_of.get(entry.map_name, 0.0) + weight
    shares = np.array(list(weight_of.values()))
    return by_name, shares / shares.sum()
