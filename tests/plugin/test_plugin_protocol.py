"""Every message of the protocol against the executed plugin, byte by byte."""

import logging
import struct
import threading
import time

import numpy as np
import pytest
from plugin_clients import FAST, int32s
from tminterface.structs import SimStateData

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import KeyState, MessageId
from trackmania_rl.protocol.state_blob import StateView, with_last_checkpoint_time_cleared
from trackmania_rl.simulator.game import SimulatedGame
from trackmania_rl.simulator.server import GameServer
from trackmania_rl.tmi_interaction.plugin_files import PLUGIN_FILE, read_version
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface

UP = b"\x0a\x00\x00\x00\x00\x00\x01\x00"
FREEZE = struct.pack("<if", 6, 0.0)
GET_STATE = b"\x09\x00\x00\x00"
GIVE_UP = b"\x0b\x00\x00\x00"
SERVED_WITHIN_S = 5.0


@pytest.fixture(autouse=True)
def _hear_the_log(caplog):
    caplog.set_level(logging.INFO)


# Messages of the game.


def test_the_greeting_stops_the_game_until_it_is_answered(played):
    client = played.connect()
    before = client.ask(GET_STATE)
    time.sleep(0.05)
    assert client.ask(GET_STATE) == before
    client.send(FAST, int32s(5))
    client.next_step()


def test_steps_come_every_10_ms_by_default_and_at_multiples_of_the_period(played):
    client = played.connect()
    client.send(FAST, GIVE_UP, int32s(5))
    seen_ms = []
    for _ in range(10):
        seen_ms.append(client.next_step())
        client.send(int32s(1))
    assert seen_ms == list(range(-2590, -2490, 10))
    client.next_step()
    client.send(int32s(19, 70), int32s(1))
    assert [client.next_step(), client.send(int32s(1)), client.next_step()] == [-2450, None, -2380]


def test_a_wrong_answer_and_unknown_messages_are_swallowed_and_logged(client, caplog):
    client.send(int32s(2), int32s(3), int32s(4), int32s(5), int32s(0), int32s(-1), int32s(24), int32s(1))
    assert client.next_step() == 50
    assert "[Python Link] client sent message 24 while 1 is to be answered; skipped" in caplog.text


def test_noise_does_not_fill_the_log(client, caplog):
    client.send(int32s(*range(100, 5000)), int32s(1))
    assert client.next_step() == 50
    assert len(caplog.records) < 30
    assert "no more will be logged" in caplog.text


@pytest.mark.parametrize(("chunk_bytes", "pause_s"), [(10_000, 0.0), (1, 0.0), (3, 0.001)])
def test_many_messages_may_come_at_once_or_in_pieces(client, played, chunk_bytes, pause_s):
    camera_resets = played.game.camera_resets
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
            int32s(1),
        ]
    )
    for begin in range(0, len(stream), chunk_bytes):
        client.send(stream[begin : begin + chunk_bytes])
        time.sleep(pause_s)
    assert client.ints(2) == (0, 0)
    assert client.next_step() == 50
    assert played.game.commands[-1] == "cam 2"
    assert played.game.camera_resets == camera_resets + 1
    assert played.game.interface_shown is False


def test_a_state_in_many_pieces_is_put_together(client):
    start = client.ask(GET_STATE)
    client.send(UP, int32s(1))
    assert client.next_step() == 50
    message = messages.pack_rewind_to_state(start)
    for begin in range(0, len(message), 1001):
        client.send(message[begin : begin + 1001])
        time.sleep(0.003)
    assert client.ask(GET_STATE) == start


def test_the_whole_race(client, played):
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
            client.send(int32s(16))
            assert client.ints(1) == (len(counts) == 3,)
            if len(counts) < 3:
                client.send(int32s(2))
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert last_step_ms - 10 <= time_ms < last_step_ms + 50, "the step of a tick comes before its checkpoint"
    client.send(int32s(2))
    for _ in range(3):  # the race is over: one step per tick, and the clock stands
        assert client.next_step() == time_ms
        client.send(int32s(16), int32s(1))
        assert client.ints(1) == (1,)


