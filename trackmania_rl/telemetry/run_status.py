"""Status of a training for other processes: a small file in the run's folder, rewritten every second."""

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
MOST_BYTES: Final = 1 << 23
CHECKSUM_BYTES: Final = 10
"""Eight digits between two line breaks, at the end of the file."""
READ_TRIES: Final = 5
READ_AGAIN_AFTER_S: Final = 0.02


def write_record(path: Path, text: str) -> None:
    """Replace a text file with a checksum in place, which works on a full disk. I/O errors are ignored."""
    content = text.encode()
    room = ROOM_BYTES
    while room < len(content) + CHECKSUM_BYTES:
        room *= 2
    with contextlib.suppress(OSError):
        if path.exists() and not path.is_file():  # a pipe or a device
            return
        size = path.stat().st_size if path.is_file() else 0
        if size < room or size % ROOM_BYTES:
            path.write_bytes(bytes(room))
            size = room
        content = content.ljust(size - CHECKSUM_BYTES)
        with path.open("r+b", buffering=0) as file:
            file.write(content + _checksum(content))


def read_record(path: Path) -> str | None:
    """Read the text of `write_record`; None if the file is missing or damaged."""
    for _ in range(READ_TRIES):
        try:
            raw = bytes(read_bounded(path, MOST_BYTES))
        except UserError:
            return None
        content, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if checksum == _checksum(content):
            return content.decode("utf-8", "replace")
        time.sleep(READ_AGAIN_AFTER_S)  # it is being written
    return None


def _checksum(content: bytes) -> bytes:
    return b"\n%08x\n" % zlib.crc32(content)


class RunStatus(BaseModel):
    """Status of a training. Times are those of `time.monotonic`.

    Attributes:
        is_over: whether the training has ended in order.
        told_at_s: time of this record; `silence_s` is its timeout.
        ticked_at_s: newest pass of the training loop; `stall_s` is its timeout.
        raced_at_s: newest race; None before the first one of the session.
        saved_at_s: newest checkpoint; None before the first one.
        figures: numbers by name; those that only rise end with `_total`.
        losses: newest means of the updates' losses and other figures, by name.
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
        """Return why the training is not healthy; None if it is."""
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


def write_status(folder: Path, status: RunStatus) -> None:
    """Replace the status in a run's folder."""
    write_record(folder / STATUS_FILE, status.model_dump_json())


def read_status(folder: Path) -> RunStatus | None:
    """Read a run's status; None if it is missing or damaged."""
    text = read_record(folder / STATUS_FILE)
    with contextlib.suppress(ValidationError):
        return RunStatus.model_validate_json(text or "")
    return None
