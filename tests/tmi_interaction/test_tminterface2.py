"""The socket client byte by byte: what it sends, how it reads, and how failures surface."""

import socket
import threading
import time

import numpy as np
import pytest

from trackmania_rl.protocol.messages import KeyState, MessageId
from trackmania_rl.tmi_interaction import tminterface2
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.tmi_interaction.transport import GameConnectionError, GameProtocolError, GameTimeoutError


def i32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        yield server


@pytest.fixture(params=["the socket waits", "select waits"])
def any_way_of_waiting(request, monkeypatch):
    """As elsewhere, and as on Windows."""
    monkeypatch.setattr(tminterface2, "WAITS_IN_SELECT", request.param == "select waits")


@pytest.fixture
def pair(listener):
    """(client under test, the game's end of the connection)."""
    client = TMInterface(listener.getsockname()[1], timeout_s=5)
    game, _ = listener.accept()
    game.settimeout(5)
    yield client, game
    client.close()
    game.close()


def received(game: socket.socket, size: int) -> bytes:
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
        (client.give_up, i32(11)),
        (client.prevent_finish, i32(12)),
        (lambda: client.command('map "é"'), i32(14, 8) + 'map "é"'.encode()),
        (lambda: client.set_timeout(600_000_000), i32(15, 600_000_000)),
        (lambda: client.request_frame(160, 120), i32(17, 160, 120)),
        (lambda: client.set_step_period(50), i32(19, 50)),
        (client.unrequest_frame, i32(20)),
        (lambda: client.toggle_interface(False), i32(21, 0)),
    )
    for request, _ in requests:
        request()
    client.flush()
    expected = b"".join(sent for _, sent in requests)
    assert received(game, len(expected)) == expected


def test_requests_wait_for_the_answer_and_leave_together(pair):
    client, game = pair
    game.sendall(i32(1, -50))
    event = client.next_event()
    client.set_speed(1.0)
    game.settimeout(0.1)
    with pytest.raises(TimeoutError):
        game.recv(1)
    client.answer(event, then_get_state=True)
    assert received(game, 16) == i32(6) + b"\0\0\x80\x3f" + i32(1, 9)


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
    stream = i32(5) + i32(1, -100) + i32(2, 1, 3) + i32(3, 1, 1) + i32(4) + pixels.tobytes() + i32(1, 50)

    def send() -> None:
        for i in range(len(stream)):
            game.sendall(stream[i : i + 1])

    sender = threading.Thread(target=send)
    sender.start()
    ids = []
    for _ in range(4):
        event = client.next_event()
        ids.append((event.id, event.race_time_ms, event.current, event.target))
    assert ids == [
        (MessageId.ON_CONNECT, 0, 0, 0),
        (MessageId.RUN_STEP, -100, 0, 0),
        (MessageId.CHECKPOINT_COUNT_CHANGED, 0, 1, 3),
        (MessageId.LAP_COUNT_CHANGED, 0, 1, 1),
    ]
    frame = client.next_event().frame
    np.testing.assert_array_equal(frame, pixels)
    assert client.next_event().race_time_ms == 50
    sender.join()


def test_a_state_under_way_comes_with_whatever_report_is_next(pair):
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


def test_many_messages_in_one_go(pair):
    client, game = pair
    stream = b"".join(i32(1, 50 * i) for i in range(30_000))
    threading.Thread(target=game.sendall, args=(stream,)).start()
    assert [client.next_event().race_time_ms for _ in range(30_000)] == list(range(0, 1_500_000, 50))


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


def test_a_closed_connection_is_noticed_at_once(any_way_of_waiting, pair):
    client, game = pair
    game.sendall(i32(1))  # half a message
    game.close()
    with pytest.raises(GameConnectionError, match="closed the connection"):
        client.next_event()


def test_a_reset_connection_is_a_connection_error(any_way_of_waiting, pair):
    client, game = pair
    game.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    game.close()
    time.sleep(0.05)
    with pytest.raises(GameConnectionError, match="failed to receive from"):
        client.next_event()


def test_silence_is_a_timeout(any_way_of_waiting, listener):
    client = TMInterface(listener.getsockname()[1], timeout_s=0.1)
    game, _ = listener.accept()
    began_s = time.monotonic()
    with pytest.raises(GameTimeoutError, match=r"silent for 0\.1 s"):
        client.next_event()
    assert 0.05 < time.monotonic() - began_s < 2
    client.close()
    game.close()


def test_goodbye_is_said(pair):
    client, game = pair
    client.close()
    assert received(game, 4) == i32(13)
    assert game.recv(1) == b""


def test_nobody_listening_is_reported_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        free_port = server.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(GameConnectionError, match=f"port {free_port}"):
        TMInterface(free_port, timeout_s=1, connect_within_s=0.1)
    assert time.monotonic() - began_s < 2


def test_a_wait_may_be_shorter_than_usual(any_way_of_waiting, listener):
    client = TMInterface(listener.getsockname()[1], timeout_s=30)
    game, _ = listener.accept()
    began_s = time.monotonic()
    for within_s in (0.2, 0.0):
        with pytest.raises(GameTimeoutError):
            client.next_event(within_s)
    assert 0.1 < time.monotonic() - began_s < 5
    game.sendall(i32(1, 50))
    assert client.next_event(60).race_time_ms == 50
    client.close()
    game.close()


def test_somebody_is_told_again_and_again_that_the_game_is_silent(any_way_of_waiting, listener, monkeypatch):
    monkeypatch.setattr(tminterface2, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(tminterface2, "SILENCE_S", 0.1)
    n_times_told = 0

    def show_the_window():
        nonlocal n_times_told
        n_times_told += 1
        if n_times_told == 3:
            game.sendall(i32(1, 50))

    client = TMInterface(listener.getsockname()[1], 30, show_the_window)
    game, _ = listener.accept()
    assert client.next_event().race_time_ms == 50
    assert n_times_told == 3
    client.close()
    game.close()


def test_a_game_that_is_silent_for_long_is_given_up_although_somebody_was_told(
    any_way_of_waiting, listener, monkeypatch
):
    monkeypatch.setattr(tminterface2, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(tminterface2, "SILENCE_S", 0.1)
    told = []
    client = TMInterface(listener.getsockname()[1], 0.4, lambda: told.append(True))
    game, _ = listener.accept()
    began_s = time.monotonic()
    with pytest.raises(GameTimeoutError, match=r"silent for 0\.4 s"):
        client.next_event()
    assert 0.3 < time.monotonic() - began_s < 2
    assert told
    client.close()
    game.close()


def test_ctrl_c_is_heard_between_two_short_waits_on_windows(listener, monkeypatch):
    waits_s = []

    def select(readers, writers, others, timeout_s):
        waits_s.append(timeout_s)
        if len(waits_s) == 2:
            raise KeyboardInterrupt
        return [], [], []

    client = TMInterface(listener.getsockname()[1], 500)
    monkeypatch.setattr(tminterface2, "WAITS_IN_SELECT", True)
    monkeypatch.setattr(tminterface2.select, "select", select)
    with pytest.raises(KeyboardInterrupt):
        client.next_event()
    assert waits_s == [0.5, 0.5]
    client.close()
