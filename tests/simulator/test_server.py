"""The game's end of the protocol, byte by byte, with nothing but a socket on the other side."""

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tminterface.structs import SimStateData

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import KeyState, MessageId
from trackmania_rl.protocol.state_blob import StateView, with_last_checkpoint_time_cleared
from trackmania_rl.simulator import server as server_module
from trackmania_rl.simulator.game import SimulatedGame
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.server import GameServer

UP = b"\x0a\x00\x00\x00\x00\x00\x01\x00"
FAST = b"\x06\x00\x00\x00" + struct.pack("<f", 80.0)
FREEZE = b"\x06\x00\x00\x00" + struct.pack("<f", 0.0)
GET_STATE = b"\x09\x00\x00\x00"
GIVE_UP = b"\x0b\x00\x00\x00"
SERVED_WITHIN_S = 5.0


def int32s(*values):
    return struct.pack(f"<{len(values)}i", *values)


class RawClient:
    """A socket and a few shorthands; what it expects and does not get fails the test."""

    def __init__(self, port, is_greeted=True):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SERVED_WITHIN_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_greeted:
            assert self.read(4) == int32s(5)

    def send(self, *parts):
        self.socket.sendall(b"".join(parts))

    def read(self, n_bytes):
        data = bytearray()
        while len(data) < n_bytes:
            received = self.socket.recv(n_bytes - len(data))
            assert received, f"the game hung up after {bytes(data)!r}"
            data += received
        return bytes(data)

    def ints(self, count):
        return struct.unpack(f"<{count}i", self.read(4 * count))

    def ask(self, *request):
        """Send a request whose answer is a length and bytes."""
        self.send(*request)
        return self.read(self.ints(1)[0])

    def next_step(self):
        """Read a step; returns its race time."""
        message_id, time_ms = self.ints(2)
        assert message_id == 1
        return time_ms

    def begin_race(self, period_ms=50):
        """Answer the greeting and go on to the step at race time 0, which is left to be answered."""
        self.send(int32s(19, period_ms), FAST, messages.pack_set_timeout(5000))
        self.send(messages.pack_command("set countdown_speed 80"), GIVE_UP, int32s(5))
        while (time_ms := self.next_step()) < 0:
            self.send(int32s(1))
        assert time_ms == 0

    def drive_to(self, awaited_id):
        """Answer the step at hand and all others until another message comes; returns its id and both numbers."""
        self.send(int32s(1))
        while (message_id := self.ints(1)[0]) == 1:
            self.ints(1)
            self.send(int32s(1))
        assert message_id == awaited_id
        return message_id, *self.ints(2)

    def is_hung_up_on(self, within_s):
        self.socket.settimeout(within_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


class Served:
    """A game in a thread of its own."""

    def __init__(self, game):
        self.game = game
        self.server = GameServer(game, port=0)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self._clients = []

    def connect(self, **arguments):
        self._clients.append(RawClient(self.server.port, **arguments))
        return self._clients[-1]

    def close(self):
        self.server.stop()
        for client in self._clients:
            client.socket.close()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def maps_folder(tmp_path):
    line_m = np.zeros((121, 3))
    line_m[:, 2] = 0.5 * np.arange(121)
    np.save(tmp_path / "short line.npy", line_m)
    (tmp_path / "short.toml").write_text('name = "short"\nline = "short line.npy"\ncheckpoints_m = [20.0]\n')
    return tmp_path


@pytest.fixture
def make_server(maps_folder):
    running = []

    def make(track=None):
        game = SimulatedGame(maps_folder, maps_folder)
        if track is not None:
            game.race = SimulatedRace(track)
            game.race.advance(1000)
            game.race.advance()  # compile, so that no timeout of a test counts it
            game.race.render(4, 4)
            game.race.give_up()
        running.append(Served(game))
        return running[-1]

    yield make
    for served in running:
        served.close()


@pytest.fixture
def served(make_server, straight_track):
    return make_server(straight_track)


@pytest.fixture
def client(served):
    """A client at the step of race time 0, which it has not answered yet."""
    client = served.connect()
    client.begin_race()
    return client


# Messages of the game.


def test_the_greeting_stops_the_game_until_it_is_answered(served):
    client = served.connect()
    before = client.ask(GET_STATE)
    time.sleep(0.05)
    assert client.ask(GET_STATE) == before
    client.send(FAST, int32s(5))
    client.next_step()


def test_steps_come_every_10_ms_by_default_and_at_multiples_of_the_period(served):
    client = served.connect()
    client.send(FAST, GIVE_UP, int32s(5))
    seen_ms = []
    for _ in range(10):
        seen_ms.append(client.next_step())
        client.send(int32s(1))
    assert seen_ms == list(range(-2590, -2490, 10))
    client.next_step()
    client.send(int32s(19, 70), int32s(1))
    assert [client.next_step(), client.send(int32s(1)), client.next_step()] == [-2450, None, -2380]


def test_a_wrong_answer_and_unknown_messages_are_swallowed(client):
    client.send(int32s(2), int32s(3), int32s(4), int32s(5), int32s(0), int32s(-1), int32s(24), int32s(1))
    assert client.next_step() == 50


@pytest.mark.parametrize(("chunk_bytes", "pause_s"), [(10_000, 0.0), (1, 0.0), (3, 0.001)])
def test_many_messages_may_come_at_once_or_in_pieces(client, chunk_bytes, pause_s):
    state = client.ask(GET_STATE)
    stream = b"".join(
        [
            UP,
            messages.pack_rewind_to_state(state)[:4] + int32s(3) + b"abc",  # refused
            int32s(8),
            int32s(21, 1),
            int32s(18),
            messages.pack_command("cam 2"),
            int32s(22),
            int32s(16),
            int32s(1),
        ]
    )
    for begin in range(0, len(stream), chunk_bytes):
        client.send(stream[begin : begin + chunk_bytes])
        time.sleep(pause_s)
    assert client.ints(2) == (0, 0)
    assert client.next_step() == 50


def test_the_whole_race(client):
    client.send(UP)
    counts = []
    last_step_ms = 0
    client.send(int32s(1))
    while len(counts) < 3:
        message_id = client.ints(1)[0]
        if message_id == 1:
            last_step_ms = client.ints(1)[0]
            client.send(int32s(1))
        else:
            assert message_id == 2
            counts.append(client.ints(2))
            state = StateView(client.ask(GET_STATE))
            time_ms = state.checkpoint_times_ms[len(counts) - 1]
            assert last_step_ms - 10 <= time_ms < last_step_ms + 50, "the step of a tick comes before its checkpoint"
            client.send(int32s(16))
            assert client.ints(1) == (len(counts) == 3,)
            if len(counts) < 3:
                client.send(int32s(2))
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert state.race_time_ms == time_ms
    client.send(int32s(2))
    for _ in range(3):  # the race is over: one step per tick, and the clock stands
        assert client.next_step() == time_ms
        client.send(int32s(1))


def test_a_finish_undone_in_its_own_wait_comes_again(client):
    client.send(UP)
    while client.drive_to(2) != (2, 3, 3):
        client.send(int32s(2))
        client.next_step()
    blob = client.ask(GET_STATE)
    client.send(messages.pack_rewind_to_state(with_last_checkpoint_time_cleared(blob)), int32s(2))
    message_id, *numbers = client.ints(2)
    if message_id == 1:  # the next tick may be that of a step
        client.send(int32s(1))
        message_id, *numbers = client.ints(2)
    assert (message_id, *numbers, *client.ints(1)) == (2, 3, 3)
    client.send(int32s(12), int32s(16))
    assert client.ints(1) == (0,)


def test_laps(make_server, two_lap_track):
    client = make_server(two_lap_track).connect()
    client.begin_race()
    client.send(UP)
    seen = []
    client.send(int32s(1))
    while len(seen) < 6:
        message_id = client.ints(1)[0]
        numbers = client.ints(1 if message_id == 1 else 2)
        if message_id != 1:
            seen.append((message_id, *numbers))
        client.send(int32s(message_id))
    assert seen == [(2, 1, 4), (2, 2, 4), (3, 1, 2), (2, 3, 4), (2, 4, 4), (3, 2, 2)]


# States and rewinding.


def test_the_state_is_one_that_the_package_reads(client, served):
    blob = client.ask(GET_STATE)
    assert len(blob) == 8356 + 3 * 4 + 3 * 8
    assert SimStateData(blob).player_info.race_time == 0
    assert blob == served.game.race.save_state()


def test_the_step_after_a_rewind_is_the_next_one(client):
    start = client.ask(GET_STATE)
    client.send(int32s(19, 10), UP, int32s(1))
    after = []
    for _ in range(3):
        for time_ms in (10, 20, 30):
            assert client.next_step() == time_ms
            if time_ms < 30:
                client.send(int32s(1))
        after.append(client.ask(GET_STATE))
        client.send(messages.pack_rewind_to_state(start), UP, int32s(1))
    assert after[0] == after[1] == after[2]


def test_rewinding_in_the_real_clients_order_is_exact(client):
    start = client.ask(GET_STATE)
    traces = []
    for _ in range(2):
        client.send(messages.pack_rewind_to_state(start))
        trace = []
        for action in range(20):
            trace.append(client.ask(GET_STATE))
            client.send(int32s(8), FREEZE, int32s(17, 16, 12), int32s(1))
            assert client.ints(1) == (4,)
            trace.append(client.read(16 * 12 * 4))
            client.send(messages.pack_set_input(KeyState(action % 3 == 0, False, True, False)), FAST, int32s(4))
            assert client.next_step() == 50 * (action + 1)
        traces.append(trace)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("damage", ["empty", "short", "noise", "far away"])
def test_an_impossible_state_is_refused_and_the_race_goes_on(client, damage):
    blob = bytearray(client.ask(GET_STATE))
    if damage == "far away":
        StateView(blob).head["position_m"][:] = np.inf
    damaged = {"empty": b"", "short": blob[:-1], "noise": bytes(range(256)) * 40, "far away": blob}[damage]
    client.send(messages.pack_rewind_to_state(bytes(damaged)))
    assert client.ask(GET_STATE)[:2000] == client.ask(GET_STATE)[:2000]
    client.send(int32s(1))
    assert client.next_step() == 50


# Frames.


def frozen_frame(client, width_px=16, height_px=12):
    client.send(FREEZE, int32s(17, width_px, height_px), int32s(1))
    assert client.ints(1) == (4,)
    return client.read(width_px * height_px * 4)


def test_a_frame_shows_the_frozen_instant(client, served):
    expected = served.game.race.render(16, 12).tobytes()
    assert frozen_frame(client) == expected
    client.send(FAST, int32s(4))
    assert client.next_step() == 50


def test_a_frame_request_can_be_withdrawn(client):
    client.send(int32s(17, 16, 12), int32s(20), int32s(1))
    assert client.next_step() == 50


def test_a_request_made_in_the_frames_own_wait_is_lost(client):
    frozen_frame(client)
    client.send(int32s(17, 16, 12), FAST, int32s(4))
    assert client.next_step() == 50


@pytest.mark.parametrize("size_px", [(0, 12), (16, -1), (4097, 12), (16, 4097), (-(2**31), 2**31 - 1)])
def test_odd_frame_sizes_are_ignored(client, size_px):
    client.send(int32s(17, *size_px), int32s(1))
    assert client.next_step() == 50


# Commands and requests.


def test_menus(make_server):
    client = make_server().connect()
    client.send(int32s(22), int32s(16))
    assert client.ints(2) == (1, 0)
    assert client.ask(GET_STATE) == b""
    assert client.ask(int32s(23)) == b""
    client.send(messages.pack_rewind_to_state(b"12345"), UP, GIVE_UP, int32s(12), int32s(8), int32s(22))
    assert client.ints(1) == (1,)
    assert frozen_frame_in_menus(client) == bytes(4 * 3 * 4)
    client.send(FAST, int32s(4))


def frozen_frame_in_menus(client):
    client.send(int32s(17, 4, 3), int32s(5))
    assert client.ints(1) == (4,)
    return client.read(4 * 3 * 4)


@pytest.mark.parametrize("name", ["short.toml", '"short.toml"', '"short line.npy"', "{folder}/short.toml"])
def test_map_begins_a_race(make_server, maps_folder, name):
    client = make_server().connect()
    client.send(FAST, messages.pack_command("map " + name.format(folder=maps_folder)), int32s(22), int32s(5))
    assert client.ints(1) == (0,)
    assert client.next_step() == -2590


@pytest.mark.parametrize("name", ["", "none.toml", ".", '"', "a\0b.toml", "short.exe"])
def test_a_bad_map_leaves_the_race_alone(client, name, caplog):
    client.send(messages.pack_command("map " + name), int32s(1))
    assert client.next_step() == 50
    if name not in ("", '"'):
        assert "command 'map" in caplog.text


def test_unknown_commands_are_accepted(client):
    for text in ("cam 2", "set autologin x", "toggle_console", "é" * 100, "set countdown_speed nan", "'"):
        client.send(messages.pack_command(text))
    client.send(messages.pack_bytes(MessageId.COMMAND, b"\xff\xfe map"), int32s(1))
    assert client.next_step() == 50


def test_give_up_begins_anew(client):
    client.send(UP, int32s(1))
    client.next_step()
    client.send(GIVE_UP, int32s(1))
    assert client.next_step() == -2550
    assert client.ask(int32s(23)) == b""


def test_inputs_are_recorded_and_can_be_loaded(client, maps_folder):
    start = client.ask(GET_STATE)
    for keys in (b"\0\0\1\0", b"\1\0\1\0", b"\0\0\0\1"):
        client.send(int32s(10), keys, int32s(1))
        client.next_step()
    script = client.ask(int32s(23))
    assert script == b"0.00 press up\n0.05 press left\n0.10 rel left\n0.10 rel up\n0.10 press down\n"
    driven = client.ask(GET_STATE)
    (maps_folder / "best.inputs").write_bytes(script)
    client.send(messages.pack_rewind_to_state(start), messages.pack_command("load best.inputs"))
    for _ in range(3):
        client.send(int32s(1))
        client.next_step()
    assert client.ask(GET_STATE) == driven
    client.send(messages.pack_command("unload"), messages.pack_command("load none.inputs"), int32s(1))
    client.next_step()


# Speed.


@pytest.mark.parametrize(("speed", "steps"), [(1.0, 8), (4.0, 32)])
def test_limited_speeds_are_kept(client, speed, steps):
    client.send(struct.pack("<if", 6, speed), int32s(1))
    client.next_step()
    began_s = time.monotonic()
    for _ in range(steps):
        client.send(int32s(1))
        client.next_step()
    expected_s = steps * 0.05 / speed
    assert 0.85 * expected_s < time.monotonic() - began_s < expected_s + 0.4


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), -1.0])
def test_impossible_speeds_and_periods_are_ignored(client, speed):
    client.send(struct.pack("<if", 6, speed), int32s(19, 0), int32s(19, -50), int32s(1))
    assert client.next_step() == 50


