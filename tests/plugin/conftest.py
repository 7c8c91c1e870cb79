"""Games with our plugin; skips what executes the script where its engine is missing."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import plugin_host
from plugin_clients import Played, RawClient, free_port
from plugin_game import PluginGame

from trackmania_rl.simulator.game import SimulatedGame
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.world import Track, build_ribbon


def straight_line_m(length_m: float) -> np.ndarray:
    """(N, 3): a level line towards +z."""
    line_m = np.zeros((int(length_m / 0.5) + 1, 3))
    line_m[:, 1] = 10.0
    line_m[:, 2] = 0.5 * np.arange(len(line_m))
    return line_m


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """The host, built once for all sessions with the same sources; skips where it cannot be built."""
    missing = plugin_host.what_is_missing()
    if missing is not None:
        pytest.skip(f"the plugin's script cannot be executed here: {missing}")
    return plugin_host.build(pytestconfig.cache.mkdir("plugin_host"))


@pytest.fixture(scope="session")
def straight_track() -> Track:
    """Two checkpoints and a finish, walls on both sides."""
    return Track("straight", build_ribbon(straight_line_m(60)), (20.0, 40.0), 60.0)


@pytest.fixture(scope="session")
def two_lap_track() -> Track:
    """Two laps of one checkpoint and the line, laid out one after the other."""
    return Track("laps", build_ribbon(straight_line_m(80)), (20.0, 40.0, 60.0), 80.0, n_laps=2)


@pytest.fixture
def maps_folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "short line.npy", straight_line_m(60))
    (tmp_path / "short é.toml").write_text('name = "short"\nline = "short line.npy"\ncheckpoints_m = [20.0]\n')
    return tmp_path


@pytest.fixture
def make_played(library: Path, maps_folder: Path) -> Iterator[Callable[..., Played]]:
    """Make a game, with a race on a track or in the menus; further arguments are those of `PluginGame`."""
    running = []

    def make(track: Track | None = None, **arguments) -> Played:
        game = SimulatedGame(maps_folder, maps_folder)
        if track is not None:
            game.race = SimulatedRace(track)
            game.race.advance(1000)
            game.race.advance()  # compile, so that no timeout of a test counts it
            game.race.render(4, 4)
            game.race.give_up()
        port = free_port()
        arguments = {"commands_after_startup": (f"set custom_port {port}",)} | arguments
        running.append(Played(PluginGame(game, library, **arguments), port))
        return running[-1]

    yield make
    for played in running:
        played.close()


@pytest.fixture
def played(make_played: Callable[..., Played], straight_track: Track) -> Played:
    return make_played(straight_track)


@pytest.fixture
def client(played: Played) -> RawClient:
    """A client at the step of race time 0, which it has not answered yet."""
    client = played.connect()
    client.begin_race()
    return client
