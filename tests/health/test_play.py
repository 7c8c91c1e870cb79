"""Five seconds on the simulated game, on games that fail, and the doctor's command."""

import json
import subprocess
import sys

import cv2
import pytest

from trackmania_rl.multiprocess.health.findings import Check, Context, Level
from trackmania_rl.multiprocess.health.play_checks import SHIPPED_MAP, check_play, play
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction import launchers
from trackmania_rl.tmi_interaction.launchers import SimulatedGameLauncher, find_free_port
from trackmania_rl.track.game_map import load_game_map

PLAYED = [Check.PLAY_START, Check.PLAY_MAP, Check.PLAY_DRIVE, Check.PLAY_FRAME, Check.PLAY_SPEED]


@pytest.fixture
def context(tmp_path, repository_root):
    def make(*overrides):
        settings = load_settings(repository_root / "config_files" / "config.py", overrides)
        return Context(settings, tmp_path, repository_root)

    return make


def test_the_simulated_game_is_driven_and_photographed(context, tmp_path):
    file = tmp_path / "pictures" / "game.png"
    findings = check_play(context(), file)
    assert [finding.check for finding in findings] == PLAYED
    assert all(finding.level is Level.OK for finding in findings[:4]), findings  # the speed says how busy it is here
    assert cv2.imread(str(file)).shape == (240, 320, 3)


def test_a_car_that_does_not_drive_and_a_picture_that_cannot_be_written_are_told(context, tmp_path):
    (tmp_path / "file").touch()
    findings = check_play(context("action_forward_idx=3"), tmp_path / "file" / "game.png")  # 3: no key at all
    found = {finding.check: finding for finding in findings}
    assert found[Check.PLAY_DRIVE].level is Level.PROBLEM
    assert "it does not drive" in found[Check.PLAY_DRIVE].text
    assert found[Check.PLAY_FRAME].level is Level.PROBLEM


def test_a_game_that_ends_at_once_is_told(context, tmp_path, monkeypatch, repository_root):
    script = tmp_path / "game.py"
    script.write_text("import sys; sys.exit('error: the track is made of cheese')")
    monkeypatch.setattr(launchers, "SIMULATED_GAME_SCRIPT", script)
    made = context()
    game_map = load_game_map(SHIPPED_MAP, repository_root / "maps", made.settings.observation)
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "maps")
    (finding,) = play(made, launcher, game_map, tmp_path / "game.png")
    assert (finding.check, finding.level) == (Check.PLAY_START, Level.PROBLEM)
    assert "made of cheese" in finding.text
    assert not launcher.is_alive()


def test_the_command(repository_root, tmp_path):
    def doctor(*arguments):
        command = [sys.executable, str(repository_root / "scripts" / "doctor.py"), "--output-folder", str(tmp_path)]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)

    bad = doctor("--json", "--set", "torch_device=cuda:99")
    assert bad.returncode == 1, bad.stderr
    report = json.loads(bad.stdout)
    assert report["problems"] == 1
    assert [f["check"] for f in report["findings"] if f["level"] == "problem"] == ["gpu"]
    good = doctor()
    assert good.returncode == 0, good.stdout + good.stderr
    assert "ok      python: Python" in good.stdout
    assert "0 problems" in good.stdout
