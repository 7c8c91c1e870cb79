"""A simulated game that is sent streams of bytes that no client sends.

As a program, `python -m tests.faults.fuzzed_game FOLDER_OF_MAPS` prints by how many bytes its memory grew: in a process
of its own, since other threads and the garbage of other tests would be measured, too.
"""

import contextlib
import gc
import logging
import random
import socket
import struct
import sys
import threading
import tracemalloc
from pathlib import Path

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


def memory_with_one_client(served):
    """Bytes in use while a client has been greeted: the one before it, and its buffer of a megabyte, are gone then."""
    with served.connect() as client:
        assert client.recv(4, socket.MSG_WAITALL) == hostile.int32(5)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def growth_of_memory(served):
    """Bytes that 20 hostile clients leave behind."""
    for seed in range(30):  # everything that they need is loaded by then
        fuzz(served, seed)
    tracemalloc.start()
    fuzz(served, 1)
    assert is_served(served)
    before = memory_with_one_client(served)
    for seed in range(10, 30):
        fuzz(served, seed)
    assert is_served(served)
    return memory_with_one_client(served) - before


if __name__ == "__main__":
    logging.disable()
    with contextlib.closing(Served(Path(sys.argv[1]))) as running:
        print(growth_of_memory(running))
