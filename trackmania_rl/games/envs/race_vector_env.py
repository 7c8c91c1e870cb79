"""Many simulated games in this process as a Gymnasium vector environment.

K: number of games. All of them make one action in each step, by compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.env_races import MAP_OPTION, PICTURE_SIZE_PX, Array, EnvRaces, Shown, check_options
from trackmania_rl.race.results import RaceEnd

AUTORESET_MODES: Final = (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
MASK_OPTION: Final = "reset_mask"
"""Of `reset(options=...)`: the games, (K,) bool, in which a race begins."""


class RaceVectorEnv(VectorEnv[Shown, Array, Array]):
    """K games; observation, reward and the ends of a race are those of `RaceEnv`, and so is what a copy is.

    What follows a race that ended is said by `autoreset_mode`:

    * `NEXT_STEP`: the next race, in the step after. There the game's action is ignored, its reward is 0 and its
      observation the start of the new race.
    * `DISABLED`: nothing, until `reset(options={"reset_mask": mask})` begins a race in the games of `mask` (K,) bool;
      `step` is refused before that.

    `infos` holds what the `info` of `RaceEnv` does, an array (K, ...) each, and in a step in which races end
    `race_finished` and `cutoff_reason`; each with a mask `_name` (K,) as is Gymnasium's custom.

    Args:
        races: those of the K games, all of which answer at once; closed with the environment.
        autoreset_mode: one of `AUTORESET_MODES`, or its name or value.
        render_mode: "rgb_array" to have `render` show the races.

    Attributes:
        settings: as given to `races`.
        layout: names and places of the floats.
        map_names: what `reset(options={"map": name})` can name.
        autoreset_mode: what follows a race that ended.

    Raises:
        UserError: if there is no such `autoreset_mode` or `render_mode`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        races: EnvRaces,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f'render_mode = "{render_mode}": many games have only {self.metadata["render_modes"][0]}')
        self.render_mode = render_mode
        self.metadata = self.metadata | {
            "render_fps": 1000 / races.settings.game.ms_per_action,
            "autoreset_mode": self.autoreset_mode,
        }
        self.num_envs = races.n_games
        self.races = races
        self.settings, self.layout, self.map_names = races.settings, races.layout, races.map_names
        self.single_observation_space = races.observation_space
        self.single_action_space = races.actions.space()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line in every game, or in some; where it can't begin, the one before is over, too.

        Args:
            seed: of the draws among maps; of a list, the first one.
            options: `{"map": name}` to choose the map of all these races, `{"reset_mask": mask}` for those games only.

        Raises:
            UserError: if map or line can't be used, there is no map of this name, an option is unknown, or the mask is
                none.
            gymnasium.error.ResetNeeded: if a game outside the mask has no race yet.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        races = self.races
        races.check_open()
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        check_options(options, (MAP_OPTION, MASK_OPTION))
        mask = self._reset_mask(options)
        if not (mask | races.has_race).all():
            raise ResetNeeded(f"games {np.flatnonzero(~mask & ~races.has_race).tolist()} have no race: reset them, too")
        races.begin(np.flatnonzero(mask), self.np_random, options)
        races.receive()
        return races.show(), self._infos({})

    def step(self, actions: npt.ArrayLike) -> tuple[Shown, Array, Array, Array, dict[str, Any]]:
        """Make an action, (K,) or (K, 3), in every game; those whose race had ended begin the next one instead.

        Raises:
            UserError: if these are no actions for K games.
            gymnasium.error.ResetNeeded: if a game has no race, or, where nothing begins the next one, it has ended.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        *made, ends = self.advance(actions)
        return *made, self._infos(ends)  # type: ignore[return-value]  # mypy loses count

    def advance(self, actions: npt.ArrayLike) -> tuple[Shown, Array, Array, Array, Mapping[int, RaceEnd]]:
        """Make the step, as `step` does, and return the ends of races in the place of infos."""
        races = self.races
        races.check_open()
        if not races.has_race.all():
            raise ResetNeeded("no race is under way: call reset first")
        ended = np.flatnonzero(~races.is_under_way)
        if self.autoreset_mode is AutoresetMode.DISABLED and len(ended) > 0:
            raise ResetNeeded(
                f"the races of games {ended.tolist()} have ended: call "
                f'reset(options={{"{MASK_OPTION}": terminated | truncated}}) first'
            )
        checked = races.actions.checked(actions, self.num_envs)
        driven = np.flatnonzero(races.is_under_way)
        if len(ended) > 0:
            races.begin(ended, self.np_random, None)
            checked = checked[driven]
        rewards, ends = races.advance(driven, checked)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        for game, end in ends.items():
            terminated[game], truncated[game] = end.is_finished, not end.is_finished
        return races.show(), rewards, terminated, truncated, ends

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Draw every game's race as it is now, (240, 320, 3) uint8 each, as `RaceEnv.render`; None without a mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        if self.render_mode is None:
            return None
        self.races.check_can_render()
        pictures = (self.races.games.picture(game, *PICTURE_SIZE_PX) for game in range(self.num_envs))
        return tuple(picture for picture in pictures if picture is not None)

    def close_extras(self, **kwargs: Any) -> None:
        """End the games."""
        self.races.close()

    def _reset_mask(self, options: Mapping[str, Any] | None) -> npt.NDArray[np.bool_]:
        """Return in which games (K,) a race begins."""
        given = (options or {}).get(MASK_OPTION)
        if given is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        mask = np.asarray(given)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise UserError(
                f'reset(options={{"{MASK_OPTION}": {given!r}}}): a mask is an array of bool with the shape '
                f"({self.num_envs},), and True at least once"
            )
        return mask

    def _infos(self, ends: Mapping[int, RaceEnd]) -> dict[str, Any]:
        columns = self.races.columns()
        infos: dict[str, Any] = columns | {f"_{name}": np.ones(self.num_envs, dtype=np.bool_) for name in columns}
        for game, end in ends.items():
            infos = self._add_info(infos, self.races.info_of_end(game, end), game)
        return infos


def _autoreset_mode(asked: AutoresetMode | str) -> AutoresetMode:
    for mode in AUTORESET_MODES:
        if asked in (mode, mode.name, mode.value):
            return mode
    names = ", ".join(mode.name for mode in AUTORESET_MODES)
    raise UserError(f"autoreset_mode = {asked!r}: choose one of {names}")
