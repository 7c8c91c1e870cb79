"""The socket client byte by byte: requests, answers and errors."""

import socket
import threading

import numpy as np
import pytest

from trackmania_rl.protocol.messages import MAX_PAYLOAD_BYTES, AnalogInput, KeyState, MessageId
from trackmania_rl.tmi_interaction import tminterface2
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.tminterface2 import (
    GameConnectionError,
    GameProtocolError,
    GameTimeoutError,
    TMInterface,
)

GENEROUS_S = 60.0


def i32(*numbers):
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


@pytest.fixture(params=["the socket waits", "select waits"])
def any_way_of_waiting(request, monkeypatch):
    """As elsewhere, and as on Windows."""
    monkeypatch.setattr(tminterface2, "WAITS_IN_SELECT", request.param == "select waits")


@pytest.fixture
def connect():
    """`connect(timeout_s, ...)` returns (client under test, the game's end of the connection)."""
    opened = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def make(timeout_s=GENEROUS_S, *arguments):
            client = TMInterface(server.getsockname()[1], timeout_s, *arguments)
            game, _ = server.accept()
            game.settimeout(GENEROUS_S)
            opened.extend((client, game))
            return client, game

        yield make
        for end in opened:
            end.close()


@pytest.fixture
def pair(connect):
    return connect()


def received(game, size):
    data = b""
    while len(data) < size:
        data += game.recv(size - len(data))
    return data


def test_every_request_has_the_documented_bytes(pair):
    client, game = pair
    requests = (
        (lambda: client.set_speed(0.5), i32(6) + b"\0\0\0\x3f"),
        (lambda: client.rewind_to_state(b"abc"), i32(7, 3) + b"abc"),
        (client.rewind_to_current_state, i32(8)),
        (lambda: client.set_input(KeyState(True, False, True, False)), i32(10) + b"\1\0\1\0"),
        (lambda: client.set_input(KeyState(False, True, False, True)), i32(10) + b"\0\1\0\1"),
        (client.give_up, i32(11)),
        (client.prevent_finish, i32(12)),
        (lambda: client.command('map "é"'), i32(14, 8) + 'map "é"'.encode()),
        (lambda: client.set_timeout(600_000_000), i32(15, 600_000_000)),
        (lambda: client.request_frame(160, 120), i32(17, 160, 120)),
        (lambda: client.set_step_period(50), i32(19, 50)),
        (client.unrequest_frame, i32(20)),
        (lambda: client.toggle_interface(False), i32(21, 0)),
        (lambda: client.set_input(AnalogInput(-3, 65536, True)), i32(24, -3, 65536) + b"\1"),
    )
    for request, _ in requests:
        request()
    client.flush()
    expected = b"".join(sent for _, sent in requests)
    assert received(game, len(expected)) == expected
    client.close()
    assert received(game, 4) == i32(13), "goodbye"
    assert game.recv(1) == b""


def test_the_ids_are_the_23_of_the_protocol_and_our_own():
    assert sorted(MessageId) == [*range(1, 24), MessageId.SET_ANALOG_INPUT]


def test_a_payload_the_game_would_refuse_is_not_sent(pair):
    with pytest.raises(ValueError, match=f"{MAX_PAYLOAD_BYTES + 1} bytes"):
        pair[0].rewind_to_state(bytes(MAX_PAYLOAD_BYTES + 1))


def test_questions_are_answered(pair):
    client, game = pair
    game.sendall(i32(4) + b"blob" + i32(1) + i32(0))
    assert client.get_state() == b"blob"
    assert client.is_race_finished() is True
    assert client.is_in_menus() is False
    assert received(game, 12) == i32(9, 16, 22)


def test_reports_are_read_in_any_slices(any_way_of_waiting, pair):
    client, game = pair
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 4), dtype=np.uint8)
    client.request_frame(2, 3)
    many = b"".join(i32(1, 50 * i) for i in range(5_000))
    stream = i32(5) + i32(1, -100) + i32(2, 1, 3) + i32(3, 1, 1) + i32(4) + pixels.tobytes()

    def send():
        for i in range(len(stream)):
            game.sendall(stream[i : i + 1])
        game.sendall(many)

    sender = threading.Thread(target=send)
    sender.start()
    events = [client.next_event() for _ in range(5)]
    assert [(event.id, event.race_time_ms, event.current, event.target) for event in events] == [
        (MessageId.ON_CONNECT, 0, 0, 0),
        (MessageId.RUN_STEP, -100, 0, 0),
        (MessageId.CHECKPOINT_COUNT_CHANGED, 0, 1, 3),
        (MessageId.LAP_COUNT_CHANGED, 0, 1, 1),
        (MessageId.REQUESTED_FRAME, 0, 0, 0),
    ]
    np.testing.assert_array_equal(events[-1].frame, pixels)
    assert [client.next_event().race_time_ms for _ in range(5_000)] == list(range(0, 250_000, 50))
    sender.join()


def test_a_requested_state_comes_with_the_next_report_of_any_kind(pair):
    client, game = pair
    pixels = np.full((1, 1, 4), 7, dtype=np.uint8)
    for report, reply in ((i32(1, 50), b"first"), (i32(2, 1, 2), b""), (i32(4) + pixels.tobytes(), b"x" * 300_000)):
        client.request_frame(1, 1)
        game.sendall(i32(1, 0))
        client.answer(client.next_event(), then_get_state=True)
        game.sendall(report + i32(len(reply)) + reply)
        event = client.next_event()
        assert event.state == reply
    assert event.frame.tolist() == pixels.tolist()
    game.sendall(i32(1, 100))
    assert client.next_event().state is None


@pytest.mark.parametrize("raw_id", [0, 6, 99, -1, 2**31 - 1])
def test_an_unknown_report_is_refused(pair, raw_id):
    client, game = pair
    game.sendall(i32(raw_id))
    with pytest.raises(GameProtocolError, match=f"message id {raw_id}"):
        client.next_event()


@pytest.mark.parametrize("size", [-1, (1 << 20) + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused(pair, size):
    client, game = pair
    game.sendall(i32(size))
    with pytest.raises(GameProtocolError, match=f"announced {size} bytes"):
        client.get_state()


@pytest.mark.parametrize(
    ("is_reset", "told"), [(False, "closed the connection"), (True, "closed the connection|failed to receive from")]
)
def test_the_end_of_the_connection_is_an_error(any_way_of_waiting, pair, is_reset, told):
    client, game = pair
    game.sendall(i32(1))  # half a message
    if is_reset:
        game.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    game.close()
    with pytest.raises(GameConnectionError, match=told):
        client.next_event()


def test_a_port_without_a_listener_is_an_error():
    port = find_free_port()
    with pytest.raises(GameConnectionError, match=f"port {port}"):
        TMInterface(port, timeout_s=1, connect_within_s=0.1)


def test_silence_is_a_timeout_and_a_wait_may_be_shorter_than_usual(any_way_of_waiting, connect):
    client, _ = connect(0.1)
    with pytest.raises(GameTimeoutError, match=r"silent for 0\.1 s"):
        client.next_event()
    client, game = connect(10_000)
    for within_s in (0.1, 0.0):
        with pytest.raises(GameTimeoutError):
            client.next_event(within_s)
    game.sendall(i32(1, 50))
    assert client.next_event().race_time_ms == 50
