"""A TCP link with a delay: one port is forwarded to another, each piece a set time after it arrived."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RECEIVE_BYTES: Final = 1 << 18


class DelayedLink:
    """Forwards connections from `port` (0: any free one) to `target_port` in threads, with a delay of `one_way_s`.

    Attributes:
        forwards: cleared while no data pass, in connections that stay open.
    """

    def __init__(self, target_port: int, one_way_s: float = 0.0, port: int = 0) -> None:
        self._target_port = target_port
        self._one_way_s = one_way_s
        self._listener = socket.create_server((LOOPBACK, port))
        self.port = int(self._listener.getsockname()[1])
        self.forwards = threading.Event()
        self.forwards.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Break all connections and stop listening."""
        for end in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                try:
                    far = socket.create_connection((LOOPBACK, self._target_port))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    threading.Thread(target=self._take, args=(source, pieces), daemon=True).start()
                    threading.Thread(target=self._hand_on, args=(sink, pieces), daemon=True).start()

    def _take(self, source: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(RECEIVE_BYTES)
            except OSError:
                data = b""
            pieces.put((time.perf_counter() + self._one_way_s, data))

    def _hand_on(self, sink: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = pieces.get()
                if (wait_s := due_s - time.perf_counter()) > 0:
                    time.sleep(wait_s)
                self.forwards.wait()
                if not data:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(data)


@contextlib.contextmanager
def link_process(target_port: int, one_way_s: float) -> Iterator[int]:
    """Start a link in a process of its own; yield its port."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, target_port, one_way_s), daemon=True)
    process.start()
    try:
        yield int(ours.recv())
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, target_port: int, one_way_s: float) -> None:
    pipe.send(DelayedLink(target_port, one_way_s).port)
    threading.Event().wait()
