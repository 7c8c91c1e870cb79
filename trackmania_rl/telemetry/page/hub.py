"""WebSocket of the page: one message for all tabs at each tick, while there are tabs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from trackmania_rl.telemetry.page.page import RunPage, Topics, Watch

TICK_S: Final = 0.1
FILES_EVERY_S: Final = 1.0
MOST_TABS: Final = 50
MOST_WAITING: Final = 100
"""Messages that wait for a slow tab. With more it is disconnected, and connects again."""
CARS_WHILE_WAITING: Final = 3
"""A tab with more messages waiting gets no positions of cars."""
LONGEST_MESSAGE: Final = 1000

TRY_AGAIN_LATER: Final = 1013


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
    """Tabs of a page.

    Args:
        page: the page.
    """

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._tabs: set[_Tab] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._in_order = asyncio.Lock()  # a tab's snapshot is followed by all later news
        self._has_read = False

    async def serve(self, socket: WebSocket) -> None:
        """Send a tab a snapshot, and then the news, until it disconnects."""
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
        await asyncio.to_thread(self._page.stop_looking)


def encoded(topics: Topics) -> str:
    """Encode topics as JSON without NaN and infinity, which browsers do not read."""
    return json.dumps(topics, separators=(",", ":"), allow_nan=False)


def watch_of(message: str, before: Watch) -> Watch:
    """Return the game that a tab's message asks for; `before` if the message is not valid."""
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
