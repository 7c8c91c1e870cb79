"""Draw the keys of a race, lit while they are pressed, over a video of it, or alone and transparent.

Inputs of a wheel are drawn as steering and pedals. --offset is the start of the race in the video: 3.2 if the countdown
ends after 3.2 s, -5 if the video begins 5 s after the race.

Over a video the output is an .mp4 (H.264, with the video's sound). Alone it is a .webm (VP9, for browsers and OBS) or a
.mov (ProRes 4444, for video editors), 60 pictures a second, both transparent.

Example:
  python scripts/tools/input_widget.py valley.inputs --video recorded.mp4 --offset 3.2 --output with_keys.mp4
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command, end_in_order_when_terminated, whole_number
from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.telemetry.input_picture import NOTHING_HELD, InputTimeline, input_picture
from trackmania_rl.telemetry.video import TRANSPARENT, Underlay, VideoFile, video_facts

import numpy as np
import numpy.typing as npt

CORNERS: Final = ("bottom-left", "bottom-right", "top-left", "top-right")
FRAMES_PER_S: Final = 60
"""For a transparent video."""
HEIGHT_PX: Final = 240
"""For a transparent video."""
HEIGHT_SHARE: Final = 0.18
"""Input height / video height."""
MARGIN_SHARE: Final = 0.03
"""Distance from the borders, as a share of the video's height."""
_AFTER_LAST_CHANGE_MS: Final = 1000
_ROUNDING_MS: Final = 1e-6

Draw = Callable[[float, int], npt.NDArray[np.uint8]]
"""(video time in s, height in px) -> picture (height, W, 4), blue, green, red, alpha."""


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    timeline = InputTimeline(read_input_script(arguments.inputs))
    finish_ms = math.inf if arguments.finish is None else round(arguments.finish * 1000)

    def draw(video_s: float, height_px: int) -> npt.NDArray[np.uint8]:
        time_ms = (video_s - arguments.offset) * 1000 + _ROUNDING_MS
        held = NOTHING_HELD if time_ms >= finish_ms else timeline.at(time_ms)
        return input_picture(held, timeline.is_analog, height_px)

    if arguments.video is None:
        ends_ms = timeline.ends_ms + _AFTER_LAST_CHANGE_MS if arguments.finish is None else finish_ms
        ends_s = ends_ms / 1000 + arguments.offset
        n_frames = write_transparent(draw, ends_s, arguments.output, arguments.height or HEIGHT_PX)
    else:
        n_frames = write_over(draw, arguments.video, arguments.output, arguments.corner, arguments.height)
    print(f"wrote {arguments.output} ({n_frames} pictures)")


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("inputs", type=Path, metavar="FILE.inputs", help="the race's inputs, as TMInterface loads them")
    add("--video", type=Path, metavar="FILE", help="the video that they are drawn over (default: none, transparent)")
    add("--output", type=Path, required=True, metavar="FILE", help=".mp4 over a video, else .webm or .mov")
    add("--offset", type=seconds, default=0.0, metavar="S", help="when the race begins in the video (default 0)")
    finish = (
        "race time of the finish: no key is lit after it, and a transparent video ends (default: a second after the "
        "last change)"
    )
    add("--finish", type=seconds, metavar="S", help=finish)
    add("--corner", choices=CORNERS, default=CORNERS[0], help=f"of the video (default {CORNERS[0]})")
    height = "of the keys (default: 18 %% of the video's, or 240)"
    add("--height", type=whole_number(8, 2160), metavar="PX", help=height)
    arguments = parser.parse_args(words)
    kinds = (".mp4",) if arguments.video is not None else TRANSPARENT
    if arguments.output.suffix.lower() not in kinds:
        what = "over a video" if arguments.video is not None else "without --video"
        raise UserError(f"--output {arguments.output}: {what} the name has to end in {' or '.join(kinds)}")
    return arguments


def seconds(text: str) -> float:
    """Parse a time in seconds, at most a day before or after 0."""
    if not abs(float(text)) <= 24 * 60 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return float(text)


def write_over(draw: Draw, video: Path, output: Path, corner: str, height_px: int | None) -> int:
    """Write a video with sound and with the inputs over it; return the frame count.

    The inputs are `height_px` high, or a share `HEIGHT_SHARE` of the video.

    Raises:
        UserError: if the video is unreadable or smaller than the inputs, or cannot be written.
    """
    facts = video_facts(video)
    if output.exists() and output.samefile(video):
        raise UserError(f"{output}: this is the video itself; give the new one another name")
    width_px, video_height_px = facts.size_px
    height_px = _even(HEIGHT_SHARE * video_height_px) if height_px is None else _even(height_px)
    widget_width_px = draw(0.0, height_px).shape[1]
    margin_px = round(MARGIN_SHARE * video_height_px)
    if widget_width_px + margin_px > width_px or height_px + margin_px > video_height_px:
        raise UserError(
            f"{video}: {width_px}x{video_height_px} pixels are too few for {widget_width_px}x{height_px} of keys"
        )
    left_px = width_px - margin_px - widget_width_px if corner.endswith("right") else margin_px
    top_px = video_height_px - margin_px - height_px if corner.startswith("bottom") else margin_px
    with VideoFile(output, facts.frames_per_s, over=Underlay(video, left_px, top_px)) as file:
        for number in range(max(1, math.floor(facts.duration_s * facts.frames_per_s))):
            file.write(draw(number / facts.frames_per_s, height_px))
    return file.n_frames


def write_transparent(draw: Draw, ends_s: float, output: Path, height_px: int) -> int:
    """Write a transparent video with the inputs; return the frame count."""
    n_frames = math.ceil(ends_s * FRAMES_PER_S)
    if n_frames < 1:
        raise UserError(f"{output}: with this offset the race is over before the video begins")
    with VideoFile(output, FRAMES_PER_S) as file:
        for number in range(n_frames):
            file.write(draw(number / FRAMES_PER_S, _even(height_px)))
    return file.n_frames


def _even(height_px: float) -> int:
    """Round to a height with an even width (1.5 times a multiple of four), as codecs require."""
    return max(4, round(height_px / 4) * 4)


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
