"""The keeper of one game, with a game, connections and a clock that the test controls."""

import logging
from types import SimpleNamespace

import pytest

from scripts.keep_games import POLICY
from trackmania_rl.multiprocess import supervisor as supervisor_module
from trackmania_rl.multiprocess.supervisor import Supervisor
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.tmi_interaction.launchers import keeper as keepers
from trackmania_rl.tmi_interaction.launchers.keeper import Client, GameKeeper
from trackmania_rl.tmi_interaction.launchers.kept_game import Greeting
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

MAX_AGE_S, GREETS_WITHIN_S, LISTENS_WITHIN_S = 5000.0, 40.0, 100.0
COLLECTOR, SECOND = Client(50_001), Client(50_002)
COLLECTOR_THAT_LEFT = Client(COLLECTOR.peer_port, has_left=True)
OWN_PORT = 40_000


class Game:
    """A launcher, its game, connections to that game, and the time."""

    port = 8478
    local_port = OWN_PORT

    def __init__(self):
        self.commands_on_connect = ()
        self.now_s = 0.0
        self.runs = False
        self.listens_from_s = 0.0
        self.greets = True
        self.version = LINK_VERSION
        self.start_errors = []
        self.starts, self.told, self.n_focused, self.n_connections, self.n_open = [], [], 0, 0, 0

    def start(self):
        assert not self.runs
        if self.start_errors:
            raise self.start_errors.pop()
        self.runs = True
        self.starts.append(self.now_s)

    def is_alive(self):
        return self.runs

    def kill(self):
        self.runs = False

    def show_window(self):
        assert self.runs

    def focus_window(self):
        self.n_focused += 1

    def connect(self, port):
        assert port == self.port
        if not self.runs or self.now_s < self.listens_from_s:
            raise GameConnectionError("nobody listens")
        self.n_connections += 1
        self.n_open += 1
        return self

    def poll(self, commands=()):
        if not self.greets:
            return None
        self.told += commands
        return Greeting(self.version, True)

    def close(self):
        self.n_open -= 1


@pytest.fixture
def game():
    return Game()


@pytest.fixture
def keeper(game):
    return GameKeeper(game, MAX_AGE_S, GREETS_WITHIN_S, LISTENS_WITHIN_S, game.connect, lambda: game.now_s)


@pytest.fixture
def supervisor(keeper, game, monkeypatch):
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: game.now_s))
    supervisor = Supervisor([keeper], POLICY)
    supervisor.start()
    return supervisor


def look(supervisor, game, *clients, until_s, every_s=1.0):
    """Let time pass, with these clients at the port."""
    while game.now_s < until_s:
        game.now_s += every_s
        supervisor.jobs[0].clients = [*clients, *[Client(OWN_PORT)] * game.n_open]
        supervisor.check()


@pytest.fixture
def greeted(supervisor, game):
    """The supervisor of a game that has greeted."""
    supervisor.check()
    assert game.starts == [0.0]
    return supervisor


def test_a_new_game_is_greeted_and_told_its_commands_once(supervisor, game, caplog):
    game.commands_on_connect = ("toggle_console", "set autologin me")
    game.listens_from_s = 30.0
    look(supervisor, game, until_s=20)
    assert supervisor.jobs[0].is_starting
    with caplog.at_level(logging.INFO):
        look(supervisor, game, until_s=200)
    assert not supervisor.jobs[0].is_starting
    assert game.told == ["toggle_console", "set autologin me"]
    assert f"greets (plugin version {LINK_VERSION})" in caplog.text
    assert game.n_connections > 1 + 2, "greeted again, several times a minute"
    assert game.n_open == 0


@pytest.mark.parametrize(
    ("clients", "change", "restarted_after_s", "told"),
    [
        ((COLLECTOR,), {}, MAX_AGE_S - 10, "has run for 5000 s"),
        ((COLLECTOR_THAT_LEFT,), {"greets": False}, GREETS_WITHIN_S, "holds on to a connection that was over 40 s ago"),
        ((COLLECTOR, SECOND), {}, GREETS_WITHIN_S, "holds on to a connection that was over 40 s ago, so it hangs"),
        ((), {"greets": False}, keepers.GREET_EVERY_S + GREETS_WITHIN_S, "does not greet within 40 s"),
    ],
)
def test_a_game_that_is_old_or_hangs_is_started_again(greeted, game, caplog, clients, change, restarted_after_s, told):
    caplog.set_level(logging.INFO)
    look(greeted, game, COLLECTOR, until_s=10)
    vars(game).update(change)
    look(greeted, game, *clients, until_s=10 + restarted_after_s - 2)
    assert len(game.starts) == 1
    look(greeted, game, *clients, until_s=10 + restarted_after_s + 10)
    assert len(game.starts) == 2
    assert told in caplog.text
