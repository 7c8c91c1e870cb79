"""Video files, films of races, and the command that draws pressed keys over a video."""

import os
import re
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageSequence

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry import films
from trackmania_rl.telemetry import video as video_module
from trackmania_rl.telemetry.films import FilmData, film_evaluation, film_inputs, with_overlay, write_films
from trackmania_rl.telemetry.input_picture import BLUE, GREEN, RED
from trackmania_rl.telemetry.video import Underlay, VideoFile, ffmpeg_program, video_facts
from trackmania_rl.track.map_sources import track_of


def make_frames(n=12, height_px=48, width_px=64):
    """A white bar that moves right over a blue ground."""
    frames = np.zeros((n, height_px, width_px, 4), dtype=np.uint8)
    frames[..., 0] = 200
    frames[..., 3] = 255
    for number, frame in enumerate(frames):
        frame[:, 4 * number : 4 * number + 8, :3] = 255
    return frames


def read_frames(path):
    capture = cv2.VideoCapture(str(path))
    frames = []
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return np.array(frames), capture.get(cv2.CAP_PROP_FPS)
        frames.append(frame)


def read_transparent(file, shape):
    decoder = ["-c:v", "libvpx-vp9"] if file.suffix == ".webm" else []
    command = [ffmpeg_program(), *decoder, "-i", str(file), "-f", "rawvideo", "-pix_fmt", "bgra", "pipe:1"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8).reshape(shape)


def write_video(path, frames, **options):
    with VideoFile(path, 20.0, **options) as video:
        for frame in frames:
            video.write(frame)


def ffmpeg_output(file):
    command = [ffmpeg_program(), "-hide_banner", "-i", str(file)]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode()  # it asks for an output file


def test_an_mp4_is_in_the_form_that_browsers_play(tmp_path):
    frames = make_frames()
    file = tmp_path / "new" / "race.mp4"
    write_video(file, frames)
    read, frames_per_s = read_frames(file)
    assert frames_per_s == 20.0
    assert read.shape == (12, 48, 64, 3)
    assert np.abs(read.astype(int) - frames[..., :3]).mean() < 8
    assert os.listdir(tmp_path / "new") == ["race.mp4"]
    facts = ffmpeg_output(file)
    assert re.search(r"Video: h264 \(\w+\).*, yuv420p\(tv, bt709, progressive\), 64x48.*, 20 fps", facts), facts
    content = file.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "it can be shown before all of it has arrived"
    write_video(file, make_frames(3, 47, 63))
    assert read_frames(file)[0].shape == (3, 48, 64, 3), "odd sides are filled up"


@pytest.mark.parametrize(("ending", "codec"), [("webm", "vp9"), ("mov", "prores")])
def test_webm_and_mov_are_transparent(tmp_path, ending, codec):
    frames = make_frames()
    frames[..., 3] = 0
    frames[:, :24, :, 3] = 255
    file = tmp_path / f"race.{ending}"
    write_video(file, frames)
    assert f"Video: {codec}" in ffmpeg_output(file)
    read = read_transparent(file, frames.shape).astype(int)
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
    assert "Audio: aac" in ffmpeg_output(tmp_path / "over.mp4")


def test_a_film_that_fails_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "race.mp4"
    path.write_bytes(b"older")
    write_video(path, [])

    def race_that_breaks_off():
        yield make_frames()[0]
        assert path.read_bytes() == b"older"
        raise RuntimeError("the race broke off")

    with pytest.raises(RuntimeError, match="the race broke off"):
        write_video(path, race_that_breaks_off())
    with pytest.raises(ValueError, match="first one had"):
        write_video(path, [*make_frames(1), *make_frames(1, 24, 32)])
    with monkeypatch.context() as open_in_player:
        open_in_player.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "in use")))
        with pytest.raises(UserError, match=r"race\.mp4 cannot be written: in use.*open in a player"):
            write_video(path, make_frames())
    monkeypatch.setitem(video_module.ENCODERS, ".mp4", "-c:v no_such_codec -f mp4")
    with pytest.raises(UserError, match=r"race\.mp4 cannot be written: .*no_such_codec") as error:
        write_video(path, make_frames(100, 240, 320))
    assert "\n" not in str(error.value)
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["race.mp4"]


def test_a_race_is_filmed_until_its_time_and_no_longer_than_its_finish(repository_root, tmp_path):
    track = track_of(str(repository_root / "maps" / "kart.toml"))
    shots = list(film_inputs(track, parse_input_script("0.00 press up\n"), until_ms=1550, size_px=(64, 36)))
    assert [shot.time_ms for shot in shots] == list(range(0, 1550, 40))
    first, last = shots[0], shots[-1]
    assert np.abs(last.frame.astype(int) - first.frame).mean() > 2, "the car has moved"
    assert first.speed_m_s == 0
    assert last.speed_m_s > 5
    write_films(tmp_path / "a.b.mp4", iter(shots), 40, with_overlay, 1550)
    facts = video_facts(tmp_path / "a.b.mp4")
    assert (facts.size_px, facts.frames_per_s) == ((64, 36), 25)
    assert facts.duration_s == pytest.approx(1.55 + 1, abs=0.1), "the last picture stays for a second"
    with Image.open(tmp_path / "a.b.gif") as film:
        assert (film.size, film.info["duration"]) == ((64, 36), 80)
        assert 2 <= len(list(ImageSequence.Iterator(film))) <= 20, "equal ones are joined"
    events = parse_input_script((repository_root / "research" / "planner" / "records" / "kart.inputs").read_text())
    *_, last = film_inputs(track, events, until_ms=60_000, size_px=(8, 6))
    assert 40 < last.time_ms < 30_000
    assert last.time_ms % 40, "the official time, not that of the picture"
    generated = track_of(TrackRecipe(seed=3, difficulty=0.0).name)
    assert len(list(film_inputs(generated, [], until_ms=400, size_px=(8, 6)))) == 11


