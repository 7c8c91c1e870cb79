"""A short track, games that are shown, and a clock that stands still until it is told to go on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import Games, Received
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.telemetry.live import LiveReader
from trackmania_rl.telemetry.live.feed_file import FOLDER
from trackmania_rl.telemetry.live.shown_games import shown
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

ENTRIES = (
    MapEntry(
        map_name="the straight", map_path="straight.toml", reference_line="line.npy", is_explo=True, fill_buffer=True
    ),
    MapEntry(map_name="judged", map_path="straight.toml", reference_line="line.npy", is_explo=False, fill_buffer=True),
)
"""An explored race and an evaluated one."""


class Clock:
    """Seconds, which pass when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Driving:
    """A collector's games, driven by chance: game g is in an explored race if g is even, else in an evaluated one.

    Attributes:
        games: they are shown.
        inside: the games themselves.
        settings: theirs.
        received: the last states, and the decisions in them.
        decision: likewise.
        ended: the newest race that has ended in each game.
    """

    games: Games
    inside: Any
    settings: Settings
    clock: Clock
    rng: np.random.Generator
    received: Received | None = None
    decision: BatchDecision | None = None
    ended: dict[int, dict[str, npt.NDArray[np.generic]]] = field(default_factory=dict)

    is_closed: bool = False

    def close(self) -> None:
        """The training ends."""
        if not self.is_closed:
            self.is_closed = True
            self.games.close()

    def begin(self, game: int) -> None:
        self.games.begin(game, ENTRIES[game % 2])

    def drive(self, n_actions: int, seconds_each: float = 0.0) -> None:
        """Mostly forward, so that races finish; the next one begins at once."""
        n_values = len(self.settings.game.inputs)
        for _ in range(n_actions):
            self.clock.now_s += seconds_each
            self.received = self.games.recv()
            ids = self.received.ids  # none where games behind sockets have nothing to say yet
            actions = self.rng.choice([0, 0, 0, 1, 2, 4], len(ids))
            q_values = self.rng.standard_normal((len(ids), n_values), dtype=np.float32)
            self.decision = BatchDecision(actions, self.rng.random(len(ids)) < 0.5, q_values)
            self.games.send(ids, self.decision)
            for game, race in self.received.ended.items():
                columns = {name: np.array(column) for name, column in race.rollout_results.items()}
                self.ended[game] = columns | {"last_m": race.end.last.position_m.copy()}
                self.begin(game)


@pytest.fixture(scope="session")
def maps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "line.npy", np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0))
    (folder / "straight.toml").write_text('name = "straight"\nline = "line.npy"\nedge = "wall"\ncheckpoints_m = [20]\n')
    return folder


@pytest.fixture
def clock() -> Clock:
    return Clock()


MakeDriving = Callable[..., Driving]


@pytest.fixture
def make_driving(tmp_path: Path, maps_folder: Path, repository_root: Path, clock: Clock) -> Iterator[MakeDriving]:
    """`make_driving(n_games=3, collector=0, image=(17, 15))`: a run whose folder is `tmp_path`."""
    made: list[Driving] = []

    def make(
        n_games: int = 3, collector: int = 0, image: tuple[int, int] = (0, 0), transport: str = "in_process"
    ) -> Driving:
        overrides = (f"image_width_px={image[0]}", f"image_height_px={image[1]}", "cutoff_race_longer_than_ms=9000")
        settings = load_settings(repository_root / "config_files" / "config.py", overrides)
        inside: Games
        if transport == "in_process":
            inside = InProcessGames(n_games, settings.game, settings.observation, maps_folder)
        else:
            game = settings.game.model_copy(update={"maps_folder": str(maps_folder)})
            launchers = [SimulatedGameLauncher(find_free_port(), maps_folder) for _ in range(n_games)]
            inside = SocketGames([GameInstanceManager(game, settings.observation, each) for each in launchers])
        games = shown(inside, race_spaces(settings), settings.game, tmp_path / FOLDER, collector, maps_folder, clock)
        driving = Driving(games, inside, settings, clock, np.random.default_rng(collector))
        for game in range(n_games):
            driving.begin(game)
        made.append(driving)
        return driving

    yield make
    for driving in made:
        driving.close()


@pytest.fixture
def reader(tmp_path: Path, clock: Clock) -> Iterator[LiveReader]:
    reader = LiveReader(tmp_path, clock)
    yield reader
    reader.close()
