"""When a race is cut off: it has gone on for too long, or got nowhere for too long."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.settings import GameSettings

_compiled = compiler_for("cutoffs", [Path(__file__)])

CutoffReason = Literal["no_progress", "too_long", "horizon"]

GOING_ON: Final = 0
NO_PROGRESS: Final = 1
TOO_LONG: Final = 2
HORIZON: Final = 3
REASON_OF_VERDICT: Final[dict[int, CutoffReason]] = {
    NO_PROGRESS: "no_progress",
    TOO_LONG: "too_long",
    HORIZON: "horizon",
}
"""What `judge` says in numbers, in words."""

NO_HORIZON: Final = 2**62
"""More actions than any race has."""


class CutoffRules(NamedTuple):
    """When a race ends without its finish; numba takes it as it is.

    Attributes:
        longer_than_ms: a race is cut off after this.
        no_progress_within_ms: and where within this time
        progress_m: its furthest point advanced by less than this.
        horizon_actions: and it is cut off after so many actions.
    """

    longer_than_ms: int
    no_progress_within_ms: int
    progress_m: float
    horizon_actions: int

    @classmethod
    def from_settings(cls, settings: GameSettings) -> CutoffRules:
        """What `cutoff_race_longer_than_ms`, `cutoff_no_progress_within_ms`, `cutoff_progress_m` and `horizon` say."""
        return cls(
            settings.cutoff_race_longer_than_ms,
            settings.cutoff_no_progress_within_ms,
            settings.cutoff_progress_m,
            settings.cutoff_horizon_actions or NO_HORIZON,
        )


@_compiled
def judge(
    race_times_ms: npt.NDArray[np.int64],
    furthest_m: npt.NDArray[np.float64],
    row: int,
    window_row: int,
    longer_than_ms: int,
    no_progress_within_ms: int,
    progress_m: float,
    horizon_actions: int,
) -> tuple[int, int]:
    """Say whether a race ends at its newest state.

    Args:
        race_times_ms: (N,) race time at each state, ascending; rows up to `row` are read.
        furthest_m: (N,) metres along the line at the furthest point reached until then.
        row: the newest state's.
        window_row: what this function gave back at the state before; 0 at the first.
        longer_than_ms: this and the next three: see `CutoffRules`.
        no_progress_within_ms: see there.
        progress_m: see there.
        horizon_actions: see there.

    Returns:
        The verdict, and the row of the latest state that is as old as the window (0 where none is).
    """
    window_begin_ms = race_times_ms[row] - no_progress_within_ms
    while window_row < row and race_times_ms[window_row + 1] <= window_begin_ms:
        window_row += 1
    if race_times_ms[window_row] <= window_begin_ms and furthest_m[row] - furthest_m[window_row] < progress_m:
        return NO_PROGRESS, window_row
    if race_times_ms[row] > longer_than_ms:
        return TOO_LONG, window_row
    return (HORIZON if row >= horizon_actions else GOING_ON), window_row
