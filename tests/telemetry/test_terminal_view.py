import errno
import io
import logging
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pyte
import pytest
from rich.console import Console

from tests.telemetry.conftest import race_of, race_record
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.terminal_view import (
    LiveView,
    PlainView,
    open_terminal_view,
    plain_line,
    render,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_figures():
    clock_s = iter(range(1_000))
    figures = TrainingStatistics(lambda: float(next(clock_s)))
    times_ms = {"valley": (None, 31_250, 30_999, None), "A01 Race": (None,)}
    for map_name, times in times_ms.items():
        for index, time_ms in enumerate(times):
            figures.agent = SimpleNamespace(updates=50 * index)
            figures.observe(learner_waited_s=0.5 * index, replay_transitions=1_200, replay_capacity=5_000)
            facts = race_record(time_ms, map_name=map_name, is_explo=index % 4 != 2, meters=123.4)
            figures.add(race_of(facts.with_changes(waited_s=1.0, elapsed_s=4.0)))
    figures.current_values = {"epsilon": 0.25, "learning_rate": 1e-3}
    figures.last_metrics = {"loss": 0.125}
    return figures


def as_text(figures, width, messages=()):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render(figures, "trial", messages))
    return console.export_text()


def test_the_live_view_fits_and_shows_the_figures():
    messages = [("12:00:00", logging.WARNING, "collector 1 was started again " * 10)]
    text = as_text(make_figures(), 80, messages)
    lines = text.splitlines()
    assert {len(line) for line in lines} == {80}
    for expected in (
        "trial",
        "frames 5,000",
        "races 5",
        "waiting 25 %",
        "loss 0.125",
        "epsilon 0.25",
        "1,200 of 5,000",
    ):
        assert expected in text
    (explored,) = [line for line in lines if "valley" in line]
    assert explored.strip("│ ").split() == ["valley", "exploration", "3", "33", "%", "1/3", "0:31.250", "123", "m", "-"]
    (evaluated,) = [line for line in lines if "evaluation" in line]
    assert evaluated.strip("│ ").split()[-3:] == ["0:30.999", "0:30.999", "0:30.999"]
    assert text.count("started again") == 10, "the message is wrapped between words"
    assert "No race yet." in as_text(TrainingStatistics(), 80)
    assert "replay" not in as_text(TrainingStatistics(), 80) + plain_line(TrainingStatistics()), "as of PPO"
    figures = make_figures()
    line = plain_line(figures)
    assert line.isascii()
    assert "\n" not in line
    assert "valley: exploration 1/3 finished, best 0:31.250, last 123 m; evaluation 1/1 finished, best 0:30.999" in line
    assert "A01 Race: exploration 0/1 finished, best 123 m, last 123 m" in line
    figures.reference_times = {"valley": MedalTimes(30_000, 31_000, 32_000, None)}
    text = as_text(figures, 120)
    assert "valley: author 0:30.000, gold 0:31.000, silver 0:32.000" in text
    assert "0:31.250 (silver)" in text
    assert "best 0:31.250 (silver), last 123 m; evaluation 1/1 finished, best 0:30.999 (gold)" in plain_line(figures)


def test_three_maps_fit_a_small_terminal():
    figures = make_figures()
    figures.current_values |= {"epsilon_boltzmann": 0.15, "gamma": 0.999}
    figures.last_metrics |= {"mean_q": -2.862, "grad_norm": 47.24, "test_loss": 0.1353}
    for map_name in ("kart", "hills"):
        for is_explo in (False, True):
            figures.add(race_of(race_record(30_000, map_name=map_name, is_explo=is_explo)))
    del figures.maps["A01 Race"]
    figures.reference_times = dict.fromkeys(figures.maps, MedalTimes(30_000, 31_000, 32_000, 33_000))
    messages = [("12:00:00", logging.INFO, f"message {number} " * 6) for number in range(9)]
    for height, n_messages, n_times in ((24, 2, 0), (30, 3, 3)):
        console = Console(width=80, height=height, file=io.StringIO(), record=True)
        console.print(render(figures, "trial", messages))
        text = console.export_text()
        assert len(text.splitlines()) < height, "a line is left for the cursor"
        assert text.count("evaluation") == 3
        assert text.count("author 0:") == n_times
        assert len(set(re.findall(r"message \d", text))) >= n_messages
        assert "message 8" in text
        assert "Ctrl-C ends" in text


def test_a_resumed_run_shows_its_totals_while_it_starts():
    figures = TrainingStatistics(lambda: 0.0)
    figures.load_totals({"frames_total": 18357.0, "races_total": 75.0, "updates_total": 1125.0})
    text = as_text(figures, 80)
    assert all(total in text for total in ("frames 18,357", "races 75", "batches 1,125"))
    assert "No race yet" not in text


def test_the_phases_of_the_start_are_shown_with_their_seconds_until_the_first_race():
    logger, terminal = logging.getLogger("collectors"), Terminal()

    def begin_phase(name, process):
        record = logger.makeRecord("collectors", logging.INFO, "x.py", 1, "in words", (), None, extra={"phase": name})
        record.process, record.created = process, time.time() - 7.1
        logger.handle(record)

    with LiveView("trial", Console(file=terminal, force_terminal=True, width=80, color_system=None)) as view:
        for name, process in (("importing", 1), ("compiling the update", 1), *[("compiling the simulator", 2)] * 2):
            begin_phase(name, process)
        view.update(make_figures())
        assert re.search(
            r"starting +compiling the update ([7-9]|\d\d) s, compiling the simulator ([7-9]|\d\d) s ",
            terminal.getvalue(),
        )
        assert "importing" not in terminal.getvalue()
        view.end_start()
        begin_phase("compiling the simulator", 3)
        terminal.truncate(0)
        view.show(make_figures())
        assert "starting" not in terminal.getvalue()
        assert "in words" in terminal.getvalue(), "later it is a message as any other"


