"""A game with our plugin in a thread of this process, and clients that are nothing but a socket."""

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import plugin_host
from plugin_game import PluginGame

from trackmania_rl.protocol import messages
from trackmania_rl.simulator.game import SimulatedGame
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.world import Track, build_ribbon

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


def straight_line_m(length_m: float) -> np.ndarray:
    """(N, 3): a level line towards +z."""
    line_m = np.zeros((int(length_m / 0.5) + 1, 3))
    line_m[:, 1] = 10.0
    line_m[:, 2] = 0.5 * np.arange(len(line_m))
    return line_m


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built host; skips where it cannot be built."""
    missing = plugin_host.what_is_missing()
    if missing is not None:
        pytest.skip(f"the plugin's script cannot be executed here: {missing}")
    return plugin_host.build(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def straight_track() -> Track:
    """Two checkpoints and a finish, walls on both sides."""
    return Track("straight", build_ribbon(straight_line_m(60)), (20.0, 40.0), 60.0)


@pytest.fixture(scope="session")
def two_lap_track() -> Track:
    """Two laps of one checkpoint and the line, laid out one after the other."""
    return Track("laps", build_ribbon(straight_line_m(80)), (20.0, 40.0, 60.0), 80.0, n_laps=2)


@pytest.fixture
def maps_folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "short line.npy", straight_line_m(60))
    (tmp_path / "short é.toml").write_text('name = "short"\nline = "short line.npy"\ncheckpoints_m = [20.0]\n')
    return tmp_path


@pytest.fixture
def make_played(library: Path, maps_folder: Path) -> Iterator[Callable[..., Played]]:
    """Make a game, with a race on a track or in the menus; further arguments are those of `PluginGame`."""
    running = []

    def make(track: Track | None = None, **arguments) -> Played:
        game = SimulatedGame(maps_folder, maps_folder)
        if track is not None:
            game.race = SimulatedRace(track)
            game.race.advance(1000)
            game.race.advance()  # compile, so that no timeout of a test counts it
            game.race.render(4, 4)
            game.race.give_up()
        port = free_port()
        arguments = {"commands_after_startup": (f"set custom_port {port}",)} | arguments
        running.append(Played(PluginGame(game, library, **arguments), port))
        return running[-1]

    yield make
    for played in running:
        played.close()


@pytest.fixture
def played(make_played: Callable[..., Played], straight_track: Track) -> Played:
    return make_played(straight_track)


@pytest.fixture
def client(played: Played) -> RawClient:
    """A client at the step of race time 0, which it has not answered yet."""
    client = played.connect()
    client.begin_race()
    return client
