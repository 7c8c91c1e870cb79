"""The link that stands for a network takes its time, hands on what it is given, and breaks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from benchmarks.delayed_link import DelayedLink

ONE_WAY_S = 0.05


def test_what_is_sent_arrives_unchanged_and_later() -> None:
    data = bytes(range(256)) * 4000
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = DelayedLink(server.getsockname()[1], ONE_WAY_S)
        with contextlib.closing(link), socket.create_connection(("127.0.0.1", link.port)) as near:
            far = server.accept()[0]
            with far:
                began_s = time.monotonic()
                threading.Thread(target=near.sendall, args=(data,)).start()
                received = b""
                while len(received) < len(data):
                    received += far.recv(1 << 16)
                assert received == data
                far.sendall(b"!")
                assert near.recv(16) == b"!"
                assert time.monotonic() - began_s >= 2 * ONE_WAY_S
                far.close()
                assert near.recv(16) == b"", "its end is handed on as well"


def test_who_connects_is_let_go_where_nobody_listens_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with contextlib.closing(DelayedLink(port)) as link, socket.create_connection(("127.0.0.1", link.port)) as near:
        near.settimeout(30)
        assert near.recv(16) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", link.port))
