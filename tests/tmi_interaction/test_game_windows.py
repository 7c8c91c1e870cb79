"""Windows of games through pywin32, replaced by a fake."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from trackmania_rl.tmi_interaction.launchers.game_windows import ShownWindow, WindowError
from trackmania_rl.tmi_interaction.launchers.win32_windows import open_win32_windows

GAME, OTHER, HIDDEN, CONSOLE = 11, 12, 13, 14


class Win32Error(Exception):
    pass


@pytest.fixture
def win32(monkeypatch):
    """A desktop with the game's window, its hidden one, its console, and another game's window."""
    log, minimised, gone = [], set(), set()

    def focus(window):
        if window in gone:
            raise Win32Error(1400, "SetForegroundWindow", "Invalid window handle.")
        log.append(("front", window))

    def enum_windows(callback, extra):
        for window in (CONSOLE, OTHER, HIDDEN, GAME):
            assert callback(window, extra) is True

    def show(window, how):
        log.append(("show", window, how))
        minimised.discard(window)
        return window not in gone

    modules = {
        "pywintypes": SimpleNamespace(error=Win32Error),
        "win32con": SimpleNamespace(SW_SHOWNORMAL=1, VK_MENU=18, KEYEVENTF_KEYUP=2),
        "win32api": SimpleNamespace(keybd_event=lambda key, scan, flags, extra: log.append(("key", key, flags))),
        "win32process": SimpleNamespace(GetWindowThreadProcessId=lambda w: (99, 600 if w == OTHER else 500)),
        "win32gui": SimpleNamespace(
            EnumWindows=enum_windows,
            IsWindowVisible=lambda window: window != HIDDEN,
            GetWindowText=lambda window: "Console" if window == CONSOLE else "TrackMania Modded",
            IsWindow=lambda window: window not in gone,
            IsIconic=lambda window: window in minimised,
            SetForegroundWindow=focus,
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    user32 = SimpleNamespace(ShowWindowAsync=show)  # and no ShowWindow, which waits for the game
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(user32=user32), raising=False)
    return SimpleNamespace(log=log, minimised=minimised, gone=gone)


def test_win32_finds_shows_and_focuses_the_games_own_window(win32):
    windows = open_win32_windows()
    assert [windows.find(pid) for pid in (500, 600, 700)] == [GAME, OTHER, None]
    win32.minimised.add(GAME)
    assert windows.is_minimised(GAME)
    windows.restore(GAME)
    assert not windows.is_minimised(GAME)
    windows.focus(GAME)
    assert win32.log == [("show", GAME, 1), ("key", 18, 0), ("key", 18, 2), ("front", GAME)]
    win32.gone.add(GAME)
    for act, text in (
        (windows.focus, "Invalid window handle"),
        (windows.restore, "refuses"),
        (windows.is_minimised, "gone"),
    ):
        with pytest.raises(WindowError, match=text):
            act(GAME)


def test_showing_leaves_the_focus_where_it_is_and_focusing_is_done_once(win32):
    shown = ShownWindow(open_win32_windows(), 500)
    for _ in range(3):
        shown.show()
    assert win32.log == []
    for _ in range(3):
        shown.focus()
    assert win32.log == [("key", 18, 0), ("key", 18, 2), ("front", GAME)]
