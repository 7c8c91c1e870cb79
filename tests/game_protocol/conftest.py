"""Both games that speak the protocol; skips tests that execute the plugin's script where its engine is missing."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import plugin_host
import script_interface
from plugin_game import PluginGame
from served_games import ServedPlugin, ServedServer

from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

from ..lacking import lacks


@pytest.fixture(autouse=True)
def _hear_the_log(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture(scope="session")
def library(pytestconfig, tmp_path_factory):
    """The host, built once for all sessions with the same sources; skips where it cannot be built."""
    missing = plugin_host.what_is_missing()
    if missing is not None:
        lacks(f"the plugin's script cannot be executed here: {missing}")
    cache = getattr(pytestconfig, "cache", None)  # none with -p no:cacheprovider
    return plugin_host.build(cache.mkdir("plugin_host") if cache else tmp_path_factory.mktemp("plugin_host"))


@pytest.fixture(scope="session")
def interface(shared_data_folder):
    """All that TMInterface declares, where its file is; without it the host registers only what it can do."""
    path = shared_data_folder / script_interface.FILE_NAME
    return path if path.is_file() else None


@pytest.fixture
def maps_folder(tmp_path):
    line_m = np.zeros((121, 3))
    line_m[:, 2] = 0.5 * np.arange(121)
    np.save(tmp_path / "short line.npy", line_m)
    for name in ("short.toml", "short é.toml"):
        (tmp_path / name).write_text('name = "short"\nline = "short line.npy"\ncheckpoints_m = [20.0]\n')
    return tmp_path


@pytest.fixture
def make_simulated(maps_folder):
    """Make a game that is not served yet, with a race on a track or in the menus."""

    def make(track):
        game = SimulatedGame(maps_folder, maps_folder)
        if track is not None:
            game.race = SimulatedRace(track)
            game.race.advance(1000)
            game.race.advance()  # compile, so that no timeout of a test counts it
            game.race.render(4, 4)
            game.race.give_up()
        return game

    return make


@pytest.fixture
def make_server(make_simulated):
    """Serve a game, with a race on a track or in the menus, by the simulated game's own server."""
    running = []

    def make(track=None):
        running.append(ServedServer(make_simulated(track)))
        return running[-1]

    yield make
    for served in running:
        served.close()


@pytest.fixture
def make_played(library, interface, make_simulated):
    """Serve such a game by our plugin; further arguments are those of `PluginGame`."""
    running = []

    def make(track=None, **arguments):
        port = find_free_port()
        arguments = {"commands_after_startup": (f"set custom_port {port}",), "interface": interface} | arguments
        running.append(ServedPlugin(PluginGame(make_simulated(track), library, **arguments), port))
        return running[-1]

    yield make
    for played in running:
        played.close()


@pytest.fixture(params=["server", "plugin"])
def make_served(request):
    """Either of the two, for tests of duties of every game."""
    return request.getfixturevalue({"server": "make_server", "plugin": "make_played"}[request.param])


@pytest.fixture
def served(make_served, straight_track):
    return make_served(straight_track)


@pytest.fixture
def client(served):
    """A client of either game at the step of race time 0, which it has not answered yet."""
    return _at_the_start(served)


@pytest.fixture
def server(make_server, straight_track):
    return make_server(straight_track)


@pytest.fixture
def server_client(server):
    return _at_the_start(server)


@pytest.fixture
def played(make_played, straight_track):
    return make_played(straight_track)


@pytest.fixture
def plugin_client(played):
    return _at_the_start(played)


def _at_the_start(served):
    client = served.connect()
    client.begin_race()
    return client
