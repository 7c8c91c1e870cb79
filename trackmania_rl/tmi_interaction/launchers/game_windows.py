"""The window of a game: a minimised one draws no pictures, and some games wait for the focus before they go on.

Each window system needs a library of its own, which may be missing: then nothing is done, and a warning says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

TITLE_BEGINS: Final = "Track"
"""How the game's window title begins: "TrackMania Nations Forever" or "TrackMania Modded"."""
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
