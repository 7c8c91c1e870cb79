"""Names of shared-memory segments, and removal of those of killed runs.

Python's resource tracker unlinks the segments of a killed process. If it is killed as well, as by the system for lack
of memory, the segments fill `/dev/shm` until the machine restarts. Their names hold the process that made them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Final

SHARED_MEMORY_FOLDER: Final = Path("/dev/shm")
"""Where Linux keeps shared memory; containers often give it 64 MB."""
PREFIX: Final = "trackmania_rl"
NAME: Final = re.compile(rf"{PREFIX}_(?P<pid>\d{{1,7}})_(?P<pid_namespace>[0-9a-f]*)[0-9a-f]{{8}}")
"""The token after the process number ends with 8 random digits; macOS allows 30 characters in all."""
MOST_NAMED: Final = 3
"""Largest number of segments that an error names."""
BYTES_OF_ST_BLOCKS: Final = 512


def new_segment_name() -> str:
    """Return an unused name of a segment of this process."""
    return f"{PREFIX}_{os.getpid()}_{_pid_namespace()}{secrets.token_hex(4)}"


def create_segment(size_bytes: int) -> SharedMemory:
    """Create shared memory of this process."""
    while True:
        with contextlib.suppress(FileExistsError):  # left by an earlier process of this number, and drawn again
            return SharedMemory(new_segment_name(), create=True, size=size_bytes)


def unmap(memory: SharedMemory) -> None:
    """Unmap a segment. Where a view of it still exists, the end of the process does."""
    with contextlib.suppress(BufferError):
        memory.close()


def start_resource_tracker() -> None:
    """Start Python's resource tracker so that it outlives the terminal; it ignores Ctrl-C and SIGTERM only."""
    if not hasattr(signal, "SIGHUP"):
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by the tracker
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, before)


def available_shared_memory_bytes() -> int | None:
    """Return the free shared memory; None where it has no limit of its own (Windows, macOS)."""
    return shutil.disk_usage(SHARED_MEMORY_FOLDER).free if SHARED_MEMORY_FOLDER.is_dir() else None


def remove_leftover_segments() -> None:
    """Unlink the segments of processes that have ended. Only on Linux, where segments are files.

    Segments of other containers stay: these have process numbers of their own and may share the folder.
    """
    if sys.platform != "linux":
        return
    for file in SHARED_MEMORY_FOLDER.glob(f"{PREFIX}_*"):
        named = NAME.fullmatch(file.name)
        if named and named["pid_namespace"] == _pid_namespace() and not _is_running(int(named["pid"])):
            with contextlib.suppress(OSError):  # another user's, or removed already
                file.unlink()


def describe_segments_of_others() -> str:
    """Return a sentence on the memory that other processes hold there; empty if there is none."""
    if sys.platform != "linux":
        return ""
    own = f"{PREFIX}_{os.getpid()}_"
    sizes_mb: dict[str, int] = {}
    for file in SHARED_MEMORY_FOLDER.glob("*"):
        with contextlib.suppress(OSError):  # removed already
            size_mb = file.stat().st_blocks * BYTES_OF_ST_BLOCKS >> 20  # unwritten pages take no room
            if size_mb > 0 and not file.name.startswith(own):
                sizes_mb[file.name] = size_mb
    if not sizes_mb:
        return ""
    largest = sorted(sizes_mb, key=lambda name: -sizes_mb[name])[:MOST_NAMED]
    named = ", ".join(f"{name} ({sizes_mb[name]} MB)" for name in largest)
    return (
        f"Others have {sum(sizes_mb.values())} MB there, the largest {named}: delete what was left by programs that "
        "were killed"
    )


def _pid_namespace() -> str:
    """Return the number of the process namespace, which differs between containers; empty where there are none."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:  # no Linux
        return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing; on Linux only
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
