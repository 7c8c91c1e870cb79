"""One race after the other on one game, as a Gymnasium environment."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from trackmania_rl.envs.observation_form import ObservationForm, Shown
from trackmania_rl.envs.outcomes import GAME_LOST, choose_map, info_of_end, reward_of_end
from trackmania_rl.envs.race_games import RaceGame
from trackmania_rl.errors import UserError
from trackmania_rl.features import ObservationLayout
from trackmania_rl.rewards import EngineeredRewards, action_rewards
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.frame_stack import FrameStack
from trackmania_rl.tmi_interaction.race_machine import Observation, RaceEnd
from trackmania_rl.tmi_interaction.transport import GameError

log = logging.getLogger(__name__)


class RaceEnv(gymnasium.Env[Shown, np.int64]):
    """Races on one game.

    * Observation: the floats (F,) float32, or with an image `{"image": (S, H, W) uint8, "floats": (F,)}`.
    * Action: an index into the configured `inputs`, held for `ms_per_action` of game time.
    * Reward: as in training (`rewards.action_rewards`), without shaping potentials; the schedules of optional terms
      count this environment's actions.
    * `terminated`: the finish was reached.
    * `truncated`: the race was cut off (`cutoff_reason`), or the game was lost; the next `reset` starts another one.

    Neither the finish nor a cut-off has a state of its own: the last observation comes again there. The action that led
    to a cut-off has no reward, as in training: it leads nowhere known.

    `info` holds `map`, `meters` (made along the line since the race began) and `race_time_ms`; at a race's end
    `race_time_ms` is its result, and `race_finished` and `cutoff_reason` (None, a reason or "game_lost") are there too.

    Args:
        settings: observation, rewards and rules.
        maps: each race is on one of them: drawn evenly, or named by `reset(options={"map": name})`.
        game: what it is played on; closed with the environment.
        normalize: whether floats are normalized as the network does it.
        render_mode: "rgb_array" to have `render` show the image; the configuration must have one.
        resources: closed with the environment.

    Raises:
        UserError: if it is to render in another way, or has no image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        settings: Settings,
        maps: Sequence[MapEntry],
        game: RaceGame,
        *,
        normalize: bool = True,
        render_mode: str | None = None,
        resources: ExitStack | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f'render_mode = "{render_mode}": choose one of {", ".join(self.metadata["render_modes"])}')
        if render_mode is not None and not settings.game.has_image:
            raise UserError(
                f'render_mode = "{render_mode}": without an image there is nothing to show; make the environment with '
                'overrides={"image_width_px": 160, "image_height_px": 120}'
            )
        self.metadata = self.metadata | {"render_fps": 1000 / settings.game.ms_per_action}
        self.render_mode = render_mode
        self._settings = settings
        self._maps = tuple(maps)
        self._game = game
        self._resources = resources or ExitStack()
        self._layout = ObservationLayout.from_settings(settings.observation)
        self._form = ObservationForm(self._layout, settings.game, normalize=normalize)
        self._n_actions_made = 0
        self._began_m = 0.0
        self._seen: Observation | None = None
        self.observation_space = self._form.space
        self.action_space = spaces.Discrete(len(settings.game.inputs))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line.

        Args:
            seed: of the draws among maps; a race itself knows no chance.
            options: `{"map": name}` to choose the map.

        Raises:
            UserError: if map or line can't be used, or there is no map of this name.
            GameError: if no game can be kept alive.
        """
        super().reset(seed=seed)
        self._map = choose_map(self._maps, self.np_random, options)
        self._stack = FrameStack(self._settings.game.frames_per_state)
        first = self._game.begin(self._map)
        self._began_m = first.meters
        self._see(first)
        return self._show(), self._info(first)

    def step(self, action: np.int64 | int) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold an action's keys until the next decision.

        Raises:
            gymnasium.error.ResetNeeded: if no race is under way.
        """
        before = self._seen
        if before is None:
            raise ResetNeeded("no race is under way: call reset first")
        assert self.action_space.contains(action), f"action {action} is not in {self.action_space}"
        self._n_actions_made += 1
        try:
            reached = self._game.step(int(action))
        except GameError as error:
            log.warning("race on %s lost: %s", self._map.map_name, error)
            self._game.close()
            self._seen = None
            lost = {"race_finished": False, "cutoff_reason": GAME_LOST}
            return self._show(), 0.0, False, True, self._info(before) | lost
        if isinstance(reached, RaceEnd):
            self._seen = None
            reward = reward_of_end(reached, before.meters, before.race_time_ms, self._settings.reward)
            info = {"map": self._map.map_name} | info_of_end(reached, self._began_m)
            return self._show(), reward, reached.is_finished, not reached.is_finished, info
        self._see(reached)
        return self._show(), self._reward(before, reached), False, False, self._info(reached)

    def render(self) -> npt.NDArray[np.uint8] | None:  # type: ignore[override]  # gymnasium leaves the type open
        """The newest frame (H, W, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        return np.repeat(self._image[-1, :, :, np.newaxis], 3, axis=2)

    def close(self) -> None:
        """End the game."""
        self._seen = None
        self._game.close()
        self._resources.close()

    def _see(self, seen: Observation) -> None:
        self._seen = seen
        self._image, self._floats = self._stack.with_frame(seen.frame), seen.floats

    def _show(self) -> Shown:
        return self._form.show(self._image, self._floats)

    def _info(self, seen: Observation) -> dict[str, Any]:
        return {
            "map": self._map.map_name,
            "meters": seen.meters - self._began_m,
            "race_time_ms": seen.race_time_ms,
        }

    def _reward(self, before: Observation, reached: Observation) -> float:
        settings = self._settings
        rewards = action_rewards(
            before.floats[np.newaxis],
            reached.floats[np.newaxis],
            np.array([reached.meters - before.meters]),
            places=self._layout,
            settings=settings.reward,
            engineered=EngineeredRewards.at_frame(settings.reward, self._n_actions_made),
            ms_per_action=settings.game.ms_per_action,
            reached_car=reached.car[np.newaxis],
        )
        return float(rewards[0])
