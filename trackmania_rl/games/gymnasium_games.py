"""A user's Gymnasium environment as the games of a run; episodes are races."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces as gym_spaces
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.games.race_games import GamesBuilder, games_for
from trackmania_rl.race.observation import ObservationBlock, blocks_of_views
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.races import EndedRace
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.race.views import FLOATS, Views
from trackmania_rl.settings import GameSettings, MapEntry, Settings, SettingsError

MakeEnv = Callable[..., "gymnasium.Env[Any, Any]"]

NO_BOUNDS: Final = 1e6
"""Wider bounds count as none."""
RENDER_MODE: Final = "rgb_array"
DEFAULT_FRAMES_PER_S: Final = 30.0
RESET_RESULT: Final = "(observation, info)"
STEP_RESULT: Final = "(observation, reward, terminated, truncated, info)"


class EnvironmentFaultError(UserError):
    """Violation of Gymnasium's API by an environment; a restart is useless."""


class GymnasiumGames(GamesBuilder):
    """The part `games` for an environment: `games = functools.partial(GymnasiumGames, env="CartPole-v1")`.

    Observations are flattened to floats after the time elapsed in the mini-race, and normalized by their bounds if
    finite. The environment's rewards are used unchanged. Episodes are truncated after `cutoff_race_longer_than_ms`. A
    larger `horizon` replaces a registered id's limit.

    Args:
        settings: of the run; entries of `map_cycle` need only a `map_name` and set the number of exploration episodes.
        env: an id for `gymnasium.make`, or a function that makes the environment.

    Attributes:
        spaces: of the environment, with the run's views.
        name: the environment's id or class.
        frames_per_s: of its pictures.
        render: whether environments made from now on have pictures.

    Raises:
        SettingsError: if there is no such environment, or its actions or observations are unsupported.
    """

    def __init__(self, settings: Settings, *, env: str | MakeEnv) -> None:
        self._settings = settings
        self._env = env
        self.render = False
        made = self._make_env()
        try:
            self.spaces = _spaces(made, settings)
            self.name = name_of(made)
            self.frames_per_s = float(made.metadata.get("render_fps") or DEFAULT_FRAMES_PER_S)
        finally:
            made.close()

    def check(self) -> None:
        """Reset an environment and step it once.

        Raises:
            EnvironmentFaultError: if the environment raises, or breaks Gymnasium's API.
        """
        env, spaces = self._make_env(), self.spaces
        games = SteppedEnvs([env], spaces, self._settings.game, np.random.default_rng(0))
        actions = np.zeros((1, *spaces.action_shape), dtype=spaces.action_dtype)
        if isinstance(spaces.action, gym_spaces.Box):
            actions = actions.clip(spaces.action.low, spaces.action.high)
        values = np.zeros((1, spaces.n_values), dtype=np.float32)
        call = "reset(seed=...)"
        try:
            games.begin(0, self._settings.game.map_cycle[0])
            call = "step(action)"
            games.send(np.zeros(1, dtype=np.int64), BatchDecision(actions, np.ones(1, dtype=np.bool_), values))
        except UserError:
            raise
        except Exception as error:  # user code
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise EnvironmentFaultError(
                f"games: {name_of(env)}: {call} raises {type(error).__name__}: {one_line(error)} "
                f"({Path(frame.filename).name}, line {frame.lineno}); mend the environment"
            ) from error
        finally:
            games.close()

    @override
    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        envs = [self._make_env() for _ in range(self._settings.game.games_per_collector)]
        return games_for(
            self._settings.sync, envs, lambda some: SteppedEnvs(some, self.spaces, self._settings.game, rng)
        )

    def _make_env(self) -> gymnasium.Env[Any, Any]:
        if callable(self._env):
            takes_mode = self.render and "render_mode" in inspect.signature(self._env).parameters
            return self._env(render_mode=RENDER_MODE) if takes_mode else self._env()
        options: dict[str, Any] = {"render_mode": RENDER_MODE} if self.render else {}
        try:
            limit = gymnasium.spec(self._env).max_episode_steps
            horizon = self._settings.game.cutoff_horizon_actions
            if limit is not None and horizon is not None and horizon > limit:
                options["max_episode_steps"] = horizon
            return gymnasium.make(self._env, **options)
        except gymnasium.error.Error as error:
            raise SettingsError(f"games: GymnasiumGames(env={self._env!r}): {error}") from error


