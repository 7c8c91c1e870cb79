"""Five seconds of driving on the simulated game, on games that fail, and the doctor's command."""

import contextlib
import json
import os
import shlex
import sys

import cv2
import psutil
import pytest

from trackmania_rl.doctor import play as playing
from trackmania_rl.doctor.findings import Check, Context, Level
from trackmania_rl.doctor.play import check_play
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

PLAYED = [Check.PLAY_START, Check.PLAY_MAP, Check.PLAY_DRIVE, Check.PLAY_FRAME, Check.PLAY_SPEED]


@pytest.fixture
def context(tmp_path, repository_root):
    def make(*overrides):
        settings = load_settings(repository_root / "config_files" / "config.py", overrides)
        return Context(settings, tmp_path, repository_root)

    return make


def test_the_simulated_game_is_driven_and_photographed(context, tmp_path, monkeypatch):
    done = []

    def note(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *words: (original(*words), done.append(name))[0])

    for name in ("start", "focus_window", "kill"):
        note(SimulatedGameLauncher, name)
    note(playing, "compile_ahead")
    note(playing.RaceMachine, "reset")
    file = tmp_path / "pictures" / "game.png"
    findings = list(check_play(context(), file))
    assert [finding.check for finding in findings] == PLAYED
    assert all(finding.level is Level.OK for finding in findings[:4]), findings  # the speed depends on the machine
    assert cv2.imread(str(file)).shape == (240, 320, 3)
    assert done == ["compile_ahead", "start", "reset", "focus_window", "kill"], "a game must not wait for compilation"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in for the game needs Linux")
def test_the_real_games_way_is_driven_with_the_simulated_game_in_its_place(context, tmp_path, repository_root):
    """The user's command, a process called TmForever.exe, its map folder, its plugin's version, its end."""
    program = tmp_path / "TmForever.exe"
    program.symlink_to(os.path.realpath(sys.executable))
    challenges = tmp_path / "TrackMania" / "Tracks" / "Challenges"
    challenges.mkdir(parents=True)
    (challenges / "valley.toml").touch()
    packages = os.pathsep.join(path for path in sys.path if path)
    game = [str(program), str(repository_root / "scripts" / "simulated_game.py"), "--map", "none", "--port", "{port}"]
    command = shlex.join(["env", f"PYTHONPATH={packages}", *game])
    real = context(
        "game=tmnf",
        f"base_tmi_port={find_free_port()}",
        f"game_command={command!r}",
        f"trackmania_base_path={challenges.parents[1]}",
        "username=pilot",
    )
    findings = list(check_play(real, tmp_path / "game.png"))
    assert [finding.check for finding in findings] == [*PLAYED[:2], Check.PLUGIN, *PLAYED[2:]]
    assert f"the game runs version {LINK_VERSION}" in findings[2].text  # that of the simulated game
    assert {finding.level for finding in (*findings[:2], *findings[3:5])} == {Level.OK}, findings
    assert not [process for process in psutil.process_iter() if _is_of(process, tmp_path)]


def _is_of(process, folder):
    with contextlib.suppress(psutil.Error):
        return any(str(folder / "TmForever.exe") in word for word in process.cmdline())
    return False


def test_a_car_that_does_not_drive_and_a_picture_that_cannot_be_written_are_problems(context, tmp_path):
    (tmp_path / "file").touch()
    findings = list(check_play(context("action_forward_idx=3"), tmp_path / "file" / "game.png"))  # 3: no key at all
    found = {finding.check: finding for finding in findings}
    assert found[Check.PLAY_DRIVE].level is Level.PROBLEM
    assert "it does not drive" in found[Check.PLAY_DRIVE].text
    assert found[Check.PLAY_FRAME].level is Level.PROBLEM


def test_a_game_that_ends_at_once_is_a_problem(context, tmp_path, monkeypatch):
    script = tmp_path / "game.py"
    script.write_text("import sys; sys.exit('error: the track is made of cheese')")
    monkeypatch.setattr(launchers, "SIMULATED_GAME_SCRIPT", script)
    (finding,) = check_play(context(), tmp_path / "game.png")
    assert (finding.check, finding.level) == (Check.PLAY_START, Level.PROBLEM)
    assert "made of cheese" in finding.text


def test_the_command(script_module, tmp_path, monkeypatch, capsys):
    def doctor(*words):
        monkeypatch.setattr("sys.argv", ["doctor.py", "--output-folder", str(tmp_path), *words])
        return script_module("doctor").main(), capsys.readouterr().out

    code, out = doctor("--json", "--set", "torch_device=cuda:99")
    assert code == 1
    report = json.loads(out)
    assert report["problems"] == 1
    assert [f["check"] for f in report["findings"] if f["level"] == "problem"] == ["gpu"]
    code, out = doctor()
    assert code == 0, out
    assert "ok      python: Python" in out
    assert "0 problems" in out
