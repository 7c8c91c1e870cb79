"""The window of a game: a minimised one draws no pictures, and some games wait for the focus before they go on.

Each window system needs a library of its own, which may be missing: then nothing is done, and a warning says so once.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

TITLE_BEGINS: Final = "Track"
"""How the game's window title begins: "TrackMania Nations Forever" or "TrackMania Modded"."""
FROM_PAGER: Final = 2
"""X11: source indication of a request that a user's tool makes. Focus requests of mere programs are ignored."""
CURRENT_TIME: Final = 0
ICONIC_STATE: Final = 3
"""X11: of the property WM_STATE (ICCCM 4.1.3.1)."""
MOST_FOCUS_TRIES: Final = 3
"""A refused focus takes a key tapped into whatever the user types elsewhere, which must not go on for ever."""


class WindowError(Exception):
    """The window system refuses, or the window is gone."""


class WindowSystem(Protocol):
    """What a launcher needs of windows. All may raise `WindowError`.

    None waits for the game, which does nothing with its window while it waits for an answer of ours.
    """

    def find(self, pid: int) -> int | None:
        """Return the game window of a process; None if there is none (yet)."""
        ...

    def is_minimised(self, window: int) -> bool:
        """Whether it is minimised (iconified)."""
        ...

    def restore(self, window: int) -> None:
        """Have a minimised window shown again, as soon as the game goes on."""
        ...

    def focus(self, window: int) -> None:
        """Bring it to the front and give it the keyboard."""
        ...


class NoWindows:
    """Stands in where no window system can be used.

    Args:
        reason: why, and what to do.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._was_said = False

    def find(self, pid: int) -> int | None:
        """See `WindowSystem.find`."""
        if not self._was_said:
            log.warning("the game's window can be neither found nor shown: %s; keep it visible yourself", self.reason)
            self._was_said = True
        return None

    def is_minimised(self, window: int) -> bool:
        """See `WindowSystem.is_minimised`."""
        return False

    def restore(self, window: int) -> None:
        """See `WindowSystem.restore`."""

    def focus(self, window: int) -> None:
        """See `WindowSystem.focus`."""


class ShownWindow:
    """Keeps the window of one game process visible, and gives it the focus once.

    What the window system refuses is logged, as the game may run on.

    Args:
        windows: the window system.
        pid: the game.
    """

    def __init__(self, windows: WindowSystem, pid: int) -> None:
        self._windows = windows
        self._pid = pid
        self._window: int | None = None
        self._focus_tries_left = MOST_FOCUS_TRIES

    def show(self) -> None:
        """Show the window if it is minimised."""

        def restore(window: int) -> None:
            if self._windows.is_minimised(window):
                log.warning("the window of the game (process %d) was minimised; showing it again", self._pid)
                self._windows.restore(window)

        self._do_with_window(restore)

    def focus(self) -> None:
        """Bring the window to the front, unless that was done, or was refused `MOST_FOCUS_TRIES` times."""

        def focus(window: int) -> None:
            self._focus_tries_left -= 1
            self._windows.focus(window)
            self._focus_tries_left = 0

        if self._focus_tries_left > 0:
            self._do_with_window(focus)

    def _do_with_window(self, do: Callable[[int], None]) -> None:
        """Do something with the window, if there is one yet; it is searched anew once the window system has refused."""
        try:
            if self._window is None:
                self._window = self._windows.find(self._pid)
            if self._window is not None:
                do(self._window)
        except WindowError as error:
            log.warning("the window of the game (process %d) cannot be shown or focused: %s", self._pid, error)
            self._window = None


def open_win32_windows() -> WindowSystem:
    """Return the desktop's windows, or `NoWindows` if pywin32 is missing."""
    try:
        return Win32Windows()
    except ImportError as error:
        return NoWindows(f'{error}; python -m pip install "trackmania-rl[game-window]"')


class Win32Windows:
    """Windows of Microsoft Windows, through pywin32; a `WindowSystem`.

    Raises:
        ImportError: if pywin32 is missing.
    """

    def __init__(self) -> None:
        modules = ("win32api", "win32con", "win32gui", "win32process", "pywintypes", "ctypes")
        self._api, self._constants, self._gui, self._process, types, c_types = map(importlib.import_module, modules)
        self._user32 = c_types.windll.user32  # has what pywin32 lacks
        self._error_type: type[Exception] = types.error

    def find(self, pid: int) -> int | None:
        """See `WindowSystem.find`."""
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
        """See `WindowSystem.is_minimised`."""
        with self._errors():
            if not self._gui.IsWindow(window):
                raise WindowError("it is gone")
            return bool(self._gui.IsIconic(window))

    def restore(self, window: int) -> None:
        """See `WindowSystem.restore`."""
        # ShowWindow would wait until the game, which may be waiting for our answer, has handled it.
        if not self._user32.ShowWindowAsync(window, self._constants.SW_SHOWNORMAL):
            raise WindowError("Windows refuses to show it")

    def focus(self, window: int) -> None:
        """See `WindowSystem.focus`."""
        # Windows lets only the program that had the last input event choose the window in front. Tapping Alt makes that
        # us (SetForegroundWindow, Remarks: "the calling process received the last input event").
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
    """Windows of an X11 desktop, through python-xlib and the window manager (Extended Window Manager Hints 1.5).

    A `WindowSystem` for the display that the environment names.

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
