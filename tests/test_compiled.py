"""Caches in the user's folder: a folder for each version of the compiled sources, of which old ones are removed."""

import os
import stat
import subprocess
import sys
import time

import pytest

from trackmania_rl import compiled
from trackmania_rl.compiled import KEPT_FOR_S, compiler_for
from trackmania_rl.errors import UserError
from trackmania_rl.paths import user_folder


def _made_ago(folder, seconds):
    (folder / "tests_1").mkdir(parents=True)
    (folder / "tests_1" / "loop-5.py311.1.nbc").write_bytes(b"code")
    os.utime(folder, (time.time() - seconds,) * 2)
    return folder


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_cache_parent", lambda: tmp_path / "caches")
    return tmp_path / "caches"


def test_a_new_version_of_the_sources_removes_the_caches_of_old_ones_once(tmp_path, caches):
    source = tmp_path / "loops.py"
    source.write_text("pass")
    old, young = (_made_ago(caches / f"loops-{digit * 16}", n * KEPT_FOR_S) for digit, n in (("a", 1.1), ("b", 0.9)))
    of_others = [_made_ago(caches / name, 30 * KEPT_FOR_S) for name in ("loops", "loops-aaaa", "other-" + 16 * "a")]
    compiler_for("loops", [source])(lambda: 1)
    assert not old.exists()
    assert young.exists()
    assert all(folder.exists() for folder in of_others)
    (own,) = set(caches.iterdir()) - {young, *of_others}
    os.utime(own, (time.time() - 2 * KEPT_FOR_S,) * 2)
    old = _made_ago(caches / f"loops-{'c' * 16}", 2 * KEPT_FOR_S)
    compiler_for("loops", [source])
    assert old.exists(), "this version has its cache already"
    assert own.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux's cache folder")
def test_the_users_folder_is_below_the_cache_folder_and_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    folder = user_folder("games")
    assert folder == user_folder("games") == tmp_path / ".cache" / "trackmania_rl" / "games"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"no cache folder: .*; set HOME to a folder of your own"):
        user_folder("games")


CALLS_COMPILED = (
    "import numpy as np; from trackmania_rl.race.road import distance_m; "
    "print(distance_m(np.zeros(3), np.array([3.0, 0, 4])) == 5)"
)


def _ended(cache, repository_root, before="", **variables):
    environment = {**os.environ, "PYTHONPATH": str(repository_root), "XDG_CACHE_HOME": str(cache)} | variables
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", before + CALLS_COMPILED]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_without_a_cache_folder_functions_compile_in_each_process(tmp_path, repository_root):
    (tmp_path / "file").touch()
    ended = _ended(tmp_path / "file", repository_root)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    assert ended.stderr.count("each process compiles its functions for some 30 s") == 1


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
def test_damaged_cache_files_are_written_anew_after_one_line(tmp_path, repository_root, pattern):
    _ended(tmp_path, repository_root)
    for file in tmp_path.rglob(pattern):
        file.write_bytes(b"")
    ended = [_ended(tmp_path, repository_root) for _ in range(2)]
    assert [one.stdout for one in ended] == ["True\n"] * 2, ended
    assert [one.stderr.count("cache of compiled functions") for one in ended] == [1, 0]
    assert [len(one.stderr.splitlines()) for one in ended] == [1, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_functions_compile_without_a_cache_when_the_disk_is_full(tmp_path, repository_root):
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (9, 9)); "
    ended = _ended(tmp_path, repository_root, limit)
    assert (ended.stdout, len(ended.stderr.splitlines())) == ("True\n", 1), ended.stderr
    assert "cache of compiled functions" in ended.stderr


def test_without_compilation_one_line_names_the_variable(tmp_path, repository_root):
    ended = _ended(tmp_path, repository_root, NUMBA_DISABLE_JIT="1")
    assert "NUMBA_DISABLE_JIT is set, but the trainer needs compiled functions" in ended.stderr.splitlines()[-1]
