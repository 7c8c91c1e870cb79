"""Errors that are shown as they are, without a traceback, since their text says all there is to know."""

from __future__ import annotations

import functools
import logging
from typing import ClassVar, Final

from trackmania_rl.exit_codes import ExitCode

WARNINGS_KEPT: Final = 64
"""Texts that `warn_once` remembers; texts from files could otherwise fill the memory."""


class PlainError(Exception):
    """An error that commands print in one line (`trackmania_rl.command_line`).

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
