"""Folders of one user alone: made so, or refused where somebody else has a hand in them."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from trackmania_rl import places
from trackmania_rl.errors import UserError
from trackmania_rl.places import cache_folder, runtime_folder, what_is_wrong

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the temporary folder of each user apart")


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose temporary folder is empty, and which has no folder of each user."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(places, "RUNTIME_FOLDERS", tmp_path / "run")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    return tmp_path


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_it_lies_in_the_users_own_folder(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_places / "run" / str(os.getuid())
    own.mkdir(parents=True, mode=0o700)
    assert runtime_folder("games") == runtime_folder("games") == own / "trackmania_rl" / "games"
    elsewhere = own_places / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
    assert runtime_folder("games") == elsewhere / "trackmania_rl" / "games"


@pytest.mark.parametrize("kind", ["absent", "open", "link"])
def test_it_lies_in_the_temporary_folder_where_there_is_no_such(
    own_places: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_places / "own"
    if kind == "open":
        own.mkdir()
        own.chmod(0o777)
    elif kind == "link":
        (own_places / "there").mkdir(mode=0o700)
        own.symlink_to(own_places / "there")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    folder = runtime_folder("games")
    assert folder == own_places / "tmp" / f"trackmania_rl_{os.getuid()}" / "games"
    assert mode_of(folder) == mode_of(folder.parent) == 0o700


def test_a_cache_lies_in_the_home_folder(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache_folder("torch_compile")
    assert folder == own_places / "home" / ".cache" / "trackmania_rl" / "torch_compile"
    assert mode_of(folder) == mode_of(folder.parent) == 0o700
    (own_places / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_places / "file"))
    assert cache_folder("torch_compile").is_relative_to(own_places / "tmp")
    (own_places / "tmp" / f"trackmania_rl_{os.getuid()}").chmod(0o777)
    assert mode_of(runtime_folder("games").parent) == 0o700, "it is closed to others again"


@pytest.mark.parametrize("kind", ["link", "file", "another user's"])
def test_what_is_somebody_elses_is_refused(own_places: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_places / "tmp" / f"trackmania_rl_{os.getuid()}"
    if kind == "link":
        (own_places / "trap").mkdir(mode=0o700)
        folder.symlink_to(own_places / "trap")
        told = "is a link, not a folder"
    elif kind == "file":
        folder.write_text("")
        told = "is not a folder"
    else:
        folder.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        told = "belongs to another user"
    with pytest.raises(UserError, match=f"trackmania_rl_.*: {told}; remove it"):
        runtime_folder("games")
    assert what_is_wrong(folder) == told
