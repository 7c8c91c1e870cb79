"""Gymnasium environments: `RaceEnv` on one game, `RaceVectorEnv` on K simulated games in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.env_races import Array, EnvRaces, Shown
from trackmania_rl.race.race import Race
from trackmania_rl.tmi_interaction.tminterface2 import GameError

GAME_LOST: Final = "game_lost"
"""`cutoff_reason` of a race whose game died, hung or sent invalid data."""
PICTURE_SIZE_PX: Final = (320, 240)
"""(width, height) of `render`."""
AUTORESET_MODES: Final = (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
MASK_OPTION: Final = "reset_mask"
"""Option of `reset`: games (K,) bool in which a race begins."""


class RaceEnv(gymnasium.Env[Shown, Any]):
    """Races on one game.

    * Observation: the floats (F,) float32, or with an image `{"image": (S, H, W) uint8, "floats": (F,)}`.
    * Action: an index into `inputs`, or with `actions = "analog"` steer, gas and brake, (3,) float32 from -1 to 1; held
      for `ms_per_action` of game time.
    * Reward: "progress" (`ProgressReward`), or "trainer" (`RaceReward`) without shaping potentials, scheduled by
      this environment's actions.
    * `terminated`: the finish was reached.
    * `truncated`: the race was cut off, or the game was lost; the next `reset` starts another one.

    The last observation is the state at the cut-off, or at the finish with the picture before it.

    `info` holds `map`, `meters` (since the race began), `race_time_ms`, `position_m` (3,) float32 in world axes,
    `speed_m_s` (float32), `race_finished` and `cutoff_reason` ("" before a cut-off, a reason, or "game_lost"). At a
    race's end `race_time_ms` is its result.

    `copy.deepcopy` works for a game in this process; the copy reads the original's generated tracks until that is
    closed.

    Args:
        races: on one game; closed with the environment.
        render_mode: "rgb_array" for `render`. With "human", `gymnasium.make` shows a window, in real time.

    Attributes:
        layout: names and places of the floats.
        map_names: maps for `reset(options={"map": name})`.

    Raises:
        UserError: if `render_mode` is unknown.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, races: EnvRaces, render_mode: str | None = None) -> None:
        self.render_mode = _checked_render_mode(render_mode)
        self.metadata = self.metadata | {"render_fps": 1000 / races.settings.game.ms_per_action}
        self.races = races
        self._game = np.zeros(1, dtype=np.int64)
        self.settings = races.settings
        self.layout = races.layout
        self.map_names = races.map_names
        self.observation_space = races.observation_space
        self.action_space = races.actions.space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line.

        Args:
            seed: for the choice of maps; races are deterministic.
            options: `{"map": name}` to choose the map.

        Raises:
            UserError: if map or line can't be used, or the map is unknown.
            GameError: if the game keeps failing.
        """
        self.races.check_open()
        super().reset(seed=seed)
        self.races.begin(self._game, self.np_random, options)
        self.races.receive()
        return self.races.show(0), self.races.infos({})[0]

    def step(self, action: npt.ArrayLike) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold an action until the next decision.

        Raises:
            UserError: if the action is invalid.
        """
        races = self.races
        races.check_open()
        if not races.is_under_way[0]:
            raise ResetNeeded("no race is under way: call reset first")
        actions = races.actions.checked(action, n_games=None)
        try:
            rewards, ends = races.advance(self._game, actions)
        except GameError:
            races.is_under_way[0] = False
            return races.show(0), 0.0, False, True, races.infos({})[0] | {"cutoff_reason": GAME_LOST}
        terminated = 0 in ends and ends[0].facts.race_finished
        truncated = 0 in ends and not terminated
        return races.show(0), float(rewards[0]), terminated, truncated, races.infos(ends)[0]

    def render(self) -> npt.NDArray[np.uint8] | None:  # type: ignore[override]  # gymnasium leaves the type open
        """Draw the view from behind the car, (240, 320, 3) uint8 RGB; None without a render mode.

        A game behind a socket gives the observation's newest frame, (H, W, 3).

        Raises:
            UserError: if the game is behind a socket and the observation has no image.
        """
        if self.render_mode is None:
            return None
        self.races.check_can_render()
        picture = self.races.games.picture(0, *PICTURE_SIZE_PX)
        if picture is not None:
            return picture
        if not self.settings.game.has_image:
            raise UserError(
                "render: of a game behind a socket the observation's image is shown, and there is none; make the "
                'environment with overrides={"image_width_px": 160, "image_height_px": 120}'
            )
        return np.repeat(self.races.images[0, -1, :, :, np.newaxis], 3, axis=2)

    def close(self) -> None:
        """End the game."""
        self.races.close()


