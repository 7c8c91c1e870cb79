"""Video files, written by ffmpeg from the package imageio-ffmpeg.

* .mp4: H.264 for every browser (yuv420p, even sides, index at the beginning).
* .webm: VP9 with transparency, for browsers and OBS. .mov: ProRes 4444 with transparency, for video editors.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import replace_patiently

ENCODERS: Final = {
    ".mp4": "-c:v libx264 -preset veryfast -crf 23 -pix_fmt yuv420p -movflags +faststart -f mp4",
    ".webm": "-c:v libvpx-vp9 -b:v 0 -crf 24 -deadline good -cpu-used 5 -row-mt 1 -auto-alt-ref 0 -pix_fmt yuva420p "
    "-f webm",
    ".mov": "-c:v prores_ks -profile:v 4444 -pix_fmt yuva444p10le -f mov",
}
_COLORS: Final = (
    "scale=out_color_matrix=bt709:out_range=tv,"
    "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709:range=tv"
)
"""HD television colours, named in the file: else players guess them by the picture's size."""
TRANSPARENT: Final = (".webm", ".mov")
"""File kinds in which a frame's alpha counts."""

_NO_WINDOW: Final = 0x08000000 if sys.platform == "win32" else 0
_DISK_IS_FULL: Final = "No space left on device"


class VideoFacts(NamedTuple):
    """Size (width and height), mean rate and length of a video."""

    size_px: tuple[int, int]
    frames_per_s: float
    duration_s: float


class Underlay(NamedTuple):
    """Video below the frames, whose upper left corner is at a place. The sound is kept."""

    file: Path
    left_px: int
    top_px: int


