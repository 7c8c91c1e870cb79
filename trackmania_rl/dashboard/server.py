"""The page's server: what can be asked for, and how."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, HTTPException, Query, WebSocket
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.types import ASGIApp

from trackmania_rl.dashboard.best_runs import FILM_ENDINGS
from trackmania_rl.dashboard.guard import Guard, is_same
from trackmania_rl.dashboard.health import METRICS_TYPE, health_of, metrics_of
from trackmania_rl.dashboard.hub import Hub
from trackmania_rl.dashboard.page import RunPage
from trackmania_rl.errors import UserError

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
        page: what it shows.
        host: where it listens; requests for other hosts are refused.
        port: likewise.
        token: what a request must know; None on loopback only.
    """
    hub = Hub(page)
    edit_token = secrets.token_urlsafe(24)
    """The page has it, and nobody else: another site can send a request, but not read this one's page."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.close()

    app = FastAPI(title="Live page", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_pages(app, page, hub, edit_token)
    _add_settings(app, page, edit_token)
    _add_health(app, page)
    app.state.hub = hub
    return Guard(app, host, port, token)


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

    @app.exception_handler(UserError)
    def tell(_: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)


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
