"""Checkpoint manifest: versions, settings, sizes and checksums; and checkpoint errors."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackmania_rl.errors import UserError, one_line

FORMAT_VERSION: Final = 5
MANIFEST_FILE: Final = "manifest.json"
STATE_FILE: Final = "state.pt"
WEIGHTS_FILE: Final = "weights.safetensors"
MEMORY_FOLDER: Final = "memory"
"""Folder beside the checkpoints with the row files that they share."""

Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}\.(safetensors|pt)$")]
SegmentName = Annotated[str, Field(pattern=r"^[0-9]{12,19}-[0-9]{12,19}-[0-9a-f]{16}\.npz$")]


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read. The text names it, the reason and what to do."""


class DamagedError(CheckpointError):
    """Reason why a checkpoint cannot be read, without the checkpoint's name."""


class DiskTooFullError(CheckpointError):
    """A checkpoint that is larger than the disk can spare; nothing was written."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class FileEntry(_Frozen):
    """A file's size and CRC-32."""

    bytes: Count
    crc32: Count


class Segment(_Frozen):
    """File in `MEMORY_FOLDER` with the rows from `first_row` to before `end_row`. The archive has a CRC-32 itself."""

    file: SegmentName
    first_row: Count
    end_row: Count
    bytes: Count


class RowsEntry(_Frozen):
    """Replay memory rows that belong to a checkpoint, from `first_row` to before `end_row`.

    Attributes:
        segments: files that hold them without a gap; in the first one, rows before `first_row` are not valid.
        files: folder in `RunFolder.replay` with the `RowFiles` that hold them instead; None for segments.
    """

    first_row: Count
    end_row: Count
    segments: tuple[Segment, ...]
    files: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None


class Manifest(_Frozen):
    """A checkpoint's manifest.

    Attributes:
        number: the checkpoint's in the run; the newest has the largest.
        written: time in UTC.
        session: how often the run was started.
        score: for the evaluation races, see `training.hooks.checkpoints.score_of`. None before the first.
        written_bytes: size of the new content.
        files: in the folder, by name.
        rows: replay memory rows; None without them.
    """

    format_version: int = FORMAT_VERSION
    number: Count
    program: str
    git_revision: str | None
    written: str
    session: Count
    frames: Count
    updates: Count
    score: tuple[float, ...] | None
    settings: dict[str, Any]
    written_bytes: Count
    files: dict[FileName, FileEntry]
    rows: RowsEntry | None

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - datetime.datetime.fromisoformat(self.written).timestamp())

    @property
    def n_bytes(self) -> int:
        """Folder size, without the replay memory's rows."""
        return sum(file.bytes for file in self.files.values())

    @property
    def row_bytes(self) -> int:
        """Size of the row files."""
        return sum(segment.bytes for segment in self.rows.segments) if self.rows else 0


def bytes_of_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON with a SHA-256."""
    values = manifest.model_dump(mode="json")
    return json.dumps({"sha256": _digest(values), "manifest": values}, indent=1, allow_nan=False).encode()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a checkpoint's folder.

    Raises:
        DamagedError: if missing, damaged or in another format.
    """
    if not folder.is_dir():
        raise DamagedError(f"{folder}: there is no such checkpoint folder")
    try:
        known = json.loads((folder / MANIFEST_FILE).read_bytes())
        values = known["manifest"]
        if values["format_version"] != FORMAT_VERSION:
            raise DamagedError(
                f"{MANIFEST_FILE}: its format is {values['format_version']!r:.20}, this program reads format "
                f"{FORMAT_VERSION}"
            )
        if _digest(values) != known["sha256"]:
            raise ValueError("its check sum is wrong")
        return Manifest.model_validate(values)
    except OSError as error:
        raise DamagedError(f"{MANIFEST_FILE}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise DamagedError(f"{MANIFEST_FILE}: {'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST_FILE} is damaged: {one_line(error)}") from None


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, indent=1, allow_nan=False).encode()).hexdigest()
