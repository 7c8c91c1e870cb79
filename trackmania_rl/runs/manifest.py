"""What a checkpoint's manifest says, and the bounds that it has to keep before anything else is read."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trackmania_rl.files import parse_json, read_bounded
from trackmania_rl.runs.errors import DamagedError

FORMAT_VERSION: Final = 3
MANIFEST_FILE: Final = "manifest.json"
STATE_FILE: Final = "state.json"
MEMORY_FOLDER: Final = "memory"
"""Beside the checkpoints: the files of rows that they share."""
MOST_JSON_BYTES: Final = 16 << 20
MOST_JSON_ENTRIES: Final = 1 << 20
"""Commas and brackets of a JSON file: what is made of it takes 60 bytes for each at most."""
MOST_FILE_BYTES: Final = 8 << 30
MOST_HEADER_BYTES: Final = 16 << 20
"""Of a file of tensors, beside these."""
MOST_NUMBER: Final = 1 << 62

DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    )
}
"""What tensors may be, by name."""

Count = Annotated[int, Field(ge=0, le=MOST_NUMBER, strict=True)]
Size = Annotated[int, Field(ge=0, le=MOST_FILE_BYTES, strict=True)]
CheckSum = Annotated[int, Field(ge=0, lt=1 << 32, strict=True)]
"""CRC-32: against damage. Against a stranger no check sum helps, who could write it anew."""
FileName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}\.(safetensors|json)$")]
SegmentName = Annotated[str, Field(pattern=r"^[0-9]{12,19}-[0-9]{12,19}-[0-9a-f]{16}\.rows$")]
Line = Annotated[str, Field(max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Strict):
    """A file: its size, and the check sum of what it holds."""

    bytes: Size
    crc32: CheckSum


class TensorEntry(_Strict):
    """A tensor, or one row of a column."""

    dtype: Line
    shape: Annotated[tuple[Count, ...], Field(max_length=16)]

    @model_validator(mode="after")
    def _is_known(self) -> TensorEntry:
        if self.dtype not in DTYPES:
            raise ValueError(f"no tensor is of {self.dtype!r}")
        if self.n_bytes > MOST_FILE_BYTES:
            raise ValueError(f"a tensor of {self.n_bytes} bytes is larger than any file of a checkpoint")
        return self

    @classmethod
    def of(cls, tensor: torch.Tensor, *, row: bool = False) -> TensorEntry:
        """Describe a tensor, or each row of one."""
        return cls(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape[1 if row else 0 :]))

    @property
    def n_bytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class Segment(_Strict):
    """A file of consecutive rows of the replay memory: column after column, without a header.

    Attributes:
        file: its name in the folder of rows: the rows, and a random number.
        first_row, end_row: numbers of its rows, the latter excluded.
        bytes: its size.
        crc32: of what it holds.
    """

    file: SegmentName
    first_row: Count
    end_row: Count
    bytes: Size
    crc32: CheckSum

    @property
    def n_rows(self) -> int:
        """How many rows it holds."""
        return self.end_row - self.first_row


class RowsEntry(_Strict):
    """The rows of the replay memory that belong to a checkpoint.

    Attributes:
        first_row, end_row: those that are valid, the latter excluded.
        columns: what one row has, in the order in which segments hold it.
        segments: that hold them, without a gap; of the first one, rows before `first_row` mean nothing.
    """

    first_row: Count
    end_row: Count
    columns: Annotated[dict[Line, TensorEntry], Field(min_length=1, max_length=100)]
    segments: Annotated[tuple[Segment, ...], Field(max_length=20_000)]

    @property
    def row_bytes(self) -> int:
        """What one row takes."""
        return sum(column.n_bytes for column in self.columns.values())

    @model_validator(mode="after")
    def _is_without_gaps(self) -> RowsEntry:
        row = self.segments[0].first_row if self.segments else self.first_row
        if row > self.first_row or self.first_row > self.end_row:
            raise ValueError(f"rows from {self.first_row} to {self.end_row}, stored from {row} on")
        for segment in self.segments:
            if segment.first_row != row or segment.end_row <= row:
                raise ValueError(f"the rows in {segment.file} do not follow row {row}")
            if segment.bytes != segment.n_rows * self.row_bytes:
                raise ValueError(f"{segment.file} has {segment.bytes} bytes for {segment.n_rows} rows")
            row = segment.end_row
        if row != self.end_row:
            raise ValueError(f"rows up to {self.end_row}, stored up to {row}")
        return self


class Manifest(_Strict):
    """What a checkpoint is and holds.

    Attributes:
        format_version: of the folder.
        number: of the checkpoint in its run; a newer one has a larger one.
        program: the version of this program that wrote it.
        git_revision: of the checkout that wrote it, where it was one.
        written: when, in UTC.
        session: how often the run had been started.
        frames: that the run had driven.
        updates: that it had made.
        score: how well it drove, see `training.trainer`; entries compare in their order. None before it was evaluated.
        settings: in force, as JSON has them.
        written_bytes: what was new in it.
        files: in its folder, by name.
        tensors: in each file of tensors, by name.
        rows: of the replay memory; None without it.
    """

    format_version: Literal[3] = FORMAT_VERSION
    number: Count
    program: Line
    git_revision: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}(-changed)?$")] | None
    written: Line
    session: Count
    frames: Count
    updates: Count
    score: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=10)] | None
    settings: dict[str, Any]
    written_bytes: Count
    files: Annotated[dict[FileName, FileEntry], Field(max_length=100)]
    tensors: Annotated[
        dict[FileName, Annotated[dict[str, TensorEntry], Field(max_length=20_000)]], Field(max_length=100)
    ]
    rows: RowsEntry | None

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        written = datetime.datetime.fromisoformat(self.written)
        return max(0.0, time.time() - written.timestamp())

    @field_validator("written")
    @classmethod
    def _is_a_time(cls, written: str) -> str:
        datetime.datetime.fromisoformat(written)
        return written

    @model_validator(mode="after")
    def _files_hold_what_they_have_to(self) -> Manifest:
        if STATE_FILE not in self.files or not self.tensors.keys() <= self.files.keys():
            raise ValueError(f"files {sorted(self.files)}, tensors in {sorted(self.tensors)}")
        if self.files[STATE_FILE].bytes > MOST_JSON_BYTES:
            raise ValueError(f"{STATE_FILE} of {self.files[STATE_FILE].bytes} bytes")
        for name, tensors in self.tensors.items():
            n_bytes = sum(tensor.n_bytes for tensor in tensors.values())
            if not n_bytes <= self.files[name].bytes <= n_bytes + MOST_HEADER_BYTES:
                raise ValueError(f"{name} has {self.files[name].bytes} bytes, and its tensors {n_bytes}")
        return self

    @property
    def n_bytes(self) -> int:
        """What its own folder takes, without the rows of the replay memory."""
        return sum(file.bytes for file in self.files.values())

    @property
    def row_bytes(self) -> int:
        """What the rows of the replay memory take, as far as they are stored."""
        return sum(segment.bytes for segment in self.rows.segments) if self.rows else 0


def bytes_of_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON with a check sum of its own; the same one always gives the same bytes."""
    return canonical_bytes(manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a checkpoint's folder.

    Raises:
        DamagedError: if it is missing, damaged, of another format or out of bounds; the text says why.
    """
    if folder.is_symlink():
        raise DamagedError("it is a link; name the folder that it leads to")
    if not folder.is_dir():
        raise DamagedError(f"{folder}: there is no such checkpoint folder")
    content = read_bounded(own_file(folder, MANIFEST_FILE), MOST_JSON_BYTES, DamagedError)
    try:
        known = parse_bounded(content)["manifest"]
        version = known["format_version"]
        if version == FORMAT_VERSION and canonical_bytes(known) != content:
            raise ValueError("its check sum is wrong")
        return Manifest.model_validate(known)
    except ValidationError as error:
        if version != FORMAT_VERSION:
            raise DamagedError(
                f"{MANIFEST_FILE}: its format is {version!r:.20}, this program reads format {FORMAT_VERSION}"
            ) from None
        first = error.errors()[0]
        raise DamagedError(f"{MANIFEST_FILE}: {'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST_FILE} is damaged: {error!s:.200}") from None


def own_file(folder: Path, name: str) -> Path:
    """Give the path of a file in a folder; one that leads elsewhere is refused.

    Raises:
        DamagedError: if it is a link.
    """
    file = folder / name
    if file.is_symlink():
        raise DamagedError(f"{name} is a link; a checkpoint's files lie in its folder")
    return file


def parse_bounded(content: bytes | bytearray) -> Any:
    """Read JSON whose length is bounded, and with it what is made of it.

    Raises:
        ValueError: if it is no JSON, is nested too deeply or has too many entries.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_JSON_ENTRIES:
        raise ValueError(f"it has more than {MOST_JSON_ENTRIES:,} entries")
    return parse_json(content)


def canonical_bytes(manifest: dict[str, Any]) -> bytes:
    """Write what a manifest says as JSON, with a check sum of its own."""
    text = json.dumps(manifest, indent=1, allow_nan=False)
    return json.dumps(
        {"sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": manifest}, indent=1, allow_nan=False
    ).encode()
