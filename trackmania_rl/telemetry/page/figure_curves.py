"""The figures of a run as curves of bounded size, from tensorboard's event files as they grow.

tensorboard's own reader computes the checksum of every record in Python, half a second per megabyte or more. An event
file of a long run has a gigabyte, most of it pictures.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from trackmania_rl.telemetry.page.race_curves import Curve, Point

MOST_BYTES_AT_ONCE: Final = 8 << 20
"""So much of the files is read by one call."""
MOST_CURVES: Final = 600
MOST_POINTS: Final = 800
"""Of one curve."""
LARGEST_RECORD_BYTES: Final = 1 << 28
"""A length beyond this is none."""

_HEADER: Final = struct.Struct("<QI")  # a record's length, and the length's check sum
_FOOTER_BYTES: Final = 4


class FigureCurves:
    """Scalars by name, points [frames, value].

    What a resumed run has taken back (it goes on from its last checkpoint, before the newest points) is left out.

    Args:
        folder: tensorboard/{run_name}; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._damaged: set[Path] = set()
        self.curves: dict[str, Curve] = {}

    def read(self) -> tuple[list[tuple[str, Point]], bool]:
        """Read what is new, `MOST_BYTES_AT_ONCE` at most.

        Returns:
            The kept points by name, and whether there is more to read at once.

        Raises:
            OSError: if the disk fails.
        """
        points: list[tuple[str, Point]] = []
        bytes_left = MOST_BYTES_AT_ONCE
        for file in sorted(self._folder.glob("events.out.tfevents.*")):
            if file in self._damaged or not file.is_file():
                continue
            bytes_left -= self._read_file(file, bytes_left, points)
            if bytes_left <= 0:
                return points, True
        return points, False

    def snapshot(self) -> dict[str, list[Any]]:
        """All curves."""
        return {name: list(curve.points) for name, curve in self.curves.items()}

    def _read_file(self, file: Path, most_bytes: int, points: list[tuple[str, Point]]) -> int:
        offset = self._offsets.get(file, 0)
        with file.open("rb") as opened:
            opened.seek(offset)
            content = opened.read(most_bytes)
        end = 0
        for begin, end in self._records(file, content):
            points += self._points(content[begin:end])
            end += _FOOTER_BYTES
        if end == 0 and len(content) == most_bytes == MOST_BYTES_AT_ONCE:  # a record as large as all that is read
            end = _HEADER.size + _HEADER.unpack_from(content)[0] + _FOOTER_BYTES
        self._offsets[file] = offset + end
        return end

    def _records(self, file: Path, content: bytes) -> Iterator[tuple[int, int]]:
        """Where each whole record begins and ends."""
        position = 0
        while position + _HEADER.size <= len(content):
            length, _ = _HEADER.unpack_from(content, position)
            if length > LARGEST_RECORD_BYTES:
                self._damaged.add(file)
                return
            begin = position + _HEADER.size
            position = begin + length + _FOOTER_BYTES
            if position > len(content):
                return
            yield begin, begin + length

    def _points(self, record: bytes) -> Iterator[tuple[str, Point]]:
        try:
            event = Event.FromString(record)
        except DecodeError:
            return
        for value in event.summary.value:
            number = value.simple_value
            if not value.HasField("simple_value") or not math.isfinite(number):
                continue
            curve = self.curves.get(value.tag)
            if curve is None:
                if len(self.curves) >= MOST_CURVES:
                    continue
                curve = self.curves[value.tag] = Curve(MOST_POINTS)
            curve.take_back(event.step)
            point: Point = [event.step, float(f"{number:.6g}")]
            if curve.add(point):
                yield value.tag, point
