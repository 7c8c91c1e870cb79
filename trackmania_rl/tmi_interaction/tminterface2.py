"""Socket client for a game with the TMInterface 2 protocol, game reports and errors.

One system call sends many requests and may receive several messages. A state can be requested together with the
answer to a report: it then arrives with the next report, and an action without a picture costs one exchange instead of
two.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import PlainError
from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import FRAME_BYTES_PER_PIXEL, INT32, INT32_PAIR, MAX_PAYLOAD_BYTES, MessageId

LOOPBACK: Final = "127.0.0.1"
FIRST_BUFFER_BYTES: Final = 1 << 18
CONNECT_RETRY_S: Final = 0.02
GOODBYE_TIMEOUT_S: Final = 1.0
SHORTEST_WAIT_S: Final = 0.01
"""0 means no timeout to the operating system."""
LONGEST_WAIT_S: Final = 0.5
"""Longest system call in a wait: Python on Windows handles Ctrl-C only between calls."""
WAITS_MAY_END_EARLY_S: Final = 0.02
SILENCE_S: Final = 3.0
"""Interval for `on_silence`."""
WAITS_IN_SELECT: Final = sys.platform == "win32"
"""On Windows a socket is unusable after its timeout expired."""


class GameError(PlainError):
    """Error in the game or the connection. A new game instance may work."""


class GameConnectionError(GameError):
    """Refused, closed or broken connection."""


class GameTimeoutError(GameError):
    """The game did not report or answer in time."""


class GameProtocolError(GameError):
    """Protocol violation by the game."""


@dataclass(frozen=True, slots=True)
class GameEvent:
    """Game report, which waits for the answer.

    Attributes:
        id: RUN_STEP, CHECKPOINT_COUNT_CHANGED, LAP_COUNT_CHANGED, REQUESTED_FRAME or ON_CONNECT.
        race_time_ms: for RUN_STEP; negative in the countdown.
        current: passed checkpoints or laps.
        target: all checkpoints (the finish included) or laps.
        frame: for REQUESTED_FRAME: (H, W, 4) uint8, BGRA. Valid until the next call that has a result.
        state: the state blob, if requested with the previous answer; may be empty outside a race.
    """

    id: MessageId
    race_time_ms: int = 0
    current: int = 0
    target: int = 0
    frame: npt.NDArray[np.uint8] | None = None
    state: bytes | None = None

    @property
    def is_finish(self) -> bool:
        """True if the race's last checkpoint was passed."""
        return self.id == MessageId.CHECKPOINT_COUNT_CHANGED and self.current == self.target


