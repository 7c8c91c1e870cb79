"""The page's server: what can be asked for, and how."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, HTTPException, Query, WebSocket
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.page.best_runs import FILM_ENDINGS
from trackmania_rl.telemetry.page.guard import Guard, is_same
from trackmania_rl.telemetry.page.health import METRICS_TYPE, health_of, metrics_of
from trackmania_rl.telemetry.page.hub import Hub
from trackmania_rl.telemetry.page.page import RunPage
from trackmania_rl.telemetry.page.run_on_disk import find_run, list_runs

STATIC: Final = Path(__file__).parent / "static"
EDIT_TOKEN_PLACE: Final = "{{edit_token}}"
LONGEST_RACE_MS: Final = 10_000_000


class Edit(BaseModel):
    """A setting's new value, as text."""

    name: str = Field(max_length=200)
    text: str = Field(max_length=100_000)


def make_app(page: RunPage, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> ASGIApp:
    """Make the server of a page.

    Args:
        page: what it shows at "/". The other runs of its folder are at "/runs/{name}/".
        host: where it listens; requests for other hosts are refused.
        port: likewise.
        token: what a request must know; None on loopback only.
    """
    runs = _Runs(page, secrets.token_urlsafe(24))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await runs.close()

    app = FastAPI(title="Live page", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount("/runs/{name}", runs)
    app.mount("", runs.first)
    app.add_exception_handler(UserError, _answer)
    return Guard(app, host, port, token)


class _Runs:
    """The pages of a folder's runs, each made when it is opened; an ASGI app.

    Args:
        page: of the run that the command named.
        edit_token: the page has it, and nobody else: another site can send a request, but not read this one's page.

    Attributes:
        first: the app of that page.
    """

    def __init__(self, page: RunPage, edit_token: str) -> None:
        self._run = page.run
        self._edit_token = edit_token
        self._apps = {page.run.name: _app_of(page, edit_token)}
        self.first = self._apps[page.run.name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for the run that the path names.

        Raises:
            UserError: if it is not listed, or can't be shown.
        """
        name = scope["path_params"]["name"]
        if name not in self._apps:
            self._apps[name] = await asyncio.to_thread(self._make, name)
        await self._apps[name](scope, receive, send)

    async def close(self) -> None:
        """Disconnect all tabs."""
        for app in self._apps.values():
            await app.state.hub.close()

    def _make(self, name: str) -> FastAPI:
        save_folder = self._run.path.parent
        if name not in {run["name"] for run in list_runs(save_folder)}:
            raise UserError(f"{name}: there is no such run in {save_folder}")
        run = find_run(str(save_folder / name), save_folder, self._run.project_folder)
        return _app_of(RunPage(run), self._edit_token)


def _app_of(page: RunPage, edit_token: str) -> FastAPI:
    app, hub = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), Hub(page)
    app.state.hub = hub
    app.add_exception_handler(UserError, _answer)
    _add_pages(app, page, hub, edit_token)
    _add_settings(app, page, edit_token)
    _add_health(app, page)
    return app


def _answer(_: Any, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


def _add_pages(app: FastAPI, page: RunPage, hub: Hub, edit_token: str) -> None:
    @app.get("/", response_class=HTMLResponse)
    def index() -> HTMLResponse:
        text = (STATIC / "index.html").read_text(encoding="utf-8").replace(EDIT_TOKEN_PLACE, edit_token)
        return HTMLResponse(text, headers={"Cache-Control": "no-store"})

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
        columns = page.watched.columns(name)
        if columns is None:
            raise HTTPException(404, "this race is not kept any more")
        return columns

    @app.get("/api/race/{name}/sections")
    def sections(name: str) -> dict[str, Any]:
        compared = page.sections(name)
        if compared is None:
            raise HTTPException(404, "this race is not kept any more")
        return compared

    @app.get("/api/race/{name}/picture")
    def picture(name: str, t: Annotated[int, Query(ge=0, le=LONGEST_RACE_MS)]) -> Response:
        drawn = page.watched.picture(name, t)
        if drawn is None:
            return Response(status_code=204)
        return Response(drawn, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=60"})

    @app.get("/files/{name:path}")
    def file(name: str) -> FileResponse:
        found = page.files.file(name)
        if found is None:
            raise HTTPException(404, "there is no such file")
        is_shown = found.suffix in (*FILM_ENDINGS, ".png")
        return FileResponse(found, filename=found.name, content_disposition_type="inline" if is_shown else "attachment")


def _add_health(app: FastAPI, page: RunPage) -> None:
    """What programs ask for that watch a machine; it costs the reading of one small file."""

    @app.get("/healthz")
    def health() -> JSONResponse:
        status, said = health_of(page.run.path)
        return JSONResponse(said, status, headers={"Cache-Control": "no-store"})

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(metrics_of(page.run.path), media_type=METRICS_TYPE, headers={"Cache-Control": "no-store"})


def _add_settings(app: FastAPI, page: RunPage, edit_token: str) -> None:
    @app.get("/api/settings")
    def settings() -> dict[str, Any]:
        return page.settings()

    @app.post("/api/settings")
    def edit(edit: Edit, x_edit_token: Annotated[str, Header()] = "") -> dict[str, Any]:
        if not is_same(x_edit_token, edit_token):
            raise HTTPException(403, "settings are edited from the page only: load it again")
        return {"changed": page.edit(edit.name, edit.text)}
