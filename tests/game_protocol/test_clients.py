"""Clients that fall silent, go, come twice or send nonsense: either game goes on, and the next client plays."""

import contextlib
import time

import numpy as np
import pytest
from raw_client import FOREVER, FREEZE, GET_STATE, SERVED_WITHIN_S, WITHOUT_STEPS, int32s, plays_a_race

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.tmi_interaction.launchers.kept_game import Greeting, GreetingAttempt, greet

NOISE = np.random.default_rng(0).bytes(200_000)
ABUSES = {
    "noise": NOISE,
    "an unknown id": int32s(99),
    "huge blob": int32s(7, 2**31 - 1) + bytes(100_000),
    "negative length": int32s(14, -1),
    "half a blob": int32s(7, 8408) + bytes(4000),
    "a frame that is not read": int32s(17, 400, 300, 1),
    "no word": b"",
    "a flood that is not read": FREEZE + int32s(1) + bytes(4 << 20),
    "answers that are not read": GET_STATE * 100_000,
}


def abuse(client, stream):
    client.send(int32s(5))
    client.next_step()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # it may be hung up on, or stopped by a full pipe
        client.send(stream)


def test_a_client_that_does_not_answer_in_time_is_dropped_and_speed_and_period_survive(client, served, caplog):
    client.send(int32s(17, 16, 12), messages.pack_set_timeout(150))
    assert client.is_hung_up_on()
    assert "client dropped: did not answer in time" in caplog.text
    other = served.connect()
    other.send(int32s(5))
    steps_ms = [other.next_step()]
    began_s = time.monotonic()
    other.send(int32s(1))
    steps_ms.append(other.next_step())
    assert steps_ms[1] - steps_ms[0] == 50, "neither a frame of the old client nor another period"
    assert other.is_hung_up_on()
    assert time.monotonic() - began_s > 1.5, "the default of 2 s, not the old client's timeout"


@pytest.mark.parametrize(
    "last_words", [FOREVER, FOREVER + messages.pack_command("map")[:6], FOREVER + WITHOUT_STEPS + int32s(1)]
)
def test_a_client_that_vanished_is_replaced_however_long_its_timeout(client, served, last_words):
    client.send(last_words)
    client.socket.close()
    assert greet(served.port, SERVED_WITHIN_S) == Greeting(LINK_VERSION, is_in_menus=False)
    assert plays_a_race(served.connect())
    assert greet(served.port, SERVED_WITHIN_S) == Greeting(LINK_VERSION, is_in_menus=False)


def test_goodbye_ends_the_connection_and_takes_back_requests(client, served):
    client.send(int32s(17, 16, 12), int32s(20), int32s(17, 4, 3), int32s(13))
    assert client.is_hung_up_on()
    assert plays_a_race(served.connect())


def test_commands_are_run_before_the_goodbye(server, caplog):
    attempt = GreetingAttempt(server.port)
    while attempt.poll(("set countdown_speed 7", "set countdown_speed -1")) is None:
        pass
    assert server.simulated.countdown_speed == 7.0
    assert "countdown_speed '-1' is not a number above 0" in caplog.text


@pytest.mark.parametrize(
    ("words", "told"), [(WITHOUT_STEPS + int32s(1), ""), (FOREVER, "client dropped: kept a newcomer waiting")]
)
def test_a_newcomer_replaces_the_client(client, served, caplog, words, told):
    client.send(int32s(17, 16, 12), int32s(20), words)
    other = served.connect()
    assert client.is_hung_up_on()
    assert told in caplog.text
    assert plays_a_race(other)


@pytest.mark.parametrize("name", ABUSES)
def test_after_any_abuse_a_fresh_client_is_served(served, name):
    may_stay = not name.startswith("answers")  # the plugin cannot hang up in the midst of an answer
    for stays in (True, False) if may_stay else (False,):
        client = served.connect()
        client.send(messages.pack_set_timeout(200))
        abuse(client, ABUSES[name])
        if not stays:
            client.socket.close()
        assert plays_a_race(served.connect())
