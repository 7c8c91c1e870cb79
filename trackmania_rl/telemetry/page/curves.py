"""Curves and messages of the run log, read in pieces as they grow."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Final

from trackmania_rl.race.race import RACE_KINDS
from trackmania_rl.runs.log import (
    Figure,
    RaceRow,
    facts_of,
    logged_figures,
    newest_messages,
    newest_race,
    race_rows,
)
from trackmania_rl.telemetry.statistics import RECENT_RACES, RaceHistory

MOST_POINTS: Final = 2000
MOST_FIGURE_POINTS: Final = 800
MOST_CURVES: Final = 600
RATE_EVERY_S: Final = 5.0
MOST_MAPS: Final = 20
"""Maps with curves: those driven first."""
MOST_RACES_AT_ONCE: Final = 20_000
MOST_FIGURES_AT_ONCE: Final = 100_000
MOST_MESSAGES: Final = 300
LONGEST_MESSAGE: Final = 2000

Message = dict[str, str]
"""`time`, `level`, `process` and `text`."""
Point = list[float | None]
NewPoints = defaultdict[str, list[Point]]


class LogMessages:
    """Newest messages of a run, from its log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last_id = 0
        self.messages: deque[Message] = deque(maxlen=MOST_MESSAGES)

    def read(self) -> list[Message]:
        """Return the new messages.

        Raises:
            UserError: if the log is damaged.
        """
        new = newest_messages(self._file, MOST_MESSAGES, self._last_id) if self._file.is_file() else []
        shown = [
            {
                "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.time_s)),
                "level": message.level,
                "process": message.process,
                "text": message.text[:LONGEST_MESSAGE],
            }
            for message in new
        ]
        if new:
            self._last_id = new[-1].id
        self.messages += shown
        return shown


class Curve:
    """Points (x, y...) in order. Beyond `most_points` every second one is removed, but no record."""

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
        """Remove the points from a value of x on."""
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
    """Races of a run, from its log, by "{map}/{kind}", and "rates".

    Points of races are [frames, seconds or None if not finished, metres, share finished of the recent races]; those of
    rates are [frames, hours of training, frames per second].
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._newest_session = 0
        self._begin()

    def _begin(self) -> None:
        self.curves: dict[str, Curve] = {"rates": Curve()}
        self._histories: dict[str, RaceHistory] = {}
        self._last_id = 0
        self.frames_total = 0
        self.n_races = 0
        self._best_ms: dict[str, list[int]] = {}
        self._recent_ms: dict[str, deque[list[int]]] = defaultdict(lambda: deque(maxlen=RECENT_RACES))
        self._session = 0
        self._earlier_s = self._wall_s = 0.0
        self._rate_from: tuple[float, int] | None = None

    @property
    def training_s(self) -> float:
        """Time of all sessions."""
        return self._earlier_s + self._wall_s

    def read(self) -> NewPoints | None:
        """Read new races, of a long log in several calls; return their points, or None if all curves are new.

        Raises:
            UserError: if the log is damaged.
        """
        new: NewPoints = defaultdict(list)
        if not self._file.is_file():  # before the first race
            return new
        newest = newest_race(self._file)
        if newest.session != self._newest_session or newest.id < self._last_id:
            self._newest_session = newest.session  # a resumed run has undone races, or the log was made again
            self._begin()
        is_first = self._last_id == 0
        for row in race_rows(self._file, self._last_id, MOST_RACES_AT_ONCE):
            self._last_id = row["id"]
            self._add(row, new)
        return None if is_first else new

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each map and kind."""
        rows = []
        for name, history in self._histories.items():
            map_name, _, kind = name.rpartition("/")
            rows.append(
                {
                    "map": map_name,
                    "kind": RACE_KINDS[kind],
                    "races": history.n_races,
                    "finished": history.n_finished,
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
        """Return the times at checkpoints: of a map's fastest race, and recent evaluation medians."""
        best_ms = self._best_ms.get(map_name, [])
        alike = [times_ms for times_ms in self._recent_ms[map_name] if len(times_ms) == len(best_ms)]
        return {
            "best_ms": best_ms,
            "recent_ms": [round(statistics.median(column)) for column in zip(*alike, strict=True)],
        }

    def _add(self, race: RaceRow, new: NewPoints) -> None:
        frames = race["frames_total"]
        wall_s = race["wall_s"]
        session = race["session"]
        if session != self._session:
            self._earlier_s += self._wall_s
            self._session, self._rate_from = session, None
        self._wall_s, self.frames_total = wall_s, frames
        self.n_races += 1
        self._add_rate(frames, wall_s, new)
        record = facts_of(race)
        name = f"{record.map_name}/{record.kind}"
        if not record.counts or (name not in self.curves and len(self._histories) >= 2 * MOST_MAPS):
            return
        history = self._histories.setdefault(name, RaceHistory())
        is_best = history.add(record)
        times_ms = race["checkpoint_times_ms"]
        if record.race_finished and history.is_one_track and times_ms:
            best_ms = self._best_ms.setdefault(record.map_name, times_ms)
            if times_ms[-1] < best_ms[-1]:
                self._best_ms[record.map_name] = times_ms
            if not record.is_explo:
                self._recent_ms[record.map_name].append(times_ms)
        time_s = record.race_time_ms / 1000 if record.race_finished else None
        point: Point = [frames, time_s, round(record.meters, 1), history.recent_finish_rate]
        if self.curves.setdefault(name, Curve()).add(point, is_best):
            new[name].append(point)

    def _add_rate(self, frames: int, wall_s: float, new: NewPoints) -> None:
        if self._rate_from is None:
            self._rate_from = wall_s, frames
            return
        seconds, new_frames = wall_s - self._rate_from[0], frames - self._rate_from[1]
        if seconds >= RATE_EVERY_S:
            self._rate_from = wall_s, frames
            point: Point = [frames, round(self.training_s / 3600, 5), round(new_frames / seconds, 1)]
            if self.curves["rates"].add(point):
                new["rates"].append(point)


class FigureCurves:
    """Figures of a run by name, from its log, points [frames, value]."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last_id = 0
        self.curves: dict[str, Curve] = {}

    def read(self) -> NewPoints:
        """Read new figures, at most `MOST_FIGURES_AT_ONCE`; return their points.

        Raises:
            UserError: if the log is damaged.
        """
        new: NewPoints = defaultdict(list)
        if not self._file.is_file():
            return new
        for figure in logged_figures(self._file, self._last_id, MOST_FIGURES_AT_ONCE):
            self._last_id = figure.id
            self._add(figure, new)
        return new

    def _add(self, figure: Figure, new: NewPoints) -> None:
        """Add a point to a curve. Remove points at later frames: the run was resumed."""
        if figure.name not in self.curves and len(self.curves) >= MOST_CURVES:
            return
        curve = self.curves.setdefault(figure.name, Curve(MOST_FIGURE_POINTS))
        curve.take_back(figure.frames_total)
        point: Point = [figure.frames_total, float(f"{figure.value:.6g}")]
        if curve.add(point):
            new[figure.name].append(point)
