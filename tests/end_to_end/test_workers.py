"""`train.py --workers` and `worker.py` on this machine: the learner, the worker and the network between them fail."""

import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("zstandard", reason='workers need the extra "worker"')

from benchmarks.delayed_link import DelayedLink
from benchmarks.training_command import PROJECT, TrainCommand
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

from .conftest import SMALL

NOTE_RACES = """
from trackmania_rl.training.hooks.hook import Hook


class NoteRaces(Hook):
    def on_race(self, race):
        with open({file!r}, "a") as file:
            print(self.run.session, race.facts.collector, race.facts.sequence, file=file)
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
    """`worker(port)` starts a worker."""
    started = []

    def start(port):
        command = [sys.executable, PROJECT / "scripts" / "worker.py", "--connect", f"http://127.0.0.1:{port}"]
        with (tmp_path / "worker.txt").open("ab") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def noted(tmp_path):
    """Numbers of the races by session and worker."""
    numbers = {}
    for line in (tmp_path / "noted").read_text().splitlines():
        session, worker, number = map(int, line.split())
        numbers.setdefault((session, worker), []).append(number)
    return numbers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_race_is_counted_twice(learner, worker, tmp_path):
    command = learner()
    link = DelayedLink(command.worker_port, one_way_s=0.02)
    first = worker(link.port)
    command.wait_for_races(4)

    link.close()  # the network is cut
    time.sleep(5)
    link = DelayedLink(command.worker_port, one_way_s=0.02, port=link.port)
    command.wait_for_races(15)

    link.forwards.clear()  # it is silent, but no connection ends
    time.sleep(25)
    link.forwards.set()
    command.wait_for_races(15)

    command.process.kill()
    command.end()
    time.sleep(5)
    command = learner()
    command.wait_for_races(15)

    first.kill()  # its collector ends with it
    worker(link.port)
    command.wait_for(lambda: len(noted(tmp_path).get((2, 1001), ())) > 3, "races of the second worker", 120)
    command.stop(signal.SIGTERM)
    assert command.process.returncode == 0, command.output
    command = learner()
    command.wait_for_races(4)
    command.stop(signal.SIGTERM)

    numbers = noted(tmp_path)
    assert all(one == sorted(set(one)) for one in numbers.values()), "none is counted twice"
    assert sorted(numbers) == [(1, 1000), (2, 1000), (2, 1001), (3, 1001)]
    assert numbers[3, 1001][0] == numbers[2, 1001][-1] + 1
    assert (tmp_path / "worker.txt").read_text().count("is away") <= 6
