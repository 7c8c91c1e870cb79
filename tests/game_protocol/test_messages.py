"""Every message of the protocol, byte by byte: the answers and logs of both games that speak it."""

import struct

import numpy as np
import pytest
from raw_client import FAST, GET_STATE, GIVE_UP, UP, int32s
from tminterface.structs import SimStateData

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import AnalogInput, KeyState
from trackmania_rl.protocol.state_blob import StateView, with_last_checkpoint_time_cleared


def changed(offset, content):
    return lambda blob: blob[:offset] + content + blob[offset + len(content) :]


DAMAGES = {
    "empty": (lambda blob: b"", "is too short"),
    "long": (lambda blob: blob + bytes(8), "claims 3 checkpoint states and 3 times"),
    "negative count": (changed(8348, int32s(-1)), "claims 4294967295 checkpoint states"),
    "infinite position": (changed(724, struct.pack("<f", np.inf)), "not finite"),
}
"""Each makes an impossible state of a state of a race with three gates; with the reason that the plugin gives."""


# Messages of the game.


def test_steps_come_every_10_ms_by_default_and_at_multiples_of_the_period(served):
    client = served.connect()
    client.send(FAST, GIVE_UP, int32s(5))
    seen_ms = []
    for _ in range(10):
        seen_ms.append(client.next_step())
        client.send(int32s(1))
    assert seen_ms == list(range(-2590, -2490, 10))
    client.next_step()
    client.send(int32s(19, 70), int32s(1))
    assert [client.next_step(), client.send(int32s(1)), client.next_step()] == [-2450, None, -2380]


def test_wrong_answers_and_unknown_messages_are_skipped_and_logged_a_few_times(client, caplog):
    client.send(int32s(2, 3, 4, 5, 0, -1, 25), int32s(1))
    assert client.next_step() == 50
    assert "sent message 25 while" in caplog.text
    assert "is to be answered; skipped" in caplog.text
    client.send(int32s(*range(100, 5000)), int32s(1))
    assert client.next_step() == 100
    assert len(caplog.records) < 40
    assert "no more will be logged" in caplog.text


@pytest.mark.parametrize("chunk_bytes", [100_000, 1])
def test_messages_may_come_at_once_or_in_pieces(client, served, chunk_bytes):
    start = client.ask(GET_STATE)
    client.send(UP, int32s(1))
    assert client.next_step() == 50
    stream = b"".join(
        [
            UP,
            messages.pack_rewind_to_state(b"abc"),  # refused
            int32s(8),
            int32s(21, 0),
            int32s(18),
            messages.pack_command("cam 2"),
            int32s(22),
            int32s(16),
            messages.pack_rewind_to_state(start),
            GET_STATE,
            messages.pack_set_input(AnalogInput(1000, 65536, False)),
            int32s(1),
        ]
    )
    for begin in range(0, len(stream), chunk_bytes):
        client.send(stream[begin : begin + chunk_bytes])
    assert client.ints(2) == (0, 0)
    assert client.read(client.ints(1)[0]) == start
    assert client.next_step() == 50
    assert served.race.inputs.controls == (1.0, 0.0, 1000 / 65536)


def test_the_whole_race(client):
    client.send(UP)
    counts = []
    client.send(int32s(1))
    while len(counts) < 3:
        message_id = client.ints(1)[0]
        if message_id == 1:
            last_step_ms = client.ints(1)[0]
            client.send(int32s(1))
        else:
            assert message_id == 2
            counts.append(client.ints(2))
            state = StateView(client.ask(GET_STATE))
            time_ms = state.checkpoint_times_ms[len(counts) - 1]
            assert last_step_ms - 10 <= time_ms < last_step_ms + 50, "the step of a tick comes before its checkpoint"
            client.send(int32s(16))
            assert client.ints(1) == (len(counts) == 3,)
            if len(counts) < 3:
                client.send(int32s(2))
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert state.race_time_ms == time_ms
    client.send(int32s(2))
    for _ in range(3):  # the race is over: one step per tick, and the clock stands
        assert client.next_step() == time_ms
        client.send(int32s(16), int32s(1))
        assert client.ints(1) == (1,)


@pytest.mark.parametrize("how", ["by message 12", "by a rewind"])
def test_a_finish_is_undone_in_its_own_wait(client, how):
    client.drive_into_the_finish()
    if how == "by message 12":
        client.send(int32s(12))
    else:
        blob = client.ask(GET_STATE)
        client.send(messages.pack_rewind_to_state(with_last_checkpoint_time_cleared(blob)))
    client.send(int32s(16))
    assert client.ints(1) == (0,)


def test_laps(make_served, two_lap_track):
    client = make_served(two_lap_track).connect()
    client.begin_race()
    client.send(UP)
    seen = []
    client.send(int32s(1))
    while len(seen) < 6:
        message_id = client.ints(1)[0]
        numbers = client.ints(1 if message_id == 1 else 2)
        if message_id != 1:
            seen.append((message_id, *numbers))
        client.send(int32s(message_id))
    assert seen == [(2, 1, 4), (2, 2, 4), (3, 1, 2), (2, 3, 4), (2, 4, 4), (3, 2, 2)]


