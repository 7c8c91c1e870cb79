"""Folders of one user alone: made so, or refused where another user could have written."""

import os
import stat
import sys
import tempfile

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.places import user_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of Linux's cache folder")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder, and an empty temporary folder that everybody can write to."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    return tmp_path / "home"


def mode_of(folder):
    return stat.S_IMODE(folder.stat().st_mode)


def test_it_is_in_the_cache_folder_and_closed_to_others(home):
    folder = user_folder("games")
    assert folder == user_folder("games") == home / ".cache" / "trackmania_rl" / "games"
    assert mode_of(folder) == mode_of(folder.parent) == 0o700
    folder.parent.chmod(0o777)
    assert mode_of(user_folder("games").parent) == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "another user's"])
def test_without_a_home_it_is_in_the_temporary_folder_unless_another_user_made_that(tmp_path, kind, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = tmp_path / "tmp" / f"trackmania_rl_{os.getuid()}"
    assert user_folder("games") == folder / "games"
    assert mode_of(folder) == 0o700
    told = "is not a folder"
    if kind == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        told = "belongs to another user"
    else:
        (folder / "games").rmdir()
        folder.rmdir()
        if kind == "file":
            folder.write_text("")
        else:
            folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match=f"trackmania_rl_.*: {told}; remove it"):
        user_folder("games")
