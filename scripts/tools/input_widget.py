"""Draw the keys of a race, lit while they are pressed, over a video of it, or alone and transparent for a video editor.

Works with any video that ffmpeg reads, such as a recording of the real game. Inputs of a wheel are drawn as steering
and pedals. The race begins where --offset says: 3.2 if the countdown ends after 3.2 s of the video, -5 if the video
begins 5 s after the race.

Over a video the output is an .mp4 (H.264, with the video's sound). Alone it is a .webm (VP9, for browsers and OBS) or a
.mov (ProRes 4444, for editors such as Resolve, Premiere and Final Cut), 60 pictures a second, both with transparency.

Examples:
  python scripts/tools/input_widget.py valley.inputs --video recorded.mp4 --offset 3.2 --output with_keys.mp4
  python scripts/tools/input_widget.py valley.inputs --output keys.mov --finish 20.3
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import (  # noqa: E402
    command,
    end_in_order_when_terminated,
    whole_number,
)
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.protocol.input_script import read_input_script  # noqa: E402
from trackmania_rl.telemetry.input_picture import (  # noqa: E402
    NOTHING_HELD,
    WIDTH_PER_HEIGHT,
    InputTimeline,
    input_picture,
)
from trackmania_rl.telemetry.video import TRANSPARENT, Underlay, VideoFile, video_facts  # noqa: E402

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


@command
def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = parse_arguments(words)
    timeline = InputTimeline(read_input_script(arguments.inputs))
    finish_ms = None if arguments.finish is None else round(arguments.finish * 1000)
    widget = InputWidget(timeline, arguments.offset, finish_ms)
    if arguments.video is None:
        n_frames = widget.write_transparent(arguments.output, arguments.height or HEIGHT_PX)
    else:
        n_frames = widget.write_over(arguments.video, arguments.output, arguments.corner, arguments.height)
    print(f"wrote {arguments.output} ({n_frames} pictures)")


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("inputs", type=Path, metavar="FILE.inputs", help="the race's inputs, as TMInterface loads them")
    add("--video", type=Path, metavar="FILE", help="the video that they are drawn over (default: none, transparent)")
    add("--output", type=Path, required=True, metavar="FILE", help=".mp4 over a video, else .webm or .mov")
    add("--offset", type=seconds, default=0.0, metavar="S", help="when the race begins in the video (default 0)")
    add("--finish", type=seconds, metavar="S", help="race time of the finish: no key is lit after it, and a "
        "transparent video ends (default: a second after the last change)")  # fmt: skip
    add("--corner", choices=CORNERS, default=CORNERS[0], help=f"of the video (default {CORNERS[0]})")
    add(
        "--height", type=whole_number(8, 2160), metavar="PX", help="of the keys (default: 18 %% of the video's, or 240)"
    )
    arguments = parser.parse_args(words)
    kinds = (".mp4",) if arguments.video is not None else TRANSPARENT
    if arguments.output.suffix.lower() not in kinds:
        what = "over a video" if arguments.video is not None else "without --video"
        raise UserError(f"--output {arguments.output}: {what} the name has to end in {' or '.join(kinds)}")
    return arguments


def seconds(text: str) -> float:
    """A time in seconds, negative ones too, within a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= 24 * 60 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


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


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
