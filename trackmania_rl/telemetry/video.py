"""Films of races: the game's own frames as an mp4 file."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently

CODEC = "mp4v"
"""MPEG-4 part 2: the one video codec for mp4 that every build of OpenCV brings along."""


class VideoFile:
    """An mp4 file being written frame by frame; it appears under its name only once it is complete.

    Example::

        with VideoFile(Path("race.mp4"), frames_per_s=20) as video:
            for frame in frames:
                video.write(frame)

    Leaving the block after an error, or without a frame, leaves no file (and an older one of that name as it was).
    """

    def __init__(self, path: Path, frames_per_s: float, enlargement: int = 1) -> None:
        """Prepares the file; it is opened with the first frame, which gives its size.

        Args:
            path: an .mp4 file; its folder is created where missing.
            frames_per_s: above 0; 20 shows a frame every 50 ms at the race's own pace.
            enlargement: every pixel becomes a square of so many pixels a side, since 160x120 is small on a screen.

        Raises:
            UserError: if the name does not end in .mp4.
            ValueError: if `frames_per_s` or `enlargement` is out of range.
        """
        if path.suffix.lower() != ".mp4":
            raise UserError(f"the video {path} has to be an .mp4 file: give a name that ends in .mp4")
        if not frames_per_s > 0.0:
            raise ValueError(f"frames_per_s is {frames_per_s}: it must be above 0")
        if enlargement < 1:
            raise ValueError(f"enlargement is {enlargement}: it must be 1 or more")
        self.path = path
        self.n_frames = 0
        self._frames_per_s = frames_per_s
        self._enlargement = enlargement
        # The end of the name tells OpenCV the kind of file.
        self._part_path = path.with_name(f".{path.stem}.{os.getpid()}.part.mp4")
        self._writer: cv2.VideoWriter | None = None
        self._frame_shape: tuple[int, ...] = ()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        self._writer.release()
        self._writer = None
        try:
            if kind is None:
                self._check_part()
                self._give_name()
        finally:
            self._part_path.unlink(missing_ok=True)

    def write(self, frame: npt.NDArray[np.uint8]) -> None:
        """Adds a frame.

        Args:
            frame: (H, W, 4) uint8, blue, green, red and a fourth value that is ignored; top row first. All frames of a
                file have one size. An odd side is filled up to an even one by repeating its last row or column, because
                the codec knows even ones only.

        Raises:
            UserError: if the file cannot be opened for writing.
            ValueError: if the frame is not of that form or not of the first one's size.
        """
        if frame.ndim != 3 or frame.shape[2] != 4 or frame.dtype != np.uint8 or frame.size == 0:
            raise ValueError(f"a frame has the shape {frame.shape} and type {frame.dtype}: give (H, W, 4) uint8")
        if self._writer is None:
            self._open(frame.shape)
        elif frame.shape != self._frame_shape:
            raise ValueError(f"a frame has the shape {frame.shape}, but the video's first one had {self._frame_shape}")
        assert self._writer is not None
        picture = cv2.cvtColor(frame, cv2.COLOR_BGRA2BGR)
        if self._enlargement > 1:
            factor = self._enlargement
            picture = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
        height_px, width_px = picture.shape[:2]
        if height_px % 2 or width_px % 2:
            picture = cv2.copyMakeBorder(picture, 0, height_px % 2, 0, width_px % 2, cv2.BORDER_REPLICATE)
        self._writer.write(picture)
        self.n_frames += 1

    def _open(self, frame_shape: tuple[int, ...]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder of the video {self.path} cannot be created: {error.strerror}") from error
        even_size_px = tuple(side + side % 2 for side in (n * self._enlargement for n in frame_shape[1::-1]))
        writer = cv2.VideoWriter(
            str(self._part_path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*CODEC), self._frames_per_s, even_size_px
        )
        if not writer.isOpened():
            self._part_path.unlink(missing_ok=True)
            raise UserError(
                f"the video {self.path} cannot be written ({even_size_px[0]}x{even_size_px[1]} pixels, codec {CODEC}): "
                "check that its folder is writable and that `pip install opencv-python-headless` is the OpenCV in use"
            )
        self._writer = writer
        self._frame_shape = frame_shape

    def _give_name(self) -> None:
        try:
            replace_patiently(self._part_path, self.path)
        except OSError as error:
            raise UserError(
                f"the video {self.path} cannot be written: {error.strerror}; is the one of that name open in a player? "
                "Close it and write the video again"
            ) from error

    def _check_part(self) -> None:
        """OpenCV says nothing when the disk is full; a file that was cut off cannot be opened or lacks frames."""
        capture = cv2.VideoCapture(str(self._part_path), cv2.CAP_FFMPEG)
        n_readable = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
        capture.release()
        if n_readable != self.n_frames:
            raise UserError(
                f"the video {self.path} holds {n_readable} of its {self.n_frames} frames: is the disk full? "
                "Free some space and write it again"
            )
