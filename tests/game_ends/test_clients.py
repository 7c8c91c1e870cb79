"""Clients that fall silent, go, come twice or send nonsense: either game goes on, and the next client plays."""

import contextlib
import socket
import time

import numpy as np
import pytest
from abuses import ABUSES
from raw_client import FOREVER, GET_STATE, SERVED_WITHIN_S, WITHOUT_STEPS, int32s, plays_a_race

from trackmania_rl.protocol import messages

# Timeouts.


def test_who_does_not_answer_in_time_is_dropped_and_speed_and_period_survive(client, served, caplog):
    client.send(int32s(17, 16, 12), messages.pack_set_timeout(150))
    assert client.is_hung_up_on(within_s=served.PROMPT_S)
    assert "client dropped: did not answer in time" in caplog.text
    other = served.connect()
    began_s = time.monotonic()
    other.send(int32s(5))
    steps_ms = [other.next_step()]
    other.send(int32s(1))
    steps_ms.append(other.next_step())
    assert steps_ms[1] - steps_ms[0] == 50, "neither a frame of the old client nor another period"
    assert not other.is_hung_up_on(within_s=1.0), "the old client's timeout is not inherited"
    assert other.is_hung_up_on(within_s=began_s + 2.0 + served.PROMPT_S - time.monotonic()), "it is the default, 2 s"


def test_traffic_does_not_renew_the_timeout(client, served):
    client.send(messages.pack_set_timeout(300))
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began_s < 3.0:
            client.send(int32s(18))
            time.sleep(0.02)
    assert time.monotonic() - began_s < served.PROMPT_S


def test_a_timeout_may_be_raised_during_the_wait(client):
    client.send(messages.pack_set_timeout(200), FOREVER)
    assert not client.is_hung_up_on(within_s=0.5)
    client.socket.settimeout(SERVED_WITHIN_S)
    client.send(int32s(1))
    assert client.next_step() == 50


def test_a_partial_message_has_its_own_limit(client, served, caplog):
    client.send(messages.pack_set_timeout(300), int32s(14, 100), b"map")
    assert client.is_hung_up_on(within_s=served.PROMPT_S)
    assert "client dropped: " in caplog.text


@pytest.mark.slow
def test_a_partial_message_of_a_patient_client_may_take_10_s(client):
    client.send(FOREVER, int32s(14, 100), b"map")
    assert not client.is_hung_up_on(within_s=9.0)
    assert client.is_hung_up_on(within_s=3.0)


def test_a_long_wait_costs_little_processor_time(client):
    client.send(FOREVER)
    time.sleep(0.1)
    cpu_s = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - cpu_s < 0.3


# Clients that go, and newcomers.


def test_a_client_that_vanished_in_full_drive_is_replaced_at_once(client, served):
    client.send(FOREVER, WITHOUT_STEPS, int32s(1))
    time.sleep(0.05)
    client.socket.close()
    began_s = time.monotonic()
    other = served.connect()
    assert time.monotonic() - began_s < 1.0
    assert plays_a_race(other)


def test_goodbye_ends_the_connection(client, served):
    client.send(int32s(13))
    assert client.is_hung_up_on(within_s=served.PROMPT_S)
    assert plays_a_race(served.connect())


def test_a_newcomer_replaces_the_client(client, served):
    client.send(int32s(17, 16, 12), int32s(20), WITHOUT_STEPS, int32s(1))
    other = served.connect()
    assert client.is_hung_up_on(within_s=served.PROMPT_S)
    assert plays_a_race(other)


def test_a_newcomer_does_not_wait_for_a_client_that_keeps_a_wait_open(client, served, caplog):
    client.send(FOREVER)
    assert not client.is_hung_up_on(within_s=3.5), "nobody else is there"
    other = served.connect()
    assert client.is_hung_up_on(within_s=served.PROMPT_S)
    assert "client dropped: kept a newcomer waiting" in caplog.text
    assert plays_a_race(other)


def test_the_latest_of_several_newcomers_is_served(client, served):
    others = [served.connect(is_greeted=False) for _ in range(5)]
    client.send(int32s(13))
    assert others[-1].read(4) == int32s(5)
    assert all(other.is_hung_up_on(within_s=served.PROMPT_S) for other in others[:-1])


def test_a_frame_asked_for_and_taken_back_does_not_reach_the_next_client(client, served):
    client.send(int32s(17, 16, 12), int32s(20), int32s(17, 4, 3), int32s(13))
    assert plays_a_race(served.connect())


# Abuse.


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "hangs up"])
@pytest.mark.parametrize("abuse", ABUSES)
def test_after_any_abuse_a_fresh_client_is_served(served, abuse, stays):
    client = served.connect()
    client.send(messages.pack_set_timeout(200), int32s(5))
    client.next_step()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # it may be hung up on
        ABUSES[abuse](client)
    if not stays:
        client.socket.close()
    assert plays_a_race(served.connect())


def test_answers_that_nobody_reads_end_with_the_client(served):
    client = served.connect()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # stopped by a full pipe
        client.send(GET_STATE * 100_000)
    client.socket.close()
    assert plays_a_race(served.connect())


@pytest.mark.parametrize("seed", range(10))
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
