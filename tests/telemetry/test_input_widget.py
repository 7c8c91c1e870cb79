"""What is held as a picture: at the right time, in the right colour, over a video or transparent."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.telemetry.input_picture import BLUE, GREEN, RED, arrows_picture, input_picture
from trackmania_rl.telemetry.input_timeline import NOTHING_HELD, Held, InputTimeline
from trackmania_rl.telemetry.input_widget import InputWidget
from trackmania_rl.telemetry.video import VideoFile, ffmpeg_program, video_facts

SCRIPT = "0.00 press up\n0.50 press left\n0.70 rel left\n0.70 rel up\n0.70 press down\n1.00 rel down\n"
WHEEL = "0.00 gas 65536\n0.50 steer -65536\n0.70 steer 32768\n0.70 press down\n"
PLACES = {"left": (1.5, 0.12), "right": (1.5, 2.12), "accelerate": (0.12, 1.5), "brake": (1.88, 1.5)}
"""On a board 2 high and 3 wide, as row and column: within the key, beside its arrow."""
LIT = {"left": BLUE, "right": BLUE, "accelerate": GREEN, "brake": RED}


def lit(picture: npt.NDArray[np.uint8]) -> set[str]:
    """Names of the keys that are lit in a picture of keys alone."""
    unit_px = picture.shape[0] / 2
    found = set()
    for name, (row, column) in PLACES.items():
        pixel = picture[int(row * unit_px), int(column * unit_px)].astype(int)
        red, green, blue, _ = LIT[name]
        if np.abs(pixel[:3] - (blue, green, red)).max() < 40:
            found.add(name)
    return found


def test_what_is_held_at_each_time() -> None:
    timeline = InputTimeline(parse_input_script(SCRIPT))
    assert not timeline.is_analog
    assert timeline.ends_ms == 1000
    assert timeline.at(-10) == NOTHING_HELD
    assert timeline.at(0).keys == KeyState(left=False, right=False, accelerate=True, brake=False)
    assert timeline.at(499).keys == timeline.at(0).keys
    assert timeline.at(690) == Held(KeyState(left=True, right=False, accelerate=True, brake=False), (1.0, 0.0, -1.0))
    assert timeline.at(10_000) == NOTHING_HELD
    assert InputTimeline([]).at(5) == NOTHING_HELD
    wheel = InputTimeline(parse_input_script(WHEEL))
    assert wheel.is_analog
    assert [wheel.at(time_ms).controls for time_ms in (0, 500, 700)] == [(1, 0, 0), (1, 0, -1), (1, 1, 0.5)]


@pytest.mark.parametrize("names", [(), ("left",), ("right", "accelerate"), ("left", "brake"), tuple(LIT)])
def test_keys_are_lit_while_they_are_held(names: tuple[str, ...]) -> None:
    held = Held(KeyState(**{name: name in names for name in LIT}), (0.0, 0.0, 0.0))
    picture = input_picture(held, is_analog=False, height_px=40)
    assert picture.shape == (40, 60, 4)
    assert lit(picture) == set(names)
    assert picture[5, 5, 3] == 0, "nothing is beside the upper key"


def test_the_wheel_fills_a_triangle_as_far_as_it_is_turned() -> None:
    def filled(steer: float) -> tuple[int, int]:
        picture = input_picture(Held(NOTHING_HELD.keys, (1.0, 0.0, steer)), is_analog=True, height_px=80).astype(int)
        is_blue = np.abs(picture[:, :, :3] - (BLUE[2], BLUE[1], BLUE[0])).max(axis=2) < 30
        return int(is_blue[:, :40].sum()), int(is_blue[:, 80:].sum())

    left, right = zip(*(filled(steer) for steer in (-1.0, -0.5, 0.0, 0.5, 1.0)), strict=True)
    assert left[0] > left[1] > 0 == left[2] == left[3] == left[4]
    assert right[4] > right[3] > 0 == right[2] == right[1] == right[0]


def test_arrows_in_a_row_are_told_apart() -> None:
    pictures = [
        arrows_picture(KeyState(*keys), 12) for keys in ((1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 1, 1), (0, 0, 0, 0))
    ]
    assert all(picture.shape == (12, 36, 4) for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 4


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A gray video of two seconds at 10 frames a second."""
    file = tmp_path / "recorded.mp4"
    with VideoFile(file, 10) as video:
        for _ in range(20):
            video.write(np.full((200, 320, 4), 128, np.uint8))
    return file


