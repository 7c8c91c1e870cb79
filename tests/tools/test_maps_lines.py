"""`maps.py show, line, check, add, track`: from maps, replays and inputs to lines and tracks."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.drivers.evaluation import evaluate_map, load_driver
from trackmania_rl.games.race_games import make_race_games
from trackmania_rl.gbx.challenge import read_challenge
from trackmania_rl.settings import load_settings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.game_map import load_game_map, load_reference_times
from trackmania_rl.track.named_maps import map_entries, overrides_for_maps
from trackmania_rl.track.reference_line import load_reference_line

from .conftest import Tool

B13 = ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx")
B13_MAP = "B13-Obstacle.Challenge.Gbx"


def test_show_prints_maps_and_replays_and_continues_after_unreadable_files(
    maps: Tool, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, facts in (
        ("A01-Race", ("397", "0:24.540, 0:25.870, 0:29.190, 0:38.030")),
        ("B13-Obstacle", ("216", "0:25.650, 0:27.170, 0:31.150, 0:38.550")),
        ("ESL-Hockolicious", ("317", "0:55.100, 0:59.000, 1:07.000, 1:23.000", "656, 8, 688")),  # blocks, medals, end
    ):
        assert maps("show", shared_data / "tracks" / f"{name}.Challenge.Gbx") == 0
        said = capsys.readouterr().out
        assert all(fact in said for fact in (name, *facts))
    assert maps("show", *(shared_data / "replays" / name for name in B13)) == 0
    said = capsys.readouterr().out
    assert "0:08.020, 0:14.680, 0:20.950, 0:24.940" in said
    assert "0:08.030, 0:14.680, 0:20.950, 0:24.950" in said

    damaged = tmp_path / "damaged.Replay.Gbx"
    damaged.write_bytes((shared_data / "replays" / B13[0]).read_bytes()[:3000])
    assert maps("show", damaged, tmp_path / "a.txt", shared_data / "tracks" / "A01-Race.Challenge.Gbx") == 1
    told = capsys.readouterr()
    assert str(damaged) in told.err
    assert "a text, by its name" in told.err
    assert "397" in told.out


def test_show_draws_a_map_and_a_replays_view(
    maps: Tool, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    picture, views, replays = tmp_path / "map.png", tmp_path / "views.png", shared_data / "replays"
    a01 = shared_data / "tracks" / "A01-Race.Challenge.Gbx"
    assert maps("show", a01, "--picture", picture) == 0
    said = capsys.readouterr().out
    assert "247 of 247, 100 %" in said
    assert "% measured" in said
    assert "88 StadiumCircuitBorderStraight" in said
    drawn = cv2.imread(str(picture))
    assert drawn.shape[1] > 1000
    assert ((drawn[..., 2] > 200) & (drawn[..., 1] < 100) & (drawn[..., 0] < 60)).mean() < 0.001  # no warning's red
    assert maps("show", replays / B13[0], "--views", views) == 0
    drawn = cv2.imread(str(views))
    assert drawn.shape[1] == 1600
    assert (np.abs(drawn.astype(int) - (30, 60, 214)).max(axis=-1) <= 3).mean() > 0.002  # the pads' red
    for words, why in (
        ((a01, replays / B13[0], "--picture", picture), "draws one map"),
        ((replays / "PlatformA3_33.66.Replay.gbx", "--views", views), "its map's environment is 'Speed'"),
        ((shared_data / "tracks" / B13_MAP, "--views", views), "name a replay on that map"),
    ):
        assert maps("show", *words) in (1, 78)
        assert why in capsys.readouterr().err


def test_the_line_of_an_inputs_file_is_on_its_track(
    maps: Tool, repository_root: Path, kart_inputs: Path, tmp_path: Path
) -> None:
    output, picture = tmp_path / "raced.npy", tmp_path / "raced.png"
    assert maps("line", "--inputs", kart_inputs, "--track", "kart", "--output", output, "--picture", picture) == 0
    assert picture.stat().st_size > 10_000
    line_m = load_reference_line(output, 0.5)
    middle_m = np.load(repository_root / "maps" / "kart_0.5m.npy")
    beside_m = np.array([np.linalg.norm(middle_m - point_m, axis=1).min() for point_m in line_m[::20]])
    assert beside_m.max() < 10.0
    assert np.linalg.norm(line_m[-1] - middle_m[-1]) < 8.0


def test_the_line_of_a_track_is_its_own_and_is_overwritten_by_force_alone(
    maps: Tool, repository_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "line.npy"
    assert maps("line", "--track-line", "hills", "--output", output) == 0
    shipped_m = np.load(repository_root / "maps" / "hills_0.5m.npy")
    np.testing.assert_array_equal(np.load(output), shipped_m)
    assert maps("line", "--track-line", "hills", "--output", output) == 0  # the same once more
    assert maps("line", "--track-line", "kart", "--output", output) == 78
    assert "--force" in capsys.readouterr().err
    assert maps("line", "--track-line", "kart", "--output", output, "--force") == 0
    assert not list(tmp_path.glob(".*"))


def test_lines_of_real_replays(
    maps: Tool, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replays = [shared_data / "replays" / name for name in B13]
    challenge = shared_data / "tracks" / B13_MAP
    lines = []
    for words, said in (
        ((*replays, "--picture", tmp_path / "b13.png"), "gosufighter in 0:24.940"),
        ((*replays, "--driver", "_BACHI_", "--map", challenge), "_bachi_ in 0:24.950"),
        ((*replays, "--mean"), "mean of 2 races"),
    ):
        lines.append(tmp_path / f"{len(lines)}.npy")
        assert maps("line", "--replay", *words, "--output", lines[-1]) == 0
        assert said in capsys.readouterr().out
        assert maps("check", lines[-1], "--map", challenge) == 0
    assert len({line.read_bytes() for line in lines}) == 3


REPLAY = f"@/replays/{B13[0]}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--inputs a.inputs", "belong together"),
        ("--track-line kart --mean", "belong to --replay"),
        ("--track-line nowhere", "no such track file"),
        ("--inputs nowhere.inputs --track kart", "nowhere.inputs"),
        ("--replay nowhere.Replay.Gbx", "no such file"),
        (f"--replay {REPLAY} @/replays/mydli_20.14.Replay.gbx", "different ids"),
        (f"--replay {REPLAY} --map @/tracks/A01-Race.Challenge.Gbx", "different ids"),
        ("--replay @/replays/PlatformA3_33.66.Replay.gbx", "another car"),
        (f"--replay {REPLAY} --driver nobody", "gosufighter"),
        ("--replay @/tracks/A01-Race.Challenge.Gbx", "no race is in it: it is a map"),
    ],
)
def test_mistakes_are_told_in_one_line(
    maps: Tool, shared_data: Path, words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words.replace("@", str(shared_data))
    assert maps("line", *words.split(), "--output", tmp_path / "line.npy") == 78
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "line.npy").exists()


def test_check_names_the_fault(
    maps: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets 80, at which rows go on in further lines
    z = np.concatenate((np.arange(0.0, 80.0, 0.5), np.arange(80.0, 40.0, -0.5)))
    np.save(tmp_path / "back.npy", np.stack((0 * z, 9 + 0 * z, z), axis=1))
    assert maps("check", tmp_path / "back.npy") == 1
    assert "goes back over itself" in " ".join(capsys.readouterr().out.split())
    uneven, even = tmp_path / "uneven.npy", tmp_path / "even.npy"
    np.save(uneven, np.stack((0 * z, 9 + 0 * z, z), axis=1)[np.r_[0:60, 62:160]])
    assert maps("check", uneven) == 0
    assert "59 and 60 are 1.500 m apart" in " ".join(capsys.readouterr().out.split())
    assert maps("line", "--resample", uneven, "--output", even) == 0
    assert "0.500 to 1.500 m" in capsys.readouterr().out
    np.testing.assert_allclose(np.diff(np.load(even)[:, 2]), 0.5, rtol=1e-4)
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY\x01\x00")
    assert maps("check", tmp_path / "damaged.npy") == 78
    assert "is damaged, or no .npy file" in capsys.readouterr().err


def test_add_prints_the_training_command_keeps_the_medals_and_takes_the_map_out_of_a_replay(
    maps: Tool, shared_data: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, folder = config.read_bytes(), tmp_path / "maps"
    words = (shared_data / "replays" / B13[1], "--name", "b13", "--maps-folder", folder, "--config", config)
    assert maps("add", *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"train on it: python scripts/train.py --map b13 --set maps_folder={folder}"
    assert config.read_bytes() == before
    files = {"b13.Challenge.Gbx", "b13_0.5m.npy", "b13_0.5m.png", "b13.toml", "b13_world.safetensors"}
    assert {file.name for file in folder.iterdir()} == files
    real, written = (read_challenge(file) for file in (shared_data / "tracks" / B13_MAP, folder / "b13.Challenge.Gbx"))
    assert (written.uid, written.blocks) == (real.uid, real.blocks)
    chosen = overrides_for_maps(load_settings(config), folder, ["b13"])
    cycle = load_settings(config, chosen).game.map_cycle
    assert load_reference_times(cycle, folder) == {"b13": real.times}
    (folder / "b13.Challenge.Gbx").write_bytes(b"another map")
    assert maps("add", *words) == 78
    assert "another file of that name" in capsys.readouterr().err
    assert maps("add", *words, "--force") == 0


@pytest.mark.parametrize(("name", "map_path"), [("config.py", "b13.toml"), ("config_tmnf.py", B13_MAP)])
def test_the_entries_that_add_inserts_can_be_loaded(
    maps: Tool, shared_data: Path, config: Path, tmp_path: Path, name: str, map_path: str
) -> None:
    config, folder = config.with_name(name), tmp_path / "maps"
    n_before = len(load_settings(config).game.map_cycle)
    replays = [shared_data / "replays" / replay for replay in B13]
    options = ("--name", "b13", "--maps-folder", folder, "--config", config, "--insert")
    assert maps("add", shared_data / "tracks" / B13_MAP, *replays, *options) == 0
    settings = load_settings(config)
    new = settings.game.map_cycle[n_before:]
    assert [(entry.map_name, entry.map_path, entry.is_explo) for entry in new] == [
        ("b13", map_path, True),
        ("b13", map_path, False),
    ]
    zones = load_game_map(new[0], folder, settings.observation).zones
    assert 2300 < zones.length_m < 2500
    if name == "config_tmnf.py":
        assert np.isfinite(zones.real_checkpoint_radius_m).sum() == 5


def test_add_refuses_files_that_do_not_fit(
    maps: Tool, shared_data: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    challenge, replay = shared_data / "tracks" / B13_MAP, shared_data / "replays" / B13[0]
    options = ("--maps-folder", tmp_path / "maps", "--config", config, "--insert")
    before = config.read_bytes()
    for words, said in (
        ((replay.with_suffix(".txt"), replay), "a text, by its name"),
        ((challenge,), "which replay"),
        ((shared_data / "tracks" / "A01-Race.Challenge.Gbx", replay), "different ids"),
        ((challenge, replay, "--config", tmp_path / "none.py"), "no such configuration file"),
    ):
        assert maps("add", *options, *words) == 78
        assert said in capsys.readouterr().err
    assert config.read_bytes() == before


def test_a_line_alone_is_added_for_the_simulated_game(
    maps: Tool, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "maps"
    monkeypatch.chdir(tmp_path)
    line = folder / "raced_0.5m.npy"
    folder.mkdir()
    assert maps("line", "--track-line", "kart", "--output", line) == 0
    options = ("--maps-folder", folder.name, "--config")
    capsys.readouterr()
    assert maps("add", line, *options, config, "--only") == 0
    assert f"train with --set maps_folder={folder}" in capsys.readouterr().out  # valid from any folder
    assert [entry.map_path for entry in load_settings(config).game.map_cycle] == ["raced_0.5m.npy"] * 2
    assert maps("add", line, *options, config.with_name("config_tmnf.py"), "--insert") == 78
    assert "needs a map" in capsys.readouterr().err
    kept = sorted(folder.iterdir())
    assert maps("add", line.rename(tmp_path / line.name), *options, config, "--insert") == 78
    assert sorted(folder.iterdir()) == [file for file in kept if file != line], (
        "nothing is written before all is checked"
    )
    assert "'raced' already" in capsys.readouterr().err


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
    assert maps(*command) == 78
    assert "is there already" in capsys.readouterr().err
    assert maps(*command, "--force") == 0


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
    (entry,) = map_entries(driver.settings, repository_root / "maps", [str(track)])
    games = make_race_games(driver.settings).in_process(1, repository_root / "maps")
    race = evaluate_map(driver, games, entry, n_races=1).best_race
    assert race.facts.race_finished
    assert race.facts.race_time_ms < within_ms
