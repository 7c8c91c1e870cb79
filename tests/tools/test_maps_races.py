"""`maps.py inputs, drive, compare, times, track`: the output for races, and refused files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track

B13 = ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx")


@pytest.fixture(scope="module")
def best_runs(
    repository_root: Path, write_race: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[int, int]]:
    """Two records on the track kart, in a folder as a training keeps them; and their times in ms."""
    folder, times_ms = tmp_path_factory.mktemp("best_runs"), []
    for driver in (FAST_DRIVER, CAREFUL_DRIVER):
        file = folder / "race.inputs"
        write_race("kart", file, driver)
        race = SimulatedRace(load_track(repository_root / "maps" / "kart.toml"))
        race.play_script(read_input_script(file))
        while not race.is_finished:
            race.advance()
        times_ms.append(race.checkpoint_times_ms[-1])
        name = f"kart_{times_ms[-1]}"
        (folder / name).mkdir()
        file.rename(folder / name / f"{name}.inputs")
    return folder, (times_ms[0], times_ms[1])


def test_drive_prints_the_times_that_were_driven(maps, best_runs, capsys) -> None:
    folder, (fast_ms, slow_ms) = best_runs
    assert maps("drive", folder / f"kart_{slow_ms}", folder, "--map", "kart") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"finished in 0:{slow_ms / 1000:06.3f} ({slow_ms} ms); checkpoints: 0:" in first
    assert f"kart_{fast_ms}.inputs: finished in" in second  # the folder's fastest
    assert f"({fast_ms} ms)" in second


def test_records_are_found_as_linesight_names_them(maps, best_runs, capsys, tmp_path: Path) -> None:
    folder, times_ms = best_runs
    for time_ms in times_ms:
        name = f"kart_{time_ms // 1000}_{time_ms % 1000:03}"
        (tmp_path / name).mkdir()
        shutil.copy(folder / f"kart_{time_ms}" / f"kart_{time_ms}.inputs", tmp_path / name / f"{name}.inputs")
    assert maps("drive", tmp_path, "--map", "kart") == 0
    assert f"({min(times_ms)} ms)" in capsys.readouterr().out


def test_compare_records_of_a_training(maps, best_runs, capsys, tmp_path: Path) -> None:
    folder, (fast_ms, slow_ms) = best_runs
    picture = tmp_path / "compare.png"
    assert maps("compare", folder, folder / f"kart_{slow_ms}", "--map", "kart", "--output", picture) == 0
    output = capsys.readouterr().out
    (finish,) = [line.split() for line in output.splitlines() if line.startswith("finish")]
    assert finish[-1] == f"{(slow_ms - fast_ms) / 1000:+.3f}"
    assert "CP 1" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("drive absent.inputs --map kart", "absent.inputs: cannot be read"),
        ("drive {empty} --map kart", "holds no record of map 'kart'; its records are of maps: none"),
        ("compare {best} {best}", "name its map with --map"),
        ("compare {best} {best} --map kart --output {empty}/absent/a.png", "cannot be written"),
        ("inputs absent.Replay.Gbx", "no such file"),
        ("inputs {root}/README.rst", "README.rst: it has no inputs"),
        ("inputs {replays}/mydli_20.14.Replay.gbx --driver nobody", "its drivers are iuadrien"),
        ("times absent", "no such file or folder"),
        ("track {tracks}/ESL-Hockolicious.Challenge.Gbx {replays}/mydli_20.14.Replay.gbx", "not on 'ESL-Hock"),
        ("track {tracks}/B13-Obstacle.Challenge.Gbx {root}/maps/kart_0.5m.npy", "from the start of map"),
        ("track {replays}/PlatformA3_33.66.Replay.gbx {replays}/mydli_20.14.Replay.gbx", "'Speed'"),
        ("track {tracks}/test.Challenge.Gbx {tracks}/test.Challenge.Gbx", "a line's in .npy"),
        ("track a.Map.Gbx {replays}/mydli_20.14.Replay.gbx", "a map of ManiaPlanet or Trackmania 2020"),
        ("check {root}/requirements.txt", "numpy.loadtxt"),
        ("track {root}/maps/kart_0.5m.npy {replays}/mydli_20.14.Replay.gbx", "ends in .Challenge.Gbx"),
    ],
)
def test_troubles_are_told_in_a_line(
    maps, best_runs, capsys, tmp_path: Path, repository_root: Path, shared_data: Path, words: str, told: str
) -> None:
    folders = {"best": best_runs[0], "empty": tmp_path, "root": repository_root}
    folders |= {name: shared_data / name for name in ("replays", "tracks")}
    output = ("--output", tmp_path / "x.toml") if words.startswith("track") else ()
    assert maps(*words.format(**folders).split(), *output) == 78
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x.toml").exists()


def test_inputs_to_the_terminal_and_into_a_file(maps, capsys, shared_data: Path, tmp_path: Path) -> None:
    replay = shared_data / "replays" / "mydli_20.14.Replay.gbx"
    assert maps("inputs", replay) == 0
    text = capsys.readouterr().out
    assert text.startswith("# mydli_20.14.Replay.gbx, driver iuadrien, 0:20.140\n0.00 press up\n")
    script = tmp_path / "mydli.inputs"
    assert maps("inputs", replay, "--driver", "IUadrien", "--output", script) == 0
    assert "2 of them lost milliseconds" in capsys.readouterr().out
    assert script.read_text() == text
    assert maps("inputs", script, "--ghost-events") == 0
    of_script = capsys.readouterr().out.splitlines()
    assert maps("inputs", replay, "--ghost-events") == 0
    of_replay = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in {*of_replay} ^ {*of_script}} == {"Respawn", "_FakeFinishLine"}


def test_compare_replays(maps, capsys, shared_data: Path) -> None:
    assert maps("compare", *(shared_data / "replays" / name for name in B13)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["A: gosufighter 0:24.940", "B: _bachi_ 0:24.950"]
    (finish,) = [line.split() for line in lines if line.startswith("finish")]
    assert finish[2:] == ["0:24.940", "0:24.950", "0:03.990", "0:04.000", "+0.010", "+0.010"]


def test_times_of_a_folder(maps, capsys, shared_data: Path, tmp_path: Path) -> None:
    shutil.copytree(shared_data / "replays", tmp_path / "some" / "replays")
    (tmp_path / "some" / "damaged.Replay.Gbx").write_bytes(b"GBX nothing")
    (tmp_path / "some" / "notes.txt").write_text("not looked at")
    assert maps("times", tmp_path / "some", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    races = [(race["map"], race["race_time_ms"], race["driver"], race["n_respawns"]) for race in told["races"]]
    assert races == [
        ("B13-Obstacle", 24_940, "gosufighter", 0),
        ("B13-Obstacle", 24_950, "_bachi_", 0),
        ("mydli mydli", 20_140, "iuadrien", 1),
        ("PlatformA3", 33_660, "iuadrien", 0),
    ]
    assert told["races"][0]["checkpoint_times_ms"] == [8_020, 14_680, 20_950, 24_940]
    assert told["races"][0]["reference"]["gold_ms"] == 27_170
    assert told["races"][3]["reference"] == {"author_ms": 35_770, "gold_ms": None, "silver_ms": None, "bronze_ms": None}
    assert [Path(entry["file"]).name for entry in told["unreadable"]] == ["damaged.Replay.Gbx"]

    assert maps("times", shared_data / "replays") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "B13-Obstacle  author 0:25.650, gold 0:27.170"
    assert lines[2].split()[:3] == ["0:24.940", "gosufighter", "0"]
    (tmp_path / "empty").mkdir()
    assert maps("times", tmp_path / "empty") == 1
    assert "no replay or ghost" in capsys.readouterr().out