@pytest.mark.parametrize("how", ["by message 12", "by a rewind"])
def test_a_finish_is_undone_in_its_own_wait(client, how):
    client.send(UP, int32s(1))
    while (message_id := client.ints(1)[0]) == 1 or client.ints(2) != (3, 3):
        if message_id == 1:
            client.ints(1)
        client.send(int32s(message_id))
    if how == "by message 12":
        client.send(int32s(12))
    else:
        blob = client.ask(GET_STATE)
        client.send(messages.pack_rewind_to_state(with_last_checkpoint_time_cleared(blob)))
    client.send(int32s(16))
    assert client.ints(1) == (0,)


def test_laps(make_played, two_lap_track):
    client = make_played(two_lap_track).connect()
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


def test_the_state_is_one_that_the_package_reads(client, played):
    blob = client.ask(GET_STATE)
    assert len(blob) == 8356 + 3 * 4 + 3 * 8
    assert SimStateData(blob).player_info.race_time == 0
    assert blob == played.race.save_state()


def test_the_step_after_a_rewind_is_the_next_one(client):
    start = client.ask(GET_STATE)
    client.send(int32s(19, 10), UP, int32s(1))
    after = []
    for _ in range(3):
        for time_ms in (10, 20, 30):
            assert client.next_step() == time_ms
            if time_ms < 30:
                client.send(int32s(1))
        after.append(client.ask(GET_STATE))
        client.send(messages.pack_rewind_to_state(start), UP, int32s(1))
    assert after[0] == after[1] == after[2]


def test_rewinding_in_the_real_clients_order_is_exact(client):
    start = client.ask(GET_STATE)
    traces = []
    for _ in range(2):
        client.send(messages.pack_rewind_to_state(start))
        trace = []
        for action in range(20):
            trace.append(client.ask(GET_STATE))
            client.send(int32s(8), FREEZE, int32s(17, 16, 12), int32s(1))
            assert client.ints(1) == (4,)
            trace.append(client.read(16 * 12 * 4))
            client.send(messages.pack_set_input(KeyState(action % 3 == 0, False, True, False)), FAST, int32s(4))
            assert client.next_step() == 50 * (action + 1)
        traces.append(trace)
    assert traces[0] == traces[1]


def changed(blob, offset, content):
    copy = bytearray(blob)
    copy[offset : offset + len(content)] = content
    return bytes(copy)