# States and rewinding.


def test_the_state_is_one_that_the_package_reads(client, served):
    blob = client.ask(GET_STATE)
    assert len(blob) == 8356 + 3 * 4 + 3 * 8
    assert SimStateData(blob).player_info.race_time == 0
    assert blob == served.race.save_state()


def test_rewinding_in_the_real_clients_order_is_exact(client):
    start = client.ask(GET_STATE)
    traces = []
    for _ in range(2):
        client.send(messages.pack_rewind_to_state(start))
        trace = []
        for action in range(20):
            trace.append(client.ask(GET_STATE))
            client.send(int32s(8))
            trace.append(client.frozen_frame())
            client.send(messages.pack_set_input(KeyState(action % 3 == 0, False, True, False)), FAST, int32s(4))
            assert client.next_step() == 50 * (action + 1)
        traces.append(trace)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_impossible_state_is_refused_and_the_race_goes_on(client, caplog, damage):
    blob = client.ask(GET_STATE)
    damaged, reason = DAMAGES[damage]
    client.send(messages.pack_rewind_to_state(damaged(blob)))
    assert client.ask(GET_STATE) == blob
    assert "rewind refused: state" in caplog.text
    assert reason in caplog.text or "[Python Link]" not in caplog.text
    client.send(int32s(1))
    assert client.next_step() == 50


# Frames.


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (640, 480)])
def test_a_frame_shows_the_frozen_instant(client, served, width_px, height_px):
    expected = served.race.render(width_px, height_px).tobytes()
    assert client.frozen_frame(width_px, height_px) == expected
    client.send(int32s(17, 16, 12), FAST, int32s(4))  # a request made in the frame's own wait is lost
    assert client.next_step() == 50
    client.send(int32s(17, 16, 12), int32s(20), int32s(1))  # one that is withdrawn as well
    assert client.next_step() == 100


@pytest.mark.parametrize("size_px", [(0, 12), (16, 4097), (-(2**31), 2**31 - 1)])
def test_odd_frame_sizes_are_refused(client, size_px, caplog):
    client.send(int32s(17, *size_px), int32s(1))
    assert client.next_step() == 50
    assert f"frame of {size_px[0]} x {size_px[1]} px refused" in caplog.text


# Commands and requests.


def test_menus(make_served):
    client = make_served().connect()
    client.send(int32s(22), int32s(16))
    assert client.ints(2) == (1, 0)
    assert client.ask(GET_STATE) == b""
    assert client.ask(int32s(23)) == b""
    client.send(messages.pack_rewind_to_state(b"12345"), UP, GIVE_UP, int32s(12), int32s(8), int32s(22))
    assert client.ints(1) == (1,)
    client.send(int32s(17, 4, 3), int32s(5))
    assert client.ints(1) == (4,)
    assert client.read(4 * 3 * 4) == bytes(4 * 3 * 4)
    client.send(messages.pack_command('map "short é.toml"'), FAST, int32s(22), int32s(4))
    assert client.ints(1) == (0,)
    assert client.next_step() == -2590


def test_inputs_are_recorded_until_the_race_is_given_up(client):
    for keys in (b"\0\0\1\0", b"\1\0\1\0", b"\0\0\0\1", b"\0\xff\0\0"):
        client.send(int32s(10), keys, int32s(1))
        client.next_step()
    script = client.ask(int32s(23))
    assert script == (
        b"0.00 press up\n0.05 press left\n0.10 rel left\n0.10 rel up\n0.10 press down\n"
        b"0.15 press right\n0.15 rel down\n"
    )
    client.send(GIVE_UP, int32s(1))
    assert client.next_step() == -2550
    assert client.ask(int32s(23)) == b""


def test_analog_inputs_are_driven_and_recorded(client, served):
    for inputs in ((-32768, 65536, False), (-32768, 65536, True), (65536, 0, True), (0, -65536, False)):
        client.send(messages.pack_set_input(AnalogInput(*inputs)), int32s(1))
        client.next_step()
        steer, gas, brake = inputs
        assert served.race.inputs.controls == (gas > 0, brake or gas < 0, steer / 65536)
    script = client.ask(int32s(23))
    assert script == (
        b"0.00 steer -32768\n0.00 gas 65536\n0.05 press down\n0.10 steer 65536\n0.10 gas 0\n"
        b"0.15 steer 0\n0.15 gas -65536\n0.15 rel down\n"
    )


def test_impossible_inputs_speeds_and_periods_are_refused(client, served, caplog):
    for steer, gas in ((65537, 0), (0, -65537), (2**31 - 1, -(2**31))):
        client.send(messages.pack_set_input(AnalogInput(steer, gas, True)))
    for speed in (float("nan"), float("inf"), -1.0):
        client.send(struct.pack("<if", 6, speed))
    client.send(int32s(19, 0), int32s(19, -50), int32s(1))
    assert client.next_step() == 50
    assert served.race.inputs.controls == (0.0, 0.0, 0.0)
    assert "steer 0, gas -65537 refused; -65536 to 65536 is allowed" in caplog.text
    assert "game speed" in caplog.text
    assert "step period of -50 ms refused" in caplog.text
