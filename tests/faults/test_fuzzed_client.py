"""Our client reads a hostile game's messages: only documented errors come out, in time."""

import contextlib
import random
import socket
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest

from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager, GameKeepsFailingError
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.tmi_interaction.transport import GameError, GameTimeoutError

from . import hostile

TIMEOUT_S = 0.1
WIDTH_PX, HEIGHT_PX = 7, 5
FRAME_BYTES = WIDTH_PX * HEIGHT_PX * 4


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextlib.contextmanager
def hostile_game(listener, stream, *, hangs_up, timeout_s=TIMEOUT_S):
    """A client of a game that sends these bytes and swallows what it is sent."""
    client = TMInterface(listener.getsockname()[1], timeout_s)
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


def fuzz_calls(listener, seed):
    draw = random.Random(seed)
    stream = hostile.from_game(draw, draw.randrange(1, 12), FRAME_BYTES if draw.random() < 0.7 else 0)
    hangs_up = draw.random() < 0.8
    with hostile_game(listener, stream, hangs_up=hangs_up) as client, contextlib.suppress(GameError):
        use_at_random(client, draw, 20)


@pytest.fixture(scope="module")
def fuzz_races(listener, settings, maps_folder):
    """`fuzz_races(seed)` begins a race that looks right, then sends anything; returns how many decisions were made."""
    straight = MapEntry(
        map_name="straight", map_path="straight.npy", reference_line="straight.npy", is_explo=True, fill_buffer=True
    )

    def fuzz(seed):
        draw, has_image = random.Random(seed), bool(seed % 2)
        sides_px = (WIDTH_PX, HEIGHT_PX) if has_image else (0, 0)
        changes = {"image_width_px": sides_px[0], "image_height_px": sides_px[1], "maps_folder": str(maps_folder)}
        int32, good = hostile.int32, bytes(hostile.new_state_blob(2, 2))
        start = int32(5) + int32(1)  # connected, in the menus
        start += b"".join(int32(1) + int32(time_ms) for time_ms in (-100, -50, 0)) + int32(len(good)) + good
        parts = [int32(4) + draw.randbytes(FRAME_BYTES)] if has_image else []
        for step in range(1, draw.randrange(2, 12)):
            blob = good if draw.random() < 0.6 else hostile.state(draw)
            parts.append(int32(1) + int32(50 * step) + int32(len(blob)) + blob)
            if has_image:
                parts.append(int32(4) + draw.randbytes(FRAME_BYTES))
            if draw.random() < 0.2:
                parts.append(hostile.report(draw, FRAME_BYTES) + int32(len(blob)) + blob)
        n_decisions = 0

        def decide(frame, floats):
            nonlocal n_decisions
            n_decisions += 1
            assert np.isfinite(floats).all()
            return PolicyDecision(draw.randrange(12), True, np.zeros(12, np.float32))

        def connect(*_):
            if connections:
                raise GameTimeoutError("once is enough")
            connections.append(opened.enter_context(hostile_game(listener, start + b"".join(parts), hangs_up=True)))
            return connections[0]

        connections = []
        with contextlib.ExitStack() as opened, contextlib.suppress(GameKeepsFailingError):
            game = settings.game.model_copy(update=changes)
            launcher = Mock(port=0, commands_on_connect=(), map_argument=str)
            manager = GameInstanceManager(game, settings.observation, launcher, connect)
            results, _ = manager.rollout(straight, decide)
            assert len(results["state_float"]) == len(results["actions"]) + 1
        return n_decisions

    return fuzz


def test_any_stream_ends_in_a_documented_error(listener):
    for seed in range(100):
        fuzz_calls(listener, seed)


def test_races_end_or_fail_in_a_documented_way(fuzz_races):
    n_decisions = [fuzz_races(seed) for seed in range(100)]
    assert all(sum(n >= 3 for n in n_decisions[mode::2]) > 10 for mode in (0, 1)), "they come far enough"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_more_streams(listener, fuzz_races):
    for seed in range(1000, 6000):
        fuzz_calls(listener, seed)
        fuzz_races(seed)


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
