"""The keeper of a game, by itself: a game, connections and a clock that do what the test says."""

import logging

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.tmi_interaction.greeting import Greeting
from trackmania_rl.tmi_interaction.launchers import keeper as keepers
from trackmania_rl.tmi_interaction.launchers.clients import Client
from trackmania_rl.tmi_interaction.launchers.keeper import GameKeeper, KeeperLimits
from trackmania_rl.tmi_interaction.transport import GameConnectionError

MAX_AGE_S, GREETS_WITHIN_S, LISTENS_WITHIN_S = 5000.0, 40.0, 100.0
LIMITS = KeeperLimits(MAX_AGE_S, GREETS_WITHIN_S, LISTENS_WITHIN_S)
OUR_VERSION = LINK_VERSION
COLLECTOR = Client(50_001)
OWN_PORT = 40_000


class Game:
    """A launcher, what it launches, and the time."""

    port = 8478

    def __init__(self, commands=()):
        self.commands_on_connect = commands
        self.now_s = 0.0
        self.runs = False
        self.listens_from_s = 0.0
        self.greets = True
        self.version = OUR_VERSION
        self.start_errors = []
        self.starts, self.told, self.n_focused, self.n_connections, self.n_open = [], [], 0, 0, 0

    def start(self):
        assert not self.runs
        if self.start_errors:
            raise self.start_errors.pop(0)
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
        return Attempt(self)


class Attempt:
    local_port = OWN_PORT

    def __init__(self, game):
        self.game = game

    def look(self, commands=()):
        if not self.game.greets:
            return None
        self.game.told += commands
        return Greeting(self.game.version, True)

    def close(self):
        self.game.n_open -= 1


def kept(game):
    return GameKeeper(game, LIMITS, game.connect, lambda: game.now_s)


def look(keeper, game, *clients, until_s, every_s=1.0):
    """Let time pass, with these clients at the port."""
    while game.now_s < until_s:
        game.now_s += every_s
        keeper.step([*clients, *[Client(OWN_PORT)] * game.n_open])


@pytest.fixture
def game():
    return Game()


@pytest.fixture
def keeper(game):
    keeper = kept(game)
    keeper.step(())
    keeper.step(())
    assert game.starts == [0.0]
    return keeper


def test_a_new_game_is_greeted_and_told_its_commands_once(caplog):
    game = Game(commands=("toggle_console", "set autologin me"))
    game.listens_from_s = 30.0
    keeper = kept(game)
    look(keeper, game, until_s=20)
    assert keeper.is_starting
    with caplog.at_level(logging.INFO):
        look(keeper, game, until_s=200)
    assert not keeper.is_starting
    assert game.told == ["toggle_console", "set autologin me"]
    assert f"greets (plugin version {LINK_VERSION})" in caplog.text
    assert game.n_connections == 1 + 2, "asked how it is every minute"
    assert game.n_open == 0


def test_a_new_game_is_told_its_commands_even_if_a_collector_came_first():
    game = Game(commands=("toggle_console",))
    keeper = kept(game)
    look(keeper, game, COLLECTOR, until_s=3)
    assert game.told == ["toggle_console"]


def test_a_game_with_a_collector_is_left_alone(keeper, game):
    look(keeper, game, COLLECTOR, until_s=1000)
    assert game.n_connections == 1
    assert game.starts == [0.0]
    assert game.n_focused > 0


def test_a_new_game_that_needs_no_commands_is_left_to_a_collector(game):
    keeper = kept(game)
    look(keeper, game, COLLECTOR, until_s=100)
    assert (game.n_connections, keeper.is_starting) == (0, False)


def test_a_game_that_has_ended_is_started_again_and_later_the_more_often_it_happens(keeper, game, caplog):
    ends = []
    for _ in range(10):
        game.runs = False
        ends.append(game.now_s)
        look(keeper, game, until_s=game.now_s + 100, every_s=0.5) if len(ends) > 9 else wait_for_start(keeper, game)
    waits = [start - end for end, start in zip(ends, game.starts[1:], strict=True)]
    assert waits == sorted(waits)
    assert waits[0] <= 2.0
    assert keepers.LONGEST_DELAY_S <= waits[-1] <= keepers.LONGEST_DELAY_S + 2.0
    assert "the game at port 8478 has ended: it is started again" in caplog.text
    look(keeper, game, until_s=game.now_s + 100)
    game.runs, ended_s = False, game.now_s
    wait_for_start(keeper, game)
    assert game.starts[-1] - ended_s <= 2.0, "it had run well for a while"


