"""Curves of bounded size, from files that grow: races from races.jsonl, figures from tensorboard's event files.

tensorboard's own reader takes half a second for each megabyte, as it computes checksums in Python. The event files of
a long run have a gigabyte, mostly pictures.
"""

from __future__ import annotations

import json
import math
import statistics
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from trackmania_rl.telemetry.page.tails import LineTail, sampled_lines
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import RECENT_RACES, RaceHistory

MOST_POINTS: Final = 2000
MOST_FIGURE_POINTS: Final = 800
MOST_CURVES: Final = 600
RATE_EVERY_S: Final = 5.0
"""Shortest time over which frames per second are taken."""
MOST_MAPS: Final = 20
"""Maps with curves: those driven first."""
MOST_BYTES_AT_ONCE: Final = 8 << 20
LARGEST_RECORD_BYTES: Final = 1 << 28

_HEADER: Final = struct.Struct("<QI")  # length of a record, and its checksum
_FOOTER_BYTES: Final = 4

Point = list[float | None]
NewPoints = list[tuple[str, Point]]
"""New points with the names of their curves."""


class Curve:
    """Points (x, y...) in order. Beyond `most_points`, every second one is removed, but no record."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points
        self._is_record: list[bool] = []
        self._stride = 1
        self._n_added = 0
        self.points: list[Point] = []

    def add(self, point: Point, is_record: bool = False) -> bool:
        """Add a point; return whether it is kept."""
        self._n_added += 1
        if self._n_added % self._stride != 0 and not is_record:
            return False
        self.points.append(point)
        self._is_record.append(is_record)
        if len(self.points) > self._most_points:
            self._thin_out()
        return True

    def take_back(self, from_x: float) -> None:
        """Remove the last points, those from a value of x on."""
        while self.points and float(self.points[-1][0] or 0.0) >= from_x:
            self.points.pop()
            self._is_record.pop()

    def _thin_out(self) -> None:
        self._stride *= 2
        kept = [index % 2 == 1 or record for index, record in enumerate(self._is_record)]
        if sum(kept) > self._most_points * 3 // 4:  # nearly all are records
            kept = [index % 2 == 1 for index in range(len(kept))]
        self.points = [point for point, keep in zip(self.points, kept, strict=True) if keep]
        self._is_record = [record for record, keep in zip(self._is_record, kept, strict=True) if keep]


class RaceCurves:
    """Races of a run, from races.jsonl.

    Points of races are [frames, seconds or None if not finished, metres, share finished of the recent races]; those of
    rates are [frames, hours of training, frames per second].

    Args:
        file: races.jsonl; it need not exist yet.

    Attributes:
        curves: by "{map}/{kind}", and "rates".
        figures: of learning, by name, points [frames, value].
        new_figures: points of the last `read`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._tail: LineTail | None = None
        self.curves: dict[str, Curve] = {"rates": Curve()}
        self.figures: dict[str, Curve] = {}
        self.new_figures: NewPoints = []
        self._histories: dict[str, RaceHistory] = {}
        self.frames_total = 0
        self.n_races = 0.0
        self.n_unreadable = 0
        self._n_of_kind: defaultdict[str, float] = defaultdict(float)
        self._n_finished_of_kind: defaultdict[str, float] = defaultdict(float)
        self._best_ms: dict[str, list[int]] = {}
        self._recent_ms: dict[str, deque[list[int]]] = defaultdict(lambda: deque(maxlen=RECENT_RACES))
        self._session = 0
        self._earlier_s = 0.0
        self._wall_s = 0.0
        self._rate_from: tuple[float, int] | None = None
        self._n_per_line = 1.0  # more where lines are samples

    @property
    def training_s(self) -> float:
        """Time of all sessions."""
        return self._earlier_s + self._wall_s

    def read(self) -> NewPoints | None:
        """Read new races; return their points, or None if all curves are new.

        Raises:
            OSError: if the file cannot be read.
        """
        self.new_figures = []
        if self._tail is None:
            if not self._file.is_file():
                return []
            lines, end, self._n_per_line = sampled_lines(self._file)
            self._tail = LineTail(self._file, end)
            self._add_all(lines)
            self._n_per_line = 1.0
            return None
        new_lines = self._tail.read()
        if self._tail.n_restarts:
            self._begin()
            return self.read()
        return self._add_all(new_lines)

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each map and kind."""
        rows = []
        for name, history in self._histories.items():
            map_name, _, kind = name.rpartition("/")
            rows.append(
                {
                    "map": map_name,
                    "kind": kind,
                    "races": round(self._n_of_kind[name]),
                    "finished": round(self._n_finished_of_kind[name]),
                    "recent": history.n_recent_finished,
                    "n_recent": history.n_recent,
                    "best_ms": history.best_time_ms,
                    "last_ms": history.last_time_ms,
                    "last": history.last_m,
                    "furthest": history.furthest_m,
                    "unit": history.progress_unit,
                    "return": history.recent.mean_return,
                    "length": history.recent.mean_length,
                    "median_ms": history.median_time_ms,
                }
            )
        return rows

    def splits(self, map_name: str) -> dict[str, list[int]]:
        """Return a map's times at the checkpoints: of the fastest race, and medians of the recent evaluation races."""
        best_ms = self._best_ms.get(map_name, [])
        alike = [times_ms for times_ms in self._recent_ms[map_name] if len(times_ms) == len(best_ms)]
        return {
            "best_ms": best_ms,
            "recent_ms": [round(statistics.median(column)) for column in zip(*alike, strict=True)],
        }

    def _add_all(self, lines: Iterable[bytes]) -> NewPoints:
        new: NewPoints = []
        for line in lines:
            try:
                self._add(json.loads(line), new)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.n_unreadable += 1
        return new

    def _add(self, race: Mapping[str, Any], new: NewPoints) -> None:
        frames, wall_s, session = int(race["frames_total"]), float(race["wall_s"]), int(race.get("session", 1))
        if session != self._session:
            self._earlier_s += self._wall_s
            self._session, self._rate_from = session, None
        self._wall_s, self.frames_total = wall_s, frames
        self.n_races += self._n_per_line
        self._add_rate(frames, wall_s, new)
        for name, value in race.get("learning", {}).items():
            add_figure(self.figures, name, frames, float(value), self.new_figures)
        record = record_of_line(race)
        name = f"{record.map_name}/{record.kind}"
        if not record.counts or (name not in self.curves and len(self._histories) >= 2 * MOST_MAPS):
            return
        history = self._histories.setdefault(name, RaceHistory())
        is_best = history.add(record)
        self._n_of_kind[name] += self._n_per_line
        self._n_finished_of_kind[name] += self._n_per_line * record.race_finished
        times_ms = race.get("checkpoint_times_ms")
        if record.race_finished and history.is_one_track and times_ms:
            best_ms = self._best_ms.setdefault(record.map_name, times_ms)
            if times_ms[-1] < best_ms[-1]:
                self._best_ms[record.map_name] = times_ms
            if not record.is_explo:
                self._recent_ms[record.map_name].append(times_ms)
        time_s = record.race_time_ms / 1000 if record.race_finished else None
        point: Point = [frames, time_s, round(record.meters, 1), history.recent_finish_rate]
        if self.curves.setdefault(name, Curve()).add(point, is_best):
            new.append((name, point))

    def _add_rate(self, frames: int, wall_s: float, new: NewPoints) -> None:
        if self._rate_from is None:
            self._rate_from = wall_s, frames
            return
        seconds, new_frames = wall_s - self._rate_from[0], frames - self._rate_from[1]
        if seconds >= RATE_EVERY_S:
            self._rate_from = wall_s, frames
            point: Point = [frames, round(self.training_s / 3600, 5), round(new_frames / seconds, 1)]
            if self.curves["rates"].add(point):
                new.append(("rates", point))


