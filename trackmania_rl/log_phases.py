"""Log messages that begin a phase of a run's start; the live view shows the phases with their seconds."""

from __future__ import annotations

import logging
from typing import Final

_ATTRIBUTE: Final = "phase"


def phase(name: str) -> dict[str, str]:
    """Mark a message as the beginning of its process's next phase: `log.info("...", extra=phase("importing"))`."""
    return {_ATTRIBUTE: name}


def phase_of(record: logging.LogRecord) -> str | None:
    """Return the phase that a message begins; None for other messages."""
    return getattr(record, _ATTRIBUTE, None)
