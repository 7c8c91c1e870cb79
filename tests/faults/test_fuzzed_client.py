"""Our client reads what a hostile game sends: only documented errors come out, in time, and memory stays."""

import contextlib
import random
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest

from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.race.observation import FeatureBuilder, ObservationLayout
from trackmania_rl.race.types import RaceEnd
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.tmi_interaction.race_machine import LATEST_FINISH_ACTIONS, RaceMachine
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.tmi_interaction.transport import GameError, GameTimeoutError
from trackmania_rl.track.game_map import GameMap

from . import hostile

TIMEOUT_S = 0.1
WIDTH_PX, HEIGHT_PX = 7, 5
FRAME_BYTES = WIDTH_PX * HEIGHT_PX * 4


class HostileGame:
    """Listens, sends a stream to each client, and swallows what that one says."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    @contextlib.contextmanager
    def client(self, stream, *, hangs_up, timeout_s=TIMEOUT_S):
        """A client that is sent these bytes."""
        client = TMInterface(self.port, timeout_s)
        connection, _ = self.listener.accept()
        thread = threading.Thread(target=self._serve, args=(connection, stream, hangs_up))
        thread.start()
        try:
            yield client
        finally:
            client.close()
            thread.join(10)
            assert not thread.is_alive()
            connection.close()

    @staticmethod
    def _serve(connection, stream, hangs_up):
        with contextlib.suppress(OSError):
            connection.sendall(stream)
            if hangs_up:
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


@pytest.fixture(scope="module")
def game():
    hostile_game = HostileGame()
    yield hostile_game
    hostile_game.listener.close()


@pytest.fixture(scope="module")
def machine_of(settings):
    image = {"image_width_px": WIDTH_PX, "image_height_px": HEIGHT_PX}

    def make(transport, has_image):
        game_settings = settings.game.model_copy(update=image if has_image else {})
        layout = ObservationLayout.from_settings(settings.observation)
        return RaceMachine(transport, game_settings, FeatureBuilder(layout, game_settings))

    return make


@pytest.fixture(scope="module")
def straight_map(settings):
    line_m = np.arange(0, 60, 0.5)[:, None] * np.array([0.0, 0.0, 1.0])
    return GameMap("straight", "straight.npy", VirtualCheckpoints.from_reference_line(line_m, settings.observation))


def use_at_random(client, draw, n_calls):
    """Call whatever there is; stops at the first error."""
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


def fuzz_calls(game, seed):
    draw = random.Random(seed)
    stream = hostile.from_game(draw, draw.randrange(1, 12), FRAME_BYTES if draw.random() < 0.7 else 0)
    began_s = time.monotonic()
    with game.client(stream, hangs_up=draw.random() < 0.8) as client, contextlib.suppress(GameError):
        use_at_random(client, draw, 20)
    assert time.monotonic() - began_s < 21 * TIMEOUT_S + 5, f"seed {seed}"


def fuzz_races(game, machine_of, straight_map, seed):
    """A beginning of a race that looks right, then anything; returns how many steps were driven."""
    draw, has_image = random.Random(seed), bool(seed % 2)
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
    began_s, n_steps = time.monotonic(), 0
    with game.client(start + b"".join(parts), hangs_up=draw.random() < 0.8) as client:
        machine = machine_of(client, has_image)
        with contextlib.suppress(GameError):
            seen = machine.reset(straight_map)
            while not isinstance(seen, RaceEnd):
                assert np.isfinite(seen.floats).all()
                before, seen = seen, machine.step(draw.randrange(12))
                n_steps += 1
            if seen.is_finished:
                assert -50 < seen.race_time_ms - before.race_time_ms <= 50 * LATEST_FINISH_ACTIONS
    assert time.monotonic() - began_s < 30, f"seed {seed}"
    return n_steps


def test_any_stream_ends_in_a_documented_error(game):
    for seed in range(150):
        fuzz_calls(game, seed)


def test_races_end_or_fail_in_a_documented_way(game, machine_of, straight_map):
    steps = [fuzz_races(game, machine_of, straight_map, seed) for seed in range(150)]
    assert all(sum(1 for n_steps in steps[mode::2] if n_steps >= 3) > 20 for mode in (0, 1)), "they come far enough"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_more_streams(game, machine_of, straight_map):
    for seed in range(1000, 6000):
        fuzz_calls(game, seed)
        fuzz_races(game, machine_of, straight_map, seed)


def test_memory_does_not_grow(game):
    for seed in range(20):
        fuzz_calls(game, seed)
    tracemalloc.start()
    fuzz_calls(game, 1)
    before, _ = tracemalloc.get_traced_memory()
    for seed in range(20, 60):
        fuzz_calls(game, seed)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200_000


def test_a_message_that_trickles_in_takes_no_longer_than_the_timeout(game):
    client = TMInterface(game.port, timeout_s=0.4)
    connection, _ = game.listener.accept()
    client.request_frame(100, 100)

    def trickle():
        with contextlib.suppress(OSError):
            connection.sendall(hostile.int32(4))
            for _ in range(200):
                connection.sendall(b"\0" * 7)
                time.sleep(0.02)

    thread = threading.Thread(target=trickle)
    thread.start()
    began_s = time.monotonic()
    with pytest.raises(GameTimeoutError, match=r"a message of the game at port \d+ took over 0\.4 s"):
        client.next_event()
    assert 0.3 < time.monotonic() - began_s < 3
    client.close()
    connection.close()
    thread.join(5)


def test_a_game_that_never_reads_is_noticed(game):
    client = TMInterface(game.port, timeout_s=0.3)
    connection, _ = game.listener.accept()
    began_s = time.monotonic()
    for _ in range(100):
        client.rewind_to_state(bytes(1 << 20))
    with pytest.raises(GameTimeoutError):
        client.flush()
    assert time.monotonic() - began_s < 10
    client.close()
    connection.close()
