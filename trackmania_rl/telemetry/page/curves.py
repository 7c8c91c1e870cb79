"""Curves and messages from the run log: some points from a long run at first, and then all new ones."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trackmania_rl.runs.log import logged_figures, newest_messages, newest_race, query

MOST_RACES: Final = 4000
"""Races that a page begins with, all curves together."""
FIGURE_POINTS: Final = 500
"""Points per figure that a page begins with."""
SHOWN_FIGURES: Final = (
    "train/loss",
    "train/test_loss",
    "train/mean_q",
    "train/grad_norm",
    "train/speed/actions_per_s",
    "train/total/training_h",
    "waiting/",
    "rollout/finish_rate/",
    "rollout/best_time_s/",
)
"""Prefixes for the figures that each tab gets. A tab asks for others by name."""
MOST_FIGURES_AT_ONCE: Final = 100_000
MOST_MESSAGES: Final = 300
LONGEST_MESSAGE: Final = 2000

_RACES: Final = """
    SELECT map, is_explo, frames_total, CASE WHEN race_finished THEN race_time_ms / 1000.0 END, ROUND(meters, 1)
    FROM races WHERE NOT is_undone AND NOT is_demonstration AND id
"""
_SAMPLE: Final = """
    WITH RECURSIVE numbers(number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < :most)
    SELECT 1 + number * :step + number * 7919 % :step FROM numbers
"""
"""Ids at unequal distances: equal ones could all be one place in the map cycle."""
_FIGURES: Final = """
    WITH RECURSIVE places(frames) AS (
        SELECT 0 UNION ALL SELECT frames + :step FROM places WHERE frames < :last
    )
    SELECT DISTINCT names.name, found.frames_total, found.value
    FROM figure_names names JOIN places JOIN figure_values found ON found.id = (
        SELECT id FROM figure_values WHERE name_id = names.id AND frames_total >= places.frames AND NOT is_undone
        ORDER BY frames_total LIMIT 1
    )
    WHERE {} ORDER BY found.frames_total
"""
_NEWEST_FIGURE: Final = "SELECT id, frames_total FROM figure_values ORDER BY id DESC LIMIT 1"

Message = dict[str, str]
"""`time`, `level` and `text`."""
Point = list[float | None]
Topics = dict[str, Any]


class LogMessages:
    """A run's newest log messages."""

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
                "text": message.text[:LONGEST_MESSAGE],
            }
            for message in new
        ]
        if new:
            self._last_id = new[-1].id
        self.messages += shown
        return shown


class RunCurves:
    """A run's races by "{map}/{kind}", and figures by name.

    Race points are [frames, seconds or None if not finished, metres]; figure points are [frames, value].
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._session = 0
        self._last_race = 0
        self._last_figure = 0
        self._names: list[str] = []

    def all(self) -> Topics:
        """Return all curves, for a long run with only some points.

        Raises:
            UserError: if the log is damaged.
        """
        races: dict[str, list[Point]] = {}
        figures: dict[str, list[Point]] = {}
        if self._file.is_file():
            newest_id, _ = newest_race(self._file)
            step = max(1, newest_id // MOST_RACES)
            races = _race_curves(
                query(self._file, f"{_RACES} IN ({_SAMPLE}) ORDER BY id", {"most": MOST_RACES, "step": step})
            )
            self._names = [name for (name,) in query(self._file, "SELECT name FROM figure_names ORDER BY name")]
            figures = self._figures([name for name in self._names if name.startswith(SHOWN_FIGURES)])
        return {
            "races": {"reset": True, "curves": races},
            "figures": {"reset": True, "curves": figures, "names": self._names},
        }

    def news(self) -> Topics:
        """Return new points; all curves at first, and for a run that was resumed or made again.

        Raises:
            UserError: if the log is damaged.
        """
        if not self._file.is_file():  # before the run begins
            return {}
        newest_id, session = newest_race(self._file)
        last_race = self._last_race
        last_figure = self._last_figure
        self._last_race = newest_id
        self._last_figure, _ = self._newest_figure()
        if session != self._session or not last_race <= newest_id <= last_race + MOST_RACES:
            self._session = session
            return self.all()
        news: Topics = {}
        if newest_id > last_race:
            new_races = query(self._file, f"{_RACES} > :after ORDER BY id", {"after": last_race})
            news["races"] = {"reset": False, "curves": _race_curves(new_races)}
        new_figures: defaultdict[str, list[Point]] = defaultdict(list)
        for figure in logged_figures(self._file, last_figure, MOST_FIGURES_AT_ONCE):
            new_figures[figure.name].append([figure.frames_total, figure.value])
        if new_figures:
            shown = {name: points for name, points in new_figures.items() if name.startswith(SHOWN_FIGURES)}
            news["figures"] = {"reset": False, "curves": shown}
            if new_figures.keys() - self._names:
                self._names = sorted({*self._names, *new_figures})
                news["figures"]["names"] = self._names
        return news

    def figure(self, name: str) -> list[Point]:
        """Return a figure's points, if any."""
        return self._figures([name]).get(name, []) if self._file.is_file() else []

    def _figures(self, names: Iterable[str]) -> dict[str, list[Point]]:
        _, last_frames = self._newest_figure()
        wanted = list(names)
        step = max(1, last_frames // FIGURE_POINTS)
        values = {"step": step, "last": last_frames} | {f"n{place}": name for place, name in enumerate(wanted)}
        is_wanted = f"names.name IN ({', '.join(f':n{place}' for place in range(len(wanted)))})"
        curves: defaultdict[str, list[Point]] = defaultdict(list)
        for name, frames, value in query(self._file, _FIGURES.format(is_wanted), values):
            curves[name].append([frames, value])
        return curves

    def _newest_figure(self) -> tuple[int, int]:
        return next(query(self._file, _NEWEST_FIGURE), (0, 0))


def _race_curves(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Point]]:
    curves: defaultdict[str, list[Point]] = defaultdict(list)
    for map_name, is_explo, *point in rows:
        curves[f"{map_name}/{'explored' if is_explo else 'evaluated'}"].append(point)
    return curves
