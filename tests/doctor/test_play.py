"""Five seconds on the simulated game, on games that fail, and the doctor's command."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import psutil
import pytest

from trackmania_rl.doctor import play_checks
from trackmania_rl.doctor.findings import Check, Context, Level
from trackmania_rl.doctor.play_checks import SHIPPED_MAP, _check_picture, _check_speed, check_play, play
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.race.types import Observation
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
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
    findings = check_play(real, tmp_path / "game.png")
    assert [finding.check for finding in findings] == [*PLAYED[:2], Check.PLUGIN, *PLAYED[2:]]
    assert f"the game runs version {LINK_VERSION}" in findings[2].text  # that of the simulated game
    assert {finding.level for finding in (*findings[:2], *findings[3:5])} == {Level.OK}, findings
    assert not [process for process in psutil.process_iter() if _is_of(process, tmp_path)]


@pytest.mark.parametrize(("version", "runs"), [(0, "another plugin than this project's"), (1, "version 1")])
def test_another_plugin_is_told(version, runs):
    game = SimpleNamespace(plugin_version=lambda: version)
    [finding] = play_checks._check_plugin_version(game, is_simulated=False)
    assert finding.level is Level.WARNING
    assert f"the game runs {runs}, not version" in finding.text


def _is_of(process, folder):
    with contextlib.suppress(psutil.Error):
        return any(str(folder / "TmForever.exe") in word for word in process.cmdline())
    return False


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


def test_a_picture_of_one_shade_and_a_slow_game_are_told(tmp_path):
    frame = np.zeros((1, 4, 6), np.uint8)
    seen = Observation(
        frame, np.zeros(1, np.float32), np.zeros(22, np.float32), 0, 0.0, 0, np.zeros(3, np.float32), 0.0
    )
    finding = _check_picture(seen, tmp_path / "game.png")
    assert (finding.check, finding.level) == (Check.PLAY_FRAME, Level.WARNING)
    frame[0, 0, 0] = 9
    assert _check_picture(seen, tmp_path / "game.png").level is Level.OK


@pytest.mark.parametrize(
    ("is_simulated", "remedy"), [(True, "end what else keeps that busy"), (False, "graphics settings and resolution")]
)
def test_a_slow_game_is_told_with_its_own_remedies(is_simulated, remedy):
    slow, fast = (_check_speed(ratio, is_simulated=is_simulated) for ratio in (0.9, 1.1))
    assert (slow.level, fast.level) == (Level.WARNING, Level.OK)
    assert remedy in slow.text


def test_the_speed_is_that_of_a_game_that_is_warm(context, tmp_path, monkeypatch):
    judged = []
    monkeypatch.setattr(play_checks, "_check_speed", lambda ratio, **_: judged.append(ratio) or play_checks.ok("x", ""))
    first_step, step = [True], play_checks.RaceMachine.step

    def slow_at_first(machine, action):
        if first_step.pop() if first_step else False:
            machine.timings.wait_game_s += 1_000.0  # as if it compiled
        return step(machine, action)

    monkeypatch.setattr(play_checks.RaceMachine, "step", slow_at_first)
    check_play(context(), tmp_path / "game.png")
    assert judged[0] > 5 / 1_000 * 2


def test_what_a_game_must_not_wait_for_is_done_before_it_starts_and_what_needs_a_race_in_one(
    context, tmp_path, monkeypatch
):
    done = []

    def note(name):
        original = getattr(SimulatedGameLauncher, name)
        monkeypatch.setattr(SimulatedGameLauncher, name, lambda launcher: (done.append(name), original(launcher)))

    for name in ("start", "focus_window", "kill"):
        note(name)
    compile_ahead, reset = play_checks.compile_ahead, play_checks.RaceMachine.reset
    monkeypatch.setattr(play_checks, "compile_ahead", lambda *of: (done.append("compile"), compile_ahead(*of)))
    monkeypatch.setattr(
        play_checks.RaceMachine, "reset", lambda machine, game_map: (reset(machine, game_map), done.append("reset"))[0]
    )
    check_play(context(), tmp_path / "game.png")
    assert done == ["compile", "start", "reset", "focus_window", "kill"]


def test_the_game_is_told_a_map_as_its_launcher_says(context, tmp_path, monkeypatch):
    monkeypatch.setattr(SimulatedGameLauncher, "map_argument", lambda launcher, map_path: map_path.upper())
    monkeypatch.setattr(play_checks, "play", lambda context, launcher, game_map, picture_file: [game_map.path])
    assert check_play(context(), tmp_path / "game.png") == ["VALLEY.TOML"]
