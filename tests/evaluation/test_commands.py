"""The commands `evaluate.py`, `replay_inputs.py`, `tools/driver.py` and `tools/draw_diagnostics.py`."""

import json
import os
import re
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
from PIL import Image

from trackmania_rl.errors import ExitCode
from trackmania_rl.protocol.input_script import parse_input_script, read_input_script
from trackmania_rl.runs.snapshot import SETTINGS_FILE, read_snapshot, write_changes
from trackmania_rl.settings import DRIVER_SETTINGS, MapEntry, load_settings
from trackmania_rl.telemetry import diagnostics
from trackmania_rl.telemetry.diagnostics import Section
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.diagnostics import drive_and_gather, load_subject

from .conftest import FORWARD, FRAMES_TOTAL, TRAINING_S


def test_evaluate_says_which_share_of_generated_tracks_is_finished(script, run_folder, tmp_path):
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


def test_an_own_environment_has_returns_and_lengths(script, run_in_own_environment, tmp_path):
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
    assert (code, err.count("\n")) == (78, 1)
    assert "renders no RGB arrays" in err


def test_replay_inputs_repeats_the_files_of_evaluate_to_the_millisecond(script, run_folder, maps_folder, tmp_path):
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

    words = ("--map", maps_folder / "curve.npy", "--export", tmp_path / "curve.txt")
    code, out, err = script("replay_inputs", figures["inputs_file"], *words)
    assert (code, err) == (0, "")
    exported = (tmp_path / "curve.txt").read_text()
    assert exported.startswith("# map: curve\n# finished in ")
    assert parse_input_script(exported) == read_input_script(Path(figures["inputs_file"]))
    assert f"({figures['best_ms']} ms)" in out


