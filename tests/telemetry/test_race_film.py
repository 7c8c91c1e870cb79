"""Films of evaluated races: driven again by their inputs, or made of frames; as video, and as one moving picture."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.overlay import RaceColumns, RaceOverlay
from trackmania_rl.telemetry.race_film import film_frames, film_inputs, track_of, write_films
from trackmania_rl.telemetry.video import video_facts

FULL_THROTTLE = "0.00 press up\n"
SIZE_PX = (64, 36)


def test_a_race_is_filmed_until_its_time(repository_root: Path, tmp_path: Path) -> None:
    track = track_of(str(repository_root / "maps" / "kart.toml"))
    shots = list(film_inputs(track, parse_input_script(FULL_THROTTLE), until_ms=1550, size_px=SIZE_PX))
    assert [shot.time_ms for shot in shots] == list(range(0, 1550, 40))
    first, last = shots[0], shots[-1]
    assert first.frame.shape == (36, 64, 4)
    assert np.abs(last.frame.astype(int) - first.frame).mean() > 2, "the car has moved"
    assert first.speed_m_s == 0
    assert last.speed_m_s is not None
    assert last.speed_m_s > 5
    write_films(tmp_path / "a.b.mp4", iter(shots), 40, RaceOverlay(), 1550)
    facts = video_facts(tmp_path / "a.b.mp4")
    assert (facts.size_px, facts.frames_per_s) == (SIZE_PX, 25)
    assert facts.duration_s == pytest.approx(1.55 + 1, abs=0.1), "the last picture stays for a second"
    with Image.open(tmp_path / "a.b.gif") as film:
        frames = list(ImageSequence.Iterator(film))
        assert film.size == SIZE_PX
        assert film.info["duration"] == 80
    assert 2 <= len(frames) <= 20  # equal ones are joined
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.b.gif", "a.b.mp4"]


def test_a_film_ends_at_the_finish(repository_root: Path) -> None:
    events = parse_input_script((repository_root / "research" / "planner" / "records" / "kart.inputs").read_text())
    track = track_of(str(repository_root / "maps" / "kart.toml"))
    *_, last = film_inputs(track, events, until_ms=60_000, size_px=(8, 6))
    assert last.time_ms < 30_000
    assert last.time_ms % 40, "the official time, not that of the picture"
    generated = track_of(TrackRecipe(seed=3, difficulty=0.0).name)
    assert len(list(film_inputs(generated, [], until_ms=400, size_px=(8, 6)))) == 11


def test_frames_are_enlarged_to_be_seen() -> None:
    frames = np.arange(2 * 120 * 160, dtype=np.int64).reshape(2, 120, 160).astype(np.uint8)
    columns = RaceColumns(50, speed_m_s=np.array([1, 2], np.float32), gear=np.array([1, 3]), frames=frames)
    shots = list(film_frames(columns))
    assert [(shot.time_ms, shot.speed_m_s, shot.gear) for shot in shots] == [(0, 1, 1), (50, 2, 3)]
    assert shots[0].frame.shape == (360, 480, 4)


def test_the_program(repository_root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trackmania_rl.telemetry.race_film", str(tmp_path / "film.mp4")]
    command += ["--until-ms", "100"]
    (tmp_path / "race.inputs").write_text(FULL_THROTTLE)
    RaceColumns(100, frames=np.zeros((3, 20, 30), np.uint8)).save(tmp_path / "frames.npz")
    subprocess.run([*command, "--columns", str(tmp_path / "frames.npz")], cwd=repository_root, check=True)
    assert video_facts(tmp_path / "film.mp4").size_px == (540, 360)
    (tmp_path / "damaged.npz").write_bytes(b"PK")
    for wrong, told in (
        (["--track", "nowhere.toml", "--inputs", str(tmp_path / "race.inputs")], "nowhere.toml"),
        (["--columns", str(tmp_path / "damaged.npz")], "no columns of a race"),
        ([], "a film is made of"),
    ):
        failed = subprocess.run([*command, *wrong], cwd=repository_root, capture_output=True, text=True, check=False)
        assert failed.returncode == 1
        assert failed.stderr.startswith("error: ")
        assert failed.stderr.count("\n") == 1
        assert told in failed.stderr
