"""Many simulated games in this process as a Gymnasium vector environment.

K: number of games. All of them make one action in each step, by compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trackmania_rl.envs.observation_form import ObservationForm, Shown
from trackmania_rl.envs.outcomes import choose_map, info_of_end, reward_of_end
from trackmania_rl.envs.race_games import decided_elsewhere
from trackmania_rl.in_process.games import Games, InProcessGames
from trackmania_rl.rewards import EngineeredRewards, action_rewards
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.race_machine import RaceEnd

Array = npt.NDArray[Any]


class RaceVectorEnv(VectorEnv[Shown, Array, Array]):
    """K games; observation, reward and the ends of a race are those of `RaceEnv`.

    A race that ended is followed by the next one in the step after (Gymnasium's `AutoresetMode.NEXT_STEP`): there the
    game's action is not looked at, its reward is 0 and its observation the start of the new race.

    `infos` holds `meters` (K,) and `race_time_ms` (K,), and in a step in which races end `race_finished` and
    `cutoff_reason`, each with a mask `_name` (K,) as is Gymnasium's custom.

    Args:
        num_envs: K.
        settings: observation, rewards and rules; the simulated game's.
        maps: each race is on one of them: drawn evenly, or named by `reset(options={"map": name})` for the first ones.
        maps_folder: where relative paths of `maps` begin.
        normalize: whether floats are normalized as the network does it.
        resources: closed with the environment.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        settings: Settings,
        maps: Sequence[MapEntry],
        maps_folder: Path,
        *,
        normalize: bool = True,
        resources: ExitStack | None = None,
    ) -> None:
        self.num_envs = num_envs
        self._settings = settings
        self._maps = tuple(maps)
        self._games = InProcessGames(num_envs, settings.game, settings.observation, maps_folder)
        self._form = ObservationForm(self._games.layout, settings.game, normalize=normalize)
        self._resources = resources or ExitStack()
        self._all_games = np.arange(num_envs)
        self._has_ended = np.zeros(num_envs, dtype=np.bool_)
        self._n_actions_made = 0
        image_size = (settings.game.frames_per_state, settings.game.image_height_px, settings.game.image_width_px)
        self._images = np.empty((num_envs, *image_size), dtype=np.uint8)
        self._floats = np.empty((num_envs, self._games.layout.float_input_dim), dtype=np.float32)
        self._meters, self._began_m = np.empty((2, num_envs))
        self._race_time_ms = np.empty(num_envs, dtype=np.int64)
        self.single_observation_space = self._form.space
        self.single_action_space = spaces.Discrete(len(settings.game.inputs))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line in every game.

        Args:
            seed: of the draws among maps; of a list, the first one.
            options: `{"map": name}` to choose the map of all these races.

        Raises:
            UserError: if map or line can't be used, or there is no map of this name.
        """
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        self._begin(self._all_games, options)
        self._has_ended[:] = False
        return self._form.show(self._images, self._floats), self._infos({})

    def step(self, actions: Array) -> tuple[Shown, Array, Array, Array, dict[str, Any]]:
        """Make an action (K,) in every game; those whose race had ended begin the next one instead."""
        assert self.action_space.contains(actions), f"actions {actions} are not in {self.action_space}"
        begun, driven = np.flatnonzero(self._has_ended), np.flatnonzero(~self._has_ended)
        rewards, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), dtype=np.bool_)
        ends = self._drive(driven, actions[driven]) if len(driven) > 0 else {}
        for game, end in ends.items():
            meters, race_time_ms = float(self._meters[game]), int(self._race_time_ms[game])
            rewards[game] = reward_of_end(end, meters, race_time_ms, self._settings.reward)
            terminated[game], truncated[game] = end.is_finished, not end.is_finished
        self._has_ended = terminated | truncated
        going_on = driven[~self._has_ended[driven]]
        rewards[going_on] = self._look_on(going_on)
        self._begin(begun, None)
        return self._form.show(self._images, self._floats), rewards, terminated, truncated, self._infos(ends)

    def close_extras(self, **kwargs: Any) -> None:
        """Give back what was made for the environment."""
        self._resources.close()

    def _begin(self, games: Games, options: dict[str, Any] | None) -> None:
        """Begin a race in each of some games, and look at its start."""
        for game in games.tolist():
            self._games.begin(game, choose_map(self._maps, self.np_random, options))
        self._look(games)
        self._began_m[games] = self._meters[games]

    def _drive(self, games: Games, actions: Array) -> dict[int, RaceEnd]:
        """Make an action in each of some games."""
        self._n_actions_made += len(games)
        return self._games.step(games, decided_elsewhere(actions, len(self._settings.game.inputs)))

    def _look_on(self, games: Games) -> Array:
        """Look at the new states of some games whose races go on; returns the rewards (n,) of having come there."""
        before, before_m = self._floats[games], self._meters[games]
        self._look(games)
        return action_rewards(
            before,
            self._floats[games],
            self._meters[games] - before_m,
            places=self._games.layout,
            settings=self._settings.reward,
            engineered=EngineeredRewards.at_frame(self._settings.reward, self._n_actions_made),
            ms_per_action=self._settings.game.ms_per_action,
            reached_car=self._games.cars(games),
        )

    def _look(self, games: Games) -> None:
        """Take over what there is to see in some games."""
        if len(games) > 0:
            self._images[games], self._floats[games] = self._games.observations(games)
            self._meters[games], self._race_time_ms[games] = self._games.progress(games)

    def _infos(self, ends: Mapping[int, RaceEnd]) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {
            "meters": self._meters - self._began_m,
            "race_time_ms": self._race_time_ms.copy(),
            "_meters": everywhere,
            "_race_time_ms": everywhere,
        }
        for game, end in ends.items():
            infos = self._add_info(infos, info_of_end(end, float(self._began_m[game])), game)
        return infos
