"""One race after the other on one game, as a Gymnasium environment."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import cv2
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.env_races import MAP_OPTION, PICTURE_SIZE_PX, EnvRaces, Shown, check_options
from trackmania_rl.tmi_interaction.tminterface2 import GameError

GAME_LOST: Final = "game_lost"
"""The `cutoff_reason` of a race whose game died, hung or sent nonsense."""
WINDOW_SIZE_PX: Final = (640, 480)
"""(width, height)"""


class RaceEnv(gymnasium.Env[Shown, Any]):
    """Races on one game.

    * Observation: the floats (F,) float32, or with an image `{"image": (S, H, W) uint8, "floats": (F,)}`.
    * Action: an index into the configured `inputs`, or with `actions = "analog"` steer, gas and brake, (3,) float32
      from -1 to 1; held for `ms_per_action` of game time.
    * Reward: "progress", metres and a bonus for the finish (`ProgressReward`); or "trainer", as in training
      (`RaceReward`), without shaping potentials, the schedules of optional terms counting this environment's actions.
    * `terminated`: the finish was reached.
    * `truncated`: the race was cut off (`cutoff_reason`), or the game was lost; the next `reset` starts another one.

    The last observation is the state at the finish or the cut-off, as in training; of the finish alone there is no
    picture, and the one before comes again.

    `info` holds `map`, `meters` (made along the line since the race began), `race_time_ms`, and of the car `position_m`
    (3,) float32 in world axes and `speed_m_s` (float32). At a race's end `race_time_ms` is its result, and
    `race_finished` and `cutoff_reason` (None, a reason or "game_lost") are there too.

    `copy.deepcopy` of an environment whose game is in this process continues from the same state. It reads the
    original's generated tracks, which are removed when the original is closed.

    Args:
        races: those of one game; closed with the environment.
        render_mode: "rgb_array" to have `render` draw the race; "human" to see it in a window, at the clock's speed.

    Attributes:
        settings: as given to `races`.
        layout: names and places of the floats.
        map_names: what `reset(options={"map": name})` can name.

    Raises:
        UserError: if there is no such `render_mode`, or a window is asked for without pygame.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(self, races: EnvRaces, render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f'render_mode = "{render_mode}": choose one of {", ".join(self.metadata["render_modes"])}')
        frames_per_s = 1000 / races.settings.game.ms_per_action
        self._window = Window("TrackMania", frames_per_s) if render_mode == "human" else None
        self.metadata = self.metadata | {"render_fps": frames_per_s}
        self.render_mode = render_mode
        self.races = races
        self._game = np.zeros(1, dtype=np.int64)
        self.settings, self.layout, self.map_names = races.settings, races.layout, races.map_names
        self.observation_space = races.observation_space
        self.action_space = races.actions.space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line; if it can't begin, the one before is over, too.

        Args:
            seed: of the draws among maps; a race itself has no chance in it.
            options: `{"map": name}` to choose the map.

        Raises:
            UserError: if map or line can't be used, there is no map of this name, or an option is unknown.
            GameError: if no game can be kept alive.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        self.races.check_open()
        super().reset(seed=seed)
        check_options(options, (MAP_OPTION,))
        self.races.begin(self._game, self.np_random, options)
        self.races.receive()
        self._show_window()
        return self.races.show(0), self.races.info(0)

    def step(self, action: npt.ArrayLike) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold an action until the next decision.

        Raises:
            UserError: if there is no such action.
            gymnasium.error.ResetNeeded: if no race is under way.
            gymnasium.error.ClosedEnvironmentError: after `close`.
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
            lost = {"race_finished": False, "cutoff_reason": GAME_LOST}
            return races.show(0), 0.0, False, True, races.info(0) | lost
        self._show_window()
        reward = float(rewards[0])
        if 0 not in ends:
            return races.show(0), reward, False, False, races.info(0)
        is_finished, info = ends[0].is_finished, races.info(0) | races.info_of_end(0, ends[0])
        return races.show(0), reward, is_finished, not is_finished, info

    def render(self) -> npt.NDArray[np.uint8] | None:  # type: ignore[override]  # gymnasium leaves the type open
        """Draw the race as it is now, red, green and blue; None without a render mode, or where a window shows it.

        Returns:
            (240, 320, 3) uint8, the view from behind the car, of a game in this process; (H, W, 3), the observation's
            newest frame, of a game behind a socket.

        Raises:
            UserError: if the game is behind a socket and the observation has no image.
            gymnasium.error.ResetNeeded: before the first `reset`.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        if self.render_mode is None:
            return None
        self.races.check_can_render()
        return None if self.render_mode == "human" else self._picture(PICTURE_SIZE_PX)

    def close(self) -> None:
        """End the game."""
        if self._window is not None:
            self._window.close()
        self.races.close()

    def _show_window(self) -> None:
        if self._window is not None:
            self._window.show(self._picture(WINDOW_SIZE_PX))

    def _picture(self, size_px: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw the race, in this size if the game is in this process."""
        picture = self.races.games.picture(0, *size_px)
        if picture is not None:
            return picture
        if not self.settings.game.has_image:
            raise UserError(
                f'render_mode = "{self.render_mode}": of a game behind a socket the observation\'s image is shown, and '
                'there is none; make the environment with overrides={"image_width_px": 160, "image_height_px": 120}'
            )
        return np.repeat(self.races.images[0, -1, :, :, np.newaxis], 3, axis=2)


class Window:
    """Window of pygame that shows a race, opened with the first picture. A copy of it is None.

    Args:
        title: of the window.
        frames_per_s: pictures are shown no faster than this.

    Raises:
        UserError: if pygame is missing.
    """

    def __init__(self, title: str, frames_per_s: float) -> None:
        if importlib.util.find_spec("pygame") is None:
            raise UserError(
                'render_mode = "human" needs the package pygame: python -m pip install "trackmania-rl[window]"'
            )
        self._title = title
        self._frames_per_s = frames_per_s
        self._screen: Any = None
        self._clock: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: copies of an environment, such as a search makes, are not shown."""
        return None

    def show(self, picture: npt.NDArray[np.uint8]) -> None:
        """Show a picture (H, W, 3), red, green and blue, when its time has come.

        Raises:
            UserError: if no window can be opened.
        """
        import pygame  # takes a second

        if self._screen is None:
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode(WINDOW_SIZE_PX)
            self._clock = pygame.time.Clock()
        pygame.surfarray.blit_array(self._screen, cv2.resize(picture, WINDOW_SIZE_PX).swapaxes(0, 1))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._frames_per_s)

    def close(self) -> None:
        """Close the window, if it was opened."""
        if self._screen is not None:
            import pygame

            pygame.display.quit()
            self._screen = None