def record_of_line(race: Mapping[str, Any]) -> RaceRecord:
    """Return the race of a line of races.jsonl."""
    return RaceRecord(
        map_name=str(race["map"]),
        is_explo=bool(race["is_explo"]),
        collector=int(race.get("collector", 0)),
        race_finished=bool(race["race_finished"]),
        race_time_ms=int(race["race_time_ms"]),
        meters=float(race.get("meters", 0.0)),
        furthest_zone=0,
        n_actions=int(race.get("n_actions", 0)),
        cutoff_reason=race.get("cutoff_reason"),
        is_demonstration=bool(race.get("is_demonstration", False)),
        track=str(race.get("track", "")),
        is_generated="track" in race,
        progress_unit=str(race.get("progress_unit", "m")),
    )


class FigureCurves:
    """Scalars of a run by name, points [frames, value]. Points that a resumed run took back are left out.

    Args:
        folder: tensorboard/{run_name}; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._damaged: set[Path] = set()
        self.curves: dict[str, Curve] = {}

    def read(self) -> NewPoints:
        """Read at most `MOST_BYTES_AT_ONCE` new bytes; return their points.

        Raises:
            OSError: if a file cannot be read.
        """
        new: NewPoints = []
        bytes_left = MOST_BYTES_AT_ONCE
        for file in sorted(self._folder.glob("events.out.tfevents.*")):
            if bytes_left > 0 and file not in self._damaged and file.is_file():
                bytes_left -= self._read_file(file, bytes_left, new)
        return new

    def _read_file(self, file: Path, most_bytes: int, new: NewPoints) -> int:
        offset = self._offsets.get(file, 0)
        with file.open("rb") as opened:
            opened.seek(offset)
            content = opened.read(most_bytes)
        end = 0
        for begin, end in self._records(file, content):
            self._add(content[begin:end], new)
            end += _FOOTER_BYTES
        if end == 0 and len(content) == most_bytes == MOST_BYTES_AT_ONCE:  # a record as large as all that is read
            end = _HEADER.size + _HEADER.unpack_from(content)[0] + _FOOTER_BYTES
        self._offsets[file] = offset + end
        return end

    def _records(self, file: Path, content: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each complete record."""
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

    def _add(self, record: bytes, new: NewPoints) -> None:
        try:
            event = Event.FromString(record)
        except DecodeError:
            return
        for value in event.summary.value:
            if value.HasField("simple_value"):
                add_figure(self.curves, value.tag, event.step, value.simple_value, new)


def add_figure(curves: dict[str, Curve], name: str, frames: int, value: float, new: NewPoints) -> None:
    """Add a point to a curve of figures. Points at later frames are removed: the run was resumed."""
    if not math.isfinite(value) or (name not in curves and len(curves) >= MOST_CURVES):
        return
    curve = curves.setdefault(name, Curve(MOST_FIGURE_POINTS))
    curve.take_back(frames)
    point: Point = [frames, float(f"{value:.6g}")]
    if curve.add(point):
        new.append((name, point))
