"""Run logs that tests write."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trackmania_rl.race.race import RaceFacts
from trackmania_rl.runs.log import FACTS, MessageHandler, RunLog, RunStatus
from trackmania_rl.telemetry.statistics import MapStatistics, TrainingStatistics


def write_races(log: Path, races: Iterable[Mapping[str, Any]]) -> None:
    """Add races with the keys of `iterate_races`. The status has their table."""
    now_s = [0.0]
    opened: RunLog | None = None
    session = 0
    earlier_s = 0.0
    statistics = TrainingStatistics()
    for race in races:
        if opened is None or race.get("session", 1) != session:
            if opened is not None:
                opened.close()
                earlier_s += now_s[0]
            session = race.get("session", 1)
            opened = RunLog(log, lambda: now_s[0], session)
        now_s[0] = race["wall_s"]
        values = {field: race[column] for column, field in FACTS.items() if column in race}
        facts = RaceFacts(**({"track": "", "fill_buffer": True, "is_generated": "track" in race} | values))
        if "learning" in race:
            opened.write_figures(race["learning"], race["frames_total"])
        opened.write(facts, race["frames_total"], earlier_s + now_s[0])
        statistics.frames_total = race["frames_total"]
        statistics.races_total += 1
        if facts.counts:
            history = statistics.maps.setdefault(facts.map_name, MapStatistics()).history(facts.is_explo)
            history.add(facts)
    if opened is not None:
        write_status(opened, statistics)
        opened.close()


def write_status(opened: RunLog, statistics: TrainingStatistics) -> None:
    """Write the status of a training that has ended."""
    totals = {"frames_total": statistics.frames_total, "races_total": statistics.races_total}
    opened.write_status(RunStatus(is_over=True, figures=totals, maps=statistics.map_rows()))


def write_messages(log: Path, texts: Iterable[str], level: int = logging.INFO) -> None:
    """Add messages of this process."""
    with contextlib.closing(RunLog(log, lambda: 0.0, 1)) as opened:
        handler = MessageHandler(opened)
        for text in texts:
            handler.handle(logging.LogRecord("a test", level, __file__, 1, text, None, None))