class RaceVectorEnv(VectorEnv[Shown, Array, Array]):
    """K games, stepped together by compiled code. Observation, reward, ends and copies are as of `RaceEnv`.

    `autoreset_mode`:

    * `NEXT_STEP`: the step after a race's end begins the next race. It ignores the game's action, and its reward is 0.
    * `DISABLED`: `reset(options={"reset_mask": mask})` begins a race in the games of `mask` (K,) bool; `step` raises
      an error before that.

    `infos` has the entries of `RaceEnv`'s `info`, arrays (K, ...) each with a mask `_name` (K,), as in Gymnasium.

    Args:
        races: on K games that answer at once; closed with the environment.
        autoreset_mode: one of `AUTORESET_MODES`, or its name or value.
        render_mode: "rgb_array" for `render`.

    Raises:
        UserError: if `autoreset_mode` or `render_mode` is unknown.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        races: EnvRaces,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.render_mode = _checked_render_mode(render_mode)
        self.metadata = self.metadata | {
            "render_fps": 1000 / races.settings.game.ms_per_action,
            "autoreset_mode": self.autoreset_mode,
        }
        self.num_envs = races.n_games
        self.races = races
        self.settings = races.settings
        self.layout = races.layout
        self.map_names = races.map_names
        self.single_observation_space = races.observation_space
        self.single_action_space = races.actions.space()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line in every game, or in some, like `RaceEnv.reset`.

        Args:
            seed: for the choice of maps; of a list, the first.
            options: `{"map": name}` for one map, `{"reset_mask": mask}` for some games only.
        """
        races = self.races
        races.check_open()
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        mask = self._reset_mask(options)
        if not (mask | races.has_race).all():
            raise ResetNeeded(f"games {np.flatnonzero(~mask & ~races.has_race).tolist()} have no race: reset them, too")
        races.begin(np.flatnonzero(mask), self.np_random, options)
        races.receive()
        return races.show(), self._infos({})

    def step(self, actions: npt.ArrayLike) -> tuple[Shown, Array, Array, Array, dict[str, Any]]:
        """Make an action, (K,) or (K, 3), in every game; games with an ended race begin the next one instead.

        Raises:
            UserError: if the actions are invalid.
            gymnasium.error.ResetNeeded: with `DISABLED`, if a race has ended.
        """
        *made, ends = self.advance(actions)
        return *made, self._infos(ends)  # type: ignore[return-value]  # mypy loses count

    def advance(self, actions: npt.ArrayLike) -> tuple[Shown, Array, Array, Array, Mapping[int, Race]]:
        """Step like `step`, but return the ends of races in place of infos."""
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
        for game, race in ends.items():
            terminated[game] = race.facts.race_finished
            truncated[game] = not race.facts.race_finished
        return races.show(), rewards, terminated, truncated, ends

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Draw every game like `RaceEnv.render`, (240, 320, 3) uint8 each; None without a render mode."""
        if self.render_mode is None:
            return None
        self.races.check_can_render()
        pictures = (self.races.games.picture(game, *PICTURE_SIZE_PX) for game in range(self.num_envs))
        return tuple(picture for picture in pictures if picture is not None)

    def close_extras(self, **kwargs: Any) -> None:
        """End the games."""
        self.races.close()

    def _reset_mask(self, options: Mapping[str, Any] | None) -> npt.NDArray[np.bool_]:
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

    def _infos(self, ends: Mapping[int, Race]) -> dict[str, Any]:
        columns = self.races.columns()
        infos: dict[str, Any] = columns | {f"_{name}": np.ones(self.num_envs, dtype=np.bool_) for name in columns}
        for game, race in ends.items():
            infos = self._add_info(infos, self.races.info_of_end(race), game)
        return infos


def _checked_render_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise UserError(
            f'render_mode = "{render_mode}": there is only rgb_array; with "human", gymnasium.make shows one game in a '
            "window"
        )
    return render_mode


def _autoreset_mode(asked: AutoresetMode | str) -> AutoresetMode:
    for mode in AUTORESET_MODES:
        if asked in (mode, mode.name, mode.value):
            return mode
    names = ", ".join(mode.name for mode in AUTORESET_MODES)
    raise UserError(f"autoreset_mode = {asked!r}: choose one of {names}")