def test_a_frozen_game_neither_moves_nor_works(client, served):
    client.send(FREEZE, int32s(1))
    time.sleep(0.1)
    before, cpu_s = served.game.race.save_state(), time.process_time()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.1
    assert served.game.race.save_state() == before
    client.send(FAST)  # nobody hears it
    other = served.connect()
    other.send(FAST, int32s(5))
    assert other.next_step() == 50


def test_the_countdown_has_a_speed_of_its_own(served):
    client = served.connect()
    client.send(int32s(19, 50), struct.pack("<if", 6, 1.0), messages.pack_command("set countdown_speed 80"), GIVE_UP)
    client.send(int32s(5))
    began_s = time.monotonic()
    while client.next_step() < 0:
        client.send(int32s(1))
    assert time.monotonic() - began_s < 1.0


# Timeouts, clients that leave, and newcomers.


def test_who_does_not_answer_in_time_is_dropped_and_speed_and_period_survive(client, served):
    client.send(int32s(17, 16, 12), messages.pack_set_timeout(150))
    assert client.is_hung_up_on(within_s=1.0)
    other = served.connect()
    began_s = time.monotonic()
    other.send(int32s(5))
    steps_ms = [other.next_step()]
    other.send(int32s(1))
    steps_ms.append(other.next_step())
    assert steps_ms[1] - steps_ms[0] == 50, "neither a frame of the old client nor another period"
    assert not other.is_hung_up_on(within_s=1.0), "the old client's timeout is not inherited"
    assert other.is_hung_up_on(within_s=2.0 - (time.monotonic() - began_s) + 1.0)


