"""The part `games`, by default `RaceGames`.

With `sampling = "alternating"` two halves of a collector's games take turns: one plays while the other's actions are
chosen.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.parts import make_part
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.observation import NO_CHANGES, ObservationChanges, ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.race.spaces import Spaces, race_spaces
from trackmania_rl.settings import GameSettings, MapEntry, Settings, SettingsError, SyncSettings
from trackmania_rl.track.game_map import load_reference_lines, named_maps
from trackmania_rl.track.map_sources import check_map_sources

log = logging.getLogger(__name__)

Member = TypeVar("Member")
Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


@runtime_checkable
class GamesBuilder(Protocol):
    """Maker of a run's games, called with its settings in every process.

    Attributes:
        spaces: of the games.
    """

    spaces: Spaces

    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        """Make the games of one collector in its process; `rng` is for games with randomness."""
        ...


MakeGamesBuilder = Callable[[Settings], GamesBuilder]


class RaceGames(GamesBuilder):
    """Races in the simulated game, in this process or behind sockets, or in the real one.

    A subclass may add k floats to each state, before those of views. It sets `extra_mean` and `extra_std`, k numbers
    each for the network's normalization, and overrides `extra_floats`. It may change images by `change_images`.

    Attributes:
        layout: places of the floats: `floats[:, self.layout["velocity_m_s"]]`.
        spaces: of the games.

    Raises:
        SettingsError: if the observation's settings, or the subclass's attributes, contradict each other.
    """

    extra_mean: tuple[float, ...] = ()
    extra_std: tuple[float, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.layout = ObservationLayout(settings.observation, settings.game.actions)
        self.spaces = race_spaces(settings)
        self._changes = NO_CHANGES
        if self.extra_mean:
            self._changes = ObservationChanges(len(self.extra_mean), self.extra_floats)
            self._add_extra_floats()
        if settings.game.has_image and type(self).change_images is not RaceGames.change_images:
            self._changes = self._changes._replace(images=self.change_images)
            self._check_images()

    def extra_floats(self, floats: Floats) -> npt.NDArray[np.floating[Any]]:
        """Compute k finite floats (n, k) of n states, once per state.

        Args:
            floats: (n, F) float32, a copy, in the places of `layout`, without those of views; not normalized.
        """
        raise NotImplementedError

    def change_images(self, images: Images) -> Images:
        """Return what agents get in place of the newest frames (n, H, W) uint8 of n states, in the same form.

        Called once per state. The range finder measures before.
        """
        return images

    @override
    def make_games(self, collector: int, maps_folder: Path, rng: np.random.Generator) -> Games:
        sync = self._settings.sync
        game = self._settings.game
        user = self._settings.user
        name = "compiling the simulator" if game.is_in_process else "starting the games"
        log.info("collector %d: %s", collector, name, extra={"phase": name})
        if game.is_in_process:
            numbers = range(game.games_per_collector)
            return games_for(sync, numbers, lambda some: self.in_process(len(some), maps_folder))
        from trackmania_rl.tmi_interaction.launchers import make_launcher

        launchers = [make_launcher(game, user, port, maps_folder) for port in game.tmi_ports_of(collector)]
        return games_for(sync, launchers, self.behind_sockets)

    def in_process(self, n_games: int, maps_folder: Path) -> Games:
        """Make simulated games in this process."""
        from trackmania_rl.games.in_process import InProcessGames

        return InProcessGames(n_games, self._settings.game, self._settings.observation, maps_folder, self._changes)

    def behind_sockets(self, launchers: Sequence[Any]) -> Games:
        """Make games that are separate programs, one per `GameLauncher`."""
        from trackmania_rl.games.socket_games import SocketGames
        from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager

        game = self._settings.game
        observation = self._settings.observation
        managers = [GameInstanceManager(game, observation, launcher, changes=self._changes) for launcher in launchers]
        return SocketGames(managers, all_together=self._settings.sync.is_synchronous)

    def _check_images(self) -> None:
        before = np.zeros((2, *self.spaces.image_size_px), dtype=np.uint8)
        after = np.asarray(self.change_images(before.copy()))
        if (after.shape, after.dtype) != (before.shape, before.dtype):
            raise SettingsError(
                f"games: change_images of {type(self).__name__} made {after.dtype} {after.shape} of two images; it "
                f"makes {before.dtype} {before.shape}"
            )

    def _add_extra_floats(self) -> None:
        mean = self.spaces.float_mean
        std = self.spaces.float_std
        end = self.spaces.n_row_floats
        k = len(self.extra_mean)
        two_states = np.tile(np.array(mean[:end], dtype=np.float32), (2, 1))
        shape = np.shape(self.extra_floats(two_states))
        if shape != (2, k) or len(self.extra_std) != k:
            raise SettingsError(
                f"games: {type(self).__name__} has {k} numbers in extra_mean and {len(self.extra_std)} in extra_std, "
                f"and extra_floats made {shape} of two states; it makes {(2, k)}"
            )
        self.spaces = dataclasses.replace(
            self.spaces,
            float_mean=(*mean[:end], *self.extra_mean, *mean[end:]),
            float_std=(*std[:end], *self.extra_std, *std[end:]),
            waves=tuple((i if i < end else i + k, wavelength) for i, wavelength in self.spaces.waves),
        )


def make_race_games(settings: Settings) -> RaceGames:
    """Make the part `games` if it plays races, else plain `RaceGames`. Errors are as of `make_games_builder`."""
    builder = make_games_builder(settings)
    return builder if isinstance(builder, RaceGames) else RaceGames(settings)


def make_games_builder(settings: Settings) -> GamesBuilder:
    """Make the part that the setting `games` names.

    Raises:
        SettingsError: if the part makes no games.
    """
    builder: GamesBuilder = make_part(settings.game.games, "games", settings, takes="settings", kinds=(GamesBuilder,))
    return builder


def games_for(sync: SyncSettings, members: Sequence[Member], make: Callable[[Sequence[Member]], Games]) -> Games:
    """Make a collector's games by the setting `sampling`: all together, or in alternating halves.

    `make` makes the games of some of the `members`, such as launchers.
    """
    if sync.sampling != "alternating":
        return make(members)
    half = len(members) // 2
    return AlternatingGames(make(members[:half]), make(members[half:]))


class AlternatingGames(Games):
    """Two halves as one. `recv` returns their states in turn.

    A thread sends decisions to a half and plays it, until that half is received again.
    """

    def __init__(self, first: Games, second: Games) -> None:
        self.n_games = first.n_games + second.n_games
        self._halves = (first, second)
        self._begins_at = (0, first.n_games)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alternating games")
        self._sent: list[Future[None] | None] = [None, None]
        self._next = 0

    @property
    def game(self) -> GameSettings:
        """Settings from the next race on."""
        return self._halves[0].game

    @game.setter
    def game(self, settings: GameSettings) -> None:
        for number, half in enumerate(self._halves):
            self._await(number)
            half.game = settings

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        half, own = self._at(game)
        half.begin(own, map_entry, frames)

    @override
    def recv(self) -> Received:
        number = self._next
        self._next = 1 - number
        self._await(number)
        received = self._halves[number].recv()
        begins_at = self._begins_at[number]
        return Received(
            received.ids + begins_at,
            received.images,
            received.floats,
            received.is_first,
            {begins_at + game: race for game, race in received.ended.items()},
            tuple(begins_at + game for game in received.lost),
        )

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        for number, half in enumerate(self._halves):
            begins_at = self._begins_at[number]
            of_half = (ids >= begins_at) & (ids < begins_at + half.n_games)
            if of_half.any():
                self._await(number)
                own_ids = ids[of_half] - begins_at
                self._sent[number] = self._executor.submit(half.send, own_ids, decision.rows(of_half), policy_s)

    @override
    def under_way(self, game: int, states: range) -> Race:
        half, own = self._at(game)
        return half.under_way(own, states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        places = [self._at(game) for game in ids.tolist()]
        motions = [half.motion(np.array([own])) for half, own in places]
        return Motion._make(np.concatenate(column) for column in zip(*motions, strict=True))

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        half, own = self._at(game)
        return half.picture(own, width_px, height_px)

    @override
    def close(self) -> bool:
        self._executor.shutdown()
        have_ended = [half.close() for half in self._halves]
        return all(have_ended)

    def _at(self, game: int) -> tuple[Games, int]:
        number = int(game >= self._begins_at[1])
        self._await(number)
        return self._halves[number], game - self._begins_at[number]

    def _await(self, number: int) -> None:
        """Wait until a half is idle; raise the error of its last `send`."""
        sent = self._sent[number]
        self._sent[number] = None
        if sent is not None:
            sent.result()


def check_edited_maps(settings: Settings, maps_folder: Path) -> None:
    """Check an edited map cycle before it is played.

    Raises:
        UserError: if a file of a map is missing or damaged, a generator fails, or the real game has no such map.
    """
    load_reference_lines(settings, maps_folder)
    check_map_sources(settings)
    if settings.game.game != "simulated":
        from trackmania_rl.tmi_interaction.launchers import make_launcher

        launcher = make_launcher(settings.game, settings.user, settings.game.base_tmi_port, maps_folder)
        for entry in named_maps(settings):
            launcher.check_map(entry.map_path)
