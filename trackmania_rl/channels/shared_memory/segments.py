"""Segments of shared memory whose names say whose they are, so that those of a killed run can be told and removed.

Python unlinks a process's segments when it ends, even if it is killed: another process, its resource tracker, sees to
that. If both are killed together, as by the system for lack of memory, nobody does. On Linux the segments then fill
`/dev/shm`, which is often small, until the machine is restarted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from multiprocessing.shared_memory import SharedMemory
from typing import Final

from trackmania_rl.channels.shared_memory.slots import SHARED_MEMORY_FOLDER

PREFIX: Final = "trackmania_rl"
NAME: Final = re.compile(rf"{PREFIX}_(?P<pid>\d{{1,7}})_(?P<pid_namespace>[0-9a-f]*)[0-9a-f]{{8}}")
"""The token after the process number ends with 8 random digits; macOS allows 30 characters in all."""
MOST_NAMED: Final = 3
"""How many of the segments of others are named."""
BYTES_OF_ST_BLOCKS: Final = 512


def create_segment(size_bytes: int) -> SharedMemory:
    """Create shared memory of this process."""
    while True:
        name = f"{PREFIX}_{os.getpid()}_{_pid_namespace()}{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):  # left by an earlier process of this number, and drawn again
            return SharedMemory(name, create=True, size=size_bytes)


def remove_leftover_segments() -> None:
    """Unlink the segments of processes that are no more; only on Linux, where segments are files.

    Where another process has the number by now, they stay. So do those that another container made, which has process
    numbers of its own and may share this folder.
    """
    if sys.platform != "linux":
        return
    for file in SHARED_MEMORY_FOLDER.glob(f"{PREFIX}_*"):
        named = NAME.fullmatch(file.name)
        if named and named["pid_namespace"] == _pid_namespace() and not _is_running(int(named["pid"])):
            with contextlib.suppress(OSError):  # another user's, or gone already
                file.unlink()


def describe_segments_of_others() -> str:
    """Say what takes room in shared memory beside this process's own segments; empty if nothing does."""
    if sys.platform != "linux":
        return ""
    own = f"{PREFIX}_{os.getpid()}_"
    sizes_mb: dict[str, int] = {}
    for file in SHARED_MEMORY_FOLDER.glob("*"):
        with contextlib.suppress(OSError):  # gone already
            size_mb = file.stat().st_blocks * BYTES_OF_ST_BLOCKS >> 20  # what was never written takes no room
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
    """Name the processes among which this one's number is its own, unlike those of other containers; may be empty."""
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
