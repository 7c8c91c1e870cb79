"""One training over sockets: watched, edited, disturbed, ended and resumed. The last test ends it."""

import importlib.util
import os
import re
import signal
import sys

import numpy as np
import pytest

from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.runs.snapshot import write_changes
from trackmania_rl.telemetry.live import LiveReader
from trackmania_rl.telemetry.live.playback import RacePlayback
from trackmania_rl.telemetry.page.server import health_of

pytestmark = pytest.mark.timeout(600)  # each wait has a limit of its own

SETTINGS = {
    "game_transport": "'socket'",
    "n_collectors": 2,
    "games_per_collector": 1,
    "running_speed": 20.0,  # as fast as possible would take both cores all the time
    "collector_silence_s": 5.0,
    "cutoff_race_longer_than_ms": 8_000,
}
SIZE_PX = (64, 48)


@pytest.fixture(scope="module")
def training(start_training, tmp_path_factory):
    has_page = importlib.util.find_spec("fastapi") is not None
    command = start_training(tmp_path_factory.mktemp("run"), ("--dashboard",) * has_page, **SETTINGS)
    command.wait_for_races(3)
    return command


def page_address(training):
    match = re.search(r"the live page of this run: http://(127\.0\.0\.1:\d+)/", training.output)
    assert match is not None
    return match[1]


def test_edits_of_the_configuration_are_applied_refused_or_kept_for_the_next_start(training):
    file = training.run_folder / "settings.toml"
    for edit, said in (
        ({"clip_grad_norm": 20.0}, "configuration: clip_grad_norm = 20.0 (was 30.0)"),
        ({"batch_size": -5}, "the last good ones stay"),
        ({"float_hidden_dim": 20}, "these settings wait for the next start: float_hidden_dim"),
    ):
        before = file.read_text()
        write_changes(file, edit)
        training.wait_for(lambda said=said: said in training.output, f"{said!r} in the log")
        file.write_text(before)


def test_cars_are_seen_moving_and_races_are_played_back(training):
    reader = LiveReader(training.run_folder)
    training.wait_for(lambda: len(reader.cars()) == 2, "cars")
    ways_m = {0: [], 1: []}

    def all_moved():
        for car in reader.cars():
            ways_m[car.collector].append(np.array(car.position))
        return all(len(way) > 1 and np.linalg.norm(np.diff(way, axis=0), axis=1).sum() > 20 for way in ways_m.values())

    training.wait_for(all_moved, "20 m of each car")
    assert "died" not in training.output, "being watched ends no collector"

    training.wait_for(lambda: reader.race_of(1, 0) is not None, "the watched game's race")
    race = reader.race_of(1, 0)
    assert race.collector == 1
    assert race.map_name == "valley"
    playback = RacePlayback(race)
    first, last = playback.picture(0, *SIZE_PX), playback.picture(playback.duration_ms, *SIZE_PX)
    assert first.shape == last.shape == (48, 64, 3)
    assert (first != last).any()


def test_the_page_shows_the_games(training):
    pytest.importorskip("fastapi", reason="the live page's packages are not installed: pip install fastapi uvicorn")
    from httpx2 import Client, TransportError
    from websockets.sync.client import connect

    with Client(base_url=f"http://{page_address(training)}") as client:

        def answers(path, pattern):
            try:
                answer = client.get(path)
            except TransportError:  # also while it starts: its port is taken before it can answer
                return False
            return answer.status_code == 200 and re.search(pattern, answer.text, re.MULTILINE) is not None

        training.wait_for(lambda: answers("/", "html"), "page")
        training.wait_for(lambda: answers("/metrics", "^trackmania_races_total [1-9]"), "count of races")
        assert answers("/metrics", r"^trackmania_up 1\.0")
        training.wait_for(lambda: answers("/healthz", '"ok": ?true'), "healthy training")
    with connect(f"ws://{page_address(training)}/live", max_size=None) as tab:
        names = "run|state|races|cars|train/loss|train/mean_q|train/grad_norm|waiting/learner"
        told = set()
        while not set(names.split("|")) <= told:
            told |= set(re.findall(rf'"({names})":[{{[]', str(tab.recv(60))))


def test_a_killed_game_is_replaced_and_the_race_driven_again(training):
    while "attempt 1 of 3" not in training.output:  # a game that ends between two races is replaced without a word
        n_starts = training.output.count("starting a game")
        training.wait_for(training.games, "game")
        training.games()[0].kill()
        training.wait_for(lambda n=n_starts: training.output.count("starting a game") > n, "another game in the log")
        training.wait_for_races()
    training.wait_for_races(2)


def test_a_killed_collector_is_replaced_and_its_shared_memory_used_again(training):
    training.wait_for(lambda: len(training.collectors()) == 2 and len(training.games()) == 2, "both games")
    shared_memory_bytes = training.shared_memory_bytes()
    assert shared_memory_bytes > 0
    victim = training.collectors()[0]
    (game,) = [game for game in training.games() if game.ppid() == victim.pid]
    number = training.output.count("died (exit code -9)")
    victim.kill()
    training.wait_for(lambda: training.output.count("died (exit code -9)") > number, "line that says so")
    training.wait_for(lambda: len({*training.collectors()} - {victim}) == 2, "another collector")
    training.wait_for(lambda: not game.is_running(), "end of its game")
    training.wait_for_races(2)
    assert training.shared_memory_bytes() <= shared_memory_bytes


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
def test_a_stopped_collector_is_replaced_with_its_game_while_the_other_drives_on(training):
    training.wait_for(lambda: len(training.collectors()) == 2 and len(training.games()) == 2, "both games")
    stopped, other = training.collectors()
    (game,) = [game for game in training.games() if game.ppid() == stopped.pid]
    os.kill(stopped.pid, signal.SIGSTOP)
    training.wait_for_races(3)
    training.wait_for(lambda: "no heartbeat" in training.output, "line that says so")
    training.wait_for(lambda: not stopped.is_running() and not game.is_running(), "end of both")
    training.wait_for(lambda: len(training.collectors()) == 2, "another collector in its place")
    training.wait_for_races(3)
    assert other.is_running(), training.output


def test_it_ends_with_ctrl_c_and_the_same_command_resumes_it(training, start_training):
    training.wait_for(lambda: len(training.games()) == 2, "games of the replaced collector as well")
    reader = LiveReader(training.run_folder)
    training.stop(signal.SIGINT, whole_group=True)
    assert training.process.returncode == 0
    assert not training.survivors()
    assert reader.cars() == []
    assert not (training.run_folder / "live").exists()
    assert health_of(RunFolder.at(training.run_folder))[1]["problem"] == "the training has ended"
    assert find_manifests(training.run_folder)
    n_frames = training.races[-1]["frames_total"]

    resumed = start_training(training.folder, **SETTINGS)
    resumed.wait_for_races()
    resumed.stop(signal.SIGTERM)
    assert resumed.process.returncode == 0
    assert not resumed.survivors()
    assert "resumed" in resumed.output
    assert f"at frame {n_frames:,}" in resumed.output
    assert resumed.races[-1]["frames_total"] > n_frames
    for output in (training.output, resumed.output):
        assert "Traceback" not in output
        assert "leaked" not in output
    first_line = (training.run_folder / "train.log").read_text().splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ ", first_line)
