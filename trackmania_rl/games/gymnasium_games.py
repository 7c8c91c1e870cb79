"""Somebody's own Gymnasium environment as the games of a run: episodes take the place of races."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces as gym_spaces

from trackmania_rl.games.alternating import games_for
from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import EndedRace
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import GameSettings, MapEntry, Settings, SettingsError

MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]

BOUNDS_THAT_SAY_NOTHING: Final = 1e6
"""Bounds as far apart as this stand for none."""


class GymnasiumGames:
    """The part `games` for an environment: `games = functools.partial(GymnasiumGames, env="CartPole-v1")`.

    Observations are flattened to floats, behind the time elapsed in the mini-race. They are normalized by their bounds,
    where these are finite. The environment's rewards count as they are. An episode that is longer than
    `cutoff_race_longer_than_ms` is truncated there.

    Args:
        settings: of the run; `map_cycle` says how many episodes explore: entries need a `map_name` only.
        env: an id for `gymnasium.make`, or what makes the environment, called without arguments.

    Raises:
        SettingsError: if there is no such environment, it has another kind of actions or observations, or the
            configuration has views.
    """

    def __init__(self, settings: Settings, *, env: str | MakeEnv) -> None:
        if settings.observation.views:
            raise SettingsError(
                f"views = {dict(settings.observation.views)} with games = GymnasiumGames(env={env!r}): views look at "
                "races; set views = {}, and stack observations by gymnasium.wrappers.FrameStackObservation"
            )
        self._settings = settings
        self._env = env
        made = self._make_env()
        try:
            self.spaces = _spaces(made, settings)
        finally:
            made.close()

    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        """See `GamesBuilder`."""
        envs = [self._make_env() for _ in range(self._settings.game.games_per_collector)]
        return games_for(
            self._settings.sync, envs, lambda some: SteppedEnvs(some, self.spaces, self._settings.game, rng)
        )

    def _make_env(self) -> gymnasium.Env[Any, Any]:
        if callable(self._env):
            return self._env()
        try:
            return gymnasium.make(self._env)
        except gymnasium.error.Error as error:
            raise SettingsError(f"games: GymnasiumGames(env={self._env!r}): {error}") from error


@dataclass
class _Episode:
    """An episode under way: T actions and T + 1 states."""

    floats: list[npt.NDArray[np.float32]]
    actions: list[Any] = field(default_factory=list)
    is_greedy: list[bool] = field(default_factory=list)
    q_values: list[npt.NDArray[np.float32]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class SteppedEnvs:
    """K environments in this process, stepped one after the other; see `Games`.

    Args:
        envs: K of them; closed with this.
        spaces: theirs.
        game: has the longest episode.
        rng: seeds their first resets.

    Attributes:
        n_games: K.
        game: see `Games`.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], spaces: Spaces, game: GameSettings, rng: np.random.Generator
    ) -> None:
        self.n_games = len(envs)
        self.game = game
        self._envs = envs
        self._spaces = spaces
        self._seeds: list[int | None] = [int(seed) for seed in rng.integers(2**31, size=len(envs))]
        self._episodes: dict[int, _Episode] = {}
        self._ended: dict[int, EndedRace] = {}

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """See `Games.begin`."""
        seed, self._seeds[game] = self._seeds[game], None
        self._ended.pop(game, None)
        observation, _ = self._envs[game].reset(seed=seed)
        self._episodes[game] = _Episode([self._floats(game, observation)])

    def recv(self) -> Received:
        """See `Games.recv`: all environments that are in an episode, at once."""
        ids = np.array(sorted(self._episodes), dtype=np.int64)
        episodes = [self._episodes[game] for game in ids.tolist()]
        floats = np.array([episode.floats[-1] for episode in episodes], dtype=np.float32)
        is_first = np.array([not episode.actions for episode in episodes], dtype=np.bool_)
        ended, self._ended = self._ended, {}
        images = np.empty((len(ids), *self._spaces.image_shape), dtype=np.uint8)
        return Received(ids, images, floats.reshape(len(ids), self._spaces.n_floats), is_first, ended)

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """See `Games.send`."""
        longest = self.game.cutoff_race_longer_than_ms // self.game.ms_per_action
        longest = min(longest, self.game.cutoff_horizon_actions or longest)
        for row, game in enumerate(ids.tolist()):
            episode, action = self._episodes[game], decision.actions[row]
            observation, reward, terminated, truncated, _ = self._envs[game].step(self._own_action(action))
            episode.floats.append(self._floats(game, observation))
            episode.actions.append(action)
            episode.is_greedy.append(bool(decision.is_greedy[row]))
            episode.q_values.append(decision.q_values[row])
            episode.rewards.append(float(reward))
            if terminated or truncated or len(episode.actions) >= longest:
                self._ended[game] = self._ended_race(self._episodes.pop(game), bool(terminated))

    def under_way(self, game: int, states: range) -> dict[str, Any]:
        """See `Games.under_way`."""
        return self._columns(self._episodes[game], states)

    def motion(self, ids: GameIds) -> Motion:
        """Refuse: no car moves here."""
        raise TypeError("an environment of somebody's own tells no motion")

    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        """See `Games.picture`; in the environment's own size, if it renders."""
        picture = self._envs[game].render()
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> bool:
        """See `Games.close`."""
        for env in self._envs:
            env.close()
        return True

    def _floats(self, game: int, observation: Any) -> npt.NDArray[np.float32]:
        """Make the floats (F,) of a state: the time elapsed in the mini-race, which is 0 here, and the observation."""
        flat = gym_spaces.flatten(self._envs[game].observation_space, observation)
        return np.append(np.float32(0), np.asarray(flat, dtype=np.float32))

    def _own_action(self, action: Any) -> Any:
        space = self._spaces.action
        return int(action) + int(space.start) if isinstance(space, gym_spaces.Discrete) else np.asarray(action)

    def _columns(self, episode: _Episode, states: range) -> dict[str, Any]:
        decided = slice(states.start, states.stop - 1)
        return {
            "frames": np.zeros((len(states), 1, 0, 0), dtype=np.uint8),
            "state_float": np.array(episode.floats[states.start : states.stop], dtype=np.float32),
            "actions": np.array(episode.actions[decided], dtype=self._spaces.action_dtype),
            "action_was_greedy": np.array(episode.is_greedy[decided], dtype=np.bool_),
            "q_values": np.array(episode.q_values[decided], dtype=np.float32),
            "rewards": np.array(episode.rewards[decided], dtype=np.float32),
        }

    def _ended_race(self, episode: _Episode, terminated: bool) -> EndedRace:
        n_actions = len(episode.actions)
        rollout_results = self._columns(episode, range(n_actions + 1)) | {"terminated": terminated}
        end_race_stats = {
            "race_finished": False,
            "race_time_ms": n_actions * self.game.ms_per_action,
            "cutoff_reason": "terminated" if terminated else "truncated",
            "meters": float(sum(episode.rewards)),
            "progress_unit": "points",
            "fraction_greedy": float(np.mean(episode.is_greedy)),
            "first_value": float(episode.q_values[0].max()),
            "inputs": "",
        }
        return EndedRace(None, rollout_results, end_race_stats)


