"""Whether a collector is taken to hang, from its beats and its races: plain numbers, without a process or a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trackmania_rl.channels.protocols import SignsOfLife
from trackmania_rl.settings import Settings
from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S
from trackmania_rl.tmi_interaction.race_machine import START_WITHIN_S

FIRST_BEAT_WITHIN_S: Final = 300.0
"""How long a new process may take until it beats: it loads its libraries first, on a cold disk with a virus scanner."""
FIRST_RACE_LATER_S: Final = 600.0
"""How much longer a new process's first race may take: it compiles meanwhile."""
STARTS_OF_A_GAME: Final = 3
"""A game that fails again and again is started so often, before its collector ends by itself."""
SLOWEST_SPEED: Final = 0.5
"""A game that is slower than this share of real time, or of `running_speed` below it, is taken to stand still."""
LONGEST_GAPS: Final = 3.0
"""Where races have been seen to come more slowly than their bound allows, so many of the longest gaps are allowed."""
MOST_OF_ONE_LOOK_S: Final = 1.0
"""What one look adds to a silence at most. Who looks may have been stopped itself, or the whole machine suspended: the
time in between says nothing about anybody else."""


@dataclass(frozen=True)
class Bounds:
    """How long a collector may be silent.

    Attributes:
        silence_s: without a beat, once it has beaten.
        delivery_s: without a race or a fragment of one, the time that it waits left out.
    """

    silence_s: float
    delivery_s: float

    @classmethod
    def of_settings(cls, settings: Settings) -> Bounds:
        """Derive them from the longest race, the limits of a game's start and the settings in force."""
        game = settings.game
        longest_race_s = game.cutoff_race_longer_than_ms / 1000
        start_s = LISTENS_WITHIN_S + START_WITHIN_S + game.tmi_protection_timeout_s
        return cls(
            silence_s=settings.run.collector_silence_s,
            delivery_s=settings.run.collector_silence_s
            + longest_race_s / (SLOWEST_SPEED * min(1.0, game.running_speed))
            + (0.0 if game.is_in_process else STARTS_OF_A_GAME * start_s),
        )


class LifeWatch:
    """Watches one process of a collector from its start to its end, look by look."""

    def __init__(self) -> None:
        self._n_beats = 0
        self._silent_s = 0.0
        self._undelivered_s = 0.0
        self._has_delivered = False
        self._longest_gap_s = 0.0

    def delivered(self) -> None:
        """Note that a race of this process, or a fragment of one, has come in."""
        if self._has_delivered:
            self._longest_gap_s = max(self._longest_gap_s, self._undelivered_s)
        self._has_delivered = True
        self._undelivered_s = 0.0

    def look(self, signs: SignsOfLife, passed_s: float, bounds: Bounds) -> str | None:
        """Look at the collector.

        Args:
            signs: what it tells.
            passed_s: since the last look.
            bounds: in force now.

        Returns:
            Why it is taken to hang; None if it is not.
        """
        counted_s = min(passed_s, MOST_OF_ONE_LOOK_S)
        has_beaten = signs.n_beats != self._n_beats
        self._n_beats = signs.n_beats
        self._silent_s = 0.0 if has_beaten else self._silent_s + counted_s
        if not signs.is_waiting:
            self._undelivered_s += counted_s
        silence_s = bounds.silence_s if signs.n_beats > 0 else max(bounds.silence_s, FIRST_BEAT_WITHIN_S)
        if self._silent_s > silence_s:
            return f"has given no sign of life for {self._silent_s:.0f} s"
        delivery_s = max(bounds.delivery_s, LONGEST_GAPS * self._longest_gap_s)
        if not self._has_delivered:
            delivery_s += FIRST_RACE_LATER_S
        if self._undelivered_s > delivery_s:
            return f"has brought no race for {self._undelivered_s:.0f} s"
        return None
