"""Errors shown in one line without a traceback, and command exit codes."""

from __future__ import annotations

import enum
import functools
import logging
import math
import signal
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """Command exit codes; 74, 75 and 78 are EX_IOERR, EX_TEMPFAIL and EX_CONFIG in sysexits.h."""

    DONE = 0
    """Success, or orderly stop."""
    FAILED = 1
    """Failure; with a traceback, a bug. Retrying may help."""
    MISUSED = 2
    """Unknown option or impossible value."""
    NOT_SAVED = 74
    """The training ended, but the last checkpoint was not written."""
    TRY_AGAIN = 75
    """Temporary failure: the same command may succeed later."""
    NEEDS_A_PERSON = 78
    """A setting, a file or the machine must be corrected first."""
    INTERRUPTED = 128 + signal.SIGINT
    """Ctrl-C before a training had begun, twice, or in another command."""


class PlainError(Exception):
    """Error that ends a command with one line and an exit code."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class UserError(PlainError):
    """Error that a user can correct. The one-line text names the thing, the fault and the remedy."""

    exit_code: ClassVar[ExitCode] = ExitCode.NEEDS_A_PERSON


class PassingError(UserError):
    """Temporary error, such as a port in use."""

    exit_code: ClassVar[ExitCode] = ExitCode.TRY_AGAIN


def one_line(text: object, most_characters: int = 300) -> str:
    """Return a text's or error text's beginning, in one line."""
    return " ".join(str(text).split())[:most_characters]


def is_logged(count: int) -> bool:
    """Return whether a message is logged at this repetition: the 1st, 10th, 100th ..."""
    return math.log10(count).is_integer()


@functools.lru_cache(maxsize=64)
def warn_once(text: str, log: logging.Logger) -> None:
    """Log a warning once per process."""
    log.warning("%s", text)
