"""Video files: what is written can be read again, browsers play it, and a failure leaves nothing behind."""

import builtins
import os
import re
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry import video as video_module
from trackmania_rl.telemetry.video import Underlay, VideoFile, ffmpeg_program, video_facts


def make_frames(n=12, height_px=48, width_px=64):
    """A white bar that moves right over a blue ground."""
    frames = np.zeros((n, height_px, width_px, 4), dtype=np.uint8)
    frames[..., 0] = 200
    frames[..., 3] = 255
    for number, frame in enumerate(frames):
        frame[:, 4 * number : 4 * number + 8, :3] = 255
    return frames


def read_frames(path: Path):
    capture = cv2.VideoCapture(str(path))
    frames = []
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return np.array(frames), capture.get(cv2.CAP_PROP_FPS)
        frames.append(frame)


def write_video(path: Path, frames, **options) -> None:
    with VideoFile(path, 20.0, **options) as video:
        for frame in frames:
            video.write(frame)


def test_frames_come_back_in_order_and_colour(tmp_path):
    frames = make_frames()
    write_video(tmp_path / "new" / "race.mp4", frames)
    read, frames_per_s = read_frames(tmp_path / "new" / "race.mp4")
    assert frames_per_s == 20.0
    assert read.shape == (12, 48, 64, 3)
    assert np.abs(read.astype(int) - frames[..., :3]).mean() < 8
    assert os.listdir(tmp_path / "new") == ["race.mp4"]


@pytest.mark.parametrize(("height_px", "width_px"), [(1, 1), (47, 64), (48, 63), (15, 15)])
def test_odd_sides_are_filled_up(tmp_path, height_px, width_px):
    write_video(tmp_path / "race.mp4", make_frames(3, height_px, width_px))
    read, _ = read_frames(tmp_path / "race.mp4")
    assert read.shape == (3, height_px + height_px % 2, width_px + width_px % 2, 3)


def told_by_ffmpeg(file: Path) -> str:
    command = [ffmpeg_program(), "-hide_banner", "-i", str(file)]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode()  # it asks for an output file


def test_an_mp4_is_what_browsers_and_chats_play(tmp_path):
    write_video(tmp_path / "race.mp4", make_frames())
    told = told_by_ffmpeg(tmp_path / "race.mp4")
    assert re.search(r"Video: h264 \(\w+\).*, yuv420p\(tv, bt709, progressive\), 64x48.*, 20 fps", told), told
    content = (tmp_path / "race.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "it can be shown before all of it has arrived"


@pytest.mark.parametrize(("ending", "codec"), [("webm", "vp9"), ("mov", "prores")])
def test_webm_and_mov_are_transparent(tmp_path, ending, codec):
    frames = make_frames()
    frames[..., 3] = 0
    frames[:, :24, :, 3] = 255
    file = tmp_path / f"race.{ending}"
    write_video(file, frames)
    assert f"Video: {codec}" in told_by_ffmpeg(file)
    decoder = ["-c:v", "libvpx-vp9"] if ending == "webm" else []
    command = [ffmpeg_program(), *decoder, "-i", str(file), "-f", "rawvideo", "-pix_fmt", "bgra", "pipe:1"]
    read = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)
    read = read.reshape(12, 48, 64, 4).astype(int)
    assert np.abs(read[..., 3] - frames[..., 3]).mean() < 4
    assert np.abs(read[:, :24, :, :3] - frames[:, :24, :, :3]).mean() < 12


def test_frames_are_laid_over_a_video_and_its_sound_stays(tmp_path):
    under = tmp_path / "under.mp4"
    make = ["-f", "lavfi", "-i", "color=red:s=65x49:r=10:d=1", "-f", "lavfi", "-i", "sine=d=1", "-pix_fmt", "yuv444p"]
    subprocess.run([ffmpeg_program(), "-loglevel", "error", *make, str(under)], check=True)
    frames = np.zeros((10, 12, 20, 4), np.uint8)
    frames[:, :6] = 255
    with VideoFile(tmp_path / "over.mp4", 10, over=Underlay(under, 40, 10)) as video:
        for frame in frames:
            video.write(frame)
    read, frames_per_s = read_frames(tmp_path / "over.mp4")
    assert (read.shape, frames_per_s) == ((10, 50, 66, 3), 10)
    assert read[5, 11:15, 42:58].min() > 220, "white where the frame is"
    assert np.abs(read[5, 18:21, 42:58].astype(int) - (0, 0, 255)).mean() < 15, "red where it is transparent"
    assert "Audio: aac" in told_by_ffmpeg(tmp_path / "over.mp4")
    assert video_facts(tmp_path / "over.mp4").size_px == (66, 50)


