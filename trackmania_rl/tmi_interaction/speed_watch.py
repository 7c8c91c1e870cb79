"""Notices when a game has become slow: the real one does over hours, and is fast again after a restart."""

from __future__ import annotations

from collections import deque
from typing import Final

RACES_AVERAGED: Final = 5
"""One slow race says little: it may have loaded a map, or the machine was busy."""


class SpeedWatch:
    """Race time by the time spent waiting for the game, averaged over the last races of one game instance."""

    def __init__(self) -> None:
        self._races: deque[tuple[float, float]] = deque(maxlen=RACES_AVERAGED)  # (race time, waited), both in s
        self._best = 0.0

    @property
    def ratio(self) -> float | None:
        """Seconds of race per second of waiting over the last races; None as long as they are too few."""
        race_s, waited_s = (sum(column) for column in zip(*self._races, strict=True)) if self._races else (0.0, 0.0)
        return race_s / waited_s if len(self._races) == RACES_AVERAGED and waited_s > 0 else None

    def share_of_best(self) -> float:
        """Return the ratio now as a share of the best one since the game's start; 1 as long as there is none."""
        ratio = self.ratio
        return 1.0 if ratio is None or self._best == 0 else ratio / self._best

    def add_race(self, race_s: float, waited_s: float) -> None:
        """Take a race into account.

        Args:
            race_s: the race time driven, in seconds.
            waited_s: wall-clock seconds for which the game was waited for meanwhile; own work does not count.
        """
        self._races.append((race_s, waited_s))
        self._best = max(self._best, self.ratio or 0.0)