class VideoFile:
    """Video written frame by frame, and renamed when complete.

    After an error, or without a frame, nothing is written and an older file is kept.

    Args:
        path: the ending is in `ENCODERS`; others are a `UserError`.
        frames_per_s: above 0.
        over: a video below the frames, which gives the size.
        n_threads: encoder threads; 0 for all cores.
    """

    def __init__(self, path: Path, frames_per_s: float, over: Underlay | None = None, n_threads: int = 0) -> None:
        if path.suffix.lower() not in ENCODERS:
            raise UserError(f"the video {path} has to be an .mp4 file: give a name that ends in .mp4")
        if not frames_per_s > 0.0:
            raise ValueError(f"frames_per_s is {frames_per_s}: it must be above 0")
        self.path = path
        self.n_frames = 0
        self._frames_per_s = frames_per_s
        self._over = over
        self._n_threads = n_threads
        self._part_path = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
        self._process: subprocess.Popen[bytes] | None = None
        self._told: IO[bytes] | None = None
        self._frame_shape: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        try:
            if kind is None:
                self._finish(self._process)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._part_path.unlink(missing_ok=True)
            if self._told is not None:
                self._told.close()

    def write(self, frame: npt.NDArray[np.uint8]) -> None:
        """Add a frame. Odd sides are extended by a row or column, as codecs need even ones.

        Args:
            frame: (H, W, 4) uint8, blue, green, red, alpha, all with one size. Alpha counts over another video and in
                `TRANSPARENT` files.

        Raises:
            UserError: if ffmpeg is missing, or the file cannot be written.
            ValueError: if the frame has another shape or type.
        """
        if frame.ndim != 3 or frame.shape[2] != 4 or frame.dtype != np.uint8 or frame.size == 0:
            raise ValueError(f"a frame has the shape {frame.shape} and type {frame.dtype}: give (H, W, 4) uint8")
        if self._frame_shape not in ((), frame.shape):
            raise ValueError(f"a frame has the shape {frame.shape}, but the video's first one had {self._frame_shape}")
        picture: npt.NDArray[Any] = frame
        height_px, width_px = picture.shape[:2]
        if height_px % 2 or width_px % 2:
            picture = cv2.copyMakeBorder(picture, 0, height_px % 2, 0, width_px % 2, cv2.BORDER_REPLICATE)
        if self._process is None:
            self._process = self._start(picture.shape[1], picture.shape[0])
            self._frame_shape = frame.shape
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(picture).data)
        except OSError:  # ffmpeg has gone: its pipe is broken
            self._process.wait()
            raise self._failure() from None
        self.n_frames += 1

    def _start(self, width_px: int, height_px: int) -> subprocess.Popen[bytes]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder of the video {self.path} cannot be created: {error.strerror}") from error
        frames = ["-f", "rawvideo", "-pix_fmt", "bgra", "-s", f"{width_px}x{height_px}"]
        frames += ["-framerate", f"{self._frames_per_s:g}", "-i", "pipe:0"]
        command = [ffmpeg_program(), "-hide_banner", "-loglevel", "error", "-y"]
        if self._over is None:
            command += [*frames, "-an", "-vf", _COLORS]
        else:
            # The frames are input 1. The underlay's sides may be odd; mp4 may not hold the sound's format.
            place = f"[0:v:0][1:v]overlay={self._over.left_px}:{self._over.top_px}"
            even = "pad=ceil(iw/2)*2:ceil(ih/2)*2"
            command += ["-i", str(self._over.file.absolute()), *frames, "-filter_complex", f"{place},{even}[out]"]
            command += ["-map", "[out]", "-map", "0:a?", "-c:a", "aac"]
        command += ["-threads", str(self._n_threads), *ENCODERS[self.path.suffix.lower()].split()]
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the block is left)
        try:
            return subprocess.Popen(
                [*command, str(self._part_path.absolute())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._told,
                creationflags=_NO_WINDOW,
            )
        except OSError as error:
            raise UserError(f"ffmpeg cannot be started: {command[0]}: {error.strerror}") from error

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # ffmpeg has gone: the exit code counts
            process.stdin.close()
        if process.wait() != 0:
            raise self._failure()
        try:
            replace_patiently(self._part_path, self.path)
        except OSError as error:
            raise UserError(
                f"the video {self.path} cannot be written: {error.strerror}; is the one of that name open in a player? "
                "Close it and write the video again"
            ) from error

    def _failure(self) -> UserError:
        assert self._told is not None
        self._told.seek(0)
        lines = self._told.read(1 << 16).decode("utf-8", "replace").strip().splitlines() or ["ffmpeg said nothing"]
        if any(_DISK_IS_FULL in line for line in lines):
            return UserError(f"the video {self.path} cannot be written: the disk is full; free some space, and again")
        first = lines[0].rpartition("] ")[2]  # after the ffmpeg component's name
        return UserError(f"the video {self.path} cannot be written: {one_line(OSError(first))}")


def ffmpeg_program() -> str:
    """Return ffmpeg's path: imageio-ffmpeg's, or `IMAGEIO_FFMPEG_EXE`. A `UserError` if there is none."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise UserError("videos need ffmpeg, which a package brings: python -m pip install imageio-ffmpeg") from error


def video_facts(file: Path) -> VideoFacts:
    """Read a video's size, rate and length. A `UserError` if ffmpeg cannot read it."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such video")
    ffmpeg_program()
    import imageio_ffmpeg

    try:
        with closing(imageio_ffmpeg.read_frames(str(file.absolute()))) as frames:
            meta = next(frames)
            next(frames)  # a file may announce a frame and hold none
        duration_s = meta["duration"] or imageio_ffmpeg.count_frames_and_secs(str(file.absolute()))[1]
    except (OSError, RuntimeError, StopIteration) as error:
        raise UserError(f"{file}: no video that ffmpeg can read, or one without frames") from error
    if not (meta["fps"] > 0 and math.isfinite(duration_s) and duration_s > 0):
        raise UserError(f"{file}: this video does not say how many frames it shows a second, or how long it takes")
    return VideoFacts(meta["size"], meta["fps"], duration_s)
