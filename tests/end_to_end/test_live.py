"""Looking at a training from outside: its cars move, its races can be played back, and nothing stays behind."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.telemetry.live import LiveReader, RacePlayback

SIZE_PX = (64, 48)


def test_cars_are_seen_moving_and_races_are_played_back(start_training: Callable, tmp_path: Path) -> None:
    command = start_training(tmp_path, image_width_px=0, image_height_px=0)
    command.wait_for_races()
    reader = LiveReader(command.run_folder)
    command.wait_for(lambda: len(reader.cars()) == 2, "cars")
    positions_m = []
    for _ in range(20):
        positions_m.append([car.position for car in reader.cars()])
        reader.watch(0, 1)
        time.sleep(0.1)
    moved_m = np.linalg.norm(np.diff(positions_m, axis=0), axis=2).sum(axis=0)
    assert (moved_m > 20).all(), "both cars drive on"
    assert all(car.age_s < 2 for car in reader.cars())

    def watched_race() -> bool:
        reader.watch(0, 1)
        race = reader.race()
        return race is not None and race.game == 1

    command.wait_for(watched_race, "the watched game's race")
    race = reader.race()
    assert race.map_name == "valley"
    playback = RacePlayback(race)
    first, last = playback.picture(0, *SIZE_PX), playback.picture(playback.duration_ms, *SIZE_PX)
    assert first.shape == last.shape == (48, 64, 3)
    assert (first != last).any()
    command.stop(signal.SIGINT)
    assert reader.cars() == []
    assert not (command.run_folder / "live").exists()


@pytest.mark.slow
def test_a_killed_training_shows_nothing_and_the_next_one_is_seen(start_training: Callable, tmp_path: Path) -> None:
    command = start_training(tmp_path, games_per_collector=1)
    command.wait_for_races()
    reader = LiveReader(command.run_folder)
    command.wait_for(reader.cars, "cars")
    os.killpg(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert len(list((command.run_folder / "live").iterdir())) == 1
    deadline_s = time.monotonic() + 20
    while reader.cars():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    again = start_training(tmp_path, games_per_collector=1)
    again.wait_for_races()
    again.wait_for(reader.cars, "cars")
    assert len(list((command.run_folder / "live").iterdir())) == 1
    again.stop(signal.SIGINT)
