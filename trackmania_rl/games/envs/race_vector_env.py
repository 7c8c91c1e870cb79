"""Many simulated games in this process as a Gymnasium vector environment.

K: number of games. All of them make one action in each step, by compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.map_draw import MAP_OPTION, MapDraw, check_options
from trackmania_rl.games.envs.observation_form import ObservationForm, Shown
from trackmania_rl.games.envs.outcomes import arrival, decided_elsewhere, info_of_end
from trackmania_rl.games.envs.race_env import PICTURE_SIZE_PX
from trackmania_rl.games.envs.race_states import RaceStates
from trackmania_rl.games.envs.reward_presets import PROGRESS, make_step_reward
from trackmania_rl.games.envs.temporary_folder import TemporaryFolder
from trackmania_rl.games.protocol import GameIds, Games
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import Spaces, race_spaces
from trackmania_rl.race.types import RaceEnd
from trackmania_rl.settings import MapEntry, Settings

Array = npt.NDArray[Any]

AUTORESET_MODES: Final = (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
MASK_OPTION: Final = "reset_mask"
"""Of `reset(options=...)`: the games, (K,) bool, in which a race begins."""


class RaceVectorEnv(VectorEnv[Shown, Array, Array]):
    """K games; observation, reward and the ends of a race are those of `RaceEnv`, and so is what a copy is.

    What follows a race that ended is said by `autoreset_mode`:

    * `NEXT_STEP`: the next race, in the step after. There the game's action is not looked at, its reward is 0 and its
      observation the start of the new race.
    * `DISABLED`: nothing, until `reset(options={"reset_mask": mask})` begins a race in the games of `mask` (K,) bool;
      `step` is refused before that.

    `infos` holds what the `info` of `RaceEnv` does, an array (K, ...) each, and in a step in which races end
    `race_finished` and `cutoff_reason`; each with a mask `_name` (K,) as is Gymnasium's custom.

    Args:
        settings: observation, rewards and rules; the simulated game's.
        maps: each race is on one of them: drawn, or named by `reset(options={"map": name})` for the races begun there.
        games: the K games, all of which answer at once; closed with the environment.
        map_weights: how often each map is drawn, in proportion; None: all alike.
        reward: see `RaceEnv`.
        normalize: whether floats are normalized as the network does it.
        autoreset_mode: one of `AUTORESET_MODES`, or its name or value.
        render_mode: "rgb_array" to have `render` show the races.
        tracks_folder: where the maps' generated tracks lie; closed with the environment.
        spaces: of the games; None for those of the settings.

    Attributes:
        settings: as they were given.
        layout: names and places of the floats.
        map_names: what `reset(options={"map": name})` can name.
        autoreset_mode: what follows a race that ended.

    Raises:
        UserError: if there is no such `autoreset_mode`, `render_mode` or reward, or two maps have the same name.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        settings: Settings,
        maps: Sequence[MapEntry],
        games: Games,
        *,
        map_weights: Sequence[float] | None = None,
        reward: str = PROGRESS,
        normalize: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        tracks_folder: TemporaryFolder | None = None,
        spaces: Spaces | None = None,
    ) -> None:
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f'render_mode = "{render_mode}": many games have only {self.metadata["render_modes"][0]}')
        self.render_mode = render_mode
        self.metadata = self.metadata | {
            "render_fps": 1000 / settings.game.ms_per_action,
            "autoreset_mode": self.autoreset_mode,
        }
        self.num_envs = num_envs = games.n_games
        self.settings = settings
        self.layout = ObservationLayout.from_settings(settings.observation, settings.game.actions)
        self._games = games
        self._map_draw = MapDraw(maps, map_weights)
        self.map_names = self._map_draw.names
        spaces = spaces or race_spaces(settings)
        self._rewarding = make_step_reward(reward, settings, spaces)
        self._form = ObservationForm(spaces, normalize=normalize)
        self._tracks_folder = tracks_folder or TemporaryFolder()
        self._everyone = np.arange(num_envs)
        self._has_race = np.zeros(num_envs, dtype=np.bool_)  # under way or ended
        self._has_ended = np.zeros(num_envs, dtype=np.bool_)
        self._n_actions_made = 0
        self._states = RaceStates(num_envs, spaces)
        self._began_m = np.empty(num_envs)
        self._map_of_game = np.full(num_envs, None, dtype=object)
        self.single_observation_space = self._form.space
        self._actions = actions_of_game(settings.game)
        self.single_action_space = self._actions.space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

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
        self._check_open()
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        check_options(options, (MAP_OPTION, MASK_OPTION))
        mask = self._reset_mask(options)
        if not (mask | self._has_race).all():
            raise ResetNeeded(f"games {np.flatnonzero(~mask & ~self._has_race).tolist()} have no race: reset them, too")
        begun = np.flatnonzero(mask)
        self._begin(begun, options)
        self._states.take(self._games, self._games.recv())
        self._began_m[begun] = self._states.meters[begun]
        return self._form.show(self._states.images, self._states.floats), self._infos({})

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
        self._check_open()
        self._check_races()
        checked = self._actions.checked(actions, self.num_envs)
        states, driven = self._states, self._everyone
        some: Any = slice(None)
        if self._has_ended.any():
            begun, driven = np.flatnonzero(self._has_ended), np.flatnonzero(~self._has_ended)
            some = driven
            self._begin(begun, None)
        before, before_m, before_ms = states.floats.copy(), states.meters.copy(), states.race_time_ms.copy()
        if len(driven) > 0:
            self._n_actions_made += len(driven)
            self._games.send(driven, decided_elsewhere(checked[some], self._actions.n_values))
        received = self._games.recv()
        states.take(self._games, received)
        self._began_m[self._has_ended] = states.meters[self._has_ended]
        ends = {game: race.end for game, race in received.ended.items() if race.end is not None}
        rewards, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), dtype=np.bool_)
        rewards[some] = self._rewarding.of_actions(
            before[some], states.floats[some], states.meters[some] - before_m[some], self._n_actions_made
        )
        for game, end in ends.items():
            terminated[game], truncated[game] = end.is_finished, not end.is_finished
            if end.is_finished:
                began_m, taken_m, taken_ms = float(self._began_m[game]), float(before_m[game]), int(before_ms[game])
                rewards[game] = self._rewarding.of_arrival(arrival(end, began_m, taken_m, taken_ms))
        self._has_ended = terminated | truncated
        return self._form.show(states.images, states.floats), rewards, terminated, truncated, ends

    def infos_by_game(self, ends: Mapping[int, RaceEnd], **more: Array) -> list[dict[str, Any]]:
        """Return what `infos` holds as K dictionaries, each that of a `RaceEnv`.

        Args:
            ends: of races that have just ended.
            more: (K,) to add to all.
        """
        columns = self._course() | more
        names = tuple(columns)
        values = (column.tolist() if column.ndim == 1 else list(column) for column in columns.values())
        infos = [dict(zip(names, of_game, strict=True)) for of_game in zip(*values, strict=True)]
        for game, end in ends.items():
            infos[game].update(info_of_end(end, float(self._began_m[game])))
        return infos

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Draw every game's race as it is now, (240, 320, 3) uint8 each, as `RaceEnv.render`; None without a mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        if self.render_mode is None:
            return None
        self._check_open()
        if not self._has_race.all():
            raise ResetNeeded("there is no race to show: call reset first")
        pictures = (self._games.picture(game, *PICTURE_SIZE_PX) for game in range(self.num_envs))
        return tuple(picture for picture in pictures if picture is not None)

    def close_extras(self, **kwargs: Any) -> None:
        """Give back what was made for the environment."""
        self._games.close()
        self._tracks_folder.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("this environment was closed: make another one")

    def _check_races(self) -> None:
        """Refuse a step that can't be made."""
        if not self._has_race.all():
            raise ResetNeeded("no race is under way: call reset first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._has_ended.any():
            raise ResetNeeded(
                f"the races of games {np.flatnonzero(self._has_ended).tolist()} have ended: call "
                f'reset(options={{"{MASK_OPTION}": terminated | truncated}}) first'
            )

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

    def _begin(self, games: GameIds, options: Mapping[str, Any] | None) -> None:
        """Begin a race in each of some games."""
        self._has_race[games] = False  # also where one of them can't begin
        for game in games.tolist():
            entry = self._map_draw.draw(self.np_random, options)
            self._games.begin(game, entry)
            self._map_of_game[game] = entry.map_name
        self._has_race[games], self._has_ended[games] = True, False

    def _course(self) -> dict[str, Array]:
        """Return what is known of every game (K, ...); fresh arrays."""
        return {
            "map": self._map_of_game.copy(),
            "meters": self._states.meters - self._began_m,
            "race_time_ms": self._states.race_time_ms.copy(),
            "position_m": self._states.position_m.copy(),
            "speed_m_s": self._states.speed_m_s.copy(),
        }

    def _infos(self, ends: Mapping[int, RaceEnd]) -> dict[str, Any]:
        everywhere = self._course()
        masks = {f"_{name}": np.ones(self.num_envs, dtype=np.bool_) for name in everywhere}
        infos: dict[str, Any] = everywhere | masks
        for game, end in ends.items():
            infos = self._add_info(infos, info_of_end(end, float(self._began_m[game])), game)
        return infos


def _autoreset_mode(asked: AutoresetMode | str) -> AutoresetMode:
    for mode in AUTORESET_MODES:
        if asked in (mode, mode.name, mode.value):
            return mode
    names = ", ".join(mode.name for mode in AUTORESET_MODES)
    raise UserError(f"autoreset_mode = {asked!r}: choose one of {names}")
