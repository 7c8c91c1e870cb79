"""Bounded time and memory for files that may be made to hang a reader.

A pickle of 1 kB can hold a key whose hash takes years, and ten lines of Python a tuple that fills the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from trackmania_rl.errors import UserError
from trackmania_rl.processes import PipeEnd, answering

IMPORT_LIMIT_S: Final = 120.0
READ_LIMIT_S: Final = 20.0
MEMORY_LIMIT_BYTES: Final = 2 << 30
TOO_LARGE: Final = f"fills more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory"

Reading = tuple[Callable[[Path], object], Path]
"""A function and the file that it reads."""


def require_bounded(readings: Sequence[Reading]) -> None:
    """Read files in a separate process, to check that this process can, too.

    Errors in the functions are ignored: they recur here.

    Raises:
        UserError: if reading takes longer than `READ_LIMIT_S`, fills the memory, or kills the process.
    """
    with answering(_read, readings) as answers:
        _next_answer(answers, IMPORT_LIMIT_S)
        for _, file in readings:
            if reason := _next_answer(answers, READ_LIMIT_S):
                raise UserError(f"{file} {reason}: it is damaged, or made for that; it is not read")


def _next_answer(answers: PipeEnd, limit_s: float) -> str:
    if not answers.poll(limit_s):
        return f"takes longer than {limit_s:g} s to read"
    try:
        return str(answers.recv())
    except EOFError:
        return "ends the process that reads it"


def _read(answers: PipeEnd, readings: Sequence[Reading]) -> None:
    if sys.platform != "win32":
        import resource

        most = psutil.Process().memory_info().vms + MEMORY_LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answers.send("")  # all is imported
    for read, file in readings:
        try:
            read(file)
            answer = ""
        except MemoryError:
            answer = TOO_LARGE
        except Exception:  # it comes again in the process that asks, see `require_bounded`
            answer = ""
        answers.send(answer)
