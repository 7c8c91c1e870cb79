"""Caches of compiled loops: a folder for each version of the sources, of which old ones go when a new one comes."""

import os
import time
from pathlib import Path

import pytest

from trackmania_rl import compiled
from trackmania_rl.compiled import KEPT_FOR_S, compiler_for


def _made_ago(folder: Path, seconds: float) -> Path:
    (folder / "tests_1").mkdir(parents=True)
    (folder / "tests_1" / "loop-5.py311.1.nbc").write_bytes(b"code")
    os.utime(folder, (time.time() - seconds,) * 2)
    return folder


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled._numba_config, "CACHE_DIR", str(tmp_path / "caches"))
    return tmp_path / "caches"


def test_a_new_version_of_the_sources_removes_the_caches_of_old_ones(tmp_path: Path, caches: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text("pass")
    old, young = (_made_ago(caches / f"loops-{digit * 16}", n * KEPT_FOR_S) for digit, n in (("a", 1.1), ("b", 0.9)))
    of_others = [
        _made_ago(caches / name, 30 * KEPT_FOR_S)
        for name in ("loops", "loops-notes", "loops-aaaa", "other-" + 16 * "a", "more-loops-" + 16 * "a")
    ]
    compiler_for("loops", [source])
    assert not old.exists()
    assert young.exists()
    assert all(folder.exists() for folder in of_others)


def test_a_version_that_has_its_cache_removes_none(tmp_path: Path, caches: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text("pass")
    compiler_for("loops", [source])(lambda: 1)  # which makes its folder
    (own,) = caches.iterdir()
    old = _made_ago(caches / f"loops-{'a' * 16}", 2 * KEPT_FOR_S)
    os.utime(own, (time.time() - 2 * KEPT_FOR_S,) * 2)
    compiler_for("loops", [source])
    assert old.exists()
    assert own.exists()


def test_a_cache_folder_that_is_not_there_yet_is_no_hindrance(tmp_path: Path, caches: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text("pass")
    assert not caches.exists()
    compiler_for("loops", [source])(lambda: 1)
    assert len(list(caches.iterdir())) == 1
