"""The inputs of a race as a picture of their own: over any video of the race, or transparent, for a video editor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.input_picture import WIDTH_PER_HEIGHT, input_picture
from trackmania_rl.telemetry.input_timeline import NOTHING_HELD, InputTimeline
from trackmania_rl.telemetry.video import TRANSPARENT, Underlay, VideoFile, video_facts

Corner = Literal["bottom-left", "bottom-right", "top-left", "top-right"]
CORNERS: Final[tuple[Corner, ...]] = ("bottom-left", "bottom-right", "top-left", "top-right")

FRAMES_PER_S: Final = 60
"""Of a transparent video."""
HEIGHT_PX: Final = 240
"""Of a transparent video."""
HEIGHT_SHARE: Final = 0.18
"""Of another video's height."""
MARGIN_SHARE: Final = 0.03
"""How far from its borders, as a share of its height."""
_AFTER_LAST_CHANGE_MS: Final = 1000
_ROUNDING_MS: Final = 1e-6
_MS_PER_S: Final = 1000.0


class InputWidget:
    """Pictures of a race's inputs at a video's times.

    Args:
        timeline: the inputs.
        offset_s: the video's time at which the race begins; negative where it shows a race under way.
        finish_ms: race time from which nothing is held any more; None if the inputs go on.
    """

    def __init__(self, timeline: InputTimeline, offset_s: float = 0.0, finish_ms: int | None = None) -> None:
        self._timeline = timeline
        self._offset_s = offset_s
        self._finish_ms = finish_ms

    @property
    def ends_s(self) -> float:
        """The video's time at which there is no more to see: the finish, or a second after the last change."""
        ends_ms = self._timeline.ends_ms + _AFTER_LAST_CHANGE_MS if self._finish_ms is None else self._finish_ms
        return ends_ms / _MS_PER_S + self._offset_s

    def frame(self, video_s: float, height_px: int) -> npt.NDArray[np.uint8]:
        """Return the picture at a time of the video, (height_px, W, 4) uint8, blue, green, red, alpha."""
        time_ms = (video_s - self._offset_s) * _MS_PER_S + _ROUNDING_MS
        is_over = self._finish_ms is not None and time_ms >= self._finish_ms
        held = NOTHING_HELD if is_over else self._timeline.at(time_ms)
        return input_picture(held, self._timeline.is_analog, height_px)

    def write_over(self, video: Path, output: Path, corner: Corner, height_px: int | None = None) -> int:
        """Write a video with the inputs over it; its sound is kept.

        Args:
            video: any that ffmpeg reads.
            output: an .mp4 file, another one.
            corner: where they are.
            height_px: of the picture; None for `HEIGHT_SHARE` of the video's.

        Returns:
            How many frames it has.

        Raises:
            UserError: if the video cannot be read, is smaller than the picture, or cannot be written.
        """
        facts = video_facts(video)
        if output.exists() and output.samefile(video):
            raise UserError(f"{output}: this is the video itself; give the new one another name")
        width_px, video_height_px = facts.size_px
        height_px = _even(HEIGHT_SHARE * video_height_px) if height_px is None else _even(height_px)
        widget_width_px = self.frame(0.0, height_px).shape[1]
        margin_px = round(MARGIN_SHARE * video_height_px)
        if widget_width_px + margin_px > width_px or height_px + margin_px > video_height_px:
            raise UserError(
                f"{video}: {width_px}x{video_height_px} pixels are too few for {widget_width_px}x{height_px} of keys"
            )
        left_px = width_px - margin_px - widget_width_px if corner.endswith("right") else margin_px
        top_px = video_height_px - margin_px - height_px if corner.startswith("bottom") else margin_px
        with VideoFile(output, facts.frames_per_s, over=Underlay(video, left_px, top_px)) as file:
            for number in range(max(1, math.floor(facts.duration_s * facts.frames_per_s))):
                file.write(self.frame(number / facts.frames_per_s, height_px))
        return file.n_frames

    def write_transparent(self, output: Path, height_px: int = HEIGHT_PX) -> int:
        """Write a video of nothing but the inputs, transparent elsewhere, from the video's beginning to `ends_s`.

        Args:
            output: a file of `TRANSPARENT` kind.
            height_px: the width is `WIDTH_PER_HEIGHT` times that.

        Returns:
            How many frames it has.

        Raises:
            UserError: if it cannot be written, or would have no frame.
        """
        if output.suffix.lower() not in TRANSPARENT:
            raise UserError(f"{output}: a transparent video is a {' or a '.join(TRANSPARENT)} file")
        n_frames = math.ceil(self.ends_s * FRAMES_PER_S)
        if n_frames < 1:
            raise UserError(f"{output}: with this offset the race is over before the video begins")
        with VideoFile(output, FRAMES_PER_S) as file:
            for number in range(n_frames):
                file.write(self.frame(number / FRAMES_PER_S, _even(height_px)))
        return file.n_frames


def _even(height_px: float) -> int:
    """A height at which the width is even, too: codecs know no others."""
    step = 4  # 1.5 times a multiple of four is even
    assert WIDTH_PER_HEIGHT * step % 2 == 0
    return max(step, round(height_px / step) * step)
