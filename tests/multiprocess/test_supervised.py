"""The process that watches a training: on small programs in its place, each with its own way to end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PROLOGUE = """
import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from trackmania_rl.multiprocess.watched import WatchedTraining
folder = pathlib.Path({folder!r})
with (folder / "starts").open("a") as starts:
    starts.write(f"{{os.getpid()}}\\n")
n_starts = len((folder / "starts").read_text().splitlines())
watched = WatchedTraining.by_environment()
(folder / "because").write_text(watched.orders.because)
"""
SUPERVISOR = """
import sys
sys.path.insert(0, {root!r})
from trackmania_rl.multiprocess import restarts, supervised
restarts.FIRST_DELAY_S = restarts.LONGEST_DELAY_S = {delay_s}
supervised.FAMILY_EVERY_S = 0.1
code = supervised.Supervisor([sys.executable, {training!r}]).run()
assert "torch" not in sys.modules
sys.exit(code)
"""


class Supervised:
    """A supervisor in a process of its own, of a program with this text."""

    def __init__(self, root: Path, folder: Path, text: str, delay_s: float = 0.05) -> None:
        self.folder = folder
        training = folder / "training.py"
        training.write_text(PROLOGUE.format(root=str(root), folder=str(folder)) + textwrap.dedent(text))
        program = SUPERVISOR.format(root=str(root), delay_s=delay_s, training=str(training))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    @property
    def pids(self) -> list[int]:
        """The trainings that were started, in their order."""
        file = self.folder / "starts"
        return [int(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline_s, "not within 60 s"
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Wait for it; (exit code, what it said)."""
        _, said = self.process.communicate(timeout=90)
        return self.process.returncode, said


@pytest.fixture
def supervise(repository_root: Path, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(text: str, **named: float) -> Supervised:
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


def test_it_starts_a_training_again_until_it_is_done(supervise: Callable[..., Supervised]) -> None:
    code, said = (
        one := supervise(
            """
            if n_starts == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit({2: 1, 3: 75}.get(n_starts, 0))
            """
        )
    ).end()
    assert code == 0
    assert len(one.pids) == 4
    words = [line.partition(" ")[2] for line in said.splitlines()]
    assert words == [
        f"WARNING the training ended with {how}; it starts again in 0 s"
        for how in ("SIGKILL", "exit code 1", "exit code 75")
    ]
    assert (one.folder / "because").read_text() == "ended with exit code 75; it starts again in 0 s"


def test_it_does_not_where_a_person_is_needed(supervise: Callable[..., Supervised]) -> None:
    one = supervise("sys.exit(78)")
    assert one.end() == (78, "")
    assert len(one.pids) == 1


def test_it_gives_up_where_nothing_is_learned(supervise: Callable[..., Supervised]) -> None:
    code, said = (one := supervise("sys.exit(75)")).end()
    assert code == 78
    assert len(one.pids) == 10
    assert "a person is needed" in said.splitlines()[-1]


def test_it_goes_on_as_long_as_something_is_learned(supervise: Callable[..., Supervised]) -> None:
    one = supervise("watched.pulse.saved = n_starts; sys.exit(75 if n_starts < 15 else 0)")
    assert one.end()[0] == 0
    assert len(one.pids) == 15


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
@pytest.mark.parametrize(
    ("hang", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "gave no sign of life for"),
        pytest.param("while True: pass", "did not go on for", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_hangs_is_killed_with_all_that_it_started(
    supervise: Callable[..., Supervised], hang: str, how: str
) -> None:
    one = supervise(
        f"""
        if n_starts == 2:
            sys.exit(0)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os.kill(child.pid, signal.SIGSTOP)  # so that it notices nothing
        (folder / "child").write_text(str(child.pid))
        with watched:
            watched.pulse.ask_for_bounds(3.0, 5.0)
            for _ in range(10):
                watched.pulse.tick()
                time.sleep(0.1)
            {hang}
        """
    )
    code, said = one.end()
    assert code == 0, said
    assert how in said
    assert len(one.pids) == 2
    assert not psutil.pid_exists(int((one.folder / "child").read_text()))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_passed_on_once_and_nothing_is_started_again(
    supervise: Callable[..., Supervised], name: str
) -> None:
    one = supervise(
        """
        numbers = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: numbers.append(number))
        (folder / "ready").touch()
        while not numbers:
            time.sleep(0.01)
        time.sleep(0.5)
        (folder / "numbers").write_text(" ".join(signal.Signals(number).name for number in numbers))
        sys.exit(75)
        """
    )
    one.wait_for((one.folder / "ready").exists)
    os.kill(one.process.pid, getattr(signal, name))
    assert one.end() == (75, "")
    assert (one.folder / "numbers").read_text() == name
    assert len(one.pids) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_a_signal_while_it_waits_for_the_next_start_ends_it(supervise: Callable[..., Supervised]) -> None:
    one = supervise("sys.exit(75)", delay_s=600.0)
    one.wait_for(lambda: one.pids and not psutil.pid_exists(one.pids[0]))
    time.sleep(0.5)
    os.kill(one.process.pid, signal.SIGTERM)
    assert one.end()[0] == 0
    assert len(one.pids) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_a_training_whose_watcher_was_killed_ends_in_order(supervise: Callable[..., Supervised]) -> None:
    one = supervise(
        """
        try:
            with watched:
                (folder / "ready").touch()
                time.sleep(600)
        except KeyboardInterrupt:
            pass
        finally:
            (folder / "ended").touch()
        """.replace("try:", "signal.signal(signal.SIGTERM, signal.default_int_handler)\n        try:", 1)
    )
    one.wait_for((one.folder / "ready").exists)
    one.process.kill()
    one.wait_for((one.folder / "ended").exists)


def test_no_file_of_a_pulse_is_left(supervise: Callable[..., Supervised]) -> None:
    one = supervise("(folder / 'pulse').write_text(watched.orders.pulse); sys.exit(75 if n_starts == 1 else 0)")
    assert one.end()[0] == 0
    assert not Path((one.folder / "pulse").read_text()).exists()


def test_the_checkpoint_that_a_training_resumes_from_is_no_progress(supervise: Callable[..., Supervised]) -> None:
    one = supervise("""
        from types import SimpleNamespace
        progress = SimpleNamespace(frames_total=5, batches_total=2, checkpoint_time_s=-3.0)
        with watched:
            watched.begin(progress)
        resumed = watched.pulse.saved
        with watched:
            progress.checkpoint_time_s = 4.0
        sys.exit(0 if (resumed, watched.pulse.saved) == (0, 7) else 78)
    """)
    assert one.end() == (0, "")
