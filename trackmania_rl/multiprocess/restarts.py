"""Whether a training hangs, and whether it is started again: plain numbers, without a process or a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trackmania_rl.errors import ExitCode

FIRST_DELAY_S: Final = 2.0
LONGEST_DELAY_S: Final = 300.0
GIVE_UP_AFTER: Final = 10
WITHIN_S: Final = 86_400.0
"""So many starts within a day without anything learned and saved, and it is a person's turn."""
DEFAULT_SILENCE_S: Final = 300.0
"""Until the training says how long it may be silent: it loads its libraries first."""
DEFAULT_STALL_S: Final = 3600.0
"""Until it has begun: it reads a checkpoint, and compiles."""
MOST_OF_ONE_LOOK_S: Final = 2.0
"""What one look adds to a silence at most: who looks may have been suspended together with the training."""

FINAL: Final = (
    ExitCode.DONE,
    ExitCode.MISUSED,
    ExitCode.NOT_SAVED,
    ExitCode.NEEDS_A_PERSON,
    ExitCode.INTERRUPTED,
)
"""Codes after which a training is not started again."""


class PulseWatch:
    """Watches one training from its start to its end, look by look."""

    def __init__(self) -> None:
        self._stirs = self._ticks = 0
        self._silent_s = self._stalled_s = 0.0

    def look(self, stirs: int, ticks: int, passed_s: float, silence_s: float, stall_s: float) -> str | None:
        """Look at its pulse.

        Args:
            stirs: see `Pulse`.
            ticks: likewise.
            passed_s: since the last look.
            silence_s: what it wishes for; 0 for nothing yet.
            stall_s: likewise.

        Returns:
            How it hangs; None if it does not.
        """
        counted_s = min(passed_s, MOST_OF_ONE_LOOK_S)
        self._silent_s = 0.0 if stirs != self._stirs else self._silent_s + counted_s
        self._stalled_s = 0.0 if ticks != self._ticks else self._stalled_s + counted_s
        self._stirs, self._ticks = stirs, ticks
        if self._silent_s > (silence_s or DEFAULT_SILENCE_S):
            return f"gave no sign of life for {self._silent_s:.0f} s"
        if self._stalled_s > (stall_s or DEFAULT_STALL_S):
            return f"did not go on for {self._stalled_s:.0f} s"
        return None


@dataclass(frozen=True)
class Restart:
    """Start the training again after a while."""

    after_s: float


@dataclass(frozen=True)
class End:
    """Leave it, with an exit code.

    Attributes:
        exit_code: to exit with.
        gives_up: whether it was to go on, but does not.
    """

    exit_code: int
    gives_up: bool = False


class RestartPolicy:
    """Decides what to do when a training has ended: later and later starts, and an end where nothing more is learned.

    A training that has saved something that no earlier one had begins with the shortest delay again.
    """

    def __init__(self) -> None:
        self._failed_at_s: list[float] = []
        self._saved = 0

    def decide(self, exit_code: int | None, saved: int, now_s: float) -> Restart | End:
        """Decide.

        Args:
            exit_code: of the training; negative for a signal, None if it hung and was killed.
            saved: how far the run had come in its last checkpoint; 0 if it has written none.
            now_s: the time.
        """
        if exit_code in FINAL:
            return End(int(exit_code or 0))
        if saved > self._saved:
            self._saved = saved
            self._failed_at_s.clear()
        self._failed_at_s = [at_s for at_s in self._failed_at_s if now_s - at_s < WITHIN_S] + [now_s]
        n_failures = len(self._failed_at_s)
        if n_failures >= GIVE_UP_AFTER:
            return End(ExitCode.NEEDS_A_PERSON, gives_up=True)
        return Restart(min(FIRST_DELAY_S * 2 ** (n_failures - 1), LONGEST_DELAY_S))
