"""A simulated game that is sent streams of bytes that no client sends.

As a program, `python -m tests.faults.fuzzed_game FOLDER_OF_MAPS` tells by how many bytes its memory grew: by itself,
since where many tests ran before, other threads and a slow garbage collection of all that they left are measured, too.
"""

import contextlib
import gc
import logging
import random
import socket
import struct
import sys
import threading
import time
import tracemalloc
from pathlib import Path

from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer

from . import hostile

SERVED_WITHIN_S = 5.0


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
        self.thread.join(5)
        assert not self.thread.is_alive()


def is_served(served):
    """Whether a fresh client is greeted, and its race begins at the first step."""
    with served.connect() as client:
        waiting = client.makefile("rb")
        assert waiting.read(4) == hostile.int32(5)
        # Full speed, steps every 50 ms, the map anew, go on.
        begin = struct.pack("<if", 6, 80.0) + hostile.int32(19) + hostile.int32(50)
        command = b'map "straight.npy"'
        client.sendall(begin + hostile.int32(14) + hostile.int32(len(command)) + command + hostile.int32(5))
        assert waiting.read(4) == hostile.int32(1)
        assert waiting.read(4) == hostile.int32(-2550)
        client.sendall(hostile.int32(13))
        waiting.close()
    return True


def fuzz(served, seed):
    draw = random.Random(seed)
    stream = hostile.from_client(draw, draw.randrange(1, 60))
    with served.connect() as client:
        client.settimeout(0.3)
        with contextlib.suppress(OSError):
            # Half of them give the default timeout of 2 s no chance to hold up the test.
            client.sendall(hostile.int32(15) + struct.pack("<I", 100) + stream)
            if draw.random() < 0.5:
                client.shutdown(socket.SHUT_WR)
            end_s = time.monotonic() + 0.3
            while time.monotonic() < end_s and client.recv(1 << 16):
                pass


def memory_with_one_client(served):
    """Bytes in use while a client has been greeted: the one before it, and its buffer of a megabyte, are gone then."""
    with served.connect() as client:
        assert client.recv(4, socket.MSG_WAITALL) == hostile.int32(5)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def growth_of_memory(served):
    """Bytes that 30 hostile clients leave behind."""
    for seed in range(40):  # whatever they need has been loaded by then
        fuzz(served, seed)
    tracemalloc.start()
    fuzz(served, 1)
    assert is_served(served)
    before = memory_with_one_client(served)
    for seed in range(10, 40):
        fuzz(served, seed)
    assert is_served(served)
    after = memory_with_one_client(served)
    tracemalloc.stop()
    return after - before


if __name__ == "__main__":
    logging.disable()
    with contextlib.closing(Served(Path(sys.argv[1]))) as running:
        print(growth_of_memory(running))
