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

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import (  # noqa: E402
    command,
    end_in_order_when_terminated,
    whole_number,
)
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.protocol.input_script import read_input_script  # noqa: E402
from trackmania_rl.telemetry.input_timeline import InputTimeline  # noqa: E402
from trackmania_rl.telemetry.input_widget import CORNERS, HEIGHT_PX, InputWidget  # noqa: E402
from trackmania_rl.telemetry.video import TRANSPARENT  # noqa: E402


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


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
