"""`train.py --supervised`: a small process that starts the training, watches it, and starts it again.

It imports no torch and touches no file of the run, so that what ends a training (no memory, a full disk, an error in a
library) leaves it alone. The training is a process group of its own: signals reach it through here, and whatever is
left of it after its end is ended before the next one begins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

import psutil

from trackmania_rl.errors import ExitCode, PassingError
from trackmania_rl.multiprocess.ending import descendants_of, end_processes
from trackmania_rl.multiprocess.restarts import End, PulseWatch, RestartPolicy
from trackmania_rl.multiprocess.signals import HANG_UP, OF_THE_TERMINAL
from trackmania_rl.multiprocess.watched import Orders, Pulse
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords

LOOK_EVERY_S: Final = 0.5
FAMILY_EVERY_S: Final = 5.0
"""How often it is noted which processes belong to the training, for who survives it."""
FAMILY_ENDS_WITHIN_S: Final = 5.0
"""Collectors, games and Python's cleaner of shared memory end by themselves when the training has; then they are
killed."""
SHOW_CURSOR: Final = "\x1b[?25h"
OWN_PROCESS_GROUP: Final = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
BREAK: Final = getattr(signal, "CTRL_BREAK_EVENT", None)
"""Windows: the one signal that a process group of its own can be sent."""


class Supervisor:
    """Keeps a training going until it is done, stopped, or a person is needed.

    Args:
        command: starts the training.
        policy: decides when it is started again.
    """

    def __init__(self, command: Sequence[str], policy: RestartPolicy | None = None) -> None:
        self._command = list(command)
        self._policy = policy or RestartPolicy()
        self._training: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._began_s = time.monotonic()

    def run(self) -> int:
        """Supervise; return the exit code.

        Raises:
            PassingError: if there is no memory for the training's pulse.
        """
        because = ""
        with _signals_to(self._on_signal):
            while True:
                exit_code, saved, hung = self._train(because)
                if self._is_stopped:
                    return ExitCode.FAILED if exit_code is None else _as_exit_code(exit_code)
                how = hung or f"ended with {_exit_code_text(exit_code)}"
                decision = self._policy.decide(exit_code, saved, time.monotonic())
                if isinstance(decision, End):
                    if decision.gives_up:
                        _say(
                            f"error: the training {how}, and was started so often without learning anything more that "
                            "a person is needed: what it said before tells the cause; the same command goes on"
                        )
                    return decision.exit_code
                because = f"{how}; it starts again in {decision.after_s:.0f} s"
                _say(f"WARNING the training {because}")
                self._wait(decision.after_s)
                if self._is_stopped:
                    return ExitCode.DONE

    def _train(self, because: str) -> tuple[int | None, int, str | None]:
        """Let one training run; (exit code, None if it was killed; what it has saved; how it hung)."""
        try:
            pulse = Pulse.make()
        except OSError as error:
            raise PassingError(f"--supervised: there is no room for 64 bytes in shared memory ({error})") from error
        orders = Orders(str(pulse.path), time.monotonic() - self._began_s, because)
        training = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,  # whose end the training notices, even if this process is killed
            env={**os.environ, **orders.as_environment()},
            start_new_session=True,  # so that a signal of the terminal comes once, through here
            creationflags=OWN_PROCESS_GROUP,
        )
        self._training = training
        if self._is_stopped:  # by a signal that came meanwhile
            training.terminate()
        try:
            hung, family = self._watch(training, pulse)
            exit_code = None if hung else training.returncode
            _end_remaining(training, family)
            return exit_code, pulse.saved, hung
        finally:
            self._training = None
            pulse.remove()
            if sys.stdout.isatty():  # which a training that was killed may have left without one
                print(SHOW_CURSOR, end="", flush=True)

    def _watch(self, training: subprocess.Popen[bytes], pulse: Pulse) -> tuple[str | None, list[psutil.Process]]:
        """Wait until it ends or hangs; (how it hung, the processes that were seen to belong to it)."""
        watch = PulseWatch()
        family: list[psutil.Process] = []
        last_look_s = family_at_s = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(LOOK_EVERY_S)
                return None, family
            now_s = time.monotonic()
            if now_s >= family_at_s:
                family_at_s = now_s + FAMILY_EVERY_S
                family = descendants_of(training.pid)
            passed_s, last_look_s = now_s - last_look_s, now_s
            how = watch.look(pulse.stirs, pulse.ticks, passed_s, pulse.silence_s, pulse.stall_s)
            if how is not None:
                family = descendants_of(training.pid)
                training.kill()
                training.wait()
                return how, family

    def _wait(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while not self._is_stopped and time.monotonic() < deadline_s:
            time.sleep(min(LOOK_EVERY_S, max(0.0, deadline_s - time.monotonic())))

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on; the training ends in order, and is not started again."""
        self._is_stopped = True
        training = self._training
        if training is not None:
            with contextlib.suppress(OSError):
                training.send_signal(number if BREAK is None else BREAK)


def _end_remaining(training: subprocess.Popen[bytes], family: list[psutil.Process]) -> None:
    """End what a training has left behind: what hung or was stopped did not notice its end, and real games do not."""
    deadline_s = time.monotonic() + FAMILY_ENDS_WITHIN_S
    while any(process.is_running() for process in family) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # nobody is left
            os.killpg(training.pid, signal.SIGKILL)
    end_processes(family)
    records = GameRecords()
    for pid in (training.pid, *(process.pid for process in family)):
        records.end_games_of(pid)


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the signals that end a training handled; those that are ignored (nohup) stay so."""
    numbers = [n for n in (*OF_THE_TERMINAL, signal.SIGTERM) if n != HANG_UP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _as_exit_code(exit_code: int) -> int:
    """As shells have it where a signal ended it."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def _exit_code_text(exit_code: int | None) -> str:
    assert exit_code is not None
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(f"{time.strftime('%H:%M:%S')} {text}" if not text.startswith("error") else text, file=sys.stderr)
        sys.stderr.flush()
