"""A user's Gymnasium environment as the games of a run; episodes are races."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import cv2
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
    finite. With `image_width_px` and `image_height_px` an image of uint8, (H, W), (H, W, 1) or (H, W, 3), becomes gray
    frames of that size instead: the observation, or the only image in a `Dict`. The environment's rewards are used
    unchanged. Episodes are truncated after `cutoff_race_longer_than_ms`. A larger `horizon` replaces a registered id's
    limit.

    Args:
        settings: of the run; entries of `map_cycle` need only a `map_name` and set the number of exploration episodes.
        env: an id for `gymnasium.make`, or a function that makes the environment.
        info: names of entries of `info`, numbers or arrays, that become columns `info_NAME` (T, ...) of races.

    Attributes:
        spaces: of the environment, with the run's views.
        name: the environment's id or class.
        frames_per_s: of its pictures.
        render: whether environments made from now on have pictures.

    Raises:
        SettingsError: if there is no such environment, or its actions or observations are unsupported.
    """

    def __init__(self, settings: Settings, *, env: str | MakeEnv, info: Sequence[str] = ()) -> None:
        self._settings = settings
        self._env = env
        self._info = info
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
        games = SteppedEnvs([env], spaces, self._settings.game, np.random.default_rng(0), self._info)
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
        game, info = self._settings.game, self._info
        return games_for(self._settings.sync, envs, lambda some: SteppedEnvs(some, self.spaces, game, rng, info))

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

    frames: list[npt.NDArray[np.uint8]]
    floats: list[npt.NDArray[np.float32]]
    actions: list[Any] = field(default_factory=list)
    is_greedy: list[bool] = field(default_factory=list)
    q_values: list[npt.NDArray[np.float32]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    infos: list[dict[str, npt.NDArray[np.float32]]] = field(default_factory=list)

    def newest(self, views: Views) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Return the newest state's image (S, H, W) and floats for agents."""
        if not views.inputs and views.rows_back == 0:
            return self.frames[-1], self.floats[-1]
        floats, frames = (np.stack(states[-views.rows_back - 1 :]) for states in (self.floats, self.frames))
        actions = np.array([*self.actions[len(self.actions) + 1 - len(floats) :], views.action_before])
        last = np.array([len(floats) - 1])
        images, seen = views.look(frames[None], floats[None], actions[None], np.zeros_like(last), last)
        return images[0], seen[0]


class SteppedEnvs(Games):
    """K environments in this process, stepped in turn. `rng` seeds their first resets; `info` names columns."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        spaces: Spaces,
        game: GameSettings,
        rng: np.random.Generator,
        info: Sequence[str] = (),
    ) -> None:
        self.n_games = len(envs)
        self.game = game
        self._envs = envs
        self._spaces = spaces
        self._info = info
        self._seeds: list[int | None] = [int(seed) for seed in rng.integers(2**31, size=len(envs))]
        self._episodes: dict[int, _Episode] = {}
        self._ended: dict[int, EndedRace] = {}

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        seed, self._seeds[game] = self._seeds[game], None
        self._ended.pop(game, None)
        observation, _ = self._checked(game, "reset()", self._envs[game].reset(seed=seed), RESET_RESULT)
        frame, floats = self._state(game, observation)
        self._episodes[game] = _Episode([frame], [floats])

    @override
    def recv(self) -> Received:
        ids = np.array(sorted(self._episodes), dtype=np.int64)
        episodes = [self._episodes[game] for game in ids.tolist()]
        newest = [episode.newest(self._spaces.views) for episode in episodes]
        images = np.array([image for image, _ in newest], dtype=np.uint8).reshape(len(ids), *self._spaces.image_shape)
        floats = np.array([floats for _, floats in newest], dtype=np.float32)
        is_first = np.array([not episode.actions for episode in episodes], dtype=np.bool_)
        ended, self._ended = self._ended, {}
        return Received(ids, images, floats.reshape(len(ids), self._spaces.n_floats), is_first, ended)

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        longest = self.game.cutoff_race_longer_than_ms // self.game.ms_per_action
        longest = min(longest, self.game.cutoff_horizon_actions or longest)
        for row, game in enumerate(ids.tolist()):
            episode, action = self._episodes[game], decision.actions[row]
            result = self._envs[game].step(own_action(self._spaces, action))
            observation, reward, terminated, truncated, info = self._checked(game, "step()", result, STEP_RESULT)
            frame, floats = self._state(game, observation)
            episode.frames.append(frame)
            episode.floats.append(floats)
            episode.infos.append({name: self._entry(game, info, name) for name in self._info})
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

    def _state(self, game: int, observation: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        space = self._envs[game].observation_space
        try:
            frame, floats = own_state(space, observation, self._spaces.image_size_px)
        except (TypeError, ValueError, LookupError) as error:
            self._refuse(game, f"the observation {_described(observation)} does not fit {space}: {one_line(error)}")
        if len(floats) != self._spaces.n_own_floats:
            self._refuse(game, f"the observation {_described(observation)} does not fit {space}")
        return frame, floats

    def _entry(self, game: int, info: Any, name: str) -> npt.NDArray[np.float32]:
        try:
            return np.asarray(info[name], dtype=np.float32)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(game, f"step() returns no number info[{name!r}] ({one_line(error)}), which is to be a column")

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
        infos = {f"info_{name}": np.array([info[name] for info in episode.infos[decided]]) for name in self._info}
        return infos | {
            "frames": np.array(episode.frames[states.start : states.stop], dtype=np.uint8),
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


def own_state(
    space: gym_spaces.Space[Any], observation: Any, image_size_px: tuple[int, int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return a state's frame (1, H, W) of `image_size_px`, and its floats.

    The floats are 0 for the time elapsed in the mini-race, and the flattened observation without its image.

    Raises:
        TypeError, ValueError or LookupError: if the observation does not fit the space.
    """
    height, width = image_size_px
    frame = np.empty((1, height, width), dtype=np.uint8)
    if height > 0:
        name, of_image, space = _split(space)
        image = observation if name is None else observation[name]
        observation = {key: observation[key] for key in space} if isinstance(space, gym_spaces.Dict) else np.empty(0)
        if np.shape(image) != of_image.shape:
            raise ValueError(f"its image is {np.shape(image)}")
        image = np.asarray(image, dtype=np.uint8)
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.shape[2:] == (3,) else image.reshape(image.shape[:2])
        frame[0] = cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)
    flat = np.asarray(gym_spaces.flatten(space, observation), dtype=np.float32)
    return frame, np.append(np.float32(0), flat)


