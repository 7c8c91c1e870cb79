"""A writer that fails or is killed at any step leaves the checkpoint before, or the new one, whole; and no garbage."""

import errno
import os
import shutil
import threading
import zlib
from functools import partial
from pathlib import Path

import pytest

from trackmania_rl.experience_replay.ring_buffer import RingBuffer, rows_of_state
from trackmania_rl.runs import memory_rows
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.store import CheckpointStore

from .conftest import IMAGE_SIZE_PX, N_FLOATS, assert_same, files_of, make_state, ring_of, rows, with_rows

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that is killed here is a fork of this one")

STEPS = ("fsync", "replace", "mkdir", "unlink", "rmdir")
"""Of the module os: what changes the disk. Writing into files is between two check sums, which are steps as well."""
KILLED = 9
N_NEW = 2
"""Rows after the second checkpoint; so many fit into the files of a memory on disk without a loss."""


def fail():
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def interrupt():
    raise KeyboardInterrupt


ENDS = {
    "it is killed": lambda: os._exit(KILLED),
    "the disk fails": fail,
    "a second Ctrl-C": interrupt,
}


def save_until(step, end, save):
    """Write a checkpoint until a step, which ends it; return the outcome."""
    n_done, own_thread = 0, threading.get_ident()  # others are left by other tests

    def counted(original):
        def count(*arguments, **named):
            nonlocal n_done
            n_done += threading.get_ident() == own_thread
            if n_done == step and threading.get_ident() == own_thread:
                end()
            return original(*arguments, **named)

        return count

    with pytest.MonkeyPatch.context() as patched:
        for name in STEPS:
            patched.setattr(os, name, counted(getattr(os, name)))
        patched.setattr(zlib, "crc32", counted(zlib.crc32))
        try:
            save()
        except CheckpointError as error:
            is_told = "000003: Input/output error; the checkpoints written before are intact" in str(error)
            return "told" if is_told else str(error)
        except KeyboardInterrupt:
            return "interrupted"
    return "done" if n_done < step else "written all the same"


def in_a_fork(function):
    """Return the result of a function in a process of its own, or that it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, function().encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as answer:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED)
        return answer.read().decode() or "killed"


@pytest.fixture(params=["ram", "disk"])
def ring(request, tmp_path, monkeypatch):
    """Eleven rows of a ring of 8, of which the second checkpoint in tmp_path/run holds 8: in two files, or its own."""
    row_bytes = RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX)
    monkeypatch.setattr(memory_rows, "SMALL_SEGMENT_BYTES", row_bytes)
    ring = RingBuffer(8, N_FLOATS, IMAGE_SIZE_PX)
    (tmp_path / "run").mkdir()
    if request.param == "disk":
        ring.folder = tmp_path / "run" / "replay"
        ring.resize(8)
    store = CheckpointStore(tmp_path / "run")
    for number, n_new in ((1, 4), (2, 7)):
        ring.append(rows(ring.end_row, n_new))
        store.save(with_rows(make_state(number), ring), 0)
    return ring


def saved_in(folder, ring):
    """Get ready to write the third checkpoint, with five more rows."""
    store = CheckpointStore(folder)
    loaded = load_checkpoint(folder)
    mine = RingBuffer(8, N_FLOATS, IMAGE_SIZE_PX)
    mine.folder = None if ring.folder is None else folder / "replay"
    mine.load_state_dict(ring_of(loaded.state))
    store.continue_from(loaded, mine)
    mine.append(rows(mine.end_row, N_NEW))
    return lambda: store.save(with_rows(make_state(3), mine), 0)


def assert_is_whole(folder, caplog, numbers):
    caplog.clear()
    loaded = load_checkpoint(folder)
    number = loaded.state["number"]
    assert number in numbers
    assert not caplog.records, caplog.text
    end_row = {2: 11, 3: 11 + N_NEW}[number]
    stored = ring_of(loaded.state)
    expected = rows(end_row - 8, 8).by_name()
    stored["columns"] = {name: rows_of_state(stored)[name] for name in expected}
    assert_same(stored, {"capacity": 8, "first_row": end_row - 8, "end_row": end_row, "columns": expected})
    state = {key: value for key, value in loaded.state.items() if key != "replay"}
    assert_same(state, make_state(number))


def assert_next_one_clears_up(folder, ring):
    saved_in(folder, ring)()
    checkpoints = folder / "checkpoints"
    assert len([name for name in files_of(checkpoints) if name != "memory"]) == 2, files_of(checkpoints)
    assert not any(file.name.startswith(".") for file in checkpoints.rglob("*"))
    assert len(list(folder.glob("replay/*"))) == (ring.folder is not None)


@pytest.mark.parametrize("end", ENDS)
def test_a_writer_that_ends_at_any_step_leaves_a_whole_checkpoint(tmp_path, ring, caplog, end):
    ended = []
    while True:
        folder = Path(shutil.copytree(tmp_path / "run", tmp_path / f"ended_{len(ended)}"))
        save = saved_in(folder, ring)
        write = partial(save_until, len(ended) + 1, ENDS[end], save)
        how = in_a_fork(write) if end == "it is killed" else write()
        if how == "done":
            break
        ended.append(how)
        assert_is_whole(folder, caplog, (3,) if how == "written all the same" else (2, 3))
        assert_next_one_clears_up(folder, ring)
        shutil.rmtree(folder)
    assert_is_whole(folder, caplog, (3,))
    told = {"it is killed": "killed", "the disk fails": "told", "a second Ctrl-C": "interrupted"}[end]
    assert set(ended) <= {told, "written all the same"}
    assert ended.count(told) >= 10