def test_a_terminal_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(PlainView, "interval_s", 0.0)
    output = io.StringIO()
    with PlainView(Console(file=output)) as view:
        with monkeypatch.context() as full:
            full.setattr(output, "write", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
            view.update(make_figures())
        assert output.getvalue() == ""
        view.update(make_figures())
    assert len(output.getvalue().splitlines()) == 1
    handlers = logging.getLogger().handlers[:]
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with open_terminal_view("live", "run") as view:
        monkeypatch.setattr(terminal, "write", lambda _: (_ for _ in ()).throw(BrokenPipeError(errno.EPIPE, "gone")))
        view.update(make_figures())
    assert logging.getLogger().handlers == handlers


def test_log_messages_appear_in_the_live_view_and_not_across_it():
    terminal = Terminal()
    root = logging.getLogger()
    handler = logging.StreamHandler(terminal)
    root.addHandler(handler)
    handlers_before = list(root.handlers)
    try:
        console = Console(file=terminal, force_terminal=True, width=80, color_system=None)
        with LiveView("trial", console) as view:
            view.update(make_figures())
            root.warning("a word\nin two lines")
            before_drawing = terminal.getvalue()
            view.show(make_figures())
            print("printed meanwhile")
        root.warning("afterwards")
    finally:
        root.removeHandler(handler)
    assert "a word" not in before_drawing
    assert "a word in two lines" in terminal.getvalue()
    assert "printed meanwhile\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("afterwards\n")
    assert set(handlers_before) == {*root.handlers, handler}


class PseudoTerminal:
    """A command in a terminal of so many columns and rows."""

    def __init__(self, n_columns, n_rows, command):
        import fcntl
        import termios

        self.screen = pyte.HistoryScreen(n_columns, n_rows, history=1000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self._end, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", n_rows, n_columns, 0, 0))

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run in a shell's background

        environment = os.environ | {"TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, preexec_fn=take_terminal
        )
        os.close(terminal)

    @property
    def lines(self):
        """All lines, those that were scrolled away included."""
        rows = [*self.screen.history.top, *(self.screen.buffer[row] for row in range(self.screen.lines))]
        return ["".join(row[column].data for column in range(self.screen.columns)).rstrip() for row in rows]

    def read_until(self, pattern):
        """Read until a line matches; None for the end of the command."""
        while pattern is None or not any(re.search(pattern, line) for line in self.lines):
            assert select.select([self._end], [], [], 60.0)[0], self.lines
            try:
                output = os.read(self._end, 1 << 16)
            except OSError:  # Linux: all have closed it
                output = b""
            if not output:
                assert pattern is None, self.lines
                break
            self._stream.feed(output)

    def press_ctrl_c_and_wait(self):
        os.write(self._end, b"\x03")
        self.read_until(None)
        os.close(self._end)
        return self.process.wait(60.0)


TRAINING_THAT_CTRL_C_ENDS = """
import logging, time
from tests.telemetry.conftest import race_of, race_record
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.terminal_view import open_terminal_view
logging.basicConfig(level=logging.INFO)
with open_terminal_view("auto", "trial") as view:
    view.preview(TrainingStatistics())
    logging.info("compiles", extra={"phase": "compiling the update"})
    try:
        time.sleep(60.0)
    except KeyboardInterrupt:
        logging.info("the training ends: " + "checkpoint " * 20)
        view.try_to_show(TrainingStatistics())
print("ended")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX's")
@pytest.mark.parametrize(
    ("n_columns", "n_rows", "command", "phase_shown", "exit_code"),
    [
        (100, 40, ["-c", TRAINING_THAT_CTRL_C_ENDS], r"compiling the update [1-9]\d* s", 0),
        (80, 24, ["scripts/train.py", "--set", "run_name=trial"], "importing", 130),
    ],
)
def test_ctrl_c_leaves_one_whole_table(
    tmp_path, repository_root, monkeypatch, n_columns, n_rows, command, phase_shown, exit_code
):
    monkeypatch.chdir(repository_root)
    if exit_code:
        command = [*command, "--output-folder", str(tmp_path)]
        (tmp_path / "torch.py").write_text("import time; time.sleep(60.0)")  # so the import lasts until Ctrl-C
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    terminal = PseudoTerminal(n_columns, n_rows, [sys.executable, *command])
    terminal.read_until(phase_shown)
    assert terminal.press_ctrl_c_and_wait() == exit_code, terminal.lines
    lines = [line for line in terminal.lines if line]
    assert [line[0] + line[-1] for line in lines if line[0] in "╭╰"] == ["╭╮", "╰╯"], lines
    end = lines.index("interrupted" if exit_code else "ended")
    assert (lines[0][0], lines[end - 1][0]) == ("╭", "╰")
    n_words = len(re.findall(r"\bcheckpoint\b", " ".join(lines)))
    assert n_words == (1 if exit_code else 21), "words stay whole"
