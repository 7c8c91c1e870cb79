"""What a training tells of itself once a second, for whoever asks whether it is well: one small file in its folder.

The file is made once and then written in place, so that it is also told while the disk is full. It ends with a
checksum: who reads it in the midst of a write looks again.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded

STATUS_FILE: Final = "status.json"
ROOM_BYTES: Final = 1 << 14
CHECKSUM_BYTES: Final = 10
"""Eight digits between two line ends."""
MOST_LOOKS: Final = 5
LOOK_AGAIN_AFTER_S: Final = 0.02


class RunStatus(BaseModel):
    """A training as of a moment. Times are those of the machine's own clock, which nobody sets.

    Attributes:
        is_over: whether it has ended in order.
        told_at_s: when this was written.
        ticked_at_s: when its loop went on last.
        raced_at_s: when the last race came in; None if this session has had none.
        saved_at_s: when the last checkpoint was written, likewise.
        silence_s: without news for so long it is taken to hang.
        stall_s: likewise without going on.
        figures: numbers by the names of `trackmania_rl.telemetry.page.health`.
        losses: the newest means of the updates' losses and the like, by name.
    """

    model_config = ConfigDict(frozen=True)

    is_over: bool
    told_at_s: float
    ticked_at_s: float
    raced_at_s: float | None
    saved_at_s: float | None
    silence_s: float
    stall_s: float
    figures: dict[str, float] = Field(max_length=100)
    losses: dict[str, float] = Field(max_length=100)

    def what_is_wrong(self, now_s: float) -> str | None:
        """Say why it is taken not to be well; None if it is.

        Args:
            now_s: on the same clock.
        """
        if self.is_over:
            return "the training has ended"
        silent_s, stalled_s = now_s - self.told_at_s, now_s - self.ticked_at_s
        if silent_s < 0:  # the clock began anew
            return "the machine was restarted since the training last told of itself"
        if silent_s > self.silence_s:
            return f"no sign of life for {silent_s:.0f} s"
        if stalled_s > self.stall_s:
            return f"it has not gone on for {stalled_s:.0f} s"
        return None


class StatusFile:
    """Writes a run's status; what fails is tried again the next time.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATUS_FILE

    def write(self, status: RunStatus) -> None:
        """Write it over what was told before."""
        with contextlib.suppress(OSError):
            if self._path.exists() and not self._path.is_file():  # a pipe or a device, which takes no status
                return
            if not self._path.is_file() or self._path.stat().st_size != ROOM_BYTES:
                self._path.write_bytes(bytes(ROOM_BYTES))
            with self._path.open("r+b", buffering=0) as file:
                file.write(_encoded(status))


def read_status(folder: Path) -> RunStatus | None:
    """Read a run's status; None if there is none, or none that can be read."""
    for _ in range(MOST_LOOKS):
        try:
            raw = bytes(read_bounded(folder / STATUS_FILE, ROOM_BYTES))
        except UserError:
            return None
        text, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if checksum == _checksum(text):
            with contextlib.suppress(ValidationError):
                return RunStatus.model_validate_json(text)
            return None
        time.sleep(LOOK_AGAIN_AFTER_S)
    return None


def _encoded(status: RunStatus) -> bytes:
    room = ROOM_BYTES - CHECKSUM_BYTES
    text = status.model_dump_json().encode()
    if len(text) > room:  # by names of somebody's own
        text = status.model_copy(update={"losses": {}}).model_dump_json().encode()
    text = text.ljust(room)
    return text + _checksum(text)


def _checksum(text: bytes) -> bytes:
    return b"\n%08x\n" % zlib.crc32(text)
