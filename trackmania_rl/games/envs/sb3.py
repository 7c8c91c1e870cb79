"""Many simulated games in this process as a vector environment of Stable-Baselines3 (an optional package)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from typing_extensions import override

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import PathText, make_race_vector_env
from trackmania_rl.games.envs.race_env import MASK_OPTION

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "stable_baselines3":
        raise
    raise UserError(
        'RaceVecEnv needs the package stable-baselines3: python -m pip install "trackmania-rl[sb3]"'
    ) from None

Array = npt.NDArray[Any]
Indices = int | Iterable[int] | None


class RaceVecEnv(VecEnv):  # type: ignore[misc]  # untyped without the package
    """K games, stepped together by compiled code: `PPO("MlpPolicy", RaceVecEnv(8, "valley"))`.

    Observations, rewards and infos are those of `RaceEnv`. As usual in SB3, the next race begins in the step in which
    one ends: the last observation is `infos[k]["terminal_observation"]`, and `infos[k]["TimeLimit.truncated"]` is True
    after a cut-off, for bootstrapping. `set_options({"map": name})` chooses the next `reset`'s map.

    Args:
        num_envs: K.
        maps: as of `make_race_env`.
        render_mode: "rgb_array" for `render` and `get_images`.
        options: as of `make_race_vector_env`, without `autoreset_mode`.

    Raises:
        UserError: as of `make_race_vector_env`.
    """

    def __init__(
        self,
        num_envs: int,
        maps: PathText | Sequence[PathText] = (),
        *,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.envs = make_race_vector_env(
            num_envs, maps, autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **options
        )
        self._actions: Array = np.empty(0)  # (K,) or (K, 3)
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)
        self.metadata = self.envs.metadata

    @override
    def reset(self) -> VecEnvObs:
        first = self._options[0]
        observations, _ = self.envs.reset(seed=self._seeds[0], options=first)
        for game, options in enumerate(self._options):
            if options != first:
                observations, _ = self.envs.reset(options=options | {MASK_OPTION: np.arange(self.num_envs) == game})
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self.envs.races.infos({})
        return observations

    @override
    def step_async(self, actions: Array) -> None:
        self._actions = actions

    @override
    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, terminated, truncated, ends = self.envs.advance(self._actions)
        infos = self.envs.races.infos(ends, **{"TimeLimit.truncated": truncated})
        is_over = terminated | truncated
        if ends:
            last = observations
            observations, _ = self.envs.reset(options={MASK_OPTION: is_over})
            begun = self.envs.races.infos({})
            for game in ends:
                infos[game]["terminal_observation"] = _of_game(last, game)
                self.reset_infos[game] = begun[game]
        return observations, rewards.astype(np.float32), is_over, infos

    @override
    def close(self) -> None:
        self.envs.close()

    @override
    def get_images(self) -> Sequence[Array | None]:
        return self.envs.render() or [None] * self.num_envs

    @override
    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return a shared attribute, such as `settings` or `layout`, once for each game."""
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        raise UserError(f"set_attr({attr_name!r}): the games of a RaceVecEnv have no attributes of their own")

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call `render()`, `reset(seed=, options=)` or `get_wrapper_attr(name)` of some games.

        Raises:
            UserError: if it is another method.
        """
        games = list(self._get_indices(indices))
        if method_name == "get_wrapper_attr":
            return self.get_attr(method_args[0], games)
        if method_name == "render":
            pictures = self.get_images()
            return [pictures[game] for game in games]
        if method_name != "reset":
            raise UserError(
                f"env_method({method_name!r}): the games of a RaceVecEnv have render, reset and get_wrapper_attr"
            )
        options = (method_kwargs.get("options") or {}) | {MASK_OPTION: np.isin(np.arange(self.num_envs), games)}
        observations, _ = self.envs.reset(seed=method_kwargs.get("seed"), options=options)
        infos = self.envs.races.infos({})
        return [(_of_game(observations, game), infos[game]) for game in games]

    @override
    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def _of_game(observations: VecEnvObs, game: int) -> Any:
    if isinstance(observations, dict):
        return {name: values[game] for name, values in observations.items()}
    return observations[game]
