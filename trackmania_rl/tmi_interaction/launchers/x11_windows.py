"""Windows of an X11 desktop, through python-xlib and the window manager (Extended Window Manager Hints 1.5)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trackmania_rl.tmi_interaction.launchers.game_windows import TITLE_BEGINS, NoWindows, WindowError, WindowSystem

FROM_PAGER: Final = 2
"""Source indication of a request that a user's tool makes: window managers ignore focus requests of mere programs."""
CURRENT_TIME: Final = 0
ICONIC_STATE: Final = 3
"""Of the property WM_STATE (ICCCM 4.1.3.1)."""


def open_x11_windows() -> WindowSystem:
    """Return the display's windows, or `NoWindows` if python-xlib or a display is missing."""
    if not os.environ.get("DISPLAY"):
        return NoWindows("there is no X display (the variable DISPLAY is not set)")
    try:
        return X11Windows()
    except ImportError as error:
        return NoWindows(f'{error}; python -m pip install "trackmania-rl[game-window]"')
    except WindowError as error:
        return NoWindows(str(error))


class X11Windows:
    """A `WindowSystem` for the display that the environment names.

    Raises:
        ImportError: if python-xlib is missing.
        WindowError: if the display cannot be opened.
    """

    def __init__(self) -> None:
        modules = ("Xlib.X", "Xlib.display", "Xlib.error", "Xlib.protocol.event")
        self._x, display, errors, self._events = map(importlib.import_module, modules)
        self._error_types = (
            errors.DisplayError,  # cannot be opened
            errors.ConnectionClosedError,
            errors.XError,  # such as a window that has just gone
            OSError,
        )
        with self._errors():
            self._display = display.Display()
            self._root = self._display.screen().root

    def find(self, pid: int) -> int | None:
        """See `WindowSystem.find`; Wine writes the process of each window into _NET_WM_PID."""
        with self._errors():
            for number in self._property(self._root, "_NET_CLIENT_LIST"):
                window = self._display.create_resource_object("window", number)
                if list(self._property(window, "_NET_WM_PID")) == [pid] and self._title(window).startswith(
                    TITLE_BEGINS
                ):
                    return int(number)
        return None

    def is_minimised(self, window: int) -> bool:
        """See `WindowSystem.is_minimised`."""
        with self._errors():
            resource = self._display.create_resource_object("window", window)
            resource.get_geometry()  # which fails if the window is gone
            return list(self._property(resource, "WM_STATE"))[:1] == [ICONIC_STATE]

    def restore(self, window: int) -> None:
        """See `WindowSystem.restore`."""
        with self._errors():
            self._display.create_resource_object("window", window).map()
            self._display.sync()

    def focus(self, window: int) -> None:
        """See `WindowSystem.focus`."""
        with self._errors():
            resource = self._display.create_resource_object("window", window)
            request = self._events.ClientMessage(
                window=resource,
                client_type=self._display.intern_atom("_NET_ACTIVE_WINDOW"),
                data=(32, [FROM_PAGER, CURRENT_TIME, 0, 0, 0]),
            )
            mask = self._x.SubstructureRedirectMask | self._x.SubstructureNotifyMask
            self._root.send_event(request, event_mask=mask)
            self._display.sync()

    def _property(self, window: Any, name: str) -> Sequence[int]:
        answer = window.get_full_property(self._display.intern_atom(name), self._x.AnyPropertyType)
        return () if answer is None else answer.value

    def _title(self, window: Any) -> str:
        for name in ("_NET_WM_NAME", "WM_NAME"):
            answer = window.get_full_property(self._display.intern_atom(name), self._x.AnyPropertyType)
            if answer is not None:
                value = answer.value
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return ""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._error_types as error:
            raise WindowError(f"X11: {error}") from error