@dataclass
class _Episode:
    """An episode of T actions and T + 1 states."""

    floats: list[npt.NDArray[np.float32]]
    actions: list[Any] = field(default_factory=list)
    is_greedy: list[bool] = field(default_factory=list)
    q_values: list[npt.NDArray[np.float32]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def newest(self, views: Views) -> npt.NDArray[np.float32]:
        """Return the newest state's floats for agents."""
        if not views.inputs:
            return self.floats[-1]
        floats = np.stack(self.floats[-views.rows_back - 1 :])
        actions = np.array([*self.actions[len(self.actions) + 1 - len(floats) :], views.action_before])
        no_frames = np.empty((1, len(floats), 1, 0, 0), dtype=np.uint8)
        _, seen = views.look(no_frames, floats[None], actions[None], np.zeros(1, np.int64), np.array([len(floats) - 1]))
        return seen[0]


class SteppedEnvs(Games):
    """K environments in this process, stepped in turn. `rng` seeds their first resets."""

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

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        seed, self._seeds[game] = self._seeds[game], None
        self._ended.pop(game, None)
        observation, _ = self._checked(game, "reset()", self._envs[game].reset(seed=seed), RESET_RESULT)
        self._episodes[game] = _Episode([self._floats(game, observation)])

    @override
    def recv(self) -> Received:
        ids = np.array(sorted(self._episodes), dtype=np.int64)
        episodes = [self._episodes[game] for game in ids.tolist()]
        floats = np.array([episode.newest(self._spaces.views) for episode in episodes], dtype=np.float32)
        is_first = np.array([not episode.actions for episode in episodes], dtype=np.bool_)
        ended, self._ended = self._ended, {}
        images = np.empty((len(ids), *self._spaces.image_shape), dtype=np.uint8)
        return Received(ids, images, floats.reshape(len(ids), self._spaces.n_floats), is_first, ended)

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        longest = self.game.cutoff_race_longer_than_ms // self.game.ms_per_action
        longest = min(longest, self.game.cutoff_horizon_actions or longest)
        for row, game in enumerate(ids.tolist()):
            episode, action = self._episodes[game], decision.actions[row]
            result = self._envs[game].step(own_action(self._spaces, action))
            observation, reward, terminated, truncated, _ = self._checked(game, "step()", result, STEP_RESULT)
            episode.floats.append(self._floats(game, observation))
            episode.actions.append(action)
            episode.is_greedy.append(bool(decision.is_greedy[row]))
            episode.q_values.append(decision.q_values[row])
            episode.rewards.append(self._number(game, "reward", reward))
            has_terminated = bool(self._number(game, "terminated", terminated))
            has_ended = has_terminated or bool(self._number(game, "truncated", truncated))
            if has_ended or len(episode.actions) >= longest:
                self._ended[game] = self._ended_race(self._episodes.pop(game), has_terminated)

    @override
    def under_way(self, game: int, states: range) -> dict[str, Any]:
        return self._columns(self._episodes[game], states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        raise TypeError("a user's own environment has no cars")

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        env = self._envs[game]
        if env.render_mode != RENDER_MODE:
            return None
        try:
            picture = env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{name_of(env)} cannot render: {one_line(error)}") from error
        return picture if isinstance(picture, np.ndarray) else None

    @override
    def close(self) -> bool:
        for env in self._envs:
            env.close()
        return True

    def _checked(self, game: int, call: str, result: Any, form: str) -> tuple[Any, ...]:
        if not isinstance(result, tuple) or len(result) != len(form.split(", ")):
            self._refuse(game, f"{call} returns {_described(result)} instead of {form}")
        return result

    def _floats(self, game: int, observation: Any) -> npt.NDArray[np.float32]:
        space = self._envs[game].observation_space
        try:
            floats = own_floats(space, observation)
        except (TypeError, ValueError, LookupError) as error:
            self._refuse(game, f"the observation {_described(observation)} does not fit {space}: {one_line(error)}")
        if len(floats) != self._spaces.n_own_floats:
            self._refuse(game, f"the observation {_described(observation)} does not fit {space}")
        return floats

    def _number(self, game: int, name: str, value: Any) -> float:
        try:
            if np.ndim(value) == 0:
                return float(value)
        except (TypeError, ValueError):
            pass
        self._refuse(game, f"step() returns {name} = {_described(value)}, which is no single number")

    def _refuse(self, game: int, fault: str) -> NoReturn:
        raise EnvironmentFaultError(
            f"games: {name_of(self._envs[game])} breaks Gymnasium's API: {fault}; mend the environment "
            "(gymnasium.utils.env_checker.check_env tests it)"
        )

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


def name_of(env: gymnasium.Env[Any, Any]) -> str:
    """Return an environment's id, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def own_floats(space: gym_spaces.Space[Any], observation: Any) -> npt.NDArray[np.float32]:
    """Return a state's floats: 0 for the time elapsed in the mini-race, and the flattened observation.

    Raises:
        TypeError, ValueError or LookupError: if the observation does not fit the space.
    """
    flat = np.asarray(gym_spaces.flatten(space, observation), dtype=np.float32)
    return np.append(np.float32(0), flat)


def own_action(spaces: Spaces, action: Any) -> Any:
    """Convert an agent's action to the environment's."""
    space = spaces.action
    return int(action) + int(space.start) if isinstance(space, gym_spaces.Discrete) else np.asarray(action)


def _described(value: Any) -> str:
    size = f"shape {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.40}"
    return f"{size} ({type(value).__name__})"


def _spaces(env: gymnasium.Env[Any, Any], settings: Settings) -> Spaces:
    name = name_of(env)
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
    is_bounded = np.isfinite(low) & np.isfinite(high) & (high > low) & (high - low < NO_BOUNDS)
    low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
    duration_actions = settings.replay.temporal_mini_race_duration_actions
    half = 1.0 if duration_actions is None else duration_actions / 2
    mean = (0.0 if duration_actions is None else half, *((low + high) / 2).tolist())
    std = (half, *((high - low) / 2).tolist())
    own = ObservationBlock(FLOATS, 0, len(mean), "", f"observation of {name}", "", mean, std)
    blocks, views = _views(settings, own, action)  # type: ignore[arg-type]
    return Spaces(
        float_mean=tuple(number for block in (own, *blocks) for number in block.mean),
        float_std=tuple(number for block in (own, *blocks) for number in block.std),
        action=action,  # type: ignore[arg-type]
        views=views,
        own_observation=observation,
    )


def _views(
    settings: Settings, own: ObservationBlock, action: gym_spaces.Discrete | gym_spaces.Box
) -> tuple[list[ObservationBlock], Views]:
    """Make the views of the setting `views`; actions are one-hot, or their own numbers."""
    table: tuple[tuple[float, ...], ...] = ()
    limit, before = 1.0, 0  # type: float, int | tuple[float, ...]
    if isinstance(action, gym_spaces.Discrete):
        n_actions = int(action.n)
        table = tuple(map(tuple, np.eye(n_actions).tolist()))
        of_action = (0.0,) * n_actions, (1.0,) * n_actions
    else:
        middle, half = (action.low + action.high) / 2, (action.high - action.low) / 2
        limit, before = float(np.abs([action.low, action.high]).max()), tuple(middle.tolist())
        of_action = before, tuple(half.tolist())
    blocks, inputs, entries = blocks_of_views(settings.observation.views, [own], (), lambda: of_action)
    n_input_floats = sum(len(block.mean) for block in blocks)
    return blocks, Views(
        inputs=tuple(inputs),
        entries=tuple(entries),
        n_input_floats=n_input_floats,
        floats_of_actions=table,
        action_before=before,
        largest_action=limit,
    )
