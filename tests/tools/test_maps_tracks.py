"""`maps.py line --from-blocks` and `maps.py track`, as a user runs them."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.evaluation import first_races, load_driver


def test_from_a_map_alone_to_a_track_that_was_driven(maps, shared_data: Path, tmp_path: Path, capsys) -> None:
    test_map = shared_data / "tracks" / "test.Challenge.Gbx"
    line, track = tmp_path / "test_0.5m.npy", tmp_path / "made" / "test.toml"
    assert maps("line", "--from-blocks", test_map, "--output", line) == 0
    assert np.load(line, allow_pickle=False).shape == (76, 3)
    picture = tmp_path / "test.png"
    command = ("track", test_map, line, "--output", track, "--picture", picture, "--drive", "careful")
    assert maps(*command) == 0
    assert "driver finishes in" in capsys.readouterr().out
    assert load_track(track).name == "test_road"
    assert picture.stat().st_size > 1000
    assert maps(*command) == 1
    assert "is there already" in capsys.readouterr().err
    assert maps(*command, "--force") == 0


def test_a_partial_line_is_written_and_its_gap_told(maps, shared_data: Path, tmp_path: Path, capsys) -> None:
    challenge = shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx"
    command = ("line", "--output", tmp_path / "b13_0.5m.npy", "--from-blocks", challenge)
    assert maps(*command) == 1
    assert "StadiumPlatformLoopStart at cell (16, 1, 19)" in capsys.readouterr().err
    assert not (tmp_path / "b13_0.5m.npy").exists()
    assert maps(*command, "--as-far-as-possible") == 1  # its checks find no finish
    assert "not whole" in capsys.readouterr().out
    assert (tmp_path / "b13_0.5m.npy").exists()


@pytest.mark.parametrize(
    ("map_file", "source", "within_ms"),
    [
        ("tracks/B13-Obstacle.Challenge.Gbx", "replays/B13-Obstacle_24.94_a.Replay.Gbx", 33_000),
        ("replays/mydli_20.14.Replay.gbx", "replays/mydli_20.14.Replay.gbx", 36_000),
        ("tracks/ESL-Hockolicious.Challenge.Gbx", "reference_lines/ESL-Hockolicious_0.5m_cl2.npy", 75_000),
    ],
)
def test_the_shipped_driver_finishes_its_first_race_on_a_real_maps_road(
    maps, repository_root: Path, shared_data, tmp_path, map_file: str, source: str, within_ms: int
) -> None:
    track = tmp_path / "road.toml"
    files = (shared_data / map_file, shared_data / source)
    assert maps("track", *files, "--output", track, "--ground", "line") == 0
    driver = load_driver(repository_root / "drivers" / "generalist.driver")
    entries = map_entries(driver.settings, repository_root / "maps", [str(track)])
    ((_, stats),) = first_races(driver, repository_root / "maps", entries, n_at_a_time=1)
    assert stats["race_finished"]
    assert stats["race_time_ms"] < within_ms


@pytest.mark.parametrize(
    ("map_file", "source", "told"),
    [
        ("tracks/ESL-Hockolicious.Challenge.Gbx", "replays/B13-Obstacle_24.94_a.Replay.Gbx", "not on 'ESL-Hock"),
        ("tracks/B13-Obstacle.Challenge.Gbx", "reference_lines/ESL-Hockolicious_0.5m_cl2.npy", "from the start of map"),
        ("replays/PlatformA3_33.66.Replay.gbx", "replays/mydli_20.14.Replay.gbx", "'Speed'"),
        ("tracks/test.Challenge.Gbx", "tracks/test.Challenge.Gbx", "a line's name ends in .npy"),
        ("reference_lines/ESL-Hockolicious_0.5m_cl2.npy", "replays/mydli_20.14.Replay.gbx", "ends in .Challenge.Gbx"),
    ],
)
def test_what_does_not_fit_is_told(maps, shared_data, tmp_path, capsys, map_file: str, source: str, told: str) -> None:
    output = tmp_path / "x.toml"
    assert maps("track", shared_data / map_file, shared_data / source, "--output", output) == 1
    assert told in capsys.readouterr().err
    assert not output.exists()