def test_traffic_does_not_renew_the_timeout(client):
    client.send(messages.pack_set_timeout(300))
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began_s < 2.0:
            client.send(int32s(18))
            time.sleep(0.02)
    assert time.monotonic() - began_s < 1.0


def test_a_timeout_may_be_raised_during_the_wait(client):
    client.send(messages.pack_set_timeout(200), messages.pack_set_timeout(600_000_000))
    assert not client.is_hung_up_on(within_s=0.5)
    client.socket.settimeout(SERVED_WITHIN_S)
    client.send(int32s(1))
    assert client.next_step() == 50


@pytest.mark.parametrize("moment", ["in a wait", "frozen", "after half a message", "in full drive"])
def test_the_end_of_the_stream_is_noticed_at_once(client, served, moment):
    client.send(messages.pack_set_timeout(600_000_000))
    client.send(
        {
            "in a wait": b"",
            "frozen": FREEZE + int32s(1),
            "after half a message": messages.pack_command("map")[:6],
            "in full drive": int32s(19, 2**31 - 1) + int32s(1),
        }[moment]
    )
    time.sleep(0.05)
    client.socket.close()
    began_s = time.monotonic()
    other = served.connect()
    assert time.monotonic() - began_s < 0.5
    assert other.ask(GET_STATE)


