"""`train.py --supervised`: a small process keeps the training running, as the one job of a `Supervisor`.

It imports no torch and touches no file of the run, so that it survives the cause of a training's end (no memory, a full
disk, an error in a library). The training has its own process group, which ends before the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import psutil
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat, beating, heartbeat_file, open_heartbeat
from trackmania_rl.errors import ExitCode, PassingError
from trackmania_rl.multiprocess.supervisor import (
    HangWatch,
    Job,
    KeepsFailingError,
    Limits,
    RestartPolicy,
    Supervisor,
    end_games_of,
)
from trackmania_rl.processes import descendants_of, end_processes, ending_signals, terminate_main_thread

POLICY: Final = RestartPolicy(first_delay_s=2.0, longest_delay_s=300.0, most_failures=10)
DEFAULT_SILENCE_S: Final = 300.0
"""Until the training sets its limits: it loads its libraries."""
DEFAULT_STALL_S: Final = 3600.0
"""Until the training loop begins: it reads a checkpoint, and compiles."""
CHECK_TRAINING_EVERY_S: Final = 0.5
FINAL: Final = (ExitCode.DONE, ExitCode.MISUSED, ExitCode.NOT_SAVED, ExitCode.NEEDS_A_PERSON, ExitCode.INTERRUPTED)
"""Exit codes after which a training is not started again."""
SHOW_CURSOR: Final = "\x1b[?25h"
OWN_PROCESS_GROUP: Final = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
BREAK: Final = getattr(signal, "CTRL_BREAK_EVENT", None)
"""Windows: the only signal for another process group."""
VARIABLE: Final = "TRACKMANIA_RL_SUPERVISED"
"""Environment variable with a `WatchedTraining` as JSON."""


@dataclass(frozen=True)
class WatchedTraining:
    """Connection of a training to its supervisor: the training's side."""

    heartbeat_file: str  # see `heartbeat_file`
    elapsed_s: float = 0.0  # time since the first start of the command
    restart_reason: str = ""  # how the training before it ended; empty for the first one

    def as_environment(self) -> dict[str, str]:
        """Return the variables of the training's process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def by_environment(cls) -> WatchedTraining | None:
        """Read the supervisor's variable and remove it from the environment; None if there is none."""
        text = os.environ.pop(VARIABLE, None)
        return None if text is None else cls(**json.loads(text))

    @contextlib.contextmanager
    def heartbeat(self) -> Iterator[Heartbeat]:
        """Beat in a thread, and end the training in order when the supervisor's pipe (standard input) is closed."""
        heartbeat = open_heartbeat(Path(self.heartbeat_file))
        with contextlib.suppress(OSError):  # Windows removes no open file; elsewhere none is left if both are killed
            os.unlink(self.heartbeat_file)
        has_ended = threading.Event()
        threading.Thread(target=_end_with_supervisor, args=(has_ended,), name="supervisor-watch", daemon=True).start()
        try:
            with beating(heartbeat.beat):
                yield heartbeat
        finally:
            has_ended.set()


def _end_with_supervisor(has_ended: threading.Event) -> None:
    while os.read(0, 1 << 10):
        pass
    if not has_ended.is_set():
        terminate_main_thread()


def supervise(command: Sequence[str]) -> int:
    """Keep the training of a command running until it is done, stopped, or needs a person; return the exit code."""
    training = TrainingJob(command)
    supervisor = Supervisor([training], POLICY, say=lambda line: _say(f"WARNING {line}"))
    with _signals_to(training.stop):
        try:
            supervisor.start()
            while training.exit_code is None:
                training.wait(CHECK_TRAINING_EVERY_S)
                supervisor.check()
        except KeepsFailingError as error:
            _say(f"error: {error}; a person is needed")
            return ExitCode.NEEDS_A_PERSON
        finally:
            training.end()
    return training.exit_code


class TrainingJob(Job):
    """Training as a `Job`. `exit_code` is that of the last training; None while it is to be kept running."""

    name = "the training"

    def __init__(self, command: Sequence[str]) -> None:
        self.exit_code: int | None = None
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._heartbeat = Heartbeat()
        self._heartbeat_file = contextlib.ExitStack()
        self._most_saved = 0
        self._watch = HangWatch()
        self._restart_reason = ""
        self._is_stopped = False
        self._began_s = time.monotonic()

    @property
    @override
    def has_succeeded(self) -> bool:
        return self._heartbeat.saved > self._most_saved  # a checkpoint held more than any before

    @override
    def start(self) -> None:
        """Start the training with a new heartbeat.

        Raises:
            PassingError: if there is no memory for it.
        """
        try:
            file = self._heartbeat_file.enter_context(heartbeat_file())
            self._heartbeat = open_heartbeat(file)
        except OSError as error:
            raise PassingError(f"--supervised: there is no room for 64 bytes in shared memory ({error})") from error
        watched = WatchedTraining(str(file), time.monotonic() - self._began_s, self._restart_reason)
        self._watch = HangWatch()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,  # whose end the training notices, even if this process is killed
            env={**os.environ, **watched.as_environment()},
            start_new_session=True,  # so that a signal of the terminal comes once, through here
            creationflags=OWN_PROCESS_GROUP,
        )
        if self._is_stopped:  # by a signal that came meanwhile
            self.exit_code = None
            self._process.terminate()

    @override
    def failure(self, passed_s: float) -> str | None:
        process = self._process
        assert process is not None
        code = process.poll()
        if code is not None and (self._is_stopped or code in FINAL):
            self.exit_code = code if code >= 0 else 128 - code  # as shells have it after a signal
            return None
        beat = self._heartbeat
        silence_s, stall_s = beat.silence_s or DEFAULT_SILENCE_S, beat.stall_s or DEFAULT_STALL_S
        limits = Limits(silence_s, stall_s, silence_s, stall_s)
        self._restart_reason = (
            f"ended with {_exit_code_text(code)}"
            if code is not None
            else self._watch.check(beat, passed_s, limits) or ""
        )
        return self._restart_reason or None

    @override
    def end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            family = _family_of(process.pid)
            process.kill()
            process.wait()
            end_processes(family)
            if family:
                end_games_of(*(one.pid for one in family))
        self._most_saved = max(self._most_saved, self._heartbeat.saved)
        self._heartbeat = Heartbeat()  # unmaps the file, which Windows removes only then
        self._heartbeat_file.close()
        if sys.stdout.isatty():  # a killed training may have hidden the cursor
            print(SHOW_CURSOR, end="", flush=True)

    def wait(self, seconds: float) -> None:
        """Wait for the training's end or a time."""
        if self._process is None:
            time.sleep(seconds)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on: the training ends in order, and is not started again."""
        self._is_stopped = True
        if self._process is None:
            self.exit_code = ExitCode.DONE
            return
        with contextlib.suppress(OSError):
            self._process.send_signal(number if BREAK is None else BREAK)


def _family_of(training: int) -> list[psutil.Process]:
    """Return the processes of a training's process group, also after its end, and their descendants."""
    members = descendants_of(training)
    if sys.platform != "win32":
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):  # it has ended
                if os.getpgid(process.pid) == training != process.pid:
                    members += [process, *descendants_of(process.pid)]
    return list(dict.fromkeys(members))


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that end a training; those that are ignored (nohup) stay so."""
    before = {number: signal.signal(number, handler) for number in ending_signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _exit_code_text(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(f"{time.strftime('%H:%M:%S')} {text}" if not text.startswith("error") else text, file=sys.stderr)
        sys.stderr.flush()
