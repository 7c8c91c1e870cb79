"""What keeps games and what waits for them asks either game how it is, without harm to who plays on it afterwards."""

import time

from raw_client import FOREVER, plays_a_race

from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.tmi_interaction.greeting import Greeting, GreetingAttempt, greet
from trackmania_rl.tmi_interaction.transport import GameConnectionError

WITHIN_S = 30.0


def test_a_game_that_nobody_plays_on_greets_as_often_as_it_is_asked(make_served, straight_track):
    served = make_served(straight_track)
    plays_a_race(served.connect())
    for _ in range(3):
        assert greet(served.port, WITHIN_S) == Greeting(LINK_VERSION, is_in_menus=False)
    assert plays_a_race(served.connect())


def test_a_game_turns_to_who_asks_when_its_client_has_left_without_a_word(served, client):
    """It waits for an answer that never comes, as the real one does between two races, and cannot know that."""
    client.send(FOREVER)
    client.socket.close()
    assert greet(served.port, WITHIN_S) == Greeting(LINK_VERSION, is_in_menus=False)
    assert plays_a_race(served.connect())


def test_a_new_game_runs_the_commands_that_it_is_told_before_the_goodbye(make_played):
    played = make_played()
    deadline_s = time.monotonic() + WITHIN_S
    greeting, attempt = None, None
    while greeting is None:
        assert time.monotonic() < deadline_s
        try:
            attempt = attempt or GreetingAttempt(played.port)
            greeting = attempt.look(("set countdown_speed 7",))
        except GameConnectionError:  # it does not listen yet
            time.sleep(0.01)
    assert greeting == Greeting(LINK_VERSION, is_in_menus=True)
    assert played.simulated.countdown_speed == 7.0
