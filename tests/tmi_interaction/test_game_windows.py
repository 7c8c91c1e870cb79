"""Windows through pywin32 and python-xlib, both replaced by fakes; and what happens without them."""

import ctypes
import logging
import sys
from types import SimpleNamespace

import pytest

from trackmania_rl.tmi_interaction.launchers.game_windows import MOST_FOCUS_TRIES, NoWindows, ShownWindow, WindowError
from trackmania_rl.tmi_interaction.launchers.win32_windows import Win32Windows, open_win32_windows
from trackmania_rl.tmi_interaction.launchers.x11_windows import X11Windows, open_x11_windows

GAME, OTHER, HIDDEN, CONSOLE = 11, 12, 13, 14


class Win32Error(Exception):
    pass


@pytest.fixture
def win32(monkeypatch):
    """A desktop with the game's window, its hidden one, its console, and another game's window."""
    log, minimised, gone = [], set(), set()

    def end(window):
        if window in gone:
            raise Win32Error(1400, "SetForegroundWindow", "Invalid window handle.")

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
            SetForegroundWindow=lambda window: (end(window), log.append(("front", window))),
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    user32 = SimpleNamespace(ShowWindowAsync=show)  # and no ShowWindow, which waits for the game
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(user32=user32), raising=False)
    return SimpleNamespace(log=log, minimised=minimised, gone=gone)


def test_win32_finds_shows_and_focuses_the_games_own_window(win32):
    windows = open_win32_windows()
    assert isinstance(windows, Win32Windows)
    assert windows.find(500) == GAME
    assert windows.find(600) == OTHER
    assert windows.find(700) is None
    win32.minimised.add(GAME)
    assert windows.is_minimised(GAME)
    windows.restore(GAME)
    assert not windows.is_minimised(GAME)
    windows.focus(GAME)
    assert win32.log == [("show", GAME, 1), ("key", 18, 0), ("key", 18, 2), ("front", GAME)]


def test_win32_windows_that_are_gone_are_errors(win32):
    windows = open_win32_windows()
    win32.gone.add(GAME)
    with pytest.raises(WindowError, match="Invalid window handle"):
        windows.focus(GAME)
    with pytest.raises(WindowError, match="refuses"):
        windows.restore(GAME)
    with pytest.raises(WindowError, match="gone"):
        windows.is_minimised(GAME)


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
            assert self.number == 0
            assert event_mask == 3
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

    errors = SimpleNamespace(DisplayError=type("DisplayError", (Exception,), {}), XError=XError)
    errors.ConnectionClosedError = type("ConnectionClosedError", (Exception,), {})
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
    assert isinstance(windows, X11Windows)
    assert windows.find(500) == GAME
    assert windows.find(600) == OTHER
    assert windows.find(700) is None
    assert not windows.is_minimised(GAME)
    assert not windows.is_minimised(HIDDEN)
    assert windows.is_minimised(OTHER)
    windows.restore(OTHER)
    assert not windows.is_minimised(OTHER)
    windows.focus(GAME)
    assert x11.log == [("map", OTHER), "sync", ("_NET_ACTIVE_WINDOW", GAME, 2), "sync"]


def test_x11_windows_that_are_gone_are_errors(x11):
    windows = open_x11_windows()
    del x11.windows[GAME]
    with pytest.raises(WindowError, match="BadWindow"):
        windows.is_minimised(GAME)


def test_without_library_or_display_nothing_is_done_and_the_reason_is_known(x11, monkeypatch):
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


def test_no_windows_are_complained_of_once(caplog):
    shown = ShownWindow(NoWindows("there is no screen"), 500)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            shown.show()
    assert caplog.text.count("there is no screen") == 1


def test_a_window_system_that_refuses_is_logged_and_the_window_searched_anew(win32, caplog):
    shown = ShownWindow(open_win32_windows(), 500)
    shown.show()
    win32.gone.add(GAME)
    with caplog.at_level(logging.WARNING):
        shown.show()
    assert "process 500) cannot be shown or focused: it is gone" in caplog.text
    win32.gone.clear()
    win32.minimised.add(GAME)
    shown.show()
    assert win32.log[-1] == ("show", GAME, 1)


def test_showing_a_window_leaves_the_focus_where_it_is_and_focusing_does_so_once(win32):
    shown = ShownWindow(open_win32_windows(), 500)
    for _ in range(3):
        shown.show()
    assert win32.log == []
    for _ in range(3):
        shown.focus()
    assert win32.log == [("key", 18, 0), ("key", 18, 2), ("front", GAME)]


def test_a_focus_that_is_refused_does_not_tap_keys_for_ever(win32, caplog):
    shown = ShownWindow(open_win32_windows(), 500)
    win32.gone.add(GAME)  # so it is refused
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            shown.focus()
    assert win32.log.count(("key", 18, 0)) == MOST_FOCUS_TRIES
    assert caplog.text.count("cannot be shown or focused: ") == MOST_FOCUS_TRIES


def test_a_window_system_that_cannot_even_look_for_the_window_is_logged(win32, caplog, monkeypatch):
    def refuse(callback, extra):
        raise Win32Error(5, "EnumWindows", "Access is denied.")

    monkeypatch.setattr(sys.modules["win32gui"], "EnumWindows", refuse)
    shown = ShownWindow(open_win32_windows(), 500)
    with caplog.at_level(logging.WARNING):
        shown.show()
        shown.focus()
    assert caplog.text.count("Access is denied") == 2
