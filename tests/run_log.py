"""Run logs that tests write."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trackmania_rl.race.race import RaceFacts
from trackmania_rl.runs.log import FACTS, MessageHandler, RunLog


def write_races(log: Path, races: Iterable[Mapping[str, Any]]) -> None:
    """Add races with the keys of `iterate_races`."""
    now_s = [0.0]
    opened: RunLog | None = None
    session = 0
    for race in races:
        if opened is None or race.get("session", 1) != session:
            if opened is not None:
                opened.close()
            session = race.get("session", 1)
            opened = RunLog(log, lambda: now_s[0], session)
        now_s[0] = race["wall_s"]
        facts = {field: race[column] for column, field in FACTS.items() if column in race}
        defaults = {"track": "", "fill_buffer": True, "is_generated": "track" in race}
        if "learning" in race:
            opened.write_figures(race["learning"], race["frames_total"])
        opened.write(RaceFacts(**(defaults | facts)), race["frames_total"])
    if opened is not None:
        opened.close()


def write_messages(log: Path, texts: Iterable[str], level: int = logging.INFO) -> None:
    """Add messages of this process."""
    with contextlib.closing(RunLog(log, lambda: 0.0, 1)) as opened:
        handler = MessageHandler(opened)
        for text in texts:
            handler.handle(logging.LogRecord("a test", level, __file__, 1, text, None, None))