def test_a_process_films_a_race_or_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(films.psutil.Process, "nice", lambda *_: None)
    data = FilmData(100, frames=np.zeros((3, 20, 30), np.uint8))
    film_evaluation(tmp_path / "film.mp4", None, "0.00 press up\n", data, 100)
    assert video_facts(tmp_path / "film.mp4").size_px == (540, 360), "frames are enlarged"
    with pytest.raises(UserError, match=r"nowhere\.toml"):
        film_evaluation(tmp_path / "film.mp4", "nowhere.toml", "0.00 press up\n", data, 100)


SCRIPT = "0.00 press up\n0.50 press left\n0.70 rel left\n0.70 rel up\n0.70 press down\n1.00 rel down\n"
PLACES = {
    "left": (1.5, 0.12, BLUE),
    "right": (1.5, 2.12, BLUE),
    "accelerate": (0.12, 1.5, GREEN),
    "brake": (1.88, 1.5, RED),
}
"""On a board 2 high and 3 wide, as row, column and colour: within the key, beside its arrow."""
EXPECTED_KEYS = [{"accelerate"}] * 5 + [{"accelerate", "left"}] * 2 + [{"brake"}] * 2


def lit(picture):
    """Names of the keys that are lit in a picture of keys alone."""
    unit_px = picture.shape[0] / 2
    found = set()
    for name, (row, column, (red, green, blue, _)) in PLACES.items():
        pixel = picture[int(row * unit_px), int(column * unit_px)].astype(int)
        if np.abs(pixel[:3] - (blue, green, red)).max() < 40:
            found.add(name)
    return found


@pytest.fixture
def widget(script_module):
    return script_module("tools/input_widget")


def test_keys_are_drawn_over_a_video(widget, tmp_path, capsys, error_line):
    with VideoFile(tmp_path / "recorded.mp4", 10) as video:
        for _ in range(20):
            video.write(np.full((200, 320, 4), 128, np.uint8))
    (tmp_path / "race.inputs").write_text(SCRIPT)
    (tmp_path / "damaged.inputs").write_text("0.00 press jump\n")
    race, recorded, output = (str(tmp_path / name) for name in ("race.inputs", "recorded.mp4", "keys.mp4"))
    words = [race, "--video", recorded, "--output", output, "--offset", "0.5", "--finish", "0.9"]
    assert widget.main([*words, "--corner", "top-right", "--height", "80"]) == 0
    assert capsys.readouterr().out == f"wrote {output} (20 pictures)\n"
    frames, _ = read_frames(Path(output))
    shown = [lit(frame[6:86, 320 - 6 - 120 : 320 - 6]) for frame in frames]
    assert shown == [set()] * 5 + EXPECTED_KEYS + [set()] * 6
    assert np.abs(frames[7][100:].astype(int) - 128).max() < 8, "the video is the same elsewhere"
    cases = {
        "line 1": [str(tmp_path / "damaged.inputs"), "--output", "a.webm"],
        "no video that ffmpeg can read": [race, "--video", race, "--output", "a.mp4"],
        "end in .webm or .mov": [race, "--output", "a.mp4"],
        "the video itself": [race, "--video", recorded, "--output", recorded],
        "320x200 pixels are too few for": [race, "--video", recorded, "--output", output, "--height", "300"],
        "before the video begins": [race, "--offset", "-60", "--output", str(tmp_path / "out.webm")],
    }
    for message, words in cases.items():
        assert message in error_line(widget.main, words)
    assert not (tmp_path / "out.webm").exists()


def test_keys_and_a_wheel_are_drawn_on_transparent_ground(widget, tmp_path):
    (tmp_path / "race.inputs").write_text(SCRIPT)
    (tmp_path / "wheel.inputs").write_text("0.00 gas 65536\n0.50 steer -65536\n0.70 steer 32768\n")
    files = {name: tmp_path / f"{name}.webm" for name in ("race", "wheel")}
    for name, file in files.items():
        words = [str(tmp_path / f"{name}.inputs"), "--output", str(file), "--finish", "1", "--height", "80"]
        assert widget.main(words) == 0
    frames = read_transparent(files["race"], (60, 80, 120, 4))
    assert [lit(frames[number]) for number in range(3, 54, 6)] == EXPECTED_KEYS
    assert frames[:, 10, 10, 3].max() < 10
    assert frames[20, 10, 60, 3] > 245
    wheel = read_transparent(files["wheel"], (60, 80, 120, 4)).astype(int)
    is_blue = np.abs(wheel[..., :3] - BLUE[2::-1]).max(axis=-1) < 40
    sides = [(bool(is_blue[at, :, :40].any()), bool(is_blue[at, :, 80:].any())) for at in (20, 36, 50)]
    assert sides == [(False, False), (True, False), (False, True)], "steering"
