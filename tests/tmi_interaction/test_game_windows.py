"""Windows of games through pywin32 and python-xlib, both replaced by fakes; and without them."""

import ctypes
import logging
import sys
from types import SimpleNamespace

import pytest

from trackmania_rl.tmi_interaction.launchers.game_windows import MOST_FOCUS_TRIES, NoWindows, ShownWindow, WindowError
from trackmania_rl.tmi_interaction.launchers.win32_windows import open_win32_windows
from trackmania_rl.tmi_interaction.launchers.x11_windows import open_x11_windows

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
    return SimpleNamespace(log=log, minimised=minimised, gone=gone, gui=modules["win32gui"])


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


class XError(Exception):
    pass


@pytest.fixture
def x11(monkeypatch):
    """A display with the same windows, as python-xlib shows them."""
    log = []
    windows = {
        GAME: {"_NET_WM_PID": [500], "_NET_WM_NAME": b"TrackMania Nations Forever", "WM_STATE": [1, 0]},
        OTHER: {"_NET_WM_PID": [600], "WM_NAME": "TrackMania Modded", "WM_STATE": [3, 0]},
        CONSOLE: {"_NET_WM_PID": [500], "_NET_WM_NAME": b"Console"},
        HIDDEN: {},
    }

    class Window:
        def __init__(self, number):
            self.number = number

        def get_full_property(self, name, kind):
            properties = {"_NET_CLIENT_LIST": list(windows)} if self.number == 0 else windows.get(self.number, {})
            return SimpleNamespace(value=properties[name]) if name in properties else None

        def get_geometry(self):
            if self.number not in windows:
                raise XError("BadWindow")

        def map(self):
            log.append(("map", self.number))
            windows[self.number]["WM_STATE"] = [1, 0]

        def send_event(self, event, event_mask):
            assert (self.number, event_mask) == (0, 3)
            log.append((event.client_type, event.window.number, *event.data[1][:1]))

    class Display:
        def screen(self):
            return SimpleNamespace(root=Window(0))

        def create_resource_object(self, kind, number):
            assert kind == "window"
            return Window(number)

        def intern_atom(self, name):
            return name

        def sync(self):
            log.append("sync")

    error_names = ("DisplayError", "ConnectionClosedError")
    errors = SimpleNamespace(XError=XError, **{name: type(name, (Exception,), {}) for name in error_names})
    modules = {
        "Xlib": SimpleNamespace(),
        "Xlib.X": SimpleNamespace(AnyPropertyType=0, SubstructureRedirectMask=1, SubstructureNotifyMask=2),
        "Xlib.display": SimpleNamespace(Display=Display),
        "Xlib.error": errors,
        "Xlib.protocol": SimpleNamespace(),
        "Xlib.protocol.event": SimpleNamespace(ClientMessage=SimpleNamespace),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("DISPLAY", ":7")
    return SimpleNamespace(log=log, windows=windows, module=modules["Xlib.display"], errors=errors)


def test_x11_finds_shows_and_focuses_the_games_own_window(x11):
    windows = open_x11_windows()
    assert [windows.find(pid) for pid in (500, 600, 700)] == [GAME, OTHER, None]
    assert [windows.is_minimised(window) for window in (GAME, HIDDEN, OTHER)] == [False, False, True]
    windows.restore(OTHER)
    assert not windows.is_minimised(OTHER)
    windows.focus(GAME)
    assert x11.log == [("map", OTHER), "sync", ("_NET_ACTIVE_WINDOW", GAME, 2), "sync"]
    del x11.windows[GAME]
    with pytest.raises(WindowError, match="BadWindow"):
        windows.is_minimised(GAME)


def test_without_library_or_display_the_reason_is_logged_once(x11, monkeypatch, caplog):
    def refuse():
        raise x11.errors.DisplayError("Can't connect to display")

    monkeypatch.setattr(x11.module, "Display", refuse)
    assert "Can't connect to display" in open_x11_windows().reason
    monkeypatch.delenv("DISPLAY")
    assert "DISPLAY" in open_x11_windows().reason
    monkeypatch.setenv("DISPLAY", ":7")
    for name in ("Xlib.X", "win32api"):
        monkeypatch.setitem(sys.modules, name, None)  # as if not installed
    assert 'python -m pip install "trackmania-rl[game-window]"' in open_x11_windows().reason
    assert 'python -m pip install "trackmania-rl[game-window]"' in open_win32_windows().reason
    shown = ShownWindow(NoWindows("there is no screen"), 500)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            shown.show()
    assert caplog.text.count("there is no screen") == 1


def test_showing_leaves_the_focus_where_it_is_and_focusing_is_done_once(win32):
    shown = ShownWindow(open_win32_windows(), 500)
    for _ in range(3):
        shown.show()
    assert win32.log == []
    for _ in range(3):
        shown.focus()
    assert win32.log == [("key", 18, 0), ("key", 18, 2), ("front", GAME)]


def test_a_window_system_that_refuses_is_logged_and_the_window_searched_anew(win32, caplog, monkeypatch):
    shown = ShownWindow(open_win32_windows(), 500)
    shown.show()
    win32.gone.add(GAME)
    with caplog.at_level(logging.WARNING):
        shown.show()
        assert "process 500) cannot be shown or focused: it is gone" in caplog.text
        caplog.clear()
        for _ in range(10):
            shown.focus()
    assert win32.log.count(("key", 18, 0)) == MOST_FOCUS_TRIES, "it does not tap keys for ever"
    assert caplog.text.count("cannot be shown or focused: ") == MOST_FOCUS_TRIES
    win32.gone.clear()
    win32.minimised.add(GAME)
    shown.show()
    assert win32.log[-1] == ("show", GAME, 1)

    def refuse(callback, extra):
        raise Win32Error(5, "EnumWindows", "Access is denied.")

    monkeypatch.setattr(win32.gui, "EnumWindows", refuse)
    ShownWindow(open_win32_windows(), 500).show()
    assert caplog.text.count("Access is denied") == 1
