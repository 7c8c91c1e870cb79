"""Status of a training for other processes, in the run log."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.runs.log import newest_status


class RunStatus(BaseModel):
    """Status of a training. Times are those of `time.monotonic`.

    Attributes:
        is_over: whether the training has ended in order.
        timestamp_s: time of this record; `silence_s` is its timeout.
        ticked_at_s: newest pass of the training loop; `stall_s` is its timeout.
        raced_at_s: newest race; None before the first one of the session.
        saved_at_s: newest checkpoint; None before the first one.
        figures: numbers by name; those that only rise end with `_total`.
        losses: newest means of the updates' losses and other figures, by name.
        maps: see `TrainingStatistics.map_rows`.
    """

    model_config = ConfigDict(frozen=True)

    is_over: bool
    timestamp_s: float = 0.0
    ticked_at_s: float = 0.0
    raced_at_s: float | None = None
    saved_at_s: float | None = None
    silence_s: float = 0.0
    stall_s: float = 0.0
    figures: dict[str, float] = Field(default={}, max_length=100)
    losses: dict[str, float] = Field(default={}, max_length=100)
    maps: list[dict[str, Any]] = Field(default=[], max_length=100)

    def what_is_wrong(self, now_s: float) -> str | None:
        """Return why the training is not healthy; None if it is."""
        if self.is_over:
            return "the training has ended"
        silent_s, stalled_s = now_s - self.timestamp_s, now_s - self.ticked_at_s
        if silent_s < 0:  # the clock began anew
            return "the machine was restarted since the last status"
        if silent_s > self.silence_s:
            return f"no status for {silent_s:.0f} s: the training hangs or was killed, or its disk is full"
        if stalled_s > self.stall_s:
            return f"no progress for {stalled_s:.0f} s"
        return None


def read_status(log: Path) -> RunStatus | None:
    """Read the status in a run log; None if it is missing or damaged."""
    with contextlib.suppress(UserError, ValidationError):
        return RunStatus.model_validate_json(newest_status(log) or "")
    return None
