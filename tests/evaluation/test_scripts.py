"""`scripts/evaluate.py` and `scripts/replay_inputs.py` as their users meet them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest

from .conftest import MakeScript


def test_evaluate_says_which_share_of_generated_tracks_is_finished(
    script: MakeScript, run_folder: Path, tmp_path: Path
) -> None:
    code, out, err = script(
        *("evaluate", run_folder, "--map", "generated:0.2:3-4", "--no-video"),
        *("--json", tmp_path / "r.json", "--output", tmp_path / "out"),
    )
    assert (code, err) == (0, "")
    report = json.loads((tmp_path / "r.json").read_text())
    assert [figures["map"] for figures in report["maps"]] == ["generated_0.200_3", "generated_0.200_4"]
    n_finished = sum(figures["finish_rate"] == 1.0 for figures in report["maps"])
    assert report["share_of_maps_finished"] == n_finished / 2
    assert f"finished: {n_finished} of 2 maps" in out
    assert (tmp_path / "out" / "generated_tracks" / "generated_0.200_3.toml").is_file(), "for replay_inputs.py"


def test_a_driver_sees_floats_of_a_users_own(script: MakeScript, run_with_own_floats: Path, tmp_path: Path) -> None:
    code, out, err = script("evaluate", run_with_own_floats, "--no-video", "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "1/1 (100%)" in out


def test_an_own_environment_has_returns_and_lengths(
    script: MakeScript, run_in_own_environment: Path, tmp_path: Path
) -> None:
    reports = []
    for name in ("first", "second"):
        code, out, err = script(
            *("evaluate", run_in_own_environment, "--races", 3, "--json", tmp_path / name),
            *("--output", tmp_path / "out"),
        )
        assert (code, err) == (0, "")
        reports.append(json.loads((tmp_path / name).read_text()))
    assert reports[0] == reports[1]
    assert "not filmed: Hovering renders no RGB arrays" in out
    assert "mean return" in out
    assert "metres" not in out
    episodes = reports[0]["episodes"]
    assert len({episode["episode_return"] for episode in episodes}) == 3, "of three starts"
    assert reports[0]["mean_length"] == pytest.approx(np.mean([episode["length"] for episode in episodes]))
    code, _, err = script("evaluate", run_in_own_environment, "--video", tmp_path / "film.mp4")
    assert (code, err.count("\n")) == (1, 1)
    assert "renders no RGB arrays" in err


@pytest.mark.slow
def test_of_generated_tracks_only_the_first_is_filmed(script: MakeScript, run_folder: Path, tmp_path: Path) -> None:
    for film_all, n_videos in (((), 1), (("--film-all",), 2)):
        code, _, err = script(
            *("evaluate", run_folder, "--map", "generated:0.2:3-4", *film_all, "--video-size", "32x24"),
            *("--json", tmp_path / "r.json", "--output", tmp_path / "out"),
        )
        assert (code, err) == (0, "")
        videos = [figures["video_file"] for figures in json.loads((tmp_path / "r.json").read_text())["maps"]]
        assert len(list((tmp_path / "out").glob("*.mp4"))) == n_videos
        assert [video is not None for video in videos] == [True, n_videos == 2]


def test_evaluate_writes_what_replay_inputs_plays_to_the_millisecond(
    script: MakeScript, run_folder: Path, maps_folder: Path, tmp_path: Path
) -> None:
    code, out, err = script(
        *("evaluate", run_folder, "--races", 3, "--json", tmp_path / "r.json"),
        *("--output", tmp_path / "out", "--video-size", "64x48"),
    )
    assert (code, err) == (0, "")
    assert "3/3 (100%)" in out
    report = json.loads((tmp_path / "r.json").read_text())
    (figures,) = report["maps"]
    assert report["frames_total"] == 1234
    assert figures["map"] == "bend"
    assert figures["best_ms"] == min(race["race_time_ms"] for race in figures["races"])
    assert Path(figures["inputs_file"]).name == f"bend_{figures['best_ms']}.inputs"

    video = cv2.VideoCapture(figures["video_file"])
    assert video.get(cv2.CAP_PROP_FPS) == 50
    n_frames = figures["best_ms"] / 20 + 50  # the last one stays for a second
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == pytest.approx(n_frames, abs=1.1)
    first = video.read()[1]
    video.set(cv2.CAP_PROP_POS_FRAMES, video.get(cv2.CAP_PROP_FRAME_COUNT) - 1)
    last = video.read()[1]
    assert first.shape == (48, 64, 3)
    assert np.abs(first.astype(int) - last).mean() > 3

    code, out, err = script("replay_inputs", figures["inputs_file"], "--map", maps_folder / "curve.npy")
    assert (code, err) == (0, "")
    assert f"({figures['best_ms']} ms)" in out


def test_what_the_user_can_mend_is_told_in_one_line(
    script: MakeScript, run_folder: Path, tmp_path: Path, taken_port: int
) -> None:
    shutil.copytree(run_folder / "config", tmp_path / "without" / "config")
    shutil.copytree(run_folder / "config", tmp_path / "damaged" / "config")
    shutil.copytree(run_folder / "checkpoints", tmp_path / "damaged" / "checkpoints")
    weights = tmp_path / "damaged" / "checkpoints" / "000001" / "averaged.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (tmp_path / "bad.inputs").write_text("0.00 press up\n0.10 jump up\n")
    (tmp_path / "noise.inputs").write_bytes(b"\xff\x00")
    (tmp_path / "good.inputs").write_text("0.00 press up\n")
    cases = {
        "no such run folder or driver's file": ("evaluate", tmp_path / "absent"),
        "no run folder": ("evaluate", tmp_path),
        "no checkpoint yet": ("evaluate", tmp_path / "without"),
        "cannot read the checkpoint": ("evaluate", tmp_path / "damaged"),
        "no such checkpoint": ("evaluate", run_folder, "--checkpoint", "000099"),
        "absent: no such track file": ("evaluate", run_folder, "--map", "absent"),
        "port": ("evaluate", run_folder, "--port", taken_port),
        "line 2": ("replay_inputs", tmp_path / "bad.inputs", "--map", "valley"),
        "not UTF-8 text": ("replay_inputs", tmp_path / "noise.inputs", "--map", "valley"),
        "cannot be read": ("replay_inputs", tmp_path / "absent.inputs", "--map", "valley"),
        "no such track file": ("replay_inputs", tmp_path / "good.inputs", "--map", "absent"),
        "is in use": ("replay_inputs", tmp_path / "good.inputs", "--map", "valley", "--port", taken_port),
    }
    for told, command in cases.items():
        code, _, err = script(*command)
        assert code == 1, command
        assert err.startswith("error: ")
        assert told in err
        assert err.count("\n") == 1, err
    assert not [child for child in psutil.Process().children() if "simulated_game" in " ".join(child.cmdline())]


def test_maps_of_the_real_game_are_driven_in_the_real_game(
    script: MakeScript, run_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    config = tmp_path / "run" / "config" / "config.py"
    real = {"map_name": "real", "map_path": "Real.Challenge.Gbx", "reference_line": "curve.npy"}
    real |= {"is_explo": False, "fill_buffer": False}
    config.write_text(config.read_text() + f"\ngame_command = ''\ntmloader_path = ''\nmap_cycle += ({real!r},)\n")
    code, _, err = script("evaluate", tmp_path / "run", "--map", "real", "--no-video")
    assert code == 1
    assert "game_command" in err or "tmloader_path" in err or "launcher for Windows and Linux" in err
    code, _, err = script("evaluate", tmp_path / "run")
    assert (code, err.split(".")[0]) == (1, "error: bend: tracks of the simulated game; real: maps of the real one")
    code, _, err = script("evaluate", tmp_path / "run", "--map", "real", "--video", tmp_path / "real.mp4")
    assert (code, "not filmed here" in err) == (1, True)


def test_wrong_arguments_are_told_before_anything_is_driven(script: MakeScript, run_folder: Path) -> None:
    for arguments in (("--races", 0), ("--video", "race.avi"), ("--video-size", "640"), ("--port", 80)):
        code, _, err = script("evaluate", run_folder, *arguments)
        assert code == 2
        assert f"argument {arguments[0]}" in err


def test_a_car_that_never_arrives_is_told_as_such(script: MakeScript, tmp_path: Path) -> None:
    (tmp_path / "idle.inputs").write_text("# nothing\n")
    code, out, _ = script("replay_inputs", tmp_path / "idle.inputs", "--map", "valley")
    assert code == 0
    assert out.startswith("not finished after 0:30.")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_game_behind(repository_root: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "long.inputs").write_text("0.00 press up\n600.00 rel up\n")
    command = [sys.executable, repository_root / "scripts" / "replay_inputs.py", tmp_path / "long.inputs"]
    process = subprocess.Popen(
        [*command, "--map", "valley", "--video", tmp_path / "long.mp4"], stderr=subprocess.PIPE, cwd=tmp_path
    )
    deadline_s = time.monotonic() + 30
    while not list(tmp_path.glob(".long.*.mp4")):  # it films
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    children = psutil.Process(process.pid).children()  # the game and ffmpeg
    assert len(children) == 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors.decode() == "interrupted\n"
    assert [file.name for file in tmp_path.iterdir()] == ["long.inputs"]
    assert not psutil.wait_procs(children, timeout=5)[1]
