"""Errors that are shown as they are, without a traceback, and the exit codes that they end a command with."""

from __future__ import annotations

import enum
import functools
import logging
import signal
from typing import ClassVar, Final


class ExitCode(enum.IntEnum):
    """Exit codes. 75 and 78 are those of sysexits.h (EX_TEMPFAIL, EX_CONFIG), 74 is its EX_IOERR.

    An error that commands print in one line carries its own (`trackmania_rl.errors`): a training exits with that, so
    that `train.py --supervised`, systemd or a script know what to do next. Other commands exit with `FAILED`.
    """

    DONE = 0
    """It did what it was asked to, or was stopped in order."""
    FAILED = 1
    """It could not do its work; or, with a traceback, a mistake in this program. Trying again may help."""
    MISUSED = 2
    """There is no such option, or its value is impossible. A person is needed."""
    NOT_SAVED = 74
    """The training ended, but its last checkpoint could not be written: make room, then run the command again."""
    TRY_AGAIN = 75
    """Something outside is wrong that may be well again by itself: the same command may succeed later."""
    NEEDS_A_PERSON = 78
    """A setting, a file or the machine must be mended first: the same command would fail again."""
    INTERRUPTED = 128 + signal.SIGINT
    """Ctrl-C before a training had begun, or twice; or in another command."""


WARNINGS_KEPT: Final = 64
"""Texts that `warn_once` remembers; texts from files could otherwise fill the memory."""


class PlainError(Exception):
    """An error that commands print in one line (`trackmania_rl.cli`).

    Attributes:
        exit_code: what a training that it ends exits with.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class UserError(PlainError):
    """Something outside the program is wrong that a user can mend: a setting, a file, a port, the disk.

    The text is one line that names the thing, what is wrong with it and what to do.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.NEEDS_A_PERSON


class PassingError(UserError):
    """Something outside the program is wrong that may be well again by itself, such as a port that is in use."""

    exit_code: ClassVar[ExitCode] = ExitCode.TRY_AGAIN


def one_line(error: Exception, most_characters: int = 300) -> str:
    """The beginning of another library's error text, which may span many lines, as part of one of ours."""
    return " ".join(str(error).split())[:most_characters]


@functools.lru_cache(maxsize=WARNINGS_KEPT)
def warn_once(text: str, log: logging.Logger) -> None:
    """Log a warning, unless this process has logged the same one."""
    log.warning("%s", text)