def wait_for_start(keeper, game):
    n_starts = len(game.starts)
    while len(game.starts) == n_starts:
        look(keeper, game, until_s=game.now_s + 0.5, every_s=0.5)


def test_a_game_is_started_again_when_it_is_too_old_whoever_plays_on_it(keeper, game):
    look(keeper, game, COLLECTOR, until_s=MAX_AGE_S)
    assert len(game.starts) == 1
    look(keeper, game, COLLECTOR, until_s=MAX_AGE_S + 5)
    assert len(game.starts) == 2


@pytest.mark.parametrize(
    "clients",
    [
        (Client(50_001, has_left=True),),
        (Client(50_001, has_left=True), Client(50_002)),  # one waits where the one before gave up
    ],
)
def test_a_game_that_holds_on_to_who_has_left_hangs(keeper, game, caplog, clients):
    look(keeper, game, COLLECTOR, until_s=10)
    game.greets = False
    look(keeper, game, *clients, until_s=10 + GREETS_WITHIN_S)
    assert len(game.starts) == 1
    look(keeper, game, *clients, until_s=15 + GREETS_WITHIN_S)
    assert len(game.starts) == 2
    assert "holds on to a connection that was over 40 s ago, so it hangs" in caplog.text


def test_a_game_that_serves_no_newcomer_hangs(keeper, game):
    look(keeper, game, COLLECTOR, until_s=10)
    look(keeper, game, COLLECTOR, Client(50_002), until_s=15 + GREETS_WITHIN_S)
    assert len(game.starts) == 2


def test_a_game_that_waits_for_a_client_who_left_is_asked_and_turns_to_who_asks(keeper, game):
    """As the real one does between two races: its sockets do not say that the other end has hung up."""
    look(keeper, game, COLLECTOR, until_s=10)
    look(keeper, game, Client(COLLECTOR.peer_port, has_left=True), until_s=13)
    assert game.n_connections == 2
    look(keeper, game, until_s=1000)
    assert game.starts == [0.0]


def test_collectors_that_come_and_go_do_no_harm(keeper, game):
    for peer_port in range(50_000, 50_200):
        look(keeper, game, Client(peer_port), until_s=game.now_s + 2)
    assert game.starts == [0.0]
    assert game.n_connections == 1


def test_a_game_that_nobody_plays_on_and_that_does_not_greet_is_started_again(keeper, game, caplog):
    game.greets = False
    look(keeper, game, until_s=keepers.GREET_EVERY_S + GREETS_WITHIN_S - 2)
    assert len(game.starts) == 1
    look(keeper, game, until_s=keepers.GREET_EVERY_S + GREETS_WITHIN_S + 10)
    assert len(game.starts) == 2
    assert "does not greet within 40 s" in caplog.text
    assert game.n_open <= 1


def test_a_game_that_never_listens_is_started_again(game, caplog):
    game.listens_from_s = float("inf")
    keeper = kept(game)
    look(keeper, game, until_s=LISTENS_WITHIN_S)
    assert len(game.starts) == 1
    look(keeper, game, until_s=LISTENS_WITHIN_S + 10)
    assert len(game.starts) == 2
    assert "does not listen within 100 s" in caplog.text


def test_the_first_start_must_succeed(game):
    game.start_errors = [UserError("there is no TMLoader")]
    with pytest.raises(UserError, match="no TMLoader"):
        kept(game).step(())


def test_a_later_start_that_fails_is_tried_again(keeper, game, caplog):
    game.runs = False
    game.start_errors = [UserError("port 8478 is in use"), GameConnectionError("no process TmForever.exe appeared")]
    look(keeper, game, until_s=20)
    assert len(game.starts) == 2
    assert "cannot be started now: port 8478 is in use; next try in 2 s" in caplog.text


def test_another_plugin_is_told(caplog):
    for version, text in (
        (0, f"another plugin, and version {LINK_VERSION}"),
        (1, "version 1 of this project's plugin"),
    ):
        game = Game()
        game.version = version
        look(kept(game), game, until_s=3)
        assert text in caplog.text
        caplog.clear()


def test_closing_ends_the_game_and_the_connection(keeper, game):
    game.greets = False
    look(keeper, game, until_s=keepers.GREET_EVERY_S + 2)
    assert game.n_open == 1
    keeper.close()
    assert (game.n_open, game.runs) == (0, False)