class TMInterface:
    """One connection to a game.

    Calls without a result may be delayed until the next `answer`, `flush` or call with a result. All may raise
    `GameError`.

    Args:
        port: game port on this machine.
        timeout_s: longest silence while a message is due, and longest duration per message.
        on_silence: called every `SILENCE_S` of silence. It must not use this connection.
        connect_within_s: how long a starting game may refuse connections.

    Raises:
        GameConnectionError: if there is no connection in that time.
    """

    def __init__(
        self,
        port: int,
        timeout_s: float,
        on_silence: Callable[[], None] = lambda: None,
        connect_within_s: float = 10.0,
    ) -> None:
        self.port = port
        self._timeout_s = self._limit_s = timeout_s
        self._on_silence = on_silence
        self._socket = _connect(port, connect_within_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._set_socket_timeout(socket.SO_SNDTIMEO, timeout_s)
        self._set_patience(timeout_s)
        self._outgoing = bytearray()
        self._incoming = bytearray(FIRST_BUFFER_BYTES)
        self._begin = self._end = 0  # received and unread
        self._state_is_under_way = False
        self._frame_shape = (0, 0)

    @property
    def local_port(self) -> int:
        """This end's port."""
        return int(self._socket.getsockname()[1])

    def limit_silence(self, within_s: float) -> None:
        """Shorten the longest silence to `within_s`, or set it to `timeout_s` if that is shorter."""
        self._limit_s = min(within_s, self._timeout_s)
        self._set_patience(self._limit_s)

    def next_event(self, within_s: float | None = None) -> GameEvent:
        """Wait for the game's next report; the previous one must have been answered.

        Args:
            within_s: timeout, if shorter than `timeout_s`.
        """
        if within_s is None or within_s >= self._limit_s:
            return self._read_event()
        self._set_patience(max(within_s, SHORTEST_WAIT_S))
        try:
            return self._read_event()
        finally:
            self._set_patience(self._limit_s)

    def _read_event(self) -> GameEvent:
        raw_id = INT32.unpack(self._read(INT32.size))[0]
        race_time_ms = current = target = 0
        frame = None
        if raw_id == MessageId.RUN_STEP:
            race_time_ms = INT32.unpack(self._read(INT32.size))[0]
        elif raw_id in (MessageId.CHECKPOINT_COUNT_CHANGED, MessageId.LAP_COUNT_CHANGED):
            current, target = INT32_PAIR.unpack(self._read(INT32_PAIR.size))
        elif raw_id == MessageId.REQUESTED_FRAME:
            height_px, width_px = self._frame_shape
            pixels = self._read(messages.frame_bytes(width_px, height_px))
            if self._state_is_under_way:  # reading it may overwrite the picture in the buffer
                pixels = memoryview(bytes(pixels))
            frame = np.frombuffer(pixels, dtype=np.uint8).reshape(height_px, width_px, FRAME_BYTES_PER_PIXEL)
        elif raw_id != MessageId.ON_CONNECT:
            raise GameProtocolError(f"the game at port {self.port} sent message id {raw_id}; 1 to 5 are reports")
        state = self._read_block() if self._state_is_under_way else None
        self._state_is_under_way = False
        return GameEvent(MessageId(raw_id), race_time_ms, current, target, frame, state)

    def answer(self, event: GameEvent, then_get_state: bool = False) -> None:
        """Answer a report and let the game continue; with `then_get_state` the next event carries the state."""
        self._outgoing += messages.pack_id(event.id)
        if then_get_state:
            self._outgoing += messages.pack_id(MessageId.GET_STATE)
            self._state_is_under_way = True
        self.flush()

    def flush(self) -> None:
        """Send all delayed requests without answering the event."""
        try:
            self._socket.sendall(self._outgoing)
        except OSError as error:
            raise self._as_game_error(error, "to send to") from error
        self._outgoing.clear()

    def get_state(self) -> bytes:
        """Return the current state blob; may be empty outside a race."""
        self._outgoing += messages.pack_id(MessageId.GET_STATE)
        self.flush()
        return self._read_block()

    def is_race_finished(self) -> bool:
        """Return whether the race is over."""
        return bool(self._ask(MessageId.RACE_FINISHED))

    def is_in_menus(self) -> bool:
        """Return whether no map is loaded."""
        return bool(self._ask(MessageId.IS_IN_MENUS))

    def plugin_version(self) -> int:
        """Return the version of this project's plugin or simulated game; 0 for others. A report must be unanswered."""
        self.command(messages.LINK_VERSION_COMMAND)
        return messages.link_version(self._ask(MessageId.IS_IN_MENUS))

    def get_inputs(self) -> str:
        """Return the race's inputs as a script; empty in the menus. A report must be unanswered."""
        self._outgoing += messages.pack_id(MessageId.GET_INPUTS)
        self.flush()
        return self._read_block().decode(errors="replace")

    def rewind_to_state(self, blob: bytes) -> None:
        """Restore a state from `get_state`."""
        self._outgoing += messages.pack_rewind_to_state(blob)

    def rewind_to_current_state(self) -> None:
        """Restore the current state, which cancels ticks already scheduled."""
        self._outgoing += messages.pack_id(MessageId.REWIND_TO_CURRENT_STATE)

    def set_speed(self, speed: float) -> None:
        """Set the speed, as a factor on real time; 0 freezes the physics."""
        self._outgoing += messages.pack_set_speed(speed)

    def set_step_period(self, period_ms: int) -> None:
        """Set the race time between two RUN_STEP reports."""
        self._outgoing += messages.pack_set_step_period(period_ms)

    def set_timeout(self, timeout_ms: int) -> None:
        """Set the game's timeout for a client's answer."""
        self._outgoing += messages.pack_set_timeout(timeout_ms)

    def set_input(self, held: messages.HeldInputs) -> None:
        """Set the inputs from the next tick on. Analog ones need plugin version `ANALOG_LINK_VERSION`."""
        self._outgoing += messages.pack_set_input(held)

    def give_up(self) -> None:
        """Restart the race with a countdown."""
        self._outgoing += messages.pack_id(MessageId.GIVE_UP)

    def prevent_finish(self) -> None:
        """Undo the finish just reached."""
        self._outgoing += messages.pack_id(MessageId.PREVENT_FINISH)

    def command(self, text: str) -> None:
        """Run a console command."""
        self._outgoing += messages.pack_command(text)

    def toggle_interface(self, shown: bool) -> None:
        """Show or hide the race's interface."""
        self._outgoing += messages.pack_toggle_interface(shown)

    def request_frame(self, width_px: int, height_px: int) -> None:
        """Request one picture, reported as REQUESTED_FRAME."""
        self._frame_shape = (height_px, width_px)
        self._outgoing += messages.pack_request_frame(width_px, height_px)

    def unrequest_frame(self) -> None:
        """Cancel a picture request."""
        self._outgoing += messages.pack_id(MessageId.UNREQUEST_FRAME)

    def close(self) -> None:
        """Send goodbye and close; never raises."""
        with contextlib.suppress(OSError):
            self._set_socket_timeout(socket.SO_SNDTIMEO, GOODBYE_TIMEOUT_S)
            self._socket.sendall(messages.pack_id(MessageId.SHUTDOWN))
        self._socket.close()

    def _ask(self, question: MessageId) -> int:
        self._outgoing += messages.pack_id(question)
        self.flush()
        (answer,) = INT32.unpack(self._read(INT32.size))
        return int(answer)

    def _read_block(self) -> bytes:
        size = INT32.unpack(self._read(INT32.size))[0]
        if not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise GameProtocolError(
                f"the game at port {self.port} announced {size} bytes; 0 to {MAX_PAYLOAD_BYTES} are possible"
            )
        return bytes(self._read(size))

    def _read(self, size: int) -> memoryview:
        """Return the next `size` bytes; the view is valid until the next read."""
        if self._end - self._begin < size:
            self._receive(size)
        begin = self._begin
        self._begin += size
        return memoryview(self._incoming)[begin : self._begin]

    def _receive(self, size: int) -> None:
        # Earlier views may reference the old buffer, so unread bytes move to the front, or into a larger buffer.
        waiting = self._end - self._begin
        if self._begin + size > len(self._incoming):
            rest = bytes(memoryview(self._incoming)[self._begin : self._end])
            if size > len(self._incoming):
                self._incoming = bytearray(2 * size)
            self._incoming[:waiting] = rest
            self._begin, self._end = 0, waiting
        buffer = memoryview(self._incoming)
        deadline_s = None  # for a message in parts
        while self._end - self._begin < size:
            received = self._receive_part(buffer[self._end :])
            if received == 0:
                raise GameConnectionError(f"the game at port {self.port} closed the connection")
            self._end += received
            if self._end - self._begin < size:
                deadline_s = deadline_s or time.monotonic() + self._timeout_s
                if time.monotonic() > deadline_s:
                    raise GameTimeoutError(f"a message of the game at port {self.port} took over {self._timeout_s:g} s")

    def _receive_part(self, room: memoryview) -> int:
        """Wait for data and receive it; return the byte count, 0 if closed."""
        began_s = called_at_s = time.monotonic()
        while True:
            try:
                if not WAITS_IN_SELECT or select.select([self._socket], [], [], self._wait_s)[0]:
                    return self._socket.recv_into(room)
            except BlockingIOError:  # SO_RCVTIMEO expired
                pass
            except OSError as error:
                raise self._as_game_error(error, "to receive from") from error
            now_s = time.monotonic()
            if now_s - began_s >= self._patience_s - WAITS_MAY_END_EARLY_S:
                raise self._silent()
            if now_s - called_at_s >= SILENCE_S - WAITS_MAY_END_EARLY_S:
                called_at_s = now_s
                self._on_silence()

    def _set_patience(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._wait_s = patience_s / math.ceil(patience_s / LONGEST_WAIT_S)
        if not WAITS_IN_SELECT:
            self._set_socket_timeout(socket.SO_RCVTIMEO, self._wait_s)

    def _set_socket_timeout(self, which: int, timeout_s: float) -> None:
        """Set an operating system timeout: Python's would cost a second system call each time."""
        if sys.platform == "win32":
            packed = struct.pack("<I", int(timeout_s * 1000))
        else:
            packed = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, which, packed)

    def _as_game_error(self, error: OSError, doing: str) -> GameTimeoutError | GameConnectionError:
        # An expired SO_SNDTIMEO is EAGAIN on Linux, ETIMEDOUT on Windows.
        if isinstance(error, BlockingIOError | TimeoutError) or error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return self._silent()
        return GameConnectionError(f"failed {doing} the game at port {self.port}: {error}")

    def _silent(self) -> GameTimeoutError:
        return GameTimeoutError(f"the game at port {self.port} was silent for {self._patience_s:g} s")


def _connect(port: int, within_s: float) -> socket.socket:
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            connection = socket.create_connection((LOOPBACK, port), timeout=max(deadline_s - time.monotonic(), 0.1))
        except OSError as error:
            if time.monotonic() + CONNECT_RETRY_S > deadline_s:
                raise GameConnectionError(
                    f"no game accepts connections at port {port} within {within_s:g} s: {error}"
                ) from error
            time.sleep(CONNECT_RETRY_S)
        else:
            connection.settimeout(None)
            return connection
