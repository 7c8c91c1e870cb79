"""The races of a run as curves of bounded size, from races.jsonl as it grows."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trackmania_rl.telemetry.page.run_on_disk import RunOnDisk
from trackmania_rl.telemetry.page.tails import LineTail, sampled_lines
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import RECENT_RACES, RaceHistory

MOST_POINTS: Final = 2000
"""Of one curve; with more, every second one is left out, but none that was the fastest so far."""
RATE_EVERY_S: Final = 5.0
"""Frames per second are taken over at least so long."""
MOST_MAPS: Final = 20
"""Maps with curves of their own: those driven first."""

Point = list[float | None]


class Curve:
    """Points (x, y...) in their order, of which so many are kept.

    Args:
        most_points: that are kept.

    Attributes:
        points: what is kept.
        n_added: of all points, those left out included.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points
        self.points: list[Point] = []
        self._is_record: list[bool] = []
        self._stride = 1
        self.n_added = 0

    def add(self, point: Point, is_record: bool = False) -> bool:
        """Add a point; tell whether it is kept."""
        self.n_added += 1
        if self.n_added % self._stride != 0 and not is_record:
            return False
        self.points.append(point)
        self._is_record.append(is_record)
        if len(self.points) > self._most_points:
            self._thin_out()
        return True

    def _thin_out(self) -> None:
        self._stride *= 2
        kept = [index % 2 == 1 or record for index, record in enumerate(self._is_record)]
        if sum(kept) > self._most_points * 3 // 4:  # nearly all are records
            kept = [index % 2 == 1 for index in range(len(kept))]
        self.points = [point for point, keep in zip(self.points, kept, strict=True) if keep]
        self._is_record = [record for record, keep in zip(self._is_record, kept, strict=True) if keep]

    def take_back(self, from_x: float) -> None:
        """Remove the last points, those from a value of x on."""
        while self.points and float(self.points[-1][0] or 0.0) >= from_x:
            self.points.pop()
            self._is_record.pop()


class RaceCurves:
    """What races.jsonl tells: points of race times, rates, and the same figures as the terminal's table.

    Points of races are [frames, seconds or null if not finished, metres, share finished of the recent ones]; those of
    rates [frames, hours of training, frames per second].

    Args:
        run: has the file.
    """

    def __init__(self, run: RunOnDisk) -> None:
        self._run = run
        self._begin()

    def _begin(self) -> None:
        self._tail: LineTail | None = None
        self.races: dict[str, Curve] = {}
        self.rates = Curve()
        self.histories: dict[str, RaceHistory] = {}
        self.frames_total = 0
        self.n_races = 0.0
        self.n_of_kind: defaultdict[str, float] = defaultdict(float)
        self.n_finished_of_kind: defaultdict[str, float] = defaultdict(float)
        self.n_unreadable = 0
        self._splits: dict[str, _Splits] = defaultdict(_Splits)
        self._session = 0
        self._earlier_s = 0.0
        self._wall_s = 0.0
        self._rate_from: tuple[float, int] | None = None
        self._n_per_line = 1.0  # more for lines that stand for others, which are not read

    @property
    def training_s(self) -> float:
        """Time of the whole run, earlier sessions included."""
        return self._earlier_s + self._wall_s

    def read(self) -> list[tuple[str, Point]] | None:
        """Read what is new.

        Returns:
            The kept points by the names of their curves ("{map}/{kind}", "rates"); None if all has to be shown anew.

        Raises:
            OSError: if the disk fails.
        """
        if self._tail is None:
            if not self._run.races.is_file():
                return []
            lines, end, self._n_per_line = sampled_lines(self._run.races)
            self._tail = LineTail(self._run.races, end)
            for _ in self._add_all(lines):
                pass
            self._n_per_line = 1.0
            return None
        lines_now = self._tail.read()
        if self._tail.n_restarts:
            self._begin()
            return self.read()
        return list(self._add_all(iter(lines_now)))

    def snapshot(self) -> dict[str, Any]:
        """All curves, for a tab that has nothing yet."""
        return {
            "curves": {name: curve.points for name, curve in self.races.items()} | {"rates": self.rates.points},
        }

    def table(self) -> list[dict[str, Any]]:
        """A row for each map and kind."""
        rows = []
        for name, history in self.histories.items():
            map_name, _, kind = name.rpartition("/")
            rows.append(
                {
                    "map": map_name,
                    "kind": kind,
                    "races": round(self.n_of_kind[name]),
                    "finished": round(self.n_finished_of_kind[name]),
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

    def splits(self) -> dict[str, dict[str, list[int]]]:
        """By map: times at the checkpoints of the fastest race, and the medians of the recent evaluated ones."""
        return {name: splits.as_told() for name, splits in self._splits.items()}

    def _add_all(self, lines: Iterator[bytes]) -> Iterator[tuple[str, Point]]:
        for line in lines:
            try:
                yield from self._add(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                self.n_unreadable += 1

    def _add(self, race: Mapping[str, Any]) -> Iterator[tuple[str, Point]]:
        frames, wall_s, session = int(race["frames_total"]), float(race["wall_s"]), int(race.get("session", 1))
        if session != self._session:
            self._earlier_s += self._wall_s
            self._session, self._rate_from = session, None
        self._wall_s, self.frames_total = wall_s, frames
        self.n_races += self._n_per_line
        yield from self._add_rate(frames, wall_s)
        record = record_of_line(race)
        name = f"{record.map_name}/{record.kind}"
        if not record.counts or (name not in self.races and len(self.races) >= 2 * MOST_MAPS):
            return
        history = self.histories.setdefault(name, RaceHistory())
        is_best = history.add(record)
        self.n_of_kind[name] += self._n_per_line
        self.n_finished_of_kind[name] += self._n_per_line * record.race_finished
        if record.race_finished and history.is_one_track and race.get("checkpoint_times_ms"):
            self._splits[record.map_name].add(record, race["checkpoint_times_ms"])
        time_s = record.race_time_ms / 1000 if record.race_finished else None
        rate = history.recent_finish_rate
        point: Point = [frames, time_s, round(record.meters, 1), rate]
        if self.races.setdefault(name, Curve()).add(point, is_best):
            yield name, point

    def _add_rate(self, frames: int, wall_s: float) -> Iterator[tuple[str, Point]]:
        if self._rate_from is None:
            self._rate_from = wall_s, frames
            return
        seconds, new_frames = wall_s - self._rate_from[0], frames - self._rate_from[1]
        if seconds >= RATE_EVERY_S:
            self._rate_from = wall_s, frames
            point: Point = [frames, round(self.training_s / 3600, 5), round(new_frames / seconds, 1)]
            if self.rates.add(point):
                yield "rates", point


class _Splits:
    """Times at the checkpoints of one map's races, the finish included."""

    def __init__(self) -> None:
        self._best_ms: list[int] = []
        self._recent_ms: deque[list[int]] = deque(maxlen=RECENT_RACES)

    def add(self, race: RaceRecord, times_ms: list[int]) -> None:
        if not self._best_ms or times_ms[-1] < self._best_ms[-1]:
            self._best_ms = times_ms
        if not race.is_explo:
            self._recent_ms.append(times_ms)

    def as_told(self) -> dict[str, list[int]]:
        alike = [times_ms for times_ms in self._recent_ms if len(times_ms) == len(self._best_ms)]
        medians_ms = [round(statistics.median(column)) for column in zip(*alike, strict=True)]
        return {"best_ms": list(self._best_ms), "recent_ms": medians_ms}


def record_of_line(race: Mapping[str, Any]) -> RaceRecord:
    """The race of a line of races.jsonl."""
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
