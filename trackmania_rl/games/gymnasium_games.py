"""A user's Gymnasium environment as the games of a run; episodes are races."""

from __future__ import annotations

import dataclasses
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import check_name
from trackmania_rl.games.protocol import Games
from trackmania_rl.games.race_games import GamesBuilder, games_for
from trackmania_rl.games.stepped_envs import (
    RENDER_MODE,
    AnyEnv,
    EnvironmentFaultError,
    SteppedEnvs,
    SteppedVectorEnv,
    name_of,
    split_image,
)
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.observation import ObservationBlock, blocks_of_views
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.race.views import FLOATS, Views
from trackmania_rl.settings import Settings, SettingsError

MakeEnv = Callable[..., AnyEnv]
MOST_COMBINATIONS: Final = 1024
"""Largest number of a `MultiDiscrete`'s combinations, each of which is an action of the agent."""
EnvSpaces = tuple[gym_spaces.Space[Any], gym_spaces.Space[Any]]
"""Observation and action space of an environment."""

NO_BOUNDS: Final = 1e6
"""Wider bounds count as none."""
DEFAULT_FRAMES_PER_S: Final = 30.0


class GymnasiumGames(GamesBuilder):
    """The part `games` for an environment: `games = functools.partial(GymnasiumGames, env="CartPole-v1")`.

    Observations are flattened to floats after the time elapsed in the mini-race, and normalized by their bounds if
    finite. With `image_width_px` and `image_height_px` an image of uint8, (H, W), (H, W, 1) or (H, W, 3), becomes gray
    frames of that size instead: the observation, or the only image in a `Dict`. The environment's rewards are used
    unchanged. Episodes are truncated after `cutoff_race_longer_than_ms`. A larger `horizon` replaces the environment's
    own limit (`TimeLimit`).

    Args:
        settings: of the run; entries of `map_cycle` need only a `map_name` and set the number of exploration episodes.
        env: an id for `gymnasium.make`, or a function that makes the environment. A function with the parameter
            `num_envs` makes a `VectorEnv` with `AutoresetMode.DISABLED`; its limit stays.
        vectorization_mode: "sync" or "async" for an id's `VectorEnv`; None steps environments in turn.
        info: names of entries of `info`, numbers or arrays, that become columns `info_NAME` (T, ...) of races.
        spaces: observation and action space of one environment, such as a robot, that only collectors may make, or a
            function that returns them. By default every process makes one to read them, and closes it.

    Attributes:
        spaces: of the environment, with the run's views.
        name: the environment's id or class.
        frames_per_s: of its pictures.
        render: whether environments made from now on have pictures.

    Raises:
        SettingsError: if there is no such environment, or its actions or observations are unsupported.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        env: str | MakeEnv,
        vectorization_mode: Literal["sync", "async"] | None = None,
        info: Sequence[str] = (),
        spaces: EnvSpaces | Callable[[], EnvSpaces] | None = None,
    ) -> None:
        self._settings = settings
        self._env = env
        try:
            self._info = [check_name(name) for name in info]
        except ValueError as error:
            raise SettingsError(f"games: info: {error}") from None
        self._vectorization_mode = vectorization_mode
        self._is_vector = vectorization_mode is not None or (callable(env) and _takes(env, "num_envs"))
        self.render = False
        self.name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        self.frames_per_s = DEFAULT_FRAMES_PER_S
        self._given_spaces = spaces() if callable(spaces) else spaces
        of_env = self._given_spaces or self._spaces_of_one()
        self.spaces = _spaces(self.name, of_env, settings)

    def _spaces_of_one(self) -> EnvSpaces:
        made = self._make_vector_env(1) if self._is_vector else self._make_env()
        try:
            return self._read(made)
        finally:
            made.close()

    def _read(self, made: AnyEnv) -> EnvSpaces:
        """Take over an environment's name and frame rate; return its spaces."""
        self.name = name_of(made)
        self.frames_per_s = float(made.metadata.get("render_fps") or DEFAULT_FRAMES_PER_S)
        if isinstance(made, VectorEnv):
            return made.single_observation_space, made.single_action_space
        return made.observation_space, made.action_space

    def check(self) -> None:
        """Make an environment, reset it and step it once.

        Raises:
            EnvironmentFaultError: if the environment raises, breaks Gymnasium's API, or has other spaces.
        """
        games = self._make_some([0], np.random.default_rng(0))
        spaces = self.spaces
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
                f"games: {self.name}: {call} raises {type(error).__name__}: {one_line(error)} "
                f"({Path(frame.filename).name}, line {frame.lineno}); mend the environment"
            ) from error
        finally:
            games.close()

    @override
    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        """Make the games of a collector. The first one checks an environment before.

        Raises:
            EnvironmentFaultError: as `check`.
        """
        if collector == 0:
            self.check()
        numbers = range(self._settings.game.games_per_collector)
        return games_for(self._settings.sync, numbers, lambda some: self._make_some(some, rng))

    def _make_some(self, numbers: Sequence[int], rng: np.random.Generator) -> SteppedEnvs:
        game = self._settings.game
        info = self._info
        if self._is_vector:
            vector_env = self._make_vector_env(len(numbers))
            self._require_spaces(vector_env)
            return SteppedVectorEnv(vector_env, self.spaces, game, rng, info)
        envs = [self._make_env() for _ in numbers]
        self._require_spaces(envs[0])
        return SteppedEnvs(envs, self.spaces, game, rng, info)

    def _require_spaces(self, made: AnyEnv) -> None:
        found = self._read(made)
        if self._given_spaces not in (None, found):
            made.close()
            raise EnvironmentFaultError(
                f"games: {self.name} has the spaces {found}, not those given: {self._given_spaces}; mend one of them"
            )

    def _make_env(self) -> gymnasium.Env[Any, Any]:
        options = {"render_mode": RENDER_MODE} if self.render else {}
        if not callable(self._env):
            return self._registered(gymnasium.make, options)  # type: ignore[no-any-return]
        made: Any = self._env(**options) if _takes(self._env, "render_mode") else self._env()
        horizon = self._settings.game.cutoff_horizon_actions or 0
        wrapper = made
        while isinstance(wrapper, gymnasium.Wrapper):
            if isinstance(wrapper, TimeLimit):
                wrapper._max_episode_steps = max(wrapper._max_episode_steps, horizon)
            wrapper = wrapper.env
        return made  # type: ignore[no-any-return]

    def _make_vector_env(self, n_envs: int) -> VectorEnv[Any, Any, Any]:
        options: dict[str, Any] = {"num_envs": n_envs} | ({"render_mode": RENDER_MODE} if self.render else {})
        if callable(self._env):
            made: Any = self._env(**{name: value for name, value in options.items() if _takes(self._env, name)})
        else:
            options["vector_kwargs"] = {"autoreset_mode": AutoresetMode.DISABLED}
            made = self._registered(gymnasium.make_vec, options | {"vectorization_mode": self._vectorization_mode})
        if made.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
            made.close()
            raise SettingsError(
                f"games: {name_of(made)} resets its environments by itself; make it with "
                'vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}'
            )
        return made  # type: ignore[no-any-return]

    def _registered(self, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
        """Make an id's environment, whose limit is at least the horizon."""
        try:
            spec = gymnasium.spec(self._env)  # type: ignore[arg-type]
            limit = spec.max_episode_steps
            horizon = self._settings.game.cutoff_horizon_actions
            if limit is not None and horizon is not None and horizon > limit:
                spec = dataclasses.replace(spec, max_episode_steps=horizon)
            return make(spec, **options)
        except (gymnasium.error.Error, ValueError) as error:
            raise SettingsError(f"games: GymnasiumGames(env={self._env!r}): {error}") from error


def _takes(make: MakeEnv, parameter: str) -> bool:
    """Return whether a function has a parameter, or for `render_mode` passes on any."""
    parameters = inspect.signature(make).parameters
    is_open = any(given.kind is given.VAR_KEYWORD for given in parameters.values())
    return parameter in parameters or (is_open and parameter == "render_mode")


def _spaces(name: str, spaces: EnvSpaces, settings: Settings) -> Spaces:
    observation, action = spaces
    choices: tuple[int, ...] = ()
    if isinstance(action, gym_spaces.MultiDiscrete) and math.prod(action.nvec.ravel().tolist()) <= MOST_COMBINATIONS:
        choices = tuple(action.nvec.ravel().tolist())
        action = gym_spaces.Discrete(math.prod(choices))
    is_bounded_box = (
        isinstance(action, gym_spaces.Box)
        and len(action.shape) == 1
        and action.dtype == np.float32
        and action.is_bounded()
    )
    if not isinstance(action, gym_spaces.Discrete) and not is_bounded_box:
        raise SettingsError(
            f"games: {name} has the actions {action}; what can be learned is Discrete(n), MultiDiscrete of at most "
            f"{MOST_COMBINATIONS} combinations, and a bounded Box(low, high, (D,), float32): wrap the environment "
            "(gymnasium.wrappers.TransformAction)"
        )
    if not observation.is_np_flattenable:
        raise SettingsError(f"games: {name} has the observations {observation}, which cannot be flattened to floats")
    has_image = settings.game.has_image
    of_floats = observation
    if has_image:
        try:
            _, _, of_floats = split_image(observation)
        except LookupError as error:
            raise SettingsError(
                f"games: {name} gives no image of {settings.game.image_width_px} x {settings.game.image_height_px} "
                f"pixels: {one_line(error)}; set image_width_px = 0 and image_height_px = 0, which flattens images"
            ) from error
    flat = gym_spaces.flatten_space(of_floats)
    assert isinstance(flat, gym_spaces.Box)
    low = flat.low.astype(np.float64)
    high = flat.high.astype(np.float64)
    is_bounded = np.isfinite(low) & np.isfinite(high) & (high > low) & (high - low < NO_BOUNDS)
    low = np.where(is_bounded, low, -1.0)
    high = np.where(is_bounded, high, 1.0)
    duration_actions = settings.replay.temporal_mini_race_duration_actions
    half = 1.0 if duration_actions is None else duration_actions / 2
    mean = (0.0 if duration_actions is None else half, *((low + high) / 2).tolist())
    std = (half, *((high - low) / 2).tolist())
    own = ObservationBlock(FLOATS, 0, len(mean), "", f"observation of {name}", "", mean, std)
    blocks, views = _views(settings, own, action)  # type: ignore[arg-type]
    if has_image:
        views = dataclasses.replace(views, frame_shifts=settings.game.frame_shifts)
    return Spaces(
        float_mean=tuple(number for block in (own, *blocks) for number in block.mean),
        float_std=tuple(number for block in (own, *blocks) for number in block.std),
        action=action,  # type: ignore[arg-type]
        image_shape=settings.game.image_shape,
        choices=choices,
        views=views,
        custom_observation=observation,
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
        middle = (action.low + action.high) / 2
        half = (action.high - action.low) / 2
        limit = float(np.abs([action.low, action.high]).max())
        before = tuple(middle.tolist())
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