DAMAGES = {
    "empty": (lambda blob: b"", "is too short"),
    "short": (lambda blob: blob[:-1], "claims 3 checkpoint states"),
    "long": (lambda blob: blob + bytes(8), "claims 3 checkpoint states and 3 times"),
    "noise": (lambda blob: bytes(range(256)) * 40, "claims"),
    "negative count": (lambda blob: changed(blob, 8348, int32s(-1)), "claims 4294967295 checkpoint states"),
    "infinite position": (lambda blob: changed(blob, 724, struct.pack("<f", np.inf)), "not finite"),
    "velocity that is no number": (lambda blob: changed(blob, 744, struct.pack("<f", np.nan)), "not finite"),
    "endless turning": (lambda blob: changed(blob, 768, struct.pack("<f", -np.inf)), "not finite"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_impossible_state_is_refused_and_the_race_goes_on(client, caplog, damage):
    make, reason = DAMAGES[damage]
    blob = client.ask(GET_STATE)
    client.send(messages.pack_rewind_to_state(make(blob)))
    assert client.ask(GET_STATE) == blob
    assert "rewind refused: state of" in caplog.text
    assert reason in caplog.text
    client.send(int32s(1))
    assert client.next_step() == 50


# Frames.


def frozen_frame(client, width_px=16, height_px=12):
    client.send(FREEZE, int32s(17, width_px, height_px), int32s(1))
    assert client.ints(1) == (4,)
    return client.read(width_px * height_px * 4)


@pytest.mark.parametrize(("width_px", "height_px"), [(16, 12), (160, 120), (1, 1), (640, 480)])
def test_a_frame_shows_the_frozen_instant(client, played, width_px, height_px):
    expected = played.race.render(width_px, height_px).tobytes()
    assert frozen_frame(client, width_px, height_px) == expected
    client.send(FAST, int32s(4))
    assert client.next_step() == 50


def test_a_frame_request_can_be_withdrawn(client):
    client.send(int32s(17, 16, 12), int32s(20), int32s(1))
    assert client.next_step() == 50


def test_a_request_made_in_the_frames_own_wait_is_lost(client):
    frozen_frame(client)
    client.send(int32s(17, 16, 12), FAST, int32s(4))
    assert client.next_step() == 50


@pytest.mark.parametrize("size_px", [(0, 12), (16, -1), (4097, 12), (16, 4097), (-(2**31), 2**31 - 1)])
def test_odd_frame_sizes_are_ignored(client, size_px, caplog):
    client.send(int32s(17, *size_px), int32s(1))
    assert client.next_step() == 50
    assert f"frame of {size_px[0]} x {size_px[1]} px refused" in caplog.text


# Commands and requests.


def test_menus(make_played):
    client = make_played().connect()
    client.send(int32s(22), int32s(16))
    assert client.ints(2) == (1, 0)
    assert client.ask(GET_STATE) == b""
    assert client.ask(int32s(23)) == b""
    client.send(messages.pack_rewind_to_state(b"12345"), UP, GIVE_UP, int32s(12), int32s(8), int32s(22))
    assert client.ints(1) == (1,)
    client.send(int32s(17, 4, 3), int32s(5))
    assert client.ints(1) == (4,)
    assert client.read(48) == bytes(48)
    client.send(messages.pack_command('map "short é.toml"'), FAST, int32s(22), int32s(4))
    assert client.ints(1) == (0,)
    assert client.next_step() == -2590


def test_unknown_commands_are_accepted(client):
    for text in ("cam 2", "set autologin x", "toggle_console", "é" * 100, "x" * 100_000, "", "'"):
        client.send(messages.pack_command(text))
    client.send(messages.pack_bytes(MessageId.COMMAND, b"\xff\xfe\0 map"), int32s(1))
    assert client.next_step() == 50


def test_give_up_begins_anew(client):
    client.send(UP, int32s(1))
    client.next_step()
    client.send(GIVE_UP, int32s(1))
    assert client.next_step() == -2550
    assert client.ask(int32s(23)) == b""


def test_inputs_are_recorded(client):
    for keys in (b"\0\0\1\0", b"\1\0\1\0", b"\0\0\0\1", b"\0\xff\0\0"):
        client.send(int32s(10), keys, int32s(1))
        client.next_step()
    script = client.ask(int32s(23))
    assert script == (
        b"0.00 press up\n0.05 press left\n0.10 rel left\n0.10 rel up\n0.10 press down\n"
        b"0.15 press right\n0.15 rel down\n"
    )


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), -1.0])
def test_impossible_speeds_and_periods_are_ignored(client, speed, caplog):
    client.send(struct.pack("<if", 6, speed), int32s(19, 0), int32s(19, -50), int32s(1))
    assert client.next_step() == 50
    assert "game speed" in caplog.text
    assert "step period of -50 ms refused" in caplog.text


# The version.


def test_our_client_learns_the_version_and_others_see_no_difference(make_played):
    client = make_played().connect()
    client.send(int32s(22), messages.pack_command(messages.LINK_VERSION_COMMAND), int32s(22), int32s(22))
    before, asked, after = client.ints(3)
    assert (before, after) == (1, 1)
    assert asked & 1 == 1
    assert messages.link_version(asked) >= 1
    assert messages.link_version(before) == 0


def test_the_console_knows_the_version_too(client, played, caplog):
    assert played.game.host.run_custom_command(messages.LINK_VERSION_COMMAND)
    assert f"listening on port {played.port}, a client is connected" in caplog.text


def test_our_client_takes_a_game_without_our_plugin_for_version_0(tmp_path):
    server = GameServer(SimulatedGame(tmp_path), port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        client = TMInterface(server.port, timeout_s=5)
        client.next_event()
        assert client.plugin_version() == 0
        assert client.is_in_menus()
        client.close()
    finally:
        server.stop()
        thread.join(5)


def test_our_client_learns_the_version_of_our_plugin(make_played):
    client = TMInterface(make_played().port, timeout_s=5)
    client.next_event()
    assert client.plugin_version() == read_version(PLUGIN_FILE)
    assert client.is_in_menus()
    client.close()
