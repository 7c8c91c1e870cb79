"""Caches of compiled loops: a folder for each version of the sources, of which old ones go when a new one comes."""

import os
import subprocess
import sys
import time

import pytest

from trackmania_rl import compiled
from trackmania_rl.compiled import KEPT_FOR_S, compiler_for


def _made_ago(folder, seconds):
    (folder / "tests_1").mkdir(parents=True)
    (folder / "tests_1" / "loop-5.py311.1.nbc").write_bytes(b"code")
    os.utime(folder, (time.time() - seconds,) * 2)
    return folder


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled._numba_config, "CACHE_DIR", str(tmp_path / "caches"))
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


@pytest.mark.parametrize("has_temporary_folder", [True, False])
def test_an_installation_that_cannot_be_written_to(tmp_path, repository_root, has_temporary_folder):
    """Without a home folder either, as in containers: a file stands where each folder would be made."""
    package = tmp_path / "trackmania_rl"
    package.mkdir()
    for part in (repository_root / "trackmania_rl").glob("[!_]*"):
        (package / part.name).symlink_to(part)
    (package / "compiled.py").unlink()
    for file in ("compiled.py", "__init__.py"):
        (package / file).write_bytes((repository_root / "trackmania_rl" / file).read_bytes())
    for folder in (package / "__pycache__", tmp_path / "home", tmp_path / "no_folder"):
        folder.touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = (
        "import numpy as np; from trackmania_rl.race.zones import distance_m; "
        "print(distance_m(np.zeros(3), np.array([3.0, 0, 4])) == 5)"
    )
    if not has_temporary_folder:
        code = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'no_folder')!r}; {code}"
    unset = ("NUMBA_CACHE_DIR", "PYTHONPATH", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in unset}
        | {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": "none", "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    (notice,) = [line for line in ended.stderr.splitlines() if "cannot be written to" in line]
    assert ("cached nowhere" in notice) is not has_temporary_folder
    assert bool(list(tmp_path.rglob("*.nbi"))) is has_temporary_folder
