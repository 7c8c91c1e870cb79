"""What all commands share: exit codes, errors that are told in one line, and ending in order when asked to."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, ParamSpec

from trackmania_rl.errors import PlainError

P = ParamSpec("P")

FAILED: Final = 1
"""Exit code of a command that could not do its work."""
INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code of a command that was interrupted, as shells have it."""


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate a command's main function: it returns the exit code, whatever comes.

    Args:
        main: does the work; returns an exit code, or None for 0. A `PlainError` is told in one line, without a
            traceback (`FAILED`); Ctrl-C is told in one word (`INTERRUPTED`); any other error is a bug and goes through.
    """

    @functools.wraps(main)
    def exit_code(*arguments: P.args, **named: P.kwargs) -> int:
        for stream in (sys.stdout, sys.stderr):  # names of files and players hold what a terminal may not have
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(*arguments, **named) or 0
            sys.stdout.flush()
            return code
        except PlainError as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # as by `| head`; the interpreter, which writes what is left, shall not complain either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED

    return exit_code


def end_in_order_when_terminated() -> None:
    """Take SIGTERM as Ctrl-C: context managers close what they hold, games and their processes above all."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
