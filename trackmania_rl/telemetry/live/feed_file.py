"""The file through which a collector shows its games to whoever looks: where what lies, and how it is read untorn.

One collector writes; any number of readers, in processes of their own, look. All of it has a fixed size. Whatever is
written in several steps has a sequence counter of its own, odd while it is being written: a reader that finds the
counter odd, or changed meanwhile, has read a mixture and looks again. What readers write is counters of theirs,
which say that somebody looks; nothing is lost if two of them count at once.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError

MAGIC: Final = b"TMRLLIVE"
FORMAT_VERSION: Final = 1
FOLDER: Final = "live"
"""Of the run's folder; the files of its collectors are there while it trains."""
FILE_NAME: Final = "collector-{collector}.{pid}.bin"
FILE_PATTERN: Final = "collector-*.bin"
"""A file has its process in its name: Windows replaces no file that somebody has open."""

N_STAGES: Final = 4
"""Races that a file has room for: the newest evaluated one, and one of each of the games watched last."""
EVALUATED_STAGE: Final = 0
MOST_ROWS: Final = 12_000
"""States of a race that there is room for, ten minutes of the usual 50 ms; of a longer race the first ones are told."""
MOST_FRAME_BYTES: Final = 8 << 20
"""Room for a race's frames; where they need more, every second, third, ... one is told."""
ALIGNMENT_BYTES: Final = 64

_MOST_OF_A_KIND: Final = 1 << 16
"""No file of ours has more games, values or pixels in a row."""

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<i4"),
        ("n_games", "<i4"),
        ("n_values", "<i4"),
        ("n_rows", "<i4"),
        ("n_frames", "<i4"),
        ("height_px", "<i4"),
        ("width_px", "<i4"),
        ("collector", "<i4"),
        ("looked", "<u4"),
        ("is_over", "<u4"),
        ("pid", "<i8"),
        ("process_began_s", "<f8"),
        ("beat_s", "<f8"),
    ]
)
"""`looked` is the readers' own counter; `beat_s` is the time of day at which the writer was last known to live."""

_WHERE = [("map_name", "S96"), ("track", "S96"), ("is_explo", "u1")]

STAGE = np.dtype(
    [
        ("sequence", "<u8"),
        ("picture_sequence", "<u8"),
        ("number", "<u8"),
        ("told_s", "<f8"),
        ("game", "<i4"),
        ("n_rows", "<i4"),
        ("n_frames", "<i4"),
        ("rows_per_frame", "<i4"),
        ("race_time_ms", "<i4"),
        ("race_finished", "u1"),
        *_WHERE,
        ("map_file", "S1024"),
    ]
)
"""A race: `number` counts those of the file from 1; `game` is -1 where the place is free."""


def _state_fields(n_values: int) -> list[Any]:
    return [
        ("race_time_ms", "<i4"),
        ("position_m", "<f4", (3,)),
        ("speed_m_s", "<f4"),
        ("steer", "<f4"),
        ("gas", "u1"),
        ("brake", "u1"),
        ("is_greedy", "u1"),
        ("gear", "<i2"),
        ("zone", "<i4"),
        ("meters", "<f4"),
        ("q_values", "<f4", (n_values,)),
    ]


def state_dtype(n_values: int) -> np.dtype[np.void]:
    """Type of one state of a race with the decision made in it; `meters` are those since the start."""
    return np.dtype(_state_fields(n_values))


def car_dtype(n_values: int) -> np.dtype[np.void]:
    """Type of a game's newest state; `asked` is the readers' own counter."""
    head = [("sequence", "<u8"), ("told_s", "<f8"), ("asked", "<u4"), *_WHERE]
    return np.dtype([*head, *_state_fields(n_values)])