def test_what_is_no_video_is_told(tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    sound = [ffmpeg_program(), "-loglevel", "error", "-f", "lavfi", "-i", "sine=d=1", str(tmp_path / "sound.wav")]
    subprocess.run(sound, check=True)
    for name, told in (("text.mp4", "no video"), ("sound.wav", "without frames"), ("absent.mp4", "no such video")):
        with pytest.raises(UserError, match=told) as error:
            video_facts(tmp_path / name)
        assert "\n" not in str(error.value)


def test_nothing_is_seen_before_the_end_and_an_error_keeps_the_older_file(tmp_path):
    path = tmp_path / "race.mp4"
    path.write_bytes(b"older")

    def race_that_breaks_off():
        yield make_frames()[0]
        assert path.read_bytes() == b"older"
        raise RuntimeError("the race broke off")

    with pytest.raises(RuntimeError, match="the race broke off"):
        write_video(path, race_that_breaks_off())
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["race.mp4"]


def test_without_a_frame_there_is_no_file(tmp_path):
    write_video(tmp_path / "race.mp4", [])
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_told(tmp_path, monkeypatch):
    video = VideoFile(tmp_path / "race.mp4", 20.0)
    video._part_path = Path("/dev/full")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)

    def write_all():
        with video:
            for frame in make_frames(300, 240, 320):
                video.write(frame)

    with pytest.raises(UserError, match=r"race\.mp4 cannot be written: "):
        write_all()
    assert os.listdir(tmp_path) == []


def test_what_ffmpeg_says_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(video_module.ENCODERS, ".mp4", "-c:v no_such_codec -f mp4")
    with pytest.raises(UserError, match=r"race\.mp4 cannot be written: .*no_such_codec") as error:
        write_video(tmp_path / "race.mp4", make_frames(100, 240, 320))
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_without_ffmpeg_its_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"absent: No such file"):
        write_video(tmp_path / "race.mp4", make_frames())
    installed = builtins.__import__

    def refuse(name, *arguments, **named):
        if name == "imageio_ffmpeg":
            raise ImportError(name)
        return installed(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match="pip install imageio-ffmpeg"):
        write_video(tmp_path / "race.mp4", make_frames())
    assert os.listdir(tmp_path) == []


def test_an_older_film_that_is_open_in_a_player_is_told(tmp_path, monkeypatch):
    path = tmp_path / "race.mp4"
    path.write_bytes(b"older")

    def refuse(source, target):
        raise PermissionError(13, "The process cannot access the file")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UserError, match=r"race\.mp4 cannot be written: The process .*open in a player"):
        write_video(path, make_frames())
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["race.mp4"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"folder of the video .*race\.mp4 cannot be created"):
        write_video(tmp_path / "file" / "race.mp4", make_frames())


def test_other_kinds_of_file_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"race\.avi has to be an \.mp4"):
        VideoFile(tmp_path / "race.avi", 20.0)


@pytest.mark.parametrize("frames_per_s", [0.0, -1.0])
def test_no_frames_a_second_are_refused(tmp_path, frames_per_s):
    with pytest.raises(ValueError, match="it must be"):
        VideoFile(tmp_path / "race.mp4", frames_per_s)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((48, 64), np.uint8),
        np.zeros((48, 64, 3), np.uint8),
        np.zeros((48, 64, 4), np.float32),
        np.zeros((0, 64, 4), np.uint8),
    ],
)
def test_frames_of_another_form_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"give \(H, W, 4\) uint8"):
        write_video(tmp_path / "race.mp4", [wrong])


def test_all_frames_have_one_size(tmp_path):
    with pytest.raises(ValueError, match="first one had"):
        write_video(tmp_path / "race.mp4", [*make_frames(1), *make_frames(1, 24, 32)])
    assert os.listdir(tmp_path) == []