def test_goodbye_ends_the_connection(client, served):
    client.send(int32s(13))
    assert client.is_hung_up_on(within_s=1.0)
    assert served.connect().ask(GET_STATE)


def test_a_newcomer_replaces_the_client(client, served):
    client.send(int32s(17, 16, 12), int32s(20), int32s(19, 2**31 - 1), int32s(1))  # the race goes on without any wait
    other = served.connect()
    assert client.is_hung_up_on(within_s=1.0)
    assert other.ask(GET_STATE)


def test_a_newcomer_does_not_wait_for_a_client_that_keeps_a_wait_open(client, served, monkeypatch):
    monkeypatch.setattr(server_module, "NEWCOMER_PATIENCE_S", 0.5)
    client.send(messages.pack_set_timeout(600_000_000))
    assert not client.is_hung_up_on(within_s=0.8), "nobody else is there"
    other = served.connect()
    assert client.is_hung_up_on(within_s=1.0)
    assert other.ask(GET_STATE)


def test_the_latest_of_several_newcomers_is_served(client, served):
    others = [served.connect(is_greeted=False) for _ in range(5)]
    client.send(int32s(13))
    assert others[-1].read(4) == int32s(5)
    assert all(other.is_hung_up_on(within_s=1.0) for other in others[:-1])