@dataclass(frozen=True)
class FeedLayout:
    """How large each part of a file is.

    Attributes:
        n_games: games of the collector.
        n_values: entries of one vector of Q values.
        n_rows: states of a race.
        n_frames: frames of a race; 0 where races are told without.
        height_px: of a frame; 0 where the observation has no image.
        width_px: likewise.
    """

    n_games: int
    n_values: int
    n_rows: int
    n_frames: int
    height_px: int
    width_px: int

    def arrays(self) -> Iterator[tuple[str, int, tuple[int, ...], np.dtype[Any]]]:
        """Tell name, offset, shape and type of each array in the file, in their order."""
        size_px = (self.height_px, self.width_px)
        offset = 0
        for name, shape, dtype in (
            ("header", (1,), HEADER),
            ("cars", (self.n_games,), car_dtype(self.n_values)),
            ("stages", (N_STAGES,), STAGE),
            ("rows", (N_STAGES, self.n_rows), state_dtype(self.n_values)),
            ("pictures", (N_STAGES, *size_px), np.dtype(np.uint8)),
            ("frames", (N_STAGES, self.n_frames, *size_px), np.dtype(np.uint8)),
        ):
            yield name, offset, shape, dtype
            n_bytes = int(np.prod(shape)) * dtype.itemsize
            offset += -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        *_, (_, offset, shape, dtype) = self.arrays()
        return offset + int(np.prod(shape)) * dtype.itemsize


class FeedMemory:
    """A file's arrays, in place; see `FeedLayout.arrays`.

    Args:
        path: of a file that `create_feed` made.

    Attributes:
        path: of the file.
        header: (1,) of HEADER.
        cars: (n_games,) of `car_dtype`.
        stages: (N_STAGES,) of STAGE.
        rows: (N_STAGES, n_rows) of `state_dtype`.
        pictures: (N_STAGES, H, W) uint8, what the agent sees in a watched game.
        frames: (N_STAGES, n_frames, H, W) uint8.

    Raises:
        UserError: if it is no such file, or one of another version.
        OSError: if it cannot be opened.
    """

    header: npt.NDArray[np.void]
    cars: npt.NDArray[np.void]
    stages: npt.NDArray[np.void]
    rows: npt.NDArray[np.void]
    pictures: npt.NDArray[np.uint8]
    frames: npt.NDArray[np.uint8]

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self.layout = _layout_of(file.read(HEADER.itemsize), file.seek(0, 2), path)
            self._memory = mmap.mmap(file.fileno(), 0)
        for name, offset, shape, dtype in self.layout.arrays():
            setattr(self, name, np.ndarray(shape, dtype, buffer=self._memory, offset=offset))

    def close(self) -> None:
        """Let go of the file; the arrays are gone."""
        for name, *_ in self.layout.arrays():
            delattr(self, name)
        self._memory.close()


def create_feed(path: Path, layout: FeedLayout, **header: Any) -> FeedMemory:
    """Make a file and open it.

    All of it is written at once: a write into mapped memory for which the disk has no room ends the process.

    Args:
        path: the file; there is none yet.
        layout: its parts.
        header: the other fields of HEADER.

    Raises:
        OSError: if it cannot be written.
    """
    first = np.zeros(1, HEADER)
    values = {"magic": MAGIC, "version": FORMAT_VERSION} | vars(layout) | header
    for name, value in values.items():
        first[name] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(first.tobytes())
            file.write(bytes(layout.size_bytes - HEADER.itemsize))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    memory = FeedMemory(path)
    memory.stages["game"] = -1
    return memory


@contextmanager
def writing(counters: npt.NDArray[np.uint64], which: int | npt.NDArray[np.int64]) -> Iterator[None]:
    """Mark some of what is counted as torn, until it is written.

    Args:
        counters: in the file.
        which: of them.
    """
    counters[which] += 1
    try:
        yield
    finally:
        counters[which] += 1


def is_whole(before: int, after: int) -> bool:
    """Whether what was read between two looks at its counter is something, and no mixture."""
    return before == after and before % 2 == 0 and before > 0


def _layout_of(head: bytes, size_bytes: int, path: Path) -> FeedLayout:
    """Read what a file says of itself, of which nothing is taken on trust."""
    if len(head) < HEADER.itemsize or head[: len(MAGIC)] != MAGIC:
        raise UserError(f"{path} does not show a training's games; delete it")
    header = np.frombuffer(head, HEADER)[0]
    if header["version"] != FORMAT_VERSION:
        raise UserError(
            f"{path} is of version {header['version']}, and this program reads {FORMAT_VERSION}: let the same version "
            "of the trainer train and look"
        )
    layout = FeedLayout(**{name: int(header[name]) for name in FeedLayout.__dataclass_fields__})
    if not all(0 <= size <= _MOST_OF_A_KIND for size in vars(layout).values()) or layout.size_bytes != size_bytes:
        raise UserError(f"{path} is damaged: delete it")
    return layout
