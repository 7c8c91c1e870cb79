"""Access to the page: checks on every request, and the HTTP server.

A request must name this machine as host (against DNS rebinding) and no other site as origin. A page for other
machines has a token, which the address carries once and a cookie afterwards.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS: Final = ("0.0.0.0", "::")
MOST_BODY_BYTES: Final = 1 << 20
COOKIE: Final = "dashboard_token_{port}"
"""Browsers share cookies between a host's ports."""
MOST_CONNECTIONS: Final = 500
"""With more, requests are answered by 503."""

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
        request = HTTPConnection(scope)
        headers = request.headers
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
        if self._token is None:
            return None
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if any(is_same(given, self._token) for given in (bearer, request.cookies.get(self._cookie, ""))):
            return None
        asked = request.query_params.get("token", "")
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
        # A machine has many names; the token protects it.
        return self._host in ANY_ADDRESS or name in (self._host.lower(), *LOOPBACK_NAMES)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            headers.setdefault("Cache-Control", "no-cache")
        await send(message)

    return send_with_headers


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Make a server for a page's app."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        ws="websockets-sansio",
        ws_max_size=1 << 16,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