# Abuse.


def abuse_with_noise(client):
    for seed in range(3):
        client.send(np.random.default_rng(seed).bytes(200_000))


ABUSES = {
    "noise": abuse_with_noise,
    "huge blob": lambda client: client.send(int32s(7, 2**31 - 1), bytes(100_000)),
    "negative length": lambda client: client.send(int32s(14, -1)),
    "more than allowed": lambda client: client.send(int32s(14, (1 << 20) + 1)),
    "half an id": lambda client: client.send(b"\x01\x00"),
    "half a blob": lambda client: client.send(int32s(7, 8408), bytes(4000)),
    "half a float": lambda client: client.send(int32s(6), b"\x00"),
    "answers that nobody reads": lambda client: client.send(GET_STATE * 100_000),
    "huge frame that nobody reads": lambda client: client.send(int32s(17, 2000, 2000), int32s(1)),
    "flood outside of waits": lambda client: client.send(FREEZE, int32s(1), bytes(4 << 20)),
    "no word": lambda client: None,
}


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "hangs up"])
@pytest.mark.parametrize("abuse", ABUSES)
def test_after_any_abuse_a_fresh_client_is_served(served, abuse, stays, monkeypatch):
    monkeypatch.setattr(server_module, "NEWCOMER_PATIENCE_S", 0.3)
    client = served.connect()
    client.send(int32s(5))
    client.next_step()
    client.socket.settimeout(0.3)
    with contextlib.suppress(OSError):  # it may be hung up on, or stopped by a full pipe
        ABUSES[abuse](client)
    if not stays:
        client.socket.close()
    other = served.connect()
    other.begin_race()
    assert SimStateData(other.ask(GET_STATE)).player_info.race_time == 0


