"""A client that is nothing but a socket, and its messages."""

import socket
import struct
import time

from tminterface.structs import SimStateData

from trackmania_rl.protocol import messages

SERVED_WITHIN_S = 60.0
"""Generous: other work may have the machine. Where a game does its part at once, no test waits for so long."""


def int32s(*values):
    return struct.pack(f"<{len(values)}i", *values)


UP = b"\x0a\x00\x00\x00\x00\x00\x01\x00"
FAST = b"\x06\x00\x00\x00" + struct.pack("<f", 80.0)
FREEZE = b"\x06\x00\x00\x00" + struct.pack("<f", 0.0)
GET_STATE = b"\x09\x00\x00\x00"
GIVE_UP = b"\x0b\x00\x00\x00"
WITHOUT_STEPS = int32s(19, 2**31 - 1)
"""A step period that no race reaches: the game drives on without any wait."""
FOREVER = messages.pack_set_timeout(600_000_000)


class RawClient:
    """A socket and a few shorthands; what it expects and does not get fails the test."""

    def __init__(self, port):
        self.socket = _connect(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        self.send(int32s(19, period_ms), FAST, messages.pack_set_timeout(60_000))
        self.send(messages.pack_command("set countdown_speed 80"), GIVE_UP, int32s(5))
        while (time_ms := self.next_step()) < 0:
            self.send(int32s(1))
        assert time_ms == 0

    def next_gate(self):
        """Answer the step at hand and all others up to a checkpoint; returns its number and how many there are."""
        self.send(int32s(1))
        while (message_id := self.ints(1)[0]) == 1:
            self.ints(1)
            self.send(int32s(1))
        assert message_id == 2
        current, target = self.ints(2)
        return current, target

    def drive_into_the_finish(self):
        """Full throttle; the last gate's message is left to be answered."""
        self.send(UP)
        while (numbers := self.next_gate())[0] < numbers[1]:
            self.send(int32s(2))
            self.next_step()

    def frozen_frame(self, width_px=16, height_px=12):
        """Freeze the game and take a frame, whose message is left to be answered."""
        self.send(FREEZE, int32s(17, width_px, height_px), int32s(1))
        assert self.ints(1) == (4,)
        return self.read(width_px * height_px * 4)

    def is_hung_up_on(self, within_s=SERVED_WITHIN_S):
        self.socket.settimeout(within_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


def _connect(port):
    """Connect to a game that may not listen yet."""
    deadline_s = time.monotonic() + SERVED_WITHIN_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SERVED_WITHIN_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s, f"no game listens at port {port}"
            time.sleep(0.01)


def plays_a_race(client):
    """Whether a fresh client can drive to the finish; it says goodbye then."""
    client.begin_race()
    assert SimStateData(client.ask(GET_STATE)).player_info.race_time == 0
    client.drive_into_the_finish()
    client.send(GIVE_UP, int32s(13))
    return True


def wait_until(condition):
    deadline_s = time.monotonic() + SERVED_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