def _split(space: gym_spaces.Space[Any]) -> tuple[str | None, gym_spaces.Box, gym_spaces.Space[Any]]:
    """Return the name in a `Dict`, or None, and the space of the only image, and the space of all else.

    Raises:
        LookupError: if there is no image, or more than one.
    """
    entries: dict[Any, Any] = dict(space.items()) if isinstance(space, gym_spaces.Dict) else {None: space}
    images = [name for name, entry in entries.items() if _is_image(entry)]
    if len(images) != 1:
        raise LookupError(f"{space} has {len(images)} images")
    image = entries.pop(images[0])
    return images[0], image, gym_spaces.Dict(entries) if entries else gym_spaces.Box(0.0, 1.0, (0,))


def _is_image(space: gym_spaces.Space[Any]) -> bool:
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


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
    has_image, of_floats = settings.game.has_image, observation
    if has_image:
        try:
            _, _, of_floats = _split(observation)
        except LookupError as error:
            raise SettingsError(
                f"games: {name} gives no image of {settings.game.image_width_px} x {settings.game.image_height_px} "
                f"pixels: {one_line(error)}; set image_width_px = 0 and image_height_px = 0, which flattens images"
            ) from error
    flat = gym_spaces.flatten_space(of_floats)
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
    if has_image:
        views = replace(views, frame_shifts=settings.game.frame_shifts)
    return Spaces(
        float_mean=tuple(number for block in (own, *blocks) for number in block.mean),
        float_std=tuple(number for block in (own, *blocks) for number in block.std),
        action=action,  # type: ignore[arg-type]
        image_shape=settings.game.image_shape,
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
