"""What all commands share: exit codes, errors that are told in one line, and ending in order when asked to."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec

from trackmania_rl.errors import PlainError
from trackmania_rl.exit_codes import ExitCode

P = ParamSpec("P")


def command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate a command's main function: it returns the exit code, whatever comes.

    Args:
        main: does the work; returns an exit code, or None for 0. A `PlainError` is told in one line, without a
            traceback (`FAILED`); Ctrl-C is told in one word (`INTERRUPTED`); any other error is a bug and goes through.
    """
    return _returning_exit_code(main, lambda _: ExitCode.FAILED)


def watched_command(main: Callable[P, int | None]) -> Callable[P, int]:
    """Decorate as `command` does, but exit with the error's own code, which says whether to try again."""
    return _returning_exit_code(main, lambda error: error.exit_code)


def _returning_exit_code(main: Callable[P, int | None], code_of: Callable[[PlainError], ExitCode]) -> Callable[P, int]:
    @functools.wraps(main)
    def exit_code(*arguments: P.args, **named: P.kwargs) -> int:
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):  # names of files and players hold what a terminal may not have
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(*arguments, **named) or 0
            sys.stdout.flush()
            return code
        except PlainError as error:
            print(f"error: {error}", file=sys.stderr)
            return code_of(error)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return ExitCode.INTERRUPTED
        except BrokenPipeError:  # as by `| head`
            discard_output()
            return ExitCode.FAILED

    return exit_code


def _open_closed_streams() -> None:
    """Replace standard streams that the caller closed (`>&-`) by the null device.

    Otherwise the next file that is opened gets their number, and child processes write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Discard unwritten output, so that the interpreter does not fail to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_in_order_when_terminated() -> None:
    """Take SIGTERM as Ctrl-C: context managers close what they hold, games and their processes above all."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
