"""Clients that are nothing but a socket, and a game with our plugin in a thread of this process."""

import contextlib
import socket
import struct
import threading
import time

from plugin_game import PluginGame

from trackmania_rl.protocol import messages
from trackmania_rl.simulator.race import SimulatedRace

SERVED_WITHIN_S = 5.0
FAST = struct.pack("<if", 6, 80.0)


def int32s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


class RawClient:
    """A socket and a few shorthands; what it expects and does not get fails the test."""

    def __init__(self, port: int, is_greeted: bool = True) -> None:
        self.socket = _connect(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_greeted:
            assert self.read(4) == int32s(5)

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def read(self, n_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < n_bytes:
            received = self.socket.recv(n_bytes - len(data))
            assert received, f"the game hung up after {bytes(data)!r}"
            data += received
        return bytes(data)

    def ints(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self.read(4 * count))

    def ask(self, *request: bytes) -> bytes:
        """Send a request whose answer is a length and bytes."""
        self.send(*request)
        return self.read(self.ints(1)[0])

    def next_step(self) -> int:
        """Read a step; returns its race time."""
        message_id, time_ms = self.ints(2)
        assert message_id == 1
        return time_ms

    def begin_race(self, period_ms: int = 50) -> None:
        """Answer the greeting and go on to the step at race time 0, which is left to be answered."""
        self.send(int32s(19, period_ms), FAST, messages.pack_set_timeout(5000))
        self.send(messages.pack_command("set countdown_speed 80"), int32s(11), int32s(5))
        while (time_ms := self.next_step()) < 0:
            self.send(int32s(1))
        assert time_ms == 0

    def is_hung_up_on(self, within_s: float) -> bool:
        self.socket.settimeout(within_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


def _connect(port: int) -> socket.socket:
    """Connect to a game that may not listen yet."""
    deadline_s = time.monotonic() + SERVED_WITHIN_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SERVED_WITHIN_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s, f"nobody listens at port {port}"
            time.sleep(0.01)


class Played:
    """A game in a thread of its own."""

    def __init__(self, game: PluginGame, port: int) -> None:
        self.game = game
        self.port = port
        self._thread = threading.Thread(target=game.run)
        self._thread.start()
        self._clients: list[RawClient] = []

    @property
    def race(self) -> SimulatedRace:
        assert self.game.game.race is not None
        return self.game.game.race

    def connect(self, is_greeted: bool = True) -> RawClient:
        self._clients.append(RawClient(self.port, is_greeted))
        return self._clients[-1]

    def stop(self) -> None:
        self.game.is_stopping = True
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.socket.settimeout(0.1)
                client.send(int32s(13))  # a wait without an end ends only with its client's goodbye, or for a newcomer
            client.socket.close()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=0.1).close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """Stop, and look whether the script ever did what would hurt a real game."""
        self.stop()
        counters = self.game.host.counters()
        assert counters.reads_that_block == 0, "the script read bytes that had not come: a real game would stand still"
        assert counters.script_exceptions == 0
        assert counters.open_sockets == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
