"""Reading a configuration in a process of its own, as it is code: it may loop, wait, end the program, fill the memory.

The process says what the settings are, as JSON, or what is wrong; whatever else becomes of it is an error, too. It has
some seconds and a bounded memory, and whoever started it looks now and then whether it is done, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, Protocol

import psutil
from pydantic import ValidationError

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.settings.groups import Settings
from trackmania_rl.settings.loading import SettingsError, load_settings

READ_WITHIN_S: Final = 60.0
"""A configuration may import torch, which takes seconds on a machine that is busy training."""
MOST_MEMORY_BYTES: Final = 3 << 30
LARGEST_ANSWER_BYTES: Final = 16 << 20


class Reading(Protocol):
    """A configuration that is being read."""

    def poll(self) -> Settings | None:
        """Return the settings once they are read, and None until then.

        Raises:
            UserError: if they cannot be used.
            OSError: if a file could not be opened, which may be so for a moment only.
        """
        ...

    def close(self) -> None:
        """Give up."""
        ...


class ReadHere:
    """Reads in this process, at once: for a configuration that nobody edits."""

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file

    def poll(self) -> Settings:
        """Read, as of `Reading`."""
        return load_settings(self._config_file)

    def close(self) -> None:
        """Do nothing."""


class ReadInProcess:
    """Reads in a process of its own; as of `Reading`.

    Args:
        config_file: what is read.
        within_s: so long it may take.
        most_memory_bytes: so much memory it may take.

    Raises:
        OSError: if no process can be started.
    """

    def __init__(
        self, config_file: Path, within_s: float = READ_WITHIN_S, most_memory_bytes: int = MOST_MEMORY_BYTES
    ) -> None:
        self._config_file, self._within_s, self._most_memory_bytes = config_file, within_s, most_memory_bytes
        self._ends_at_s = time.monotonic() + within_s
        # A file, as a pipe would have to be emptied; standard input is a pipe that breaks when this process dies.
        self._answer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(config_file), str(within_s), str(most_memory_bytes)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C does not reach it
            )
        except BaseException:
            self._answer.close()
            raise

    def poll(self) -> Settings | None:
        """Look, as of `Reading`."""
        if self._process.poll() is None:
            if time.monotonic() > self._ends_at_s:
                self.close()
                raise SettingsError(
                    f"{self._config_file}: was not read within {self._within_s:g} s: take out what loops or waits"
                )
            with contextlib.suppress(psutil.Error):  # it may be gone by now
                if psutil.Process(self._process.pid).memory_info().rss > self._most_memory_bytes:
                    self.close()
                    raise self._too_large()
            return None
        with self._answer:
            self._answer.seek(0)
            answer = self._answer.read(LARGEST_ANSWER_BYTES + 1)
        self.close()
        return self._understood(answer)

    def close(self) -> None:
        """Kill the process, and what it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                if sys.platform != "win32":
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._answer.close()

    def _understood(self, answer: bytes) -> Settings:
        try:
            told: dict[str, Any] = json.loads(answer) if len(answer) <= LARGEST_ANSWER_BYTES else {}
            if "settings" in told:
                return Settings.model_validate(told["settings"])
        except (ValueError, RecursionError, ValidationError) as error:  # cut off, as the process was killed
            raise self._ended(one_line(error)) from error
        if "is_held" in told:
            raise SettingsError(str(told["is_held"])) from OSError(str(told["is_held"]))
        if "error" in told:
            raise self._too_large() if told["error"] == MemoryError.__name__ else SettingsError(str(told["error"]))
        raise self._ended("it said nothing")

    def _ended(self, why: str) -> SettingsError:
        code = self._process.returncode
        return SettingsError(f"{self._config_file}: reading it ended with exit code {code} before it was done ({why})")

    def _too_large(self) -> SettingsError:
        return SettingsError(
            f"{self._config_file}: takes more than {self._most_memory_bytes >> 20} MiB of memory to be read"
        )


def answer_of(config_file: Path) -> dict[str, Any]:
    """Read a configuration, and say what came of it so that another process understands."""
    try:
        return {"settings": load_settings(config_file).model_dump(mode="json", warnings=False)}
    except UserError as error:
        cause: BaseException | None = error.__cause__
        if isinstance(cause, MemoryError):
            return {"error": MemoryError.__name__}
        is_held = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
        return {"is_held" if is_held else "error": str(error)}
    except OSError as error:
        return {"is_held": f"{config_file}: {error.strerror}"}
    except MemoryError:
        return {"error": MemoryError.__name__}
    except ValueError as error:  # pydantic's PydanticSerializationError
        return {"error": f"{config_file}: a setting cannot be written as JSON: {one_line(error)}"}


def main() -> None:
    """Answer on standard output, which nothing else can write to; end when whoever asked is gone."""
    config_file, within_s, most_memory_bytes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    answer_to, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    threading.Thread(target=_end_with, args=(os.dup(0),), daemon=True).start()
    os.dup2(nowhere, 0)
    _limit(within_s, most_memory_bytes)
    answer = json.dumps(answer_of(config_file)).encode()
    with os.fdopen(answer_to, "wb") as file:
        file.write(answer)
    os._exit(0)  # threads that the configuration began, and what it wants done at the end, keep nobody waiting


def _end_with(pipe: int) -> None:
    """Wait until the process at the pipe's other end is gone, and end."""
    with contextlib.suppress(OSError):
        os.read(pipe, 1)
    os._exit(1)


def _limit(within_s: float, most_memory_bytes: int) -> None:
    """Bound this process, and let others go first, as far as the system knows how to."""
    with contextlib.suppress(psutil.Error, OSError):
        psutil.Process().nice(10 if os.name == "posix" else psutil.BELOW_NORMAL_PRIORITY_CLASS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        import resource
    except ImportError:  # Windows: whoever asked looks how much memory this takes
        return
    limits: list[tuple[int, int]] = [
        (resource.RLIMIT_DATA, most_memory_bytes),
        (resource.RLIMIT_CPU, int(within_s) + 1),
    ]
    for limit, value in limits:
        with contextlib.suppress(OSError, ValueError):  # a lower one is in force
            resource.setrlimit(limit, (value, value))


StartReading = Callable[[Path], Reading]

if __name__ == "__main__":
    main()
