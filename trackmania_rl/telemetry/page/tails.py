"""Text files that another process appends to, read in bounded pieces."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Final

MOST_BYTES_AT_ONCE: Final = 8 << 20
MOST_MESSAGES: Final = 300
MESSAGES_BYTES: Final = 1 << 18
"""Of a longer train.log only the end is read."""
LONGEST_MESSAGE: Final = 2000

_MESSAGE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)", re.DOTALL)

Message = dict[str, str]
"""`time`, `level` and `text`."""


class LineTail:
    """New lines of a growing file, which may be missing. One that became shorter is read again (`n_restarts`)."""

    def __init__(self, file: Path, begin_at_byte: int = 0) -> None:
        self._file = file
        self._offset = begin_at_byte
        self.n_restarts = 0

    def read(self) -> list[bytes]:
        """Return the complete new lines, of at most `MOST_BYTES_AT_ONCE` bytes.

        Raises:
            OSError: if the file cannot be read.
        """
        if not self._file.is_file():  # missing, or a pipe, on which `open` would wait
            return []
        with self._file.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
                self.n_restarts += 1
            file.seek(self._offset)
            content = file.read(MOST_BYTES_AT_ONCE)
        end = content.rfind(b"\n") + 1
        if end == 0 and len(content) == MOST_BYTES_AT_ONCE:
            end = len(content)  # not text
        self._offset += end
        return content[:end].split(b"\n")[:-1]


class LogMessages:
    """Newest messages of a train.log, which need not exist yet."""

    def __init__(self, file: Path) -> None:
        size_bytes = file.stat().st_size if file.is_file() else 0
        self._tail = LineTail(file, max(0, size_bytes - MESSAGES_BYTES))
        self.messages: deque[Message] = deque(maxlen=MOST_MESSAGES)

    def read(self) -> list[Message]:
        """Return the new messages; lines without a time continue the message before.

        Raises:
            OSError: if the file cannot be read.
        """
        new: list[Message] = []
        for line in self._tail.read():
            text = line.decode("utf-8", "replace").rstrip("\r")
            if match := _MESSAGE.match(text):
                new.append({"time": match[1], "level": match[2], "text": match[3][:LONGEST_MESSAGE]})
            elif new:
                new[-1]["text"] = f"{new[-1]['text']}\n{text}"[:LONGEST_MESSAGE]
        self.messages += new
        return new
