"""The page's HTTP server: uvicorn with bounds on connections and on the time for a header."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 100
"""Beyond it the oldest one is closed, so that a new one is always answered. WebSockets have a bound of their own."""
HEADER_WITHIN_S: Final = 10.0
"""Time for a new connection to send the header of its first request."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections that are accepted before the bound above is applied."""


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with both bounds.

    uvicorn has no time limit for headers, and beyond its `limit_concurrency` it refuses new requests, not old
    connections.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the oldest connection if there are too many."""
        super().connection_made(transport)
        self.loop.call_later(HEADER_WITHIN_S, self._close_without_request)
        of_http = [other for other in self.connections if isinstance(other, BoundedConnection)]
        if len(of_http) > MOST_CONNECTIONS:
            min(of_http, key=lambda other: other._began_s).transport.abort()

    def _close_without_request(self) -> None:
        if self.cycle is None and self in self.connections:
            self.transport.abort()


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Make the server of a page's app."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        backlog=ACCEPTED_AT_ONCE,
        http=BoundedConnection,
        ws="websockets-sansio",
        ws_max_size=1 << 16,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
