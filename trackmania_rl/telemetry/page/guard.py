"""Access to the page: checks of every request, and the HTTP server with bounds on connections.

A request must name this machine as its host (against DNS rebinding) and no other site as its origin. A page for other
machines has a token, which its address carries once and a cookie afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS: Final = ("0.0.0.0", "::")
MOST_BODY_BYTES: Final = 1 << 20
COOKIE: Final = "dashboard_token_{port}"
"""Browsers share cookies between the ports of a host."""
MOST_CONNECTIONS: Final = 100
"""With more the oldest one is closed, so that a new one is always answered. WebSockets have their own bound."""
HEADER_WITHIN_S: Final = 10.0
"""Timeout of the first request's header."""
ACCEPTED_AT_ONCE: Final = 16

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_same(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(text.encode(), secret.encode())


class Guard:
    """ASGI middleware that refuses requests from other sites and without the token, which is None on loopback only."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str | None) -> None:
        self._app = app
        self._host = host
        self._token = token
        self._cookie = COOKIE.format(port=port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own_name(host):
            return PlainTextResponse("this page is not at that address", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("another site's requests are refused", 403)
        if "transfer-encoding" in headers:
            return PlainTextResponse("send a body with its Content-Length", 411, {"Connection": "close"})
        if int(headers.get("content-length", 0)) > MOST_BODY_BYTES:  # h11 checks that it is a number
            return PlainTextResponse(f"a body has at most {MOST_BODY_BYTES} bytes", 413, {"Connection": "close"})
        if self._token is None or self._knows_token(headers, self._token):
            return None
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["type"] == "http" and scope["path"] == "/" and is_same(asked, self._token):
            response = RedirectResponse("/", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        return PlainTextResponse("open the address that dashboard.py printed, with its token", 401)

    def _is_own_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if self._host in ANY_ADDRESS:
            return True  # the machine has many names; the token protects it
        return name in (self._host.lower(), *LOOPBACK_NAMES)

    def _knows_token(self, headers: Headers, token: str) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_same(bearer.strip(), token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and is_same(cookie.value, token)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            headers.setdefault("Cache-Control", "no-cache")
        await send(message)

    return send_with_headers


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a timeout for headers and a bound on connections, which uvicorn lacks.

    Its `limit_concurrency` refuses new requests instead of old connections.
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
