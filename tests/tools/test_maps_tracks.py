"""`maps.py line --from-blocks` and `maps.py track`, as a user runs them."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.evaluation import first_races, load_driver


@pytest.fixture(scope="module")
def maps(script_module):
    return script_module("tools/maps")


def test_from_a_map_alone_to_a_track_that_was_driven(maps, shared_data: Path, tmp_path: Path, capsys) -> None:
    test_map = str(shared_data / "tracks" / "test.Challenge.Gbx")
    line, track = tmp_path / "test_0.5m.npy", tmp_path / "made" / "test.toml"
    assert maps.main(["line", "--from-blocks", test_map, "--output", str(line)]) == 0
    assert np.load(line, allow_pickle=False).shape == (76, 3)
    picture = tmp_path / "test.png"
    command = ["track", test_map, str(line), "--output", str(track), "--picture", str(picture), "--drive", "careful"]
    assert maps.main(command) == 0
    assert "driver finishes in" in capsys.readouterr().out
    assert load_track(track).name == "test_road"
    assert picture.stat().st_size > 1000
    assert maps.main(command) == 1
    assert "is there already" in capsys.readouterr().err
    assert maps.main([*command, "--force"]) == 0


def test_a_partial_line_is_written_and_its_gap_told(maps, shared_data: Path, tmp_path: Path, capsys) -> None:
    command = ["line", "--output", str(tmp_path / "b13_0.5m.npy"), "--from-blocks"]
    command.append(str(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx"))
    assert maps.main(command) == 1
    assert "StadiumPlatformLoopStart at cell (16, 1, 19)" in capsys.readouterr().err
    assert not (tmp_path / "b13_0.5m.npy").exists()
    assert maps.main([*command, "--as-far-as-possible"]) == 1  # its checks find no finish
    assert "not whole" in capsys.readouterr().out
    assert (tmp_path / "b13_0.5m.npy").exists()


def test_a_replay_holds_its_map(maps, shared_data: Path, tmp_path: Path, capsys) -> None:
    replay = str(shared_data / "replays" / "mydli_20.14.Replay.gbx")
    assert maps.main(["track", replay, replay, "--output", str(tmp_path / "mydli.toml")]) == 0
    assert "2 checkpoints" in capsys.readouterr().out


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
    files = [str(shared_data / map_file), str(shared_data / source)]
    assert maps.main(["track", *files, "--output", str(track), "--ground", "line"]) == 0
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
    command = ["track", str(shared_data / map_file), str(shared_data / source), "--output", str(output)]
    assert maps.main(command) == 1
    assert told in capsys.readouterr().err
    assert not output.exists()


def test_options_that_belong_together(maps, tmp_path: Path, capsys) -> None:
    command = ["line", "--track-line", "valley", "--as-far-as-possible", "--output", str(tmp_path / "x.npy")]
    assert maps.main(command) == 1
    assert "belongs to --from-blocks" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        maps.main(["track", "a.Challenge.Gbx", "b.npy", "--output", "c.txt"])
