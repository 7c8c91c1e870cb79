"""The commands of scripts/tools/maps.py that look at races: inputs, drive, compare, times."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trackmania_rl.protocol.input_script import events_from_actions, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, DECISION_MS, FAST_DRIVER, drive
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track

B13 = ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx")


@pytest.fixture(scope="module")
def maps(script_module) -> Callable[..., int]:
    """Runs a command line as `python scripts/tools/maps.py ...` does."""
    module = script_module("tools/maps")
    return lambda *words: module.main([str(word) for word in words])


@pytest.fixture(scope="module")
def best_runs(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, int]]:
    """Two records of a driver on the track kart, in a folder as a training keeps them; and their times in ms."""
    folder = tmp_path_factory.mktemp("best_runs")
    track = load_track(repository_root / "maps" / "kart.toml")
    times_ms = []
    for settings in (FAST_DRIVER, CAREFUL_DRIVER):
        keys = [
            KeyState(accelerate=gas, brake=brake, left=left, right=right)
            for gas, brake, left, right in drive(track, settings).keys
        ]
        events = events_from_actions(keys, DECISION_MS)
        race = SimulatedRace(track)
        race.play_script(events)
        while not race.is_finished:
            race.advance()
        times_ms.append(race.checkpoint_times_ms[-1])
        name = f"kart_{times_ms[-1]}"
        (folder / name).mkdir()
        (folder / name / f"{name}.inputs").write_text(write_input_script(events))
    return folder, (times_ms[0], times_ms[1])


def test_drive_prints_the_times_that_were_driven(maps, best_runs, capsys) -> None:
    folder, (fast_ms, slow_ms) = best_runs
    assert maps("drive", folder / f"kart_{slow_ms}", folder, "--map", "kart") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"finished in 0:{slow_ms / 1000:06.3f} ({slow_ms} ms); checkpoints: 0:" in first
    assert f"kart_{fast_ms}.inputs: finished in" in second  # the folder's fastest
    assert f"({fast_ms} ms)" in second


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
        (("drive", "absent.inputs", "--map", "kart"), "absent.inputs: cannot be read"),
        (("drive", "{empty}", "--map", "kart"), "holds no record of map 'kart'; its records are of maps: none"),
        (("compare", "{best}", "{best}"), "name its map with --map"),
        (("compare", "{best}", "{best}", "--map", "kart", "--output", "{empty}/a.xyz"), "picture"),
        (("inputs", "absent.Replay.Gbx"), "no such file"),
        (("inputs", "README.rst"), "README.rst: line 1"),
        (("times", "absent"), "no such file or folder"),
    ],
)
def test_troubles_are_told_in_a_line(
    maps, best_runs, capsys, tmp_path: Path, repository_root: Path, words, told
) -> None:
    names = {"best": best_runs[0], "empty": tmp_path}
    words = [word.format(**names).replace("README.rst", str(repository_root / "README.rst")) for word in words]
    assert maps(*words) == 1
    assert told in capsys.readouterr().err


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
    assert maps("inputs", replay, "--driver", "nobody") == 1
    assert "its drivers are iuadrien" in capsys.readouterr().err


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


def test_times_of_nothing(maps, capsys, tmp_path: Path) -> None:
    assert maps("times", tmp_path) == 1
    assert "no replay or ghost" in capsys.readouterr().out
