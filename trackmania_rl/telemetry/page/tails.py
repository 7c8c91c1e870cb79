"""Files that grow, read as they grow: what is new, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

MOST_BYTES_AT_ONCE: Final = 4 << 20
"""So much of a file is read by one call."""
WHOLE_FILE_BYTES: Final = 16 << 20
"""A larger log is not read whole, but in samples of so much together."""
N_SAMPLES: Final = 64


class LineTail:
    """The lines of a file that somebody else appends to.

    A file that is not there has no lines yet; one that was cut or replaced by a shorter one is read anew.

    Args:
        file: text, a line break after each line.
        begin_at_byte: where to begin, at the beginning of a line.

    Attributes:
        n_restarts: how often the file was read anew.
    """

    def __init__(self, file: Path, begin_at_byte: int = 0) -> None:
        self._file = file
        self._offset = begin_at_byte
        self.n_restarts = 0

    def read(self) -> list[bytes]:
        """Read the whole lines that are new, `MOST_BYTES_AT_ONCE` at most; call it again for more.

        Raises:
            OSError: if the disk fails.
        """
        if self._file.exists() and not self._file.is_file():  # a pipe would keep `open` waiting
            return []
        try:
            with self._file.open("rb") as file:
                size_bytes = file.seek(0, 2)
                if size_bytes < self._offset:
                    self._offset = 0
                    self.n_restarts += 1
                file.seek(self._offset)
                content = file.read(MOST_BYTES_AT_ONCE)
        except FileNotFoundError:
            return []
        end = content.rfind(b"\n") + 1
        if end == 0 and len(content) == MOST_BYTES_AT_ONCE:
            end = len(content)  # no line is as long: this is no text
        self._offset += end
        return content[:end].split(b"\n")[:-1]


def sampled_lines(file: Path) -> tuple[Iterator[bytes], int, float]:
    """Whole lines of a log: all of a small one, else samples spread evenly over it, the end included.

    Args:
        file: it must be there.

    Returns:
        The lines in their order, read as they are taken; the byte up to which the file was looked at (after its last
        whole line), where a `LineTail` goes on; and how many lines of the file each of them stands for, 1.0 for all.

    Raises:
        OSError: if the disk fails.
    """
    with file.open("rb") as opened:
        size_bytes = opened.seek(0, 2)
        end = _after_last_break(opened, size_bytes)
    if end <= WHOLE_FILE_BYTES:
        return _lines(file, [(0, end)]), end, 1.0
    sample_bytes = WHOLE_FILE_BYTES // N_SAMPLES
    step_bytes = (end - sample_bytes) / (N_SAMPLES - 1)
    pieces = [(round(k * step_bytes), round(k * step_bytes) + sample_bytes) for k in range(N_SAMPLES)]
    pieces[-1] = (end - sample_bytes, end)
    return _lines(file, pieces), end, end / WHOLE_FILE_BYTES


def _after_last_break(opened: BinaryIO, size_bytes: int) -> int:
    """Find the byte after the last line break within the file's last piece; 0 if there is none."""
    piece_bytes = min(size_bytes, 1 << 16)
    opened.seek(size_bytes - piece_bytes)
    at = opened.read(piece_bytes).rfind(b"\n")
    return size_bytes - piece_bytes + at + 1 if at >= 0 else 0


def _lines(file: Path, pieces: list[tuple[int, int]]) -> Iterator[bytes]:
    """Read the whole lines of some pieces of a file, one piece in memory at a time."""
    with file.open("rb") as opened:
        for begin, end in pieces:
            opened.seek(begin)
            lines = opened.read(end - begin).split(b"\n")[:-1]
            yield from lines[1:] if begin > 0 else lines
