"""The simulated game reads a hostile client's messages: it goes on and serves the next client."""

import contextlib
import random
import socket
import struct
import threading

import pytest

from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer

from . import hostile

SERVED_WITHIN_S = 60.0


class Served:
    """A game in a thread of its own."""

    def __init__(self, maps_folder):
        self.game = SimulatedGame(maps_folder, maps_folder)
        self.game.load_map("straight.npy").advance()
        self.game.race.render(4, 4)
        self.server = GameServer(self.game, port=0)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=SERVED_WITHIN_S)

    def close(self):
        self.server.stop()
        self.thread.join(SERVED_WITHIN_S)
        assert not self.thread.is_alive()


def is_served(served):
    """Whether a fresh client is greeted, and its race begins at the first step."""
    with served.connect() as client, client.makefile("rb") as waiting:
        assert waiting.read(4) == hostile.int32(5)
        # Full speed, steps every 50 ms, the map anew, go on.
        begin = struct.pack("<if", 6, 80.0) + hostile.int32(19) + hostile.int32(50)
        command = b'map "straight.npy"'
        client.sendall(begin + hostile.int32(14) + hostile.int32(len(command)) + command + hostile.int32(5))
        assert waiting.read(8) == hostile.int32(1) + hostile.int32(-2550)
        client.sendall(hostile.int32(13))
    return True


def fuzz(served, seed):
    draw = random.Random(seed)
    stream = hostile.from_client(draw, draw.randrange(1, 60))
    with served.connect() as client, contextlib.suppress(OSError):
        client.settimeout(0.3)
        # A timeout of 100 ms at first: the default of 2 s would hold up the test.
        client.sendall(hostile.int32(15) + struct.pack("<I", 100) + stream)
        if draw.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


@pytest.fixture(scope="module")
def served(straight_folder):
    running = Served(straight_folder)
    yield running
    running.close()


@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(1000, 3000), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    ids=["few", "many"],
)
def test_after_any_stream_a_fresh_client_is_served(served, seeds):
    for seed in seeds:
        fuzz(served, seed)
        assert is_served(served), f"seed {seed}"
    assert served.thread.is_alive()
