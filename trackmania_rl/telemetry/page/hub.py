"""Sends what is new to every tab: read once for all of them, at a bounded rate, and not at all while there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any, Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from trackmania_rl.telemetry.page.page import RunPage, Topics, Watch

CARS_EVERY_S: Final = 0.1
FILES_EVERY_S: Final = 1.0
MOST_TABS: Final = 50
MOST_WAITING: Final = 100
"""Messages that wait for a slow tab; then it is let go, and begins anew when it comes again."""
CARS_WHILE_WAITING: Final = 3
"""A tab with more messages waiting is not sent every position of the cars."""
LONGEST_MESSAGE: Final = 1000

TRY_AGAIN_LATER: Final = 1013


class _Tab:
    """A browser's tab."""

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
    """The tabs of one page.

    Args:
        page: what they show.
    """

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._tabs: set[_Tab] = set()
        self._work: asyncio.Task[None] | None = None
        self._in_order = asyncio.Lock()  # a new tab's snapshot and what is told to all come one after the other
        self._has_read = False

    async def serve(self, socket: WebSocket) -> None:
        """Send a tab all that there is, and then what is new, until it goes."""
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
        if self._work is None:
            self._work = asyncio.create_task(self._go_on())
        try:
            await _until_one_ends(self._send(socket, tab), self._listen(socket, tab), tab.is_lost.wait())
        finally:
            self._tabs.discard(tab)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await socket.close(TRY_AGAIN_LATER)

    async def close(self) -> None:
        """Let go of all tabs."""
        for tab in self._tabs:
            tab.is_lost.set()
        if self._work is not None:
            await self._work

    async def _send(self, socket: WebSocket, tab: _Tab) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await socket.send_text(await tab.waiting.get())

    async def _listen(self, socket: WebSocket, tab: _Tab) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, KeyError):
            while True:
                tab.watch = watch_of(await socket.receive_text(), tab.watch)

    async def _go_on(self) -> None:
        """Read and tell as long as somebody looks."""
        loop = asyncio.get_running_loop()
        files_at_s = loop.time()
        while self._tabs:
            began_s = loop.time()
            if began_s >= files_at_s:
                files_at_s = began_s + FILES_EVERY_S
                async with self._in_order:
                    self._tell(await asyncio.to_thread(self._page.read))
            async with self._in_order:
                watches = {tab.watch for tab in self._tabs}
                told = await asyncio.to_thread(self._page.cars, watches)
                self._tell(told, is_passing="newest" not in told)
            await asyncio.sleep(max(0.0, began_s + CARS_EVERY_S - loop.time()))
        self._work = None
        await asyncio.to_thread(self._page.stop_looking)

    def _tell(self, topics: Topics, is_passing: bool = False) -> None:
        """Send topics to all tabs; what is passing is left out where a tab is slow."""
        message = encoded(topics)
        for tab in self._tabs:
            if not is_passing or tab.waiting.qsize() <= CARS_WHILE_WAITING:
                tab.put(message)


async def _until_one_ends(*ways: Coroutine[Any, Any, object]) -> None:
    """Go several ways at a time, until the first of them ends."""
    async with anyio.create_task_group() as group:

        async def go(way: Coroutine[Any, Any, object]) -> None:
            await way
            group.cancel_scope.cancel()

        for way in ways:
            group.start_soon(go, way)


def encoded(topics: Topics) -> str:
    """Topics as JSON that browsers read, which know no infinity."""
    return json.dumps(topics, separators=(",", ":"), allow_nan=False)


def watch_of(message: str, before: Watch) -> Watch:
    """The game that a tab's message wishes to watch; as before where it says nothing of it that can be read."""
    if len(message) > LONGEST_MESSAGE:
        return before
    try:
        asked: Any = json.loads(message)["watch"]
    except (ValueError, KeyError, TypeError):
        return before
    if asked is None:
        return None
    is_game = isinstance(asked, list) and len(asked) == 2 and all(type(number) is int for number in asked)
    return (asked[0], asked[1]) if is_game and min(asked) >= 0 else before
