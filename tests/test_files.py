"""Renames that Windows refuses for a moment, files that survive power cuts, and pictures under any name."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.files import RENAME_TRIES, RENAME_WITHIN_S, replace_patiently, write_durably, write_png


@pytest.fixture
def hold(monkeypatch):
    """`hold(3)` has the next three renames refused, as if somebody had the file open on Windows."""
    replace = Path.replace

    def hold_for(n_renames):
        refusals = iter(range(n_renames))

        def replace_unless_held(file, target):
            if next(refusals, None) is not None:
                raise PermissionError(13, "The process cannot access the file")
            return replace(file, target)

        monkeypatch.setattr(Path, "replace", replace_unless_held)

    return hold_for


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_rename_that_windows_refuses_for_a_moment_is_tried_again(hold, tmp_path, is_folder):
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    if is_folder:
        fresh.mkdir()
    else:
        fresh.write_text("new")
        old.write_text("old")
    hold(RENAME_TRIES - 1)
    waits_s = []
    replace_patiently(fresh, old, sleep=waits_s.append, platform="win32")
    assert old.is_dir() if is_folder else old.read_text() == "new"
    assert not fresh.exists()
    assert len(waits_s) == RENAME_TRIES - 1
    assert sum(waits_s) == pytest.approx(RENAME_WITHIN_S)


@pytest.mark.parametrize(("platform", "n_waits"), [("win32", RENAME_TRIES - 1), ("linux", 0)])
def test_a_rename_that_stays_refused_is_an_error(hold, tmp_path, platform, n_waits):
    (tmp_path / "fresh").write_text("new")
    hold(100)
    waits_s = []
    with pytest.raises(PermissionError):
        replace_patiently(tmp_path / "fresh", tmp_path / "old", sleep=waits_s.append, platform=platform)
    assert len(waits_s) == n_waits
    assert (tmp_path / "fresh").read_text() == "new"
    hold(0)
    with pytest.raises(FileNotFoundError):
        replace_patiently(tmp_path / "absent", tmp_path / "old", sleep=waits_s.append, platform=platform)
    assert len(waits_s) == n_waits, "other errors are not waited for"


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3)])
def test_a_picture_is_written_under_a_name_of_any_letters(tmp_path, shape):
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    file = tmp_path / "Länge 東.png"
    write_png(file, picture)
    read = cv2.imdecode(np.frombuffer(file.read_bytes(), dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(read, picture)
    with pytest.raises(FileNotFoundError):
        write_png(tmp_path / "no such folder" / "a.png", picture)


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a file"
    write_durably(file, "first\n")
    assert file.read_bytes() == b"first\n"
    synced = []
    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", synced.append)
        write_durably(file, b"second")
    assert file.read_bytes() == b"second"
    assert len(synced) == (2 if os.name == "posix" else 1)  # the file, and the folder with its name

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_durably(file, b"third")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
    assert file.read_bytes() == b"second"
