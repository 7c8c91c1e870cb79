"""Server end for a client connection: bounded reads from a buffer, joined writes, deadlines.

Waits block in short slices, so a stop request or a new client interrupts them within a slice.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final

from trackmania_rl.protocol.messages import DEFAULT_TIMEOUT_MS, INT32, MAX_PARTIAL_MESSAGE_MS, MAX_PAYLOAD_BYTES

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.2

_RECEIVE_BYTES: Final = MAX_PAYLOAD_BYTES + (64 << 10)  # the longest message and some more
_MOST_UNSENT_BYTES: Final = 256 << 10
"""Limit for joined answers, so a client that never reads cannot fill the memory."""
_MOST_COMPLAINTS: Final = 20  # per client, so logs do not fill the disk


class ClientGone(Exception):  # noqa: N818
    """The client is no longer served; the text is the reason."""


class Connection:
    """Connection to one client.

    Args:
        client: The accepted socket, closed by this object.
        check_interruption: Called between slices and messages with the time (`monotonic`) at which the current wait
            began; raises to end the wait.
    """

    def __init__(self, client: socket.socket, check_interruption: Callable[[float], None]) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_ms = DEFAULT_TIMEOUT_MS
        self.asks_for_version = False
        self._socket = client
        self._check_interruption = check_interruption
        self._received = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._received)
        self._begin = self._end = 0  # unread bytes are _received[_begin:_end]
        self._unsent = bytearray()
        self._wait_began_s = monotonic()
        self._complaints = 0

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def complain(self, text: str) -> None:
        """Log a client error, up to a limit."""
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            last = "; no more will be logged of this client" if self._complaints == _MOST_COMPLAINTS else ""
            logger.warning("client: %s%s", text, last)

    def begin_wait(self) -> None:
        """Start the timeout clock."""
        self._wait_began_s = monotonic()

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` before the next blocking read, or at once if much is pending.

        Raises:
            ClientGone: If the client does not take it in time.
        """
        self._unsent += data
        if len(self._unsent) > _MOST_UNSENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the pending data.

        Raises:
            ClientGone: If the client does not take it in time or has hung up.
        """
        if not self._unsent:
            return
        deadline_s = monotonic() + self._partial_message_s()
        sent = 0
        with memoryview(self._unsent) as view:
            while sent < len(view):
                self._socket.settimeout(max(0.0, min(SLICE_S, deadline_s - monotonic())))
                try:
                    sent += self._socket.send(view[sent:])
                except (TimeoutError, BlockingIOError):
                    self._check_interruption(self._wait_began_s)
                    if monotonic() >= deadline_s:
                        raise ClientGone(f"does not take what it asked for ({len(view)} bytes)") from None
                except OSError as error:
                    raise ClientGone(f"connection lost ({error.strerror})") from error
        self._unsent.clear()

    def read_id(self) -> int:
        """Read the next message's id, waiting until the timeout.

        Raises:
            ClientGone: If it does not come in time, or the client has hung up.
        """
        if self._begin == self._end:
            self._receive(self._wait_began_s + self.timeout_ms / 1000)
        else:
            self._check_interruption(self._wait_began_s)
        return self.read_int32()

    def read_int32(self) -> int:
        """Read an int32 from a message that has begun; raises as `read`."""
        return INT32.unpack(self.read(INT32.size))[0]

    def read(self, n_bytes: int) -> memoryview:
        """Read the next bytes from a message that has begun; they are valid until the next read.

        Raises:
            ClientGone: If they do not come in time or the client has hung up.
        """
        if self._end - self._begin < n_bytes:
            deadline_s = monotonic() + self._partial_message_s()
            while self._end - self._begin < n_bytes:
                self._receive(deadline_s)
        begin = self._begin
        self._begin = begin + n_bytes
        return self._view[begin : self._begin]

    def read_payload(self) -> bytes:
        """Read an int32 length and so many bytes.

        Raises:
            ClientGone: If the length is impossible, or as `read`.
        """
        n_bytes = self.read_int32()
        if not 0 <= n_bytes <= MAX_PAYLOAD_BYTES:
            raise ClientGone(f"sent a length of {n_bytes} bytes; 0 to {MAX_PAYLOAD_BYTES} are allowed")
        return bytes(self.read(n_bytes))

    def receive_unasked(self) -> None:
        """Buffer data that a client sends outside a wait.

        Raises:
            ClientGone: If the client has hung up, or sends more than fits.
        """
        self._make_room()
        self._receive_within(0.0)

    def _partial_message_s(self) -> float:
        return min(self.timeout_ms, MAX_PARTIAL_MESSAGE_MS) / 1000

    def _receive(self, deadline_s: float) -> None:
        """Send pending data, then receive at least one byte until `deadline_s` (`monotonic`)."""
        self.flush()
        self._make_room()
        while not self._receive_within(min(SLICE_S, deadline_s - monotonic())):
            self._check_interruption(self._wait_began_s)
            if monotonic() >= deadline_s:
                raise ClientGone("did not answer in time")
        self._check_interruption(self._wait_began_s)

    def _receive_within(self, longest_s: float) -> bool:
        """Receive available data, even after the deadline; return False if none came in time."""
        self._socket.settimeout(max(0.0, longest_s))
        try:
            n_bytes = self._socket.recv_into(self._view[self._end :])
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise ClientGone(f"connection lost ({error.strerror})") from error
        if n_bytes == 0:
            raise ClientGone("hung up")
        self._end += n_bytes
        return True

    def _make_room(self) -> None:
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._received) - self._end < MAX_PAYLOAD_BYTES and self._begin:
            unread = self._end - self._begin
            self._received[:unread] = self._received[self._begin : self._end]
            self._begin, self._end = 0, unread
        if self._end == len(self._received):
            raise ClientGone("sends more than is read")
