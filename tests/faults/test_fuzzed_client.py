"""Our client reads a hostile game's messages: only documented errors come out, in time."""

import contextlib
import random
import socket
import threading
import time

import pytest

from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.tmi_interaction.tminterface2 import GameError, GameTimeoutError, TMInterface

from . import hostile

TIMEOUT_S = 0.1
WIDTH_PX, HEIGHT_PX = 7, 5
FRAME_BYTES = WIDTH_PX * HEIGHT_PX * 4


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextlib.contextmanager
def hostile_game(listener, stream, *, hangs_up):
    """A client of a game that sends these bytes and ignores its requests."""
    client = TMInterface(listener.getsockname()[1], TIMEOUT_S)
    connection, _ = listener.accept()

    def serve():
        with contextlib.suppress(OSError):
            connection.sendall(stream)
            if hangs_up:
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield client
    finally:
        client.close()
        thread.join(60)
        assert not thread.is_alive()
        connection.close()


def use_at_random(client, draw, n_calls):
    """Call any methods; stops at the first error."""
    event = None
    for _ in range(n_calls):
        match draw.randrange(9):
            case 0 | 1 | 2 | 3:
                if draw.random() < 0.5:
                    client.request_frame(WIDTH_PX, HEIGHT_PX)
                event = client.next_event()
                if event.frame is not None:
                    assert event.frame.shape in ((0, 0, 4), (HEIGHT_PX, WIDTH_PX, 4))
                client.answer(event, then_get_state=draw.random() < 0.5)
            case 4:
                client.get_state()
            case 5:
                assert client.is_race_finished() in (True, False)
            case 6:
                assert client.is_in_menus() in (True, False)
            case 7:
                client.set_input(KeyState(True, False, True, False))
            case 8:
                client.rewind_to_state(bytes(draw.randrange(9000)))


@pytest.mark.parametrize(
    "seeds",
    [range(100), pytest.param(range(1000, 6000), marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["few", "many"],
)
def test_any_stream_ends_in_a_documented_error(listener, seeds):
    for seed in seeds:
        draw = random.Random(seed)
        stream = hostile.from_game(draw, draw.randrange(1, 12), FRAME_BYTES if draw.random() < 0.7 else 0)
        hangs_up = draw.random() < 0.8
        with hostile_game(listener, stream, hangs_up=hangs_up) as client, contextlib.suppress(GameError):
            use_at_random(client, draw, 20)


def test_a_message_that_trickles_in_takes_no_longer_than_the_timeout(listener):
    client = TMInterface(listener.getsockname()[1], timeout_s=0.4)
    connection, _ = listener.accept()
    client.request_frame(100, 100)

    def trickle():
        with contextlib.suppress(OSError):
            connection.sendall(hostile.int32(4))
            for _ in range(5000):
                connection.sendall(b"\0" * 7)
                time.sleep(0.02)

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(GameTimeoutError, match=r"a message of the game at port \d+ took over 0\.4 s"):
        client.next_event()
    client.close()
    connection.close()
    thread.join(60)


def test_a_game_that_never_reads_is_noticed(listener):
    client = TMInterface(listener.getsockname()[1], timeout_s=0.3)
    connection, _ = listener.accept()
    for _ in range(20):
        client.rewind_to_state(bytes(1 << 20))
    with pytest.raises(GameTimeoutError):
        client.flush()
    client.close()
    connection.close()
