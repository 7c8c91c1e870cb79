"""Shared memory that a killed run left behind is told from that of a living one, and removed."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace

import pytest

from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.shared_memory import segments, slots
from trackmania_rl.channels.shared_memory.opening import open_channels
from trackmania_rl.channels.shared_memory.rollouts import SharedRolloutSource
from trackmania_rl.channels.shared_memory.segments import (
    NAME,
    create_segment,
    describe_segments_of_others,
    remove_leftover_segments,
)
from trackmania_rl.channels.shared_memory.slots import SHARED_MEMORY_FOLDER, RolloutBounds
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere segments are no files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /dev/shm."""
    monkeypatch.setattr(segments, "SHARED_MEMORY_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def segment() -> Iterator[SharedMemory]:
    memory = create_segment(10_000)
    yield memory
    memory.unlink()
    memory.close()


def test_a_folder_that_cannot_be_written_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SHARED_MEMORY_FOLDER", Path("/proc/sys"))
    monkeypatch.setattr(os, "access", lambda folder, _: str(folder) != "/proc/sys")  # root may write anywhere
    with pytest.raises(ChannelError, match=r"^/proc/sys cannot be written to, and processes share their memory there"):
        open_channels(None, None, {})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ended_pid() -> int:
    """The number of a process that is no more; hardly is it another's by the time of a test."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _name(pid: int, pid_namespace: str | None = None) -> str:
    pid_namespace = segments._pid_namespace() if pid_namespace is None else pid_namespace
    return f"trackmania_rl_{pid}_{pid_namespace}0123abcd"


def test_a_segment_says_whose_it_is(segment: SharedMemory) -> None:
    named = NAME.fullmatch(segment.name)
    assert named is not None
    assert named["pid"] == str(os.getpid())
    assert named["pid_namespace"] == segments._pid_namespace()
    assert segment.size >= 10_000
    assert (SHARED_MEMORY_FOLDER / segment.name).exists()


def test_a_name_that_exists_is_drawn_again(segment: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter((segment.name[-8:], "0123abcd"))
    monkeypatch.setattr(segments, "secrets", SimpleNamespace(token_hex=lambda _: next(tokens)))
    other = create_segment(10)
    assert other.name == segment.name[:-8] + "0123abcd"
    other.unlink()
    other.close()


def test_only_segments_of_processes_that_are_no_more_are_removed(folder: Path, ended_pid: int) -> None:
    leftover = _name(ended_pid)
    kept = [
        _name(os.getpid()),
        _name(os.getppid()),
        _name(ended_pid, pid_namespace="1234abcd"),  # of another container, where that number may be in use
        f"trackmania_rl_{ended_pid}_notes",
        f"trackmania_rl_{ended_pid}",
        f"psm_{ended_pid}",
    ]
    for name in (leftover, *kept):
        (folder / name).touch()
    remove_leftover_segments()
    assert sorted(file.name for file in folder.iterdir()) == sorted(kept)


def test_a_run_that_starts_removes_what_a_killed_one_left(folder: Path, ended_pid: int) -> None:
    (folder / _name(ended_pid)).touch()
    stop = StopFlag(multiprocessing.get_context("spawn"))
    SharedRolloutSource(RolloutBounds(20, 6, 8, 5, 3), slots_per_collector=2, stop=stop).close()
    assert not list(folder.iterdir())


def test_what_else_fills_shared_memory_is_named_by_size(folder: Path) -> None:
    assert describe_segments_of_others() == ""
    for name, size_mb in (("psm_a", 2), ("psm_b", 5), ("torch_c", 3), ("psm_d", 4), (_name(os.getpid()), 9)):
        (folder / name).write_bytes(bytes(size_mb << 20))
    (folder / "sem.small").write_bytes(b"small")
    text = describe_segments_of_others()
    assert "Others have 14 MB there, the largest psm_b (5 MB), psm_d (4 MB), torch_c (3 MB): delete" in text
