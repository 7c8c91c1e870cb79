"""Films for loggers: a race is driven again by its inputs, and what is seen is one moving picture."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.race_film import HEIGHT_PX, WIDTH_PX, film_frames, film_inputs, track_of, write_film

FULL_THROTTLE = "0.00 press up\n"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    file = tmp_path / "race.inputs"
    file.write_text(FULL_THROTTLE)
    return file


def test_a_race_is_filmed_until_its_time(repository_root: Path, inputs: Path, tmp_path: Path) -> None:
    pictures = list(film_inputs(track_of(str(repository_root / "maps" / "kart.toml")), inputs, until_ms=1550))
    assert len(pictures) == 16, "0.0, 0.1, ..., 1.5 s"
    first, last = (np.asarray(picture).astype(int) for picture in (pictures[0], pictures[-1]))
    assert first.shape == (HEIGHT_PX, WIDTH_PX, 3)
    assert np.abs(last - first).mean() > 2, "the car has moved"
    write_film(tmp_path / "film.gif", pictures)
    with Image.open(tmp_path / "film.gif") as film:
        frames = list(ImageSequence.Iterator(film))
        assert film.size == (WIDTH_PX, HEIGHT_PX)
        assert film.info["duration"] == 100
    assert 2 <= len(frames) <= 16  # equal ones are joined
    assert sorted(file.name for file in tmp_path.iterdir()) == ["film.gif", "race.inputs"]


def test_a_film_ends_at_the_finish(inputs: Path) -> None:
    track = track_of(TrackRecipe(seed=3, difficulty=0.0).name)
    assert len(list(film_inputs(track, inputs, until_ms=400))) == 5


def test_frames_are_thinned_out_to_ten_a_second() -> None:
    frames = np.arange(12 * 5 * 7, dtype=np.uint8).reshape(12, 1, 5, 7)
    pictures = list(film_frames(frames, ms_per_frame=50))
    assert [np.asarray(picture).tolist() for picture in pictures] == frames[::2, 0].tolist()
    assert len(list(film_frames(frames, ms_per_frame=200))) == 12


def test_the_program(repository_root: Path, inputs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trackmania_rl.telemetry.race_film", str(tmp_path / "film.gif")]
    np.save(tmp_path / "frames.npy", np.zeros((3, 1, 5, 7), np.uint8))
    of_frames = ["--frames", str(tmp_path / "frames.npy"), "--ms-per-frame", "100"]
    subprocess.run([*command, *of_frames], cwd=repository_root, check=True)
    assert (tmp_path / "film.gif").is_file()
    wrong = ["--track", "nowhere.toml", "--inputs", str(inputs), "--until-ms", "100"]
    failed = subprocess.run([*command, *wrong], cwd=repository_root, capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
