"""Log messages that replace each other: of what takes several steps, the terminal keeps the last one in sight."""

from __future__ import annotations

import logging
from typing import Final

_ATTRIBUTE: Final = "step_of"


def step_of(what: str) -> dict[str, str]:
    """Mark a message as a step of something: `log.info("...", extra=step_of("collector 0's start"))`."""
    return {_ATTRIBUTE: what}


def what_it_is_a_step_of(record: logging.LogRecord) -> str | None:
    """What a message is a step of; None for one that stands for itself."""
    return getattr(record, _ATTRIBUTE, None)
