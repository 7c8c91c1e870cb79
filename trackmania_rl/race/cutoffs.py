"""When a race is cut off: it has gone on for too long, or got nowhere for too long."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, Literal

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
"""Names of the verdicts of `judge`."""


def cutoff_rules(settings: GameSettings) -> npt.NDArray[np.float64]:
    """Return when a race ends without its finish, as `judge` takes it.

    Returns:
        (4,): `cutoff_race_longer_than_ms`, `cutoff_no_progress_within_ms`, `cutoff_progress_m` and the most actions.
    """
    return np.array(
        [
            settings.cutoff_race_longer_than_ms,
            settings.cutoff_no_progress_within_ms,
            settings.cutoff_progress_m,
            settings.cutoff_horizon_actions or math.inf,
        ]
    )


@_compiled
def judge(
    race_times_ms: npt.NDArray[np.int64],
    furthest_m: npt.NDArray[np.float64],
    row: int,
    window_row: int,
    rules: npt.NDArray[np.float64],
) -> tuple[int, int]:
    """Return whether a race ends at its newest state.

    Args:
        race_times_ms: (N,) race time at each state, ascending; rows up to `row` are read.
        furthest_m: (N,) metres along the line at the furthest point reached until then.
        row: the newest state's.
        window_row: what this function gave back at the state before; 0 at the first.
        rules: (4,), see `cutoff_rules`.

    Returns:
        The verdict, and the row of the latest state that is as old as the window (0 where none is).
    """
    longer_than_ms, no_progress_within_ms, progress_m, horizon_actions = rules[0], rules[1], rules[2], rules[3]
    window_begin_ms = race_times_ms[row] - no_progress_within_ms
    while window_row < row and race_times_ms[window_row + 1] <= window_begin_ms:
        window_row += 1
    if race_times_ms[window_row] <= window_begin_ms and furthest_m[row] - furthest_m[window_row] < progress_m:
        return NO_PROGRESS, window_row
    if race_times_ms[row] > longer_than_ms:
        return TOO_LONG, window_row
    return (HORIZON if row >= horizon_actions else GOING_ON), window_row
