"""What a run has said: the last messages of its train.log."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Final

from trackmania_rl.telemetry.page.tails import LineTail

MOST_MESSAGES: Final = 300
FROM_THE_END_BYTES: Final = 1 << 18
"""Of a longer log only the end is read."""
LONGEST_MESSAGE: Final = 2000

_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)", re.DOTALL)

Message = dict[str, str]
"""Its `time`, `level` and `text`."""


class LogMessages:
    """The newest messages.

    Args:
        file: train.log; it need not be there yet.
    """

    def __init__(self, file: Path) -> None:
        size_bytes = file.stat().st_size if file.is_file() else 0
        self._skips_first_line = size_bytes > FROM_THE_END_BYTES
        self._tail = LineTail(file, max(0, size_bytes - FROM_THE_END_BYTES))
        self._messages: deque[Message] = deque(maxlen=MOST_MESSAGES)

    def read(self) -> list[Message]:
        """Read the messages that are new; lines without a time belong to the message before.

        Raises:
            OSError: if the disk fails.
        """
        lines = self._tail.read()
        if self._skips_first_line and lines:
            lines, self._skips_first_line = lines[1:], False
        new: list[Message] = []
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if match := _LINE.match(text):
                new.append({"time": match[1], "level": match[2], "text": match[3][:LONGEST_MESSAGE]})
            elif new:
                new[-1]["text"] = f"{new[-1]['text']}\n{text}"[:LONGEST_MESSAGE]
        self._messages += new
        return new

    def snapshot(self) -> list[Message]:
        """All that are kept."""
        return list(self._messages)
