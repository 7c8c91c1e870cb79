"""Who may see the page: requests that do not come from it, or without its token, are refused before anything is done.

A page on loopback is open to whoever uses this machine, but to no website that a browser has open beside it: a request
must name this machine as its host (a name of somebody's own that leads to 127.0.0.1 is refused: DNS rebinding), and
one that a browser sends for another site is refused by its `Origin`. A page for other machines has a token, which its
address carries once and a cookie afterwards.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS: Final = ("0.0.0.0", "::")
MOST_BODY_BYTES: Final = 1 << 20
"""An edit of a setting is the only request with a body."""
COOKIE: Final = "dashboard_token_{port}"
"""Cookies know no ports: each page has one of its own."""

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a page at this address."""
    return host in LOOPBACK_NAMES


def is_same(text: str, secret: str) -> bool:
    """Compare in a time that tells nothing of the secret."""
    return hmac.compare_digest(text.encode(), secret.encode())


class Guard:
    """Lets requests through to an app, or refuses them.

    Args:
        app: what is guarded.
        host: where the page listens.
        port: likewise.
        token: what a request must know; None on loopback only.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, token: str | None) -> None:
        self._app = app
        self._host = host
        self._token = token
        self._cookie = COOKIE.format(port=port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI has it."""
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
        if int(headers.get("content-length", 0)) > MOST_BODY_BYTES:  # the HTTP parser has checked that it is a number
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
            return True  # it has many names; a name of somebody else's has no cookie with the token
        return name in (LOOPBACK_NAMES if is_loopback(self._host) else (self._host.lower(), *LOOPBACK_NAMES))

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
            own = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            headers = [*message.get("headers", []), *own]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-cache"))  # a newer version's files are seen at once
            message["headers"] = headers
        await send(message)

    return send_with_headers
