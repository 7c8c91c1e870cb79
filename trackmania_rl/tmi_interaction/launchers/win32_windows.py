"""Windows of Microsoft Windows, through pywin32."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trackmania_rl.tmi_interaction.launchers.game_windows import TITLE_BEGINS, NoWindows, WindowError, WindowSystem


def open_win32_windows() -> WindowSystem:
    """Return the desktop's windows, or `NoWindows` if pywin32 is missing."""
    try:
        return Win32Windows()
    except ImportError as error:
        return NoWindows(f'{error}; python -m pip install "trackmania-rl[game-window]"')


class Win32Windows:
    """A `WindowSystem`.

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
