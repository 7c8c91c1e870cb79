"""Commands' exit codes, and what they say when they end otherwise than by their work."""

import signal
import subprocess
import sys

import pytest

from trackmania_rl.command_line import command, end_in_order_when_terminated, watched_command
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError
from trackmania_rl.tmi_interaction.transport import GameTimeoutError


@pytest.mark.parametrize(("returned", "exit_code"), [(None, 0), (0, 0), (1, 1), (5, 5)])
def test_what_a_command_returns_is_its_exit_code(returned, exit_code, capsys):
    @command
    def main(words, shift=0):
        assert (words, shift) == (["a"], 2)
        return returned

    assert main(["a"], shift=2) == exit_code
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [UserError("gamma 2 is above 1"), GameTimeoutError("gamma 2 is above 1")])
def test_an_error_for_the_user_is_one_line_without_a_traceback(error, capsys):
    @command
    def main():
        raise error

    assert main() == 1
    assert capsys.readouterr() == ("", "error: gamma 2 is above 1\n")


@pytest.mark.parametrize(
    ("error", "exit_code"), [(GameTimeoutError, 1), (PassingError, 75), (UserError, 78), (PortInUseError, 75)]
)
def test_a_watched_command_says_by_its_code_whether_to_try_again(error, exit_code, capsys):
    @watched_command
    def main():
        raise error("port 1 is taken")

    assert main() == exit_code
    assert capsys.readouterr() == ("", "error: port 1 is taken\n")


def test_an_interruption_is_one_word(capsys):
    @command
    def main():
        raise KeyboardInterrupt

    assert main() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_bug_is_not_hidden():
    @command
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main()


def test_terminating_is_like_interrupting():
    before = signal.getsignal(signal.SIGTERM)
    try:
        end_in_order_when_terminated()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_names_that_the_terminal_cannot_show_end_nothing():
    script = "from trackmania_rl.command_line import command; command(lambda: print('caf\\udce9'))()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "caf\\udce9\n", ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word():
    script = "from trackmania_rl.command_line import command; command(lambda: print('x' * 10**6))()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="shells close streams otherwise there")
def test_closed_standard_streams_end_nothing_and_no_file_takes_their_place():
    script = (
        "import os; from trackmania_rl.command_line import command\n"
        "main = command(lambda: print('out', open(os.devnull).fileno() > 2 or 1 / 0))\n"
        "raise SystemExit(main())"
    )
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script]
    assert subprocess.run(closed).returncode == 0
