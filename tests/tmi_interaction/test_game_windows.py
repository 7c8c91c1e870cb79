"""Windows of games through pywin32 and python-xlib, replaced by fakes."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from trackmania_rl.errors import warn_once
from trackmania_rl.tmi_interaction.launchers.game_windows import (
    GameWindow,
    WindowError,
    open_windows,
)

ROOT, GAME, OTHER, HIDDEN, CONSOLE = range(10, 15)


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
    windows = open_windows("win32")
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
    shown = GameWindow(500, lambda: open_windows("win32"))
    for _ in range(3):
        shown.show()
    assert win32.log == []
    for _ in range(3):
        shown.focus()
    assert win32.log == [("key", 18, 0), ("key", 18, 2), ("front", GAME)]


def test_a_window_that_was_minimised_or_is_gone_is_told_and_searched_anew(win32, caplog):
    shown = GameWindow(500, lambda: open_windows("win32"))
    win32.gone.add(GAME)
    shown.show()
    assert "process 500) cannot be shown or focused: it is gone" in caplog.text
    win32.gone.clear()
    win32.minimised.add(GAME)
    shown.show()
    assert win32.log == [("show", GAME, 1)]
    assert "was minimised" in caplog.text


class XError(Exception):
    pass


class BadWindowError(XError):
    pass


@pytest.fixture
def x11(monkeypatch):
    """A display with the same windows."""
    log = []
    windows = {
        ROOT: {"_NET_CLIENT_LIST": [CONSOLE, HIDDEN, OTHER, GAME], "_NET_SUPPORTING_WM_CHECK": [1]},
        GAME: {"_NET_WM_PID": [500], "_NET_WM_NAME": b"TrackMania Nations Forever", "WM_STATE": [1, 0]},
        OTHER: {"_NET_WM_PID": [600], "WM_NAME": "TrackMania Modded", "WM_STATE": [3, 0]},
        CONSOLE: {"_NET_WM_PID": [500], "_NET_WM_NAME": b"Console"},
        HIDDEN: {},
    }

    def geometry(number):
        if number not in windows:
            raise BadWindowError

    def window(kind, number):
        return SimpleNamespace(
            number=number,
            get_full_property=lambda name, _: (
                SimpleNamespace(value=windows[number][name]) if name in windows.get(number, ()) else None
            ),
            get_geometry=lambda: geometry(number),
            map=lambda: log.append(("map", number)),
            send_event=lambda event, event_mask: log.append((event.client_type, event.window.number, event_mask)),
        )

    display = SimpleNamespace(
        screen=lambda: SimpleNamespace(root=window("window", ROOT)),
        create_resource_object=window,
        intern_atom=lambda name: name,
        sync=lambda: log.append("sync"),
    )
    modules = {
        "Xlib": SimpleNamespace(),
        "Xlib.X": SimpleNamespace(AnyPropertyType=0, SubstructureRedirectMask=1, SubstructureNotifyMask=2),
        "Xlib.display": SimpleNamespace(Display=lambda: display),
        "Xlib.error": SimpleNamespace(
            DisplayError=XError,
            ConnectionClosedError=XError,
            XError=XError,
            BadWindow=BadWindowError,
            BadDrawable=BadWindowError,
        ),
        "Xlib.protocol": SimpleNamespace(),
        "Xlib.protocol.event": SimpleNamespace(ClientMessage=SimpleNamespace),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("DISPLAY", ":7")
    return SimpleNamespace(log=log, windows=windows, module=modules["Xlib.display"])


def test_x11_finds_shows_and_focuses_the_games_own_window(x11):
    windows = open_windows("linux")
    assert [windows.find(pid) for pid in (500, 600, 700)] == [GAME, OTHER, None]
    assert [windows.is_minimised(window) for window in (GAME, HIDDEN, OTHER)] == [False, False, True]
    windows.restore(OTHER)
    windows.focus(GAME)
    assert x11.log == [("map", OTHER), "sync", ("_NET_ACTIVE_WINDOW", GAME, 3), "sync"]
    del x11.windows[GAME]
    with pytest.raises(WindowError, match="its window is gone"):
        windows.is_minimised(GAME)


def test_without_library_or_display_the_reason_is_logged_once(x11, monkeypatch, caplog):
    def refuse():
        raise OSError("Can't connect to display")

    def restore():
        x11.module.Display = connect

    warn_once.cache_clear()  # of earlier tests in this process
    connect = x11.module.Display
    x11.module.Display = refuse
    for reason, change in (
        ("Can't connect to display", lambda: None),
        ("no window manager runs", lambda: [restore(), x11.windows[ROOT].pop("_NET_SUPPORTING_WM_CHECK")]),
        ("trackmania-rl[game-window]", lambda: monkeypatch.setitem(sys.modules, "Xlib.X", None)),  # not installed
        ("DISPLAY is not set", lambda: monkeypatch.delenv("DISPLAY")),
    ):
        change()
        for _ in range(2):
            GameWindow(500, lambda: open_windows("linux")).show()
        assert caplog.text.count(reason) == 1
