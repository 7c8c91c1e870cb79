"""Films of races: what is written can be read again, and a failure leaves nothing behind."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.video import VideoFile


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


def test_enlarged(tmp_path):
    frames = make_frames(4)
    write_video(tmp_path / "race.mp4", frames, enlargement=3)
    read, _ = read_frames(tmp_path / "race.mp4")
    assert read.shape == (4, 144, 192, 3)
    assert np.abs(read[:, 1::3, 1::3].astype(int) - frames[..., :3]).mean() < 8


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


def test_a_codec_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cv2.VideoWriter, "isOpened", lambda self: False)
    with pytest.raises(UserError, match=r"race\.mp4 cannot be written \(64x48 pixels, codec mp4v\)"):
        write_video(tmp_path / "race.mp4", make_frames())
    assert os.listdir(tmp_path) == []


def test_a_file_that_was_cut_off_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cv2.VideoWriter, "write", lambda self, picture: None)
    with pytest.raises(UserError, match=r"race\.mp4 holds 0 of its 12 frames: is the disk full"):
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


@pytest.mark.parametrize(("frames_per_s", "enlargement"), [(0.0, 1), (-1.0, 1), (20.0, 0)])
def test_options_out_of_range_are_refused(tmp_path, frames_per_s, enlargement):
    with pytest.raises(ValueError, match="it must be"):
        VideoFile(tmp_path / "race.mp4", frames_per_s, enlargement)


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
