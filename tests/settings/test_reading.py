"""An edit is code: whatever it does, the last good settings stay, the run goes on meanwhile, and a line says so."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.settings.live import LiveSettings, stamp_of, write_snapshot
from trackmania_rl.settings.reading import ReadInProcess

WAIT_S = 120.0


@pytest.fixture
def snapshot(tmp_path: Path, repository_root: Path) -> Path:
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config")


def edit(snapshot: Path, line: str) -> None:
    with snapshot.open("a") as file:
        file.write(line + "\n")
    os.utime(snapshot, ns=(snapshot.stat().st_mtime_ns + 1_000_000_000,) * 2)


def refresh_until(live: LiveSettings, is_so: Callable[[], object]) -> None:
    """Look again and again, as a run does."""
    ends_at_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_at_s
        live.refresh()
        time.sleep(0.02)


def live_settings(snapshot: Path, within_s: float = WAIT_S, most_memory_bytes: int = 3 << 30) -> LiveSettings:
    start = partial(ReadInProcess, within_s=within_s, most_memory_bytes=most_memory_bytes)
    stamp, settings = stamp_of(snapshot), load_settings(snapshot)
    return LiveSettings(snapshot, settings, start_reading=start, seen=stamp)


def test_an_edit_counts_once_it_is_read(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = live_settings(snapshot)
    edit(snapshot, "print('x' * 10_000_000)\nadam_beta1 = 0.8")  # what it prints goes nowhere
    assert not live.refresh(), "it is being read"
    with caplog.at_level(logging.INFO):
        refresh_until(live, lambda: live.current.agent.adam_beta1 == 0.8)
    assert "adam_beta1 = 0.8 (was 0.9)" in caplog.text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise ValueError('wrong')", r"config\.py: ValueError: wrong"),
        ("import sys; sys.exit(3)", r"ends the program \(SystemExit: 3\): take that out"),
        ("import os; os.kill(os.getpid(), 9)", r"ended with exit code -9 before it was done"),
        ("import os; os.write(1, b'{}'); os.close(1); adam_beta1 = 7", r"adam_beta1 = 7"),
        ("import time; time.sleep(1e6)", r"was not read within 3 s: take out what loops or waits"),
    ],
)
def test_an_edit_that_fails_in_any_way_changes_nothing(
    snapshot: Path, line: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    children_before = set(psutil.Process().children())  # such as multiprocessing's own, which stay
    live = live_settings(snapshot, within_s=3.0 if "sleep" in line else WAIT_S)
    before = live.current
    edit(snapshot, line)
    refresh_until(live, lambda: caplog.records)
    assert live.current is before
    assert "is not applied, the last good one stays" in caplog.text
    assert re.search(told, caplog.text)
    assert set(psutil.Process().children()) <= children_before
    if "ValueError" in line:
        snapshot.write_text(snapshot.read_text().replace(line, "adam_beta1 = 0.8"))
        refresh_until(live, lambda: live.current.agent.adam_beta1 == 0.8)
    assert len(caplog.records) == 1, "it is told once"


@pytest.mark.skipif(sys.platform == "win32", reason="where nothing bounds a process, it takes what it has")
def test_an_edit_that_takes_all_memory_is_refused(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = live_settings(snapshot, most_memory_bytes=300 << 20)
    edit(snapshot, "hoard = []\nwhile True: hoard.append(bytearray(1 << 24))")
    refresh_until(live, lambda: caplog.records)
    assert "takes more than 300 MiB of memory to be read" in caplog.text


def test_a_run_that_ends_gives_up_what_it_reads(snapshot: Path) -> None:
    before = set(psutil.Process().children())
    live = live_settings(snapshot)
    edit(snapshot, "import time; time.sleep(1e6)")
    assert not live.refresh()
    live.close()
    assert set(psutil.Process().children()) <= before
    live.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
def test_what_is_read_ends_with_whoever_reads(snapshot: Path, tmp_path: Path, repository_root: Path) -> None:
    mark = tmp_path / "pid"
    edit(snapshot, f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(1e6)")
    program = "from pathlib import Path; from trackmania_rl.settings.reading import ReadInProcess; import time\n"
    program += f"reading = ReadInProcess(Path({str(snapshot)!r})); time.sleep(1e6)"
    reader = subprocess.Popen([sys.executable, "-c", program], cwd=repository_root)
    ends_at_s = time.monotonic() + WAIT_S
    while not (mark.exists() and mark.read_text().endswith(" ")):
        assert time.monotonic() < ends_at_s
        time.sleep(0.05)
    child = psutil.Process(int(mark.read_text()))
    reader.kill()
    reader.wait()
    child.wait(WAIT_S)


def test_parts_with_arguments_are_the_same_after_they_were_read(
    tmp_path: Path, repository_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config")
    (snapshot.parent / "parts_of_mine.py").write_text("class Net:\n    pass\n")
    edit(snapshot, "from functools import partial\nfrom parts_of_mine import Net\nnetwork = partial(Net, sizes=(3, 5))")
    live = live_settings(snapshot)
    before: Settings = live.current
    edit(snapshot, "adam_beta1 = 0.8")
    refresh_until(live, lambda: live.current.agent.adam_beta1 == 0.8)
    assert not caplog.records
    assert live.current.agent.network == before.agent.network