def test_filming_shows_its_progress_in_a_terminal(script, run_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich's word for a terminal
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    code, out, err = script("evaluate", run_folder, "--output", tmp_path, "--video-size", "64x48")
    assert (code, err) == (0, "")
    assert len(set(re.findall(r"filming bend: \d+\.\d of \d+\.\d s", out))) > 2
    assert "one race with the newest averaged weights; a training's `best` is" in " ".join(out.split())


def test_a_run_is_packed_shown_and_driven_elsewhere(script, run_folder, maps_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = script("tools/driver", "pack", run_folder)
    assert (code, err, out) == (0, "", "wrote simulated.driver (0.0 MB)\n")
    Path("other.driver").write_bytes(Path("simulated.driver").read_bytes())
    for source, told in ((run_folder, "is there already: name another file"), ("other.driver", "no such run folder")):
        Path("simulated.driver").write_bytes(b"another one")
        code, _, err = script("tools/driver", "pack", source)
        assert code == 78
        assert told in err
        assert Path("simulated.driver").read_bytes() == b"another one"
    assert script("tools/driver", "pack", run_folder, "--force")[0] == 0
    code, out, err = script("tools/driver", "show", "simulated.driver")
    assert (code, err) == (0, "")
    for told in ("bend not finished", "1,234 frames, 9.5 minutes", "184 floats in 16 blocks, no image", "every 50 ms"):
        assert told in " ".join(out.split())
    code, out, err = script(
        *("evaluate", "simulated.driver", "--map", maps_folder / "curve.npy", "--no-video", "--json", "r.json")
    )
    assert (code, err) == (0, "")
    report = json.loads(Path("r.json").read_text())
    assert report["maps"][0]["finish_rate"] == 1
    assert (report["run"], report["checkpoint"]) == ("simulated.driver", "simulated.driver")
    assert Path(report["maps"][0]["inputs_file"]).parent == Path("evaluation/simulated")


def test_settings_of_a_driver_become_a_configuration(script, driver_file, run_settings, repository_root, tmp_path):
    shutil.copytree(repository_root / "config_files", tmp_path / "config_files")
    file = tmp_path / "config_files" / "config_bend.py"
    code, out, err = script("tools/driver", "configuration", driver_file, "-o", file)
    assert (code, err) == (0, "")
    assert f"--config {file} --weights-from {driver_file}" in out
    written, packed = load_settings(file).flat(), run_settings.flat()
    assert {name: written[name] for name in DRIVER_SETTINGS} == {name: packed[name] for name in DRIVER_SETTINGS}
    code, _, err = script("tools/driver", "configuration", driver_file, "-o", file)
    assert (code, err) == (78, f"error: {file} is there already: name another file with --output\n")


def test_diagnostics_are_of_races_driven_by_a_checkpoint_or_a_driver(
    run_folder, driver_file, maps_folder, tmp_path, script, monkeypatch
):
    for checkpoint in (None, driver_file):
        subject, actor = load_subject(run_folder, checkpoint)
        assert subject.frames_total == FRAMES_TOTAL
        [entry] = map_entries(subject.settings, maps_folder)
        data = drive_and_gather(subject, actor, entry, 2, maps_folder)
        assert data["about"].map_name == "bend"
        assert data["about"].training_s == pytest.approx(TRAINING_S)
        assert (data["expectations"].returns.mean(axis=1).argmax(axis=1) == FORWARD).all()
        assert len(data["about"].driven_m) > 0
        assert set(data["largest"].kind.tolist()) == set(data["errors"].kind.tolist()) == {"evaluated"}
    monkeypatch.setattr(diagnostics, "DOTS_PER_INCH", 40)  # soon drawn
    code, out, err = script("tools/draw_diagnostics", run_folder, "--races", 1, "--output", tmp_path / "diagnostics")
    assert (code, err) == (0, "")
    listed = diagnostics.list_pictures(tmp_path / "diagnostics")
    assert [drawn["file"] for drawn in listed] == [f"{FRAMES_TOTAL:012d}_bend_{kind}.png" for kind in diagnostics.KINDS]
    for drawn in listed:
        assert (drawn["map"], drawn["frames"]) == ("bend", FRAMES_TOTAL)
        assert drawn["caption"]
        assert str(tmp_path / "diagnostics" / drawn["file"]) in out
        with Image.open(tmp_path / "diagnostics" / drawn["file"]) as picture:
            assert min(picture.size) > 100
    data["largest"].meters[0] = data["largest"].predicted[0] = np.nan  # as of a transition from the memory
    assert diagnostics.KINDS["largest_errors"](data) is not None
    means = Section(
        **vars(data["expectations"]) | {"taus": np.zeros(0), "returns": data["expectations"].returns[:, :1]}
    )
    of_means = {"about": data["about"], "expectations": means}
    drawn = [kind for kind, draw in diagnostics.KINDS.items() if draw(of_means) is not None]
    assert drawn == ["values_over_elapsed_time", "racing_line"]


def simulated_games():
    children = [child.as_dict(["pid", "cmdline"]) for child in psutil.Process().children()]  # zombies have no command
    return {child["pid"] for child in children if "simulated_game" in " ".join(child["cmdline"] or ())}


def test_user_errors_are_one_line(script, run_folder, driver_file, tmp_path, taken_port):
    before = simulated_games()  # of other tests' fixtures
    for name in ("without", "damaged", "real"):
        (tmp_path / name).mkdir()
        shutil.copyfile(run_folder / SETTINGS_FILE, tmp_path / name / SETTINGS_FILE)
        if name != "without":
            shutil.copytree(run_folder / "checkpoints", tmp_path / name / "checkpoints")
    weights = tmp_path / "damaged" / "checkpoints" / "000001" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (tmp_path / "short.driver").write_bytes(driver_file.read_bytes()[:2000])
    real = {"map_name": "real", "map_path": "Real.Challenge.Gbx", "reference_line": "curve.npy"}
    real |= {"is_explo": False, "fill_buffer": False}
    cycle = (*read_snapshot(run_folder).game.map_cycle, MapEntry.model_validate(real))
    write_changes(tmp_path / "real" / SETTINGS_FILE, {"game_command": "", "tmloader_path": "", "map_cycle": cycle})
    (tmp_path / "bad.inputs").write_text("0.00 press up\n0.10 press jump\n")
    (tmp_path / "noise.inputs").write_bytes(b"\xff\x00")
    (tmp_path / "good.inputs").write_text("0.00 press up\n")
    cases = [
        ("evaluate", "no such run folder or driver's file", (tmp_path / "absent",)),
        ("evaluate", "no run folder", (tmp_path,)),
        ("evaluate", "no checkpoint yet", (tmp_path / "without",)),
        ("evaluate", "cannot read the checkpoint", (tmp_path / "damaged",)),
        ("evaluate", "no such checkpoint", (run_folder, "--checkpoint", "000099")),
        ("evaluate", "absent: no such track file", (run_folder, "--map", "absent")),
        ("evaluate", "port", (run_folder, "--port", taken_port)),
        ("evaluate", "bend: tracks of the simulated game; real: maps of the real one", (tmp_path / "real",)),
        ("evaluate", "not filmed here", (tmp_path / "real", "--map", "real", "--video", tmp_path / "real.mp4")),
        ("evaluate", "is damaged, or no driver", (tmp_path / "short.driver",)),
        ("evaluate", "leave --checkpoint out", (driver_file, "--checkpoint", run_folder / "checkpoints" / "000001")),
        ("evaluate", "curve.npy", (driver_file,)),  # its track did not come with it
        ("replay_inputs", "line 2", (tmp_path / "bad.inputs", "--map", "valley")),
        ("replay_inputs", "not UTF-8 text", (tmp_path / "noise.inputs", "--map", "valley")),
        ("replay_inputs", "cannot be read", (tmp_path / "absent.inputs", "--map", "valley")),
        ("replay_inputs", "no such track file", (tmp_path / "good.inputs", "--map", "absent")),
        ("replay_inputs", "is in use", (tmp_path / "good.inputs", "--map", "valley", "--port", taken_port)),
        ("tools/driver", "no such run folder", ("pack", tmp_path / "absent")),
        ("tools/driver", "is called NAME.driver", ("pack", run_folder, "-o", tmp_path / "a.pt")),
        ("tools/driver", "absent.driver: cannot be read", ("show", tmp_path / "absent.driver")),
        ("tools/draw_diagnostics", "there is no such run folder", (tmp_path / "absent",)),
        ("tools/draw_diagnostics", "there is no such checkpoint", (run_folder, "--checkpoint", tmp_path / "000099")),
        ("tools/draw_diagnostics", "the maps of this run are bend", (run_folder, "--map", "nowhere")),
    ]
    for name, message, arguments in cases:
        code, _, err = script(name, *arguments)
        may_pass = "port" in message or "is in use" in message
        assert (code, err.count("\n")) == (ExitCode.TRY_AGAIN if may_pass else ExitCode.NEEDS_A_PERSON, 1), err
        assert err.startswith("error: ")
        assert message in err
    for arguments in (("--races", 0), ("--video", "race.avi"), ("--video-size", "640"), ("--port", 80)):
        code, _, err = script("evaluate", run_folder, *arguments)
        assert code == 2
        assert f"argument {arguments[0]}" in err
    code, _, err = script("evaluate", tmp_path / "real", "--map", "real", "--no-video")
    assert code == ExitCode.NEEDS_A_PERSON
    assert "game_command" in err or "tmloader_path" in err or "launcher for Windows and Linux" in err
    assert simulated_games() == before


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_interrupting_leaves_no_game_behind(repository_root, tmp_path):
    (tmp_path / "long.inputs").write_text("0.00 press up\n600.00 rel up\n")
    command = [sys.executable, repository_root / "scripts" / "replay_inputs.py", tmp_path / "long.inputs"]
    process = subprocess.Popen(
        [*command, "--map", "valley", "--video", tmp_path / "long.mp4"], stderr=subprocess.PIPE, cwd=tmp_path
    )
    deadline_s = time.monotonic() + 150
    while not list(tmp_path.glob(".long.*.mp4")):  # it films
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    children = psutil.Process(process.pid).children()  # the game and ffmpeg
    assert len(children) == 2
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.decode() == "interrupted\n"
    assert [file.name for file in tmp_path.iterdir()] == ["long.inputs"]
    assert not psutil.wait_procs(children, timeout=60)[1]
