"""How a command ends, as a number that whoever started it reads: docs/long_runs.rst has the table."""

from __future__ import annotations

import enum
import signal


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
