"""Page routes, WebSocket (one message for all tabs at each tick), health and Prometheus figures, and the HTTP server.

A request must name this machine as host (against DNS rebinding) and no other site as origin. A page for other machines
has a token, which the address carries once and a cookie afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Query, WebSocket
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from trackmania_rl.errors import UserError
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import RunStatus, read_status
from trackmania_rl.telemetry.page.page import RunPage, Topics, Watch
from trackmania_rl.telemetry.page.runs import FILM_ENDINGS, find_run, list_runs

STATIC: Final = Path(__file__).parent / "static"
EDIT_TOKEN_PLACE: Final = "{{edit_token}}"
LONGEST_RACE_MS: Final = 10_000_000
NO_STORE: Final = {"Cache-Control": "no-store"}
TICK_S: Final = 0.1
FILES_EVERY_S: Final = 1.0
MOST_TABS: Final = 50
MOST_WAITING: Final = 100
"""Messages that wait for a slow tab. With more it is disconnected, and connects again."""
CARS_WHILE_WAITING: Final = 3
"""A tab with more messages waiting gets no car positions."""
TRY_AGAIN_LATER: Final = 1013
PREFIX: Final = "trackmania_"
"""Prefix for metric names."""

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


class _Edit(BaseModel):
    name: str = Field(max_length=200)
    text: str = Field(max_length=100_000)


class _Asked(BaseModel, strict=True):
    watch: tuple[NonNegativeInt, NonNegativeInt] | None


def make_app(page: RunPage, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> ASGIApp:
    """Make the app for a page at a host and port: the run at "/", the folder's other runs at "/runs/{name}/".

    Requests must carry the token, which is None on loopback only.
    """
    runs = _Runs(page)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for app in runs.apps.values():
            await app.state.hub.close()

    app = FastAPI(title="Live page", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount("/runs/{name}", runs)
    app.mount("", runs.apps[page.run.name])
    app.add_exception_handler(UserError, _answer)
    return Guard(app, host, port, token)


class _Runs:
    """ASGI app for a folder's runs, each made when it is opened."""

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._edit_token = secrets.token_urlsafe(24)  # in the page, which other sites cannot read
        self.apps = {page.run.name: _app_of(page, self._edit_token)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        if name not in self.apps:
            self.apps[name] = await asyncio.to_thread(self._make, name)
        await self.apps[name](scope, receive, send)

    def _make(self, name: str) -> FastAPI:
        save_folder = self._page.run.path.parent
        if name not in {run["name"] for run in list_runs(save_folder)}:
            raise UserError(f"{name}: there is no such run in {save_folder}")
        run = find_run(str(save_folder / name), save_folder)
        return _app_of(RunPage(run, self._page.project_folder), self._edit_token)


def _answer(_: Any, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


def _found(value: Any, what: str) -> Any:
    if value is None:
        raise HTTPException(404, what)
    return value


def _app_of(page: RunPage, edit_token: str) -> FastAPI:
    app, hub = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), Hub(page)
    app.state.hub = hub
    app.add_exception_handler(UserError, _answer)

    @app.get("/", response_class=HTMLResponse)
    def index() -> HTMLResponse:
        text = (STATIC / "index.html").read_text(encoding="utf-8").replace(EDIT_TOKEN_PLACE, edit_token)
        return HTMLResponse(text, headers=NO_STORE)

    @app.websocket("/live")
    async def live(socket: WebSocket) -> None:
        await hub.serve(socket)

    @app.get("/api/map/{name}")
    def shape(name: str) -> dict[str, Any]:
        return page.shape(name)

    @app.get("/api/figure")
    def figure(name: str) -> list[Any]:
        return page.figure(name)

    @app.get("/api/record/{name}")
    def record(name: str) -> dict[str, Any] | None:
        return page.watched.columns(page.record(name))

    @app.get("/api/race/{name}")
    def race(name: str) -> dict[str, Any]:
        return _found(page.watched.columns(name), "this race is not kept any more")

    @app.get("/api/race/{name}/sections")
    def sections(name: str) -> dict[str, Any]:
        return _found(page.sections(name), "this race is not kept any more")

    @app.get("/api/race/{name}/picture")
    def picture(name: str, t: Annotated[int, Query(ge=0, le=LONGEST_RACE_MS)]) -> Response:
        drawn = page.watched.picture(name, t)
        if drawn is None:
            return Response(status_code=204)
        return Response(drawn, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=60"})

    @app.get("/files/{name:path}")
    def file(name: str) -> FileResponse:
        found = _found(page.files.file(name), "there is no such file")
        is_shown = found.suffix in (*FILM_ENDINGS, ".png")
        return FileResponse(found, filename=found.name, content_disposition_type="inline" if is_shown else "attachment")

    @app.get("/api/settings")
    def settings() -> dict[str, Any]:
        return page.settings()

    @app.post("/api/settings")
    def edit(edit: _Edit, x_edit_token: Annotated[str, Header()] = "") -> dict[str, Any]:
        if not is_same(x_edit_token, edit_token):
            raise HTTPException(403, "settings are edited from the page only: load it again")
        return {"changed": page.edit(edit.name, edit.text)}

    @app.get("/healthz")
    def health() -> JSONResponse:
        status, answer = health_of(page.run)
        return JSONResponse(answer, status, headers=NO_STORE)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(metrics_of(page.run), media_type=CONTENT_TYPE_LATEST, headers=NO_STORE)

    return app


class _Tab:
    def __init__(self) -> None:
        self.waiting: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self.watch: Watch = None
        self.is_lost = asyncio.Event()

    def put(self, message: str) -> None:
        try:
            self.waiting.put_nowait(message)
        except asyncio.QueueFull:
            self.is_lost.set()


class Hub:
    """A page's tabs."""

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._tabs: set[_Tab] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._in_order = asyncio.Lock()  # a tab's snapshot is followed by all later news
        self._has_read = False

    async def serve(self, socket: WebSocket) -> None:
        """Send a tab a snapshot, then each update."""
        await socket.accept()
        if len(self._tabs) >= MOST_TABS:
            await socket.close(TRY_AGAIN_LATER, "too many tabs")
            return
        tab = _Tab()
        async with self._in_order:
            if not self._has_read:
                await asyncio.to_thread(self._page.read)
                self._has_read = True
            tab.put(encoded(await asyncio.to_thread(self._page.snapshot)))
            self._tabs.add(tab)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
        work = [self._send(socket, tab), self._receive(socket, tab), tab.is_lost.wait()]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tabs.discard(tab)
            for task in tasks:
                task.cancel()
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await socket.close(TRY_AGAIN_LATER)

    async def close(self) -> None:
        """Disconnect all tabs."""
        for tab in self._tabs:
            tab.is_lost.set()
        if self._ticking is not None:
            await self._ticking

    async def _send(self, socket: WebSocket, tab: _Tab) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await socket.send_text(await tab.waiting.get())

    async def _receive(self, socket: WebSocket, tab: _Tab) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, KeyError):
            while True:
                tab.watch = watch_of(await socket.receive_text(), tab.watch)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        files_at_s = loop.time()
        while self._tabs:
            began_s = loop.time()
            async with self._in_order:
                news: Topics = {}
                if began_s >= files_at_s:
                    files_at_s = began_s + FILES_EVERY_S
                    news = await asyncio.to_thread(self._page.read)
                news |= await asyncio.to_thread(self._page.cars, {tab.watch for tab in self._tabs})
                message, is_passing = encoded(news), news.keys() == {"cars"}
                for tab in self._tabs:
                    if not is_passing or tab.waiting.qsize() <= CARS_WHILE_WAITING:
                        tab.put(message)
            await asyncio.sleep(max(0.0, began_s + TICK_S - loop.time()))
        self._ticking = None


def encoded(topics: Topics) -> str:
    """Encode topics as JSON without NaN and infinity."""
    return json.dumps(topics, separators=(",", ":"), allow_nan=False)


def watch_of(message: str, before: Watch) -> Watch:
    """Return the game that a tab asks for; `before` if the message is not valid."""
    try:
        return _Asked.model_validate_json(message).watch
    except ValidationError:
        return before


def health_of(run: RunFolder) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status, 200 or 503, and the answer for a run."""
    status, now_s = read_status(run.run_log), time.monotonic()
    wrong = "this run is not being trained" if status is None else status.what_is_wrong(now_s)
    answer: dict[str, Any] = {"ok": wrong is None, "run": run.name}
    if wrong is not None:
        answer["problem"] = wrong
    if status is not None and not status.is_over:
        answer |= {f"seconds_since_{name}": round(age_s, 1) for name, age_s in _ages_s(status, now_s).items()}
        answer["collectors_alive"] = status.figures.get("collectors_alive")
    return (200 if wrong is None else 503), answer


def metrics_of(run: RunFolder) -> bytes:
    """Return a run's figures in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_RunMetrics(run))
    return generate_latest(registry)


class _RunMetrics(Collector):
    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        status, now_s = read_status(self._run.run_log), time.monotonic()
        is_well = status is not None and status.what_is_wrong(now_s) is None
        yield GaugeMetricFamily(f"{PREFIX}up", "1 while /healthz answers 200, else 0", is_well)
        if status is None:
            return
        for name, value in status.figures.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(PREFIX + name, name.replace("_", " "), value)
        if not status.is_over:
            for name, age_s in _ages_s(status, now_s).items():
                yield GaugeMetricFamily(f"{PREFIX}seconds_since_{name}", f"Age of the last {name}", age_s)
        losses = GaugeMetricFamily(
            f"{PREFIX}learning", "Newest means of the updates' figures, by name", labels=["name"]
        )
        for name, value in status.losses.items():
            losses.add_metric([name], value)
        yield losses


def _ages_s(status: RunStatus, now_s: float) -> dict[str, float]:
    at_s = {
        "heartbeat": status.timestamp_s,
        "progress": status.ticked_at_s,
        "race": status.raced_at_s,
        "checkpoint": status.saved_at_s,
    }
    return {name: max(0.0, now_s - when_s) for name, when_s in at_s.items() if when_s is not None}


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