def _spaces(env: gymnasium.Env[Any, Any], settings: Settings) -> Spaces:
    name = env.spec.id if env.spec is not None else type(env).__name__
    action, observation = env.action_space, env.observation_space
    is_bounded_box = (
        isinstance(action, gym_spaces.Box)
        and len(action.shape) == 1
        and action.dtype == np.float32
        and action.is_bounded()
    )
    if not isinstance(action, gym_spaces.Discrete) and not is_bounded_box:
        raise SettingsError(
            f"games: {name} has the actions {action}; what can be learned is Discrete(n) and a bounded Box(low, high, "
            "(D,), float32): wrap the environment (gymnasium.wrappers.TransformAction)"
        )
    if not observation.is_np_flattenable:
        raise SettingsError(f"games: {name} has the observations {observation}, which cannot be flattened to floats")
    flat = gym_spaces.flatten_space(observation)
    assert isinstance(flat, gym_spaces.Box)
    low, high = flat.low.astype(np.float64), flat.high.astype(np.float64)
    is_bounded = np.isfinite(low) & np.isfinite(high) & (high > low) & (high - low < BOUNDS_THAT_SAY_NOTHING)
    low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
    duration_actions = settings.replay.temporal_mini_race_duration_actions
    half = 1.0 if duration_actions is None else duration_actions / 2
    return Spaces(
        float_mean=(0.0 if duration_actions is None else half, *((low + high) / 2).tolist()),
        float_std=(half, *((high - low) / 2).tolist()),
        action=action,  # type: ignore[arg-type]
    )
