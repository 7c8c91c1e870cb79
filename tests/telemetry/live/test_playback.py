"""A race that was told, played back: the car and the picture at each time are those that were."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.live import LiveRace, LiveReader, RacePlayback

SIZE_PX = (37, 29)


@pytest.fixture
def told(make_driving: Callable[..., SimpleNamespace], reader: LiveReader) -> tuple[LiveRace, list[np.ndarray]]:
    """A race, and the pictures of its states as the game showed them."""
    driving = make_driving(n_games=1)
    pictures = []
    while not driving.ended:
        reader.watch(0, 0)
        pictures.append(driving.inside.picture(0, *SIZE_PX))
        driving.drive(1, seconds_each=0.1)
    return reader.race(), pictures[:-1]


def test_the_picture_is_that_of_the_game(told: tuple[LiveRace, list[np.ndarray]]) -> None:
    race, pictures = told
    playback = RacePlayback(race)
    assert len(pictures) > 30
    for state in (0, 1, 7, 30, len(pictures) - 1, 3):  # forward, and back
        picture = playback.picture(float(race.time_ms[state]), *SIZE_PX)
        assert picture.shape == (29, 37, 3)
        np.testing.assert_array_equal(picture, pictures[state])
    between = playback.picture(race.time_ms[7] + 25.0, *SIZE_PX)
    assert (between != pictures[7]).any()
    assert (between != pictures[8]).any()
    last = playback.picture(playback.duration_ms + 5000.0, *SIZE_PX)
    assert (last != pictures[-4]).any()


def test_the_car_moves_steadily_and_keeps_its_inputs(told: tuple[LiveRace, list[np.ndarray]]) -> None:
    race, _ = told
    playback = RacePlayback(race)
    assert playback.duration_ms == race.race_time_ms
    car = playback.moment(race.time_ms[9] + 20)
    assert car.race_time_ms == race.time_ms[9] + 20
    expected = 0.6 * race.position[9] + 0.4 * race.position[10]
    np.testing.assert_allclose(car.position, expected, rtol=1e-5)
    assert (car.steer, car.gas, car.brake) == (race.steer[9], race.gas[9], race.brake[9])
    assert car.q_values == race.q_values[9].tolist()
    assert (car.map_name, car.track, car.gear, car.zone) == (race.map_name, "straight", race.gear[9], race.zone[9])
    end = playback.moment(1e9)
    assert end.race_time_ms == race.race_time_ms
    assert end.position == tuple(race.position[-1].tolist())
    assert playback.moment(-5).position == tuple(race.position[0].tolist())


def test_another_track_of_this_name_gives_no_picture(
    told: tuple[LiveRace, list[np.ndarray]], tmp_path: Path, repository_root: Path
) -> None:
    race, _ = told
    other = dataclasses.replace(race, map_file=str(repository_root / "maps" / "kart.toml"))
    assert RacePlayback(other).picture(500) is None
    gone = dataclasses.replace(race, map_file=str(tmp_path / "gone.toml"))
    assert RacePlayback(gone).picture(500) is None
    (tmp_path / "damaged.toml").write_text("[")
    damaged = dataclasses.replace(race, map_file=str(tmp_path / "damaged.toml"))
    assert RacePlayback(damaged).picture(500) is None
    real = dataclasses.replace(race, map_file=r"My Challenges\ESL-Hockolicious.Challenge.Gbx")
    playback = RacePlayback(real)
    assert playback.picture(500) is None
    assert playback.picture(600) is None
    assert playback.moment(500).race_time_ms == 500


def test_a_generated_track_is_made_again_from_its_name(told: tuple[LiveRace, list[np.ndarray]]) -> None:
    race, _ = told
    generated = dataclasses.replace(race, track=TrackRecipe(seed=3, difficulty=0.0).name, map_file="gone.toml")
    assert RacePlayback(generated).picture(0, *SIZE_PX).shape == (29, 37, 3)


def test_of_another_game_its_frames_are_seen(told: tuple[LiveRace, list[np.ndarray]]) -> None:
    race, _ = told
    frames = np.arange(3 * 5 * 7, dtype=np.uint8).reshape(3, 5, 7)
    seen = dataclasses.replace(race, frames=frames, frame_time_ms=race.time_ms[:9:4])
    playback = RacePlayback(seen)
    for time_ms, number in ((0, 0), (199, 0), (200, 1), (1e6, 2), (-3, 0)):
        np.testing.assert_array_equal(playback.picture(time_ms), frames[number])
