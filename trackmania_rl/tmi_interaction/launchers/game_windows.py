"""Game windows: a minimised one draws no pictures, and some games wait for the focus.

Each window system needs a library. Without it, one warning is logged and windows are left alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trackmania_rl.errors import warn_once

log = logging.getLogger(__name__)

TITLE_BEGINS: Final = "Track"
"""Common start in both titles: "TrackMania Nations Forever" and "TrackMania Modded"."""
FROM_PAGER: Final = 2
"""X11 source indication for a user's tool. Applications' focus requests are ignored."""
CURRENT_TIME: Final = 0
ICONIC_STATE: Final = 3
"""X11 value for the property WM_STATE (ICCCM 4.1.3.1)."""
MOST_FOCUS_TRIES: Final = 3
"""Each refused focus taps a key in the user's current window."""
INSTALL: Final = 'python -m pip install "trackmania-rl[game-window]"'


class WindowError(Exception):
    """The window system cannot be used or refuses, or the window is gone."""


def open_windows(platform: str = sys.platform) -> WindowSystem:
    """Return the windows on this desktop.

    Raises:
        WindowError: if a library or the display is missing, with the remedy.
    """
    if platform != "win32" and not os.environ.get("DISPLAY"):
        raise WindowError("there is no X display (the variable DISPLAY is not set)")
    try:
        return _Win32Windows() if platform == "win32" else _X11Windows()
    except ImportError as error:
        raise WindowError(f"{error}; {INSTALL}") from error


class GameWindow:
    """One game process's window, kept visible and focused once. Errors are logged, as the game may run on."""

    def __init__(self, pid: int, open_system: Callable[[], WindowSystem] = open_windows) -> None:
        self._pid = pid
        self._window: int | None = None
        self._focus_tries_left = MOST_FOCUS_TRIES
        self._system: WindowSystem | None = None
        try:
            self._system = open_system()
        except WindowError as error:
            warn_once(f"the game's window can be neither found nor shown: {error}; keep it visible yourself", log)

    def show(self) -> None:
        """Restore the window if it is minimised."""

        def restore(system: WindowSystem, window: int) -> None:
            if system.is_minimised(window):
                log.warning("the window of the game (process %d) was minimised; showing it again", self._pid)
                system.restore(window)

        self._do(restore)

    def focus(self) -> None:
        """Bring the window to the front once, in at most `MOST_FOCUS_TRIES` attempts."""

        def focus(system: WindowSystem, window: int) -> None:
            self._focus_tries_left -= 1
            system.focus(window)
            self._focus_tries_left = 0

        if self._focus_tries_left > 0:
            self._do(focus)

    def _do(self, action: Callable[[WindowSystem, int], None]) -> None:
        """Apply an action to the window, if it exists. After an error, search the window anew."""
        if self._system is None:
            return
        try:
            if self._window is None:
                self._window = self._system.find(self._pid)
            if self._window is not None:
                action(self._system, self._window)
        except WindowError as error:
            log.warning("the window of the game (process %d) cannot be shown or focused: %s", self._pid, error)
            self._window = None


class _Win32Windows:
    """Windows on Microsoft Windows, through pywin32.

    Raises:
        ImportError: without pywin32.
    """

    # Methods may raise WindowError. They never wait for the game, which may wait for its client.

    def __init__(self) -> None:
        modules = ("win32api", "win32con", "win32gui", "win32process", "pywintypes", "ctypes")
        self._api, self._constants, self._gui, self._process, types, c_types = map(importlib.import_module, modules)
        self._user32 = c_types.windll.user32  # functions that pywin32 lacks
        self._error_type: type[Exception] = types.error

    def find(self, pid: int) -> int | None:
        found: list[int] = []

        def look_at(window: int, _: Any) -> bool:
            if (
                self._process.GetWindowThreadProcessId(window)[1] == pid
                and self._gui.IsWindowVisible(window)
                and self._gui.GetWindowText(window).startswith(TITLE_BEGINS)
            ):
                found.append(window)
            return True

        with self._errors():
            self._gui.EnumWindows(look_at, None)
        return found[0] if found else None

    def is_minimised(self, window: int) -> bool:
        with self._errors():
            if not self._gui.IsWindow(window):
                raise WindowError("it is gone")
            return bool(self._gui.IsIconic(window))

    def restore(self, window: int) -> None:
        # ShowWindow would wait for the game, which may be waiting for our answer.
        if not self._user32.ShowWindowAsync(window, self._constants.SW_SHOWNORMAL):
            raise WindowError("Windows refuses to show it")

    def focus(self, window: int) -> None:
        # Only the program with the last input event may set the front window; tapping Alt makes that this one
        # (SetForegroundWindow, Remarks: "the calling process received the last input event").
        with self._errors():
            self._api.keybd_event(self._constants.VK_MENU, 0, 0, 0)
            self._api.keybd_event(self._constants.VK_MENU, 0, self._constants.KEYEVENTF_KEYUP, 0)
            self._gui.SetForegroundWindow(window)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._error_type as error:
            raise WindowError(str(error)) from error


class _X11Windows:
    """Windows on the X11 display in DISPLAY, through python-xlib and Extended Window Manager Hints 1.5.

    Raises:
        ImportError: without python-xlib.
        WindowError: if the display cannot be opened.
    """

    def __init__(self) -> None:
        modules = ("Xlib.X", "Xlib.display", "Xlib.error", "Xlib.protocol.event")
        self._x, display, errors, self._events = map(importlib.import_module, modules)
        self._error_types = (
            errors.DisplayError,
            errors.ConnectionClosedError,
            errors.XError,
            OSError,
        )
        self._gone = (errors.BadWindow, errors.BadDrawable)
        self._protocol_error = errors.XError
        with self._errors():
            self._display = display.Display()
            self._root = self._display.screen().root
            if not self._property(self._root, "_NET_SUPPORTING_WM_CHECK"):
                raise WindowError("no window manager runs on the X display, which lists the windows; start one")

    def find(self, pid: int) -> int | None:
        with self._errors():
            for number in self._property(self._root, "_NET_CLIENT_LIST"):
                window = self._display.create_resource_object("window", number)
                is_of_process = list(self._property(window, "_NET_WM_PID")) == [pid]  # set by Wine
                if is_of_process and self._title(window).startswith(TITLE_BEGINS):
                    return int(number)
        return None

    def is_minimised(self, window: int) -> bool:
        with self._errors():
            resource = self._display.create_resource_object("window", window)
            resource.get_geometry()  # raises if the window is gone
            return list(self._property(resource, "WM_STATE"))[:1] == [ICONIC_STATE]

    def restore(self, window: int) -> None:
        with self._errors():
            self._display.create_resource_object("window", window).map()
            self._display.sync()

    def focus(self, window: int) -> None:
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
        except self._gone as error:
            raise WindowError("its window is gone") from error
        except self._error_types as error:
            reason = type(error).__name__ if isinstance(error, self._protocol_error) else error
            raise WindowError(f"X11: {reason}") from error


WindowSystem = _Win32Windows | _X11Windows
