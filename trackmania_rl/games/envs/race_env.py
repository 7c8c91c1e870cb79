"""One race after the other on one game, as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.map_draw import MAP_OPTION, MapDraw, check_options
from trackmania_rl.games.envs.observation_form import ObservationForm, Shown
from trackmania_rl.games.envs.outcomes import GAME_LOST, arrival, decided_elsewhere, info_of_end
from trackmania_rl.games.envs.race_states import RaceStates
from trackmania_rl.games.envs.reward_presets import PROGRESS, make_step_reward
from trackmania_rl.games.envs.temporary_folder import TemporaryFolder
from trackmania_rl.games.envs.window import WINDOW_SIZE_PX, Window
from trackmania_rl.games.protocol import Games, Received
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import Spaces, race_spaces
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.tmi_interaction.transport import GameError

PICTURE_SIZE_PX: Final = (320, 240)
"""(width, height) of what `RaceEnv.render` draws."""


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

    `copy.deepcopy` of an environment whose game is in this process goes on from the same state by itself. It reads the
    original's generated tracks, which go when the original is closed.

    Args:
        settings: observation, rewards and rules.
        maps: each race is on one of them: drawn, or named by `reset(options={"map": name})`.
        games: what it is played on, the first of them; closed with the environment.
        map_weights: how often each map is drawn, in proportion; None: all alike.
        reward: see above.
        normalize: whether floats are normalized as the network does it.
        render_mode: "rgb_array" to have `render` draw the race; "human" to see it in a window, at the clock's speed.
        tracks_folder: where the maps' generated tracks lie; closed with the environment.
        spaces: of the games; None for those of the settings.

    Attributes:
        settings: as they were given.
        layout: names and places of the floats.
        map_names: what `reset(options={"map": name})` can name.

    Raises:
        UserError: if it is to render in another way, or in a window without pygame; if there is no such reward, or two
            maps have the same name.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        settings: Settings,
        maps: Sequence[MapEntry],
        games: Games,
        *,
        map_weights: Sequence[float] | None = None,
        reward: str = PROGRESS,
        normalize: bool = True,
        render_mode: str | None = None,
        tracks_folder: TemporaryFolder | None = None,
        spaces: Spaces | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f'render_mode = "{render_mode}": choose one of {", ".join(self.metadata["render_modes"])}')
        frames_per_s = 1000 / settings.game.ms_per_action
        self._window = Window("TrackMania", frames_per_s) if render_mode == "human" else None
        self.metadata = self.metadata | {"render_fps": frames_per_s}
        self.render_mode = render_mode
        self.settings = settings
        self.layout = ObservationLayout.from_settings(settings.observation, settings.game.actions)
        self._map_draw = MapDraw(maps, map_weights)
        self.map_names = self._map_draw.names
        self._games = games
        self._tracks_folder = tracks_folder or TemporaryFolder()
        spaces = spaces or race_spaces(settings)
        self._rewarding = make_step_reward(reward, settings, spaces)
        self._form = ObservationForm(spaces, normalize=normalize)
        self._alone = np.zeros(1, dtype=np.int64)
        self._states = RaceStates(1, spaces)
        self._n_actions_made = 0
        self._began_m = 0.0
        self._is_under_way = False
        self._has_begun = False
        self._is_closed = False
        self.observation_space = self._form.space
        self._actions = actions_of_game(settings.game)
        self.action_space = self._actions.space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """Begin a race at the start line; if it can't begin, the one before is over, too.

        Args:
            seed: of the draws among maps; a race itself knows no chance.
            options: `{"map": name}` to choose the map.

        Raises:
            UserError: if map or line can't be used, there is no map of this name, or an option is unknown.
            GameError: if no game can be kept alive.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        self._check_open()
        super().reset(seed=seed)
        check_options(options, (MAP_OPTION,))
        self._is_under_way = False
        map_entry = self._map_draw.draw(self.np_random, options)
        self._games.begin(0, map_entry)
        self._states.take(self._games, self._receive())
        self._map, self._began_m = map_entry, float(self._states.meters[0])
        self._is_under_way = self._has_begun = True
        self._show_window()
        return self._show(), self._info()

    def step(self, action: npt.ArrayLike) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold an action until the next decision.

        Raises:
            UserError: if there is no such action.
            gymnasium.error.ResetNeeded: if no race is under way.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        self._check_open()
        if not self._is_under_way:
            raise ResetNeeded("no race is under way: call reset first")
        actions = self._actions.checked(action, n_games=None)
        self._n_actions_made += 1
        states = self._states
        before, before_m, before_ms = states.floats.copy(), float(states.meters[0]), int(states.race_time_ms[0])
        self._games.send(self._alone, decided_elsewhere(actions, self._actions.n_values))
        try:
            received = self._receive()
            is_lost = 0 not in received.ended and bool(received.is_first[0])
        except GameError:
            is_lost = True
        if is_lost:
            self._is_under_way = False
            lost = {"race_finished": False, "cutoff_reason": GAME_LOST}
            return self._show(), 0.0, False, True, self._info() | lost
        states.take(self._games, received)
        self._show_window()
        if 0 not in received.ended:
            return self._show(), self._reward(before, before_m), False, False, self._info()
        self._is_under_way = False
        end = received.ended[0].end
        assert end is not None
        if end.is_finished:
            reward = self._rewarding.of_arrival(arrival(end, self._began_m, before_m, before_ms))
        else:
            reward = self._reward(before, before_m)
        info = self._info() | info_of_end(end, self._began_m)
        return self._show(), reward, end.is_finished, not end.is_finished, info

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
        self._check_open()
        if not self._has_begun:
            raise ResetNeeded("there is no race to show: call reset first")
        return None if self.render_mode == "human" else self._picture(PICTURE_SIZE_PX)

    def close(self) -> None:
        """End the game."""
        self._is_closed = True
        self._is_under_way = False
        if self._window is not None:
            self._window.close()
        self._games.close()
        self._tracks_folder.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedEnvironmentError("this environment was closed: make another one")

    def _receive(self) -> Received:
        """Wait for what follows: a state, or the race's end."""
        while True:
            received = self._games.recv()
            if len(received.ids) > 0 or received.ended:
                return received

    def _show_window(self) -> None:
        if self._window is not None:
            self._window.show(self._picture(WINDOW_SIZE_PX))

    def _picture(self, size_px: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw the race, in this size if the game is in this process."""
        picture = self._games.picture(0, *size_px)
        if picture is not None:
            return picture
        if not self.settings.game.has_image:
            raise UserError(
                f'render_mode = "{self.render_mode}": of a game behind a socket the observation\'s image is shown, and '
                'there is none; make the environment with overrides={"image_width_px": 160, "image_height_px": 120}'
            )
        return np.repeat(self._states.images[0, -1, :, :, np.newaxis], 3, axis=2)

    def _show(self) -> Shown:
        return self._form.show(self._states.images[0], self._states.floats[0])

    def _info(self) -> dict[str, Any]:
        return {
            "map": self._map.map_name,
            "meters": float(self._states.meters[0] - self._began_m),
            "race_time_ms": int(self._states.race_time_ms[0]),
            "position_m": self._states.position_m[0].copy(),
            "speed_m_s": self._states.speed_m_s[0],
        }

    def _reward(self, before: npt.NDArray[np.float32], before_m: float) -> float:
        states = self._states
        rewards = self._rewarding.of_actions(before, states.floats, states.meters - before_m, self._n_actions_made)
        return float(rewards[0])
