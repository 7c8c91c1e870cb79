"""`--supervised`: when a training is started again, on small programs in its place."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from trackmania_rl.multiprocess import supervised as supervised_module
from trackmania_rl.processes import is_running

from ..keep_games_command import wait_until

PROLOGUE = """
import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from trackmania_rl.multiprocess.supervised import WatchedTraining
folder = pathlib.Path({folder!r})
with (folder / "starts").open("a") as starts:
    starts.write(f"{{os.getpid()}}\\n")
n_starts = len((folder / "starts").read_text().splitlines())
watched = WatchedTraining.by_environment()
(folder / "restart_reason").write_text(watched.restart_reason)
"""
SUPERVISOR = """
import signal, sys
sys.path.insert(0, {root!r})
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
from trackmania_rl.multiprocess import supervised
from trackmania_rl.multiprocess.supervisor import RestartPolicy
supervised.POLICY = RestartPolicy({delay_s}, {delay_s}, {give_up_after})
supervised.CHECK_TRAINING_EVERY_S = 0.1
code = supervised.supervise([sys.executable, {training!r}])
assert "torch" not in sys.modules
sys.exit(code)
"""


class Supervised:
    """A supervisor in a process of its own, of a program with this text."""

    def __init__(self, root, folder, text, delay_s=0.05, give_up_after=10):
        self.folder = folder
        training = folder / "training.py"
        training.write_text(PROLOGUE.format(root=str(root), folder=str(folder)) + textwrap.dedent(text))
        program = SUPERVISOR.format(
            root=str(root), delay_s=delay_s, give_up_after=give_up_after, training=str(training)
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    @property
    def pids(self):
        """The trainings that were started, in their order."""
        file = self.folder / "starts"
        return [int(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def end(self):
        """Wait for it; return exit code and output."""
        _, said = self.process.communicate(timeout=90)
        return self.process.returncode, said


@pytest.fixture
def supervise(repository_root, tmp_path):
    started = []

    def start(text, **named):
        started.append(Supervised(repository_root, tmp_path, text, **named))
        return started[-1]

    yield start
    for one in started:
        for pid in (one.process.pid, *one.pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except (OSError, AttributeError):
                continue
        one.process.communicate()


def test_it_starts_a_training_again_until_it_is_done(supervise):
    one = supervise(
        """
        (folder / f"pulse {n_starts}").write_text(watched.heartbeat_file)
        if n_starts == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit({2: 1, 3: 75}.get(n_starts, 0))
        """
    )
    code, said = one.end()
    assert code == 0
    assert len(one.pids) == 4
    words = [line.partition(" ")[2] for line in said.splitlines()]
    assert words == [
        f"WARNING the training ended with {how}; it starts again in 0 s"
        for how in ("SIGKILL", "exit code 1", "exit code 75")
    ]
    assert (one.folder / "restart_reason").read_text() == "ended with exit code 75"
    pulses = [Path((one.folder / f"pulse {number}").read_text()) for number in range(1, 5)]
    assert not any(pulse.exists() for pulse in pulses)


@pytest.mark.parametrize("code", [0, 2, 74, 78, 130])
def test_finished_and_hopeless_jobs_are_not_tried_again(code):
    assert supervised_module.supervise([sys.executable, "-c", f"raise SystemExit({code})"]) == code


def test_it_gives_up_where_nothing_is_learned(supervise):
    one = supervise(
        "with watched.heartbeat() as heartbeat: heartbeat.saved = min(n_starts, 3); sys.exit(75)", give_up_after=2
    )
    code, said = one.end()
    assert code == 78
    assert len(one.pids) == 4
    assert "a person is needed" in said.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
@pytest.mark.parametrize(
    ("hang", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "has had no heartbeat for"),
        pytest.param("while True: pass", "has made no progress for", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_hangs_is_killed_with_all_that_it_started(supervise, hang, how):
    one = supervise(
        f"""
        if n_starts == 2:
            sys.exit(0)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os.kill(child.pid, signal.SIGSTOP)  # so that it notices nothing
        (folder / "child").write_text(str(child.pid))
        with watched.heartbeat() as heartbeat:
            for _ in range(3):
                heartbeat.progress(2.0, 4.0)
                time.sleep(0.1)
            {hang}
        """
    )
    code, said = one.end()
    assert code == 0, said
    assert how in said
    assert len(one.pids) == 2
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not is_running(psutil.Process(int((one.folder / "child").read_text())))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_passed_on_once_and_nothing_is_started_again(supervise, name):
    one = supervise(
        """
        numbers = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: numbers.append(number))
        (folder / "ready").touch()
        while not numbers:
            time.sleep(0.01)
        time.sleep(0.2)
        (folder / "numbers").write_text(" ".join(signal.Signals(number).name for number in numbers))
        sys.exit(75)
        """
    )
    wait_until((one.folder / "ready").exists)
    os.kill(one.process.pid, getattr(signal, name))
    assert one.end() == (75, "")
    assert (one.folder / "numbers").read_text() == name
    assert len(one.pids) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_a_signal_while_it_waits_for_the_next_start_ends_it(supervise):
    one = supervise("sys.exit(75)", delay_s=600.0)
    assert "it starts again in 600 s" in one.process.stderr.readline()
    os.kill(one.process.pid, signal.SIGTERM)
    assert one.end()[0] == 0
    assert len(one.pids) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_a_training_whose_watcher_was_killed_ends_in_order(supervise):
    one = supervise(
        """
        try:
            with watched.heartbeat():
                (folder / "ready").touch()
                time.sleep(600)
        except KeyboardInterrupt:
            pass
        finally:
            (folder / "ended").touch()
        """.replace("try:", "signal.signal(signal.SIGTERM, signal.default_int_handler)\n        try:", 1)
    )
    wait_until((one.folder / "ready").exists)
    one.process.kill()
    wait_until((one.folder / "ended").exists)
