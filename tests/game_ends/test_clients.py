"""Clients that fall silent, go, come twice or send nonsense: either game goes on, and the next client plays."""

import contextlib
import socket
import time

import numpy as np
import pytest
from raw_client import FOREVER, FREEZE, GET_STATE, SERVED_WITHIN_S, WITHOUT_STEPS, int32s, plays_a_race

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.simulator.server import server as server_module
from trackmania_rl.tmi_interaction.greeting import Greeting, greet

NOISE = np.random.default_rng(0).bytes(200_000)
ABUSES = {
    "noise": NOISE,
    "an unknown id": int32s(99),
    "huge blob": int32s(7, 2**31 - 1) + bytes(100_000),
    "negative length": int32s(14, -1),
    "more than allowed": int32s(14, (1 << 20) + 1),
    "as long as allowed": int32s(7, 1 << 20) + bytes(1 << 20),
    "half an id": b"\x01\x00",
    "half a blob": int32s(7, 8408) + bytes(4000),
    "half a float": int32s(6) + b"\x00",
    "half a key": int32s(10) + b"\x01\x01",
    "a frame that is not read": int32s(17, 400, 300, 1),
    "no word": b"",
    "answers that are not read": GET_STATE * 100_000,
}
ABUSES_OF_THE_SERVER = ABUSES | {
    "huge frame that is not read": int32s(17, 2000, 2000, 1),
    "flood outside of waits": FREEZE + int32s(1) + bytes(4 << 20),
}


def abuse(client, stream):
    client.send(int32s(5))
    client.next_step()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # it may be hung up on, or stopped by a full pipe
        client.send(stream)


# Timeouts.


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


def test_traffic_does_not_renew_the_timeout(client):
    client.send(messages.pack_set_timeout(300))
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            client.send(int32s(18))
            time.sleep(0.02)
        pytest.fail("it is still served after 20 s")


# Clients that go, and newcomers.


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


@pytest.mark.parametrize(
    ("words", "told"), [(WITHOUT_STEPS + int32s(1), ""), (FOREVER, "client dropped: kept a newcomer waiting")]
)
def test_a_newcomer_replaces_the_client(client, served, caplog, words, told):
    client.send(int32s(17, 16, 12), int32s(20), words)
    other = served.connect()
    assert client.is_hung_up_on()
    assert told in caplog.text
    assert plays_a_race(other)


def test_the_latest_of_several_newcomers_is_served(client, served):
    others = [served.connect(is_greeted=False) for _ in range(5)]
    client.send(int32s(13))
    assert others[-1].read(4) == int32s(5)
    assert all(other.is_hung_up_on() for other in others[:-1])


# Abuse.


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


@pytest.mark.parametrize("name", ABUSES_OF_THE_SERVER)
def test_no_abuse_of_the_server_keeps_a_newcomer_waiting_for_a_long_timeout(server, name, monkeypatch):
    monkeypatch.setattr(server_module, "NEWCOMER_PATIENCE_S", 0.1)
    client = server.connect()
    client.send(FOREVER)
    abuse(client, ABUSES_OF_THE_SERVER[name])
    assert plays_a_race(server.connect())


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_messages_is_survived(served, seed):
    random = np.random.default_rng(seed)
    sizes = {6: 4, 10: 4, 15: 4, 17: 8, 19: 4, 21: 4, 24: 9}
    client = served.connect()
    client.send(messages.pack_set_timeout(200))
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):
        for _ in range(60):
            message_id = int(random.integers(1, 25))
            payload = random.bytes(sizes.get(message_id, 0))
            if message_id in (7, 14):
                text = random.bytes(int(random.integers(0, 40)))
                payload = int32s(len(text)) + text
            if message_id != 15:  # a timeout of weeks would hold up the test
                client.send(int32s(message_id), payload)
        client.socket.shutdown(socket.SHUT_WR)
    assert plays_a_race(served.connect())