def test_a_partial_message_has_its_own_limit(client):
    client.send(messages.pack_set_timeout(300), int32s(14, 100), b"map")
    assert client.is_hung_up_on(within_s=1.0)


def test_noise_does_not_fill_the_log(served, caplog):
    client = served.connect()
    client.send(int32s(*range(100, 5000)), int32s(5))
    client.next_step()
    assert len(caplog.records) < 30
    assert "no more will be logged" in caplog.text


# The process.


@pytest.mark.parametrize("moment", ["in a wait", "frozen", "in full drive", "nobody there"])
def test_stopping_takes_less_than_a_second(client, served, moment):
    client.send({"in a wait": b"", "frozen": FREEZE + int32s(1)}.get(moment, int32s(19, 2**31 - 1) + int32s(1)))
    if moment == "nobody there":
        client.socket.close()
    time.sleep(0.05)
    began_s = time.monotonic()
    served.server.stop()
    served.thread.join(5)
    assert time.monotonic() - began_s < 1.0


def run_script(repository_root, *arguments):
    command = [sys.executable, str(repository_root / "scripts" / "simulated_game.py"), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_the_script_names_what_it_cannot_use(repository_root, served):
    for arguments, reason in (
        (["--port", str(served.server.port)], f"port {served.server.port}"),
        (["--port", "0", "--map", "none.toml"], "none.toml"),
    ):
        with run_script(repository_root, *arguments) as process:
            errors = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert errors.startswith("error: ")
        assert reason in errors
        assert errors.count("\n") == 1


def test_the_script_serves_and_dies_when_asked(repository_root):
    with run_script(repository_root, "--port", "0", "--map", "none") as process:
        greeting = process.stderr.readline()
        assert "listening on 127.0.0.1:" in greeting
        client = RawClient(int(greeting.rsplit(":", 1)[1]))
        client.send(int32s(22))
        assert client.ints(1) == (1,)
        began_s = time.monotonic()
        process.terminate()
        process.wait(timeout=5)
        assert time.monotonic() - began_s < 1.0
        client.socket.close()
