"""What whoever plays a race is told of it: a state in which a decision is due, and the race's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.cutoffs import CutoffReason


class Observation(NamedTuple):
    """What is seen of one state: by the policy at a decision, or at the race's end.

    Attributes:
        frame: (1, H, W) uint8 gray; (1, 0, 0) without an image.
        floats: (F,) float32, see `ObservationLayout`.
        car: (22,) float32, see `feature_kernel.CAR_COLUMNS`.
        zone_idx: the current zone.
        meters: metres along the line.
        race_time_ms: since the race's beginning, a multiple of the action's duration but at the finish.
        position_m: (3,) float32, the car in world axes.
        speed_m_s: the car's speed.
    """

    frame: npt.NDArray[np.uint8]
    floats: npt.NDArray[np.float32]
    car: npt.NDArray[np.float32]
    zone_idx: int
    meters: float
    race_time_ms: int
    position_m: npt.NDArray[np.float32]
    speed_m_s: float


@dataclass(frozen=True)
class RaceEnd:
    """How a race ended.

    Attributes:
        cutoff_reason: why it was cut off; None if it was finished.
        race_time_ms: from the race's beginning to the finish, or the time driven.
        furthest_zone_idx: the highest zone reached; the finish's own index if it was finished.
        furthest_m: metres along the line at the furthest point reached.
        checkpoint_times_ms: times of the checkpoints passed since the race's beginning, the finish included.
        last: the state that the last action led to: that of the cut-off, or the one at the finish. Its picture is
            its own at a cut-off; at the finish, of which a game behind a socket gives none, the one before.
    """

    cutoff_reason: CutoffReason | None
    race_time_ms: int
    furthest_zone_idx: int
    furthest_m: float
    checkpoint_times_ms: tuple[int, ...]
    last: Observation = field(compare=False, repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether the finish was reached."""
        return self.cutoff_reason is None


def times_passed(times_ms: Iterable[int]) -> tuple[int, ...]:
    """Checkpoint times without NOT_PASSED."""
    return tuple(time_ms for time_ms in times_ms if time_ms >= 0)


@dataclass
class GameTimings:
    """Wall-clock time of one race in seconds, by what it was spent on."""

    wait_game_s: float = 0.0
    answer_game_s: float = 0.0
    features_s: float = 0.0