def test_the_program_draws_over_a_video(repository_root: Path, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "race.inputs").write_text(SCRIPT)
    command = [sys.executable, str(repository_root / "scripts" / "tools" / "input_widget.py")]
    command += [str(tmp_path / "race.inputs"), "--video", str(recorded), "--output", str(tmp_path / "keys.mp4")]
    command += ["--offset", "0.5", "--finish", "0.9", "--corner", "top-right", "--height", "80"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"wrote {tmp_path / 'keys.mp4'} (20 pictures)\n"
    capture = cv2.VideoCapture(str(tmp_path / "keys.mp4"))
    frames = [capture.read()[1] for _ in range(20)]
    assert not capture.read()[0]
    shown = [lit(frame[6:86, 320 - 6 - 120 : 320 - 6]) for frame in frames]
    forward, left, brake = {"accelerate"}, {"accelerate", "left"}, {"brake"}
    assert shown == [set()] * 5 + [forward] * 5 + [left] * 2 + [brake] * 2 + [set()] * 6
    assert np.abs(frames[7][100:].astype(int) - 128).max() < 8, "the video is the same elsewhere"


def test_a_transparent_video_lasts_as_long_as_the_race(tmp_path: Path) -> None:
    widget = InputWidget(InputTimeline(parse_input_script(SCRIPT)), offset_s=0.25)
    assert widget.write_transparent(tmp_path / "keys.webm", height_px=81) == 135
    facts = video_facts(tmp_path / "keys.webm")
    assert (facts.size_px, facts.frames_per_s) == ((120, 80), 60)
    read = [ffmpeg_program(), "-c:v", "libvpx-vp9", "-i", str(tmp_path / "keys.webm")]
    read += ["-f", "rawvideo", "-pix_fmt", "bgra", "pipe:1"]
    frames = np.frombuffer(subprocess.run(read, capture_output=True, check=True).stdout, np.uint8)
    frames = frames.reshape(135, 80, 120, 4)
    assert [lit(frames[number]) for number in (5, 20, 50, 60, 130)] == [
        *(set(), {"accelerate"}, {"accelerate", "left"}, {"brake"}, set())
    ]
    assert frames[:, 10, 10, 3].max() < 10
    assert frames[20, 10, 60, 3] > 245


def test_what_the_user_can_mend_is_told_in_one_line(recorded: Path, tmp_path: Path, repository_root: Path) -> None:
    (tmp_path / "race.inputs").write_text(SCRIPT)
    (tmp_path / "damaged.inputs").write_text("0.00 jump up\n")
    (tmp_path / "text.mp4").write_text("no video")
    program = [sys.executable, str(repository_root / "scripts" / "tools" / "input_widget.py")]
    good = [str(tmp_path / "race.inputs")]
    cases = {
        "line 1": [str(tmp_path / "damaged.inputs"), "--output", "a.webm"],
        "no video that ffmpeg can read": [*good, "--video", str(tmp_path / "text.mp4"), "--output", "a.mp4"],
        "end in .webm or .mov": [*good, "--output", "a.mp4"],
    }
    for told, words in cases.items():
        failed = subprocess.run([*program, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert failed.returncode == 1, words
        assert failed.stderr.startswith("error: ")
        assert told in failed.stderr
        assert failed.stderr.count("\n") == 1
    widget = InputWidget(InputTimeline(parse_input_script(SCRIPT)))
    with pytest.raises(UserError, match="the video itself"):
        widget.write_over(recorded, recorded, "top-left")
    with pytest.raises(UserError, match="too few"):
        widget.write_over(recorded, tmp_path / "out.mp4", "top-left", 400)
    with pytest.raises(UserError, match="before the video begins"):
        InputWidget(InputTimeline([]), -60.0).write_transparent(tmp_path / "out.webm")
    with pytest.raises(UserError, match=r"a \.webm or a \.mov"):
        widget.write_transparent(tmp_path / "out.gif")
    assert sorted(file.name for file in tmp_path.glob("out*")) == []
