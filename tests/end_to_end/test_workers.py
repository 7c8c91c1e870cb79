"""`train.py --workers` and `worker.py` on this machine: the learner, the worker and the network between them fail."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("zstandard", reason='workers need the extra "worker"')

from benchmarks.delayed_link import DelayedLink
from benchmarks.training_command import PROJECT, TrainCommand
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

from ..keep_games_command import wait_until
from .conftest import SMALL

NOTE_RACES = """
from trackmania_rl.training.hooks.hook import Hook


class NoteRaces(Hook):
    def on_race(self, race):
        with open({file!r}, "a") as file:
            print(self.run.session, race.facts.sequence, file=file)
"""


@pytest.fixture
def learner(tmp_path):
    """`learner()` starts the training again, which notes session and number of each race."""
    port, commands = find_free_port(), []
    (tmp_path / "note_races.py").write_text(NOTE_RACES.format(file=str(tmp_path / "noted")))
    settings = {**SMALL, "n_collectors": 0, "hooks": "'note_races:NoteRaces'", "checkpoint_interval_s": 2}

    def start():
        environment = {"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
        commands.append(TrainCommand(tmp_path, settings, ("--workers", f"127.0.0.1:{port}"), environment))
        commands[-1].worker_port = port
        return commands[-1]

    yield start
    for command in commands:
        command.end()


@pytest.fixture
def worker(tmp_path):
    """`worker(port)` starts a worker; `races()` of it are those on disk."""
    started = []

    def start(port, *options):
        command = [sys.executable, PROJECT / "scripts" / "worker.py", "--connect", f"http://127.0.0.1:{port}"]
        command += ["--folder", tmp_path / "worker", *options]
        with (tmp_path / "worker.txt").open("ab") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def noted(tmp_path):
    """Numbers of the races by session."""
    sessions = {}
    for line in (tmp_path / "noted").read_text().splitlines():
        session, number = map(int, line.split())
        sessions.setdefault(session, []).append(number)
    return sessions


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_race_is_lost_or_counted_twice(learner, worker, tmp_path):
    races = tmp_path / "worker" / "races"

    def plays_on():
        wait_until(newest)
        wanted = newest() + 10
        wait_until(lambda: newest() > wanted)

    def newest():
        return max((int(race.stem.partition("-")[0]) for race in races.glob("*.race")), default=0)

    command = learner()
    link = DelayedLink(command.worker_port, one_way_s=0.02)
    first = worker(link.port)
    command.wait_for_races(4)

    link.close()  # the network is cut
    plays_on()
    link = DelayedLink(command.worker_port, one_way_s=0.02, port=link.port)
    command.wait_for_races(15)

    link.forwards.clear()  # it is silent, but no connection ends
    plays_on()  # more races than may be on their way
    link.forwards.set()
    command.wait_for_races(15)

    command.process.kill()
    command.end()
    plays_on()
    command = learner()
    command.wait_for_races(15)

    first.kill()  # its collector ends with it
    worker(link.port)
    command.wait_for_races(4)
    command.stop(signal.SIGTERM)
    assert command.process.returncode == 0, command.output
    command = learner()
    command.wait_for_races(4)
    command.stop(signal.SIGTERM)

    sessions = noted(tmp_path)
    assert len(sessions) == 3
    for numbers in sessions.values():
        assert numbers == sorted(set(numbers)), "none is counted twice"
    assert sessions[3][0] == sessions[2][-1] + 1
    assert len(command.races) == sessions[3][-1], "none is lost, also of those after the killed learner's checkpoint"
