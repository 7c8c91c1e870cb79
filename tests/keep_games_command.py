"""`scripts/keep_games.py` as a process, and its games."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from trackmania_rl.processes import is_running

PROJECT = Path(__file__).resolve().parents[1]
SOON_S = 60.0
"""The machine that tests has other work."""


class KeepGames:
    """The command with the simulated game; its output goes to a file in `folder`."""

    def __init__(self, folder: Path, first_port: int, n_games: int = 1, options: tuple[str, ...] = ()) -> None:
        self.first_port = first_port
        self._output_file = folder / "keep_games.txt"
        script = PROJECT / "scripts" / "keep_games.py"
        last_port = first_port + n_games - 1
        with self._output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(script), "--ports", f"{first_port}-{last_port}", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background shells ignore it
            )

    @property
    def output(self) -> str:
        return self._output_file.read_text()

    def games(self) -> list[psutil.Process]:
        """The games that run, by port."""
        games = filter(is_running, psutil.Process(self.process.pid).children())
        return sorted(games, key=lambda game: game.cmdline()[game.cmdline().index("--port") + 1])

    def wait_until_it_says(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.output.count(text) >= times or self.process.poll() is not None, text)
        assert self.output.count(text) >= times, self.output

    def end(self) -> int:
        """End it as Ctrl-C does; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(SOON_S)
        finally:
            self.process.kill()  # where it did not end; its games then end by themselves


def wait_until(condition: Callable[[], object], what: str = "what is waited for", within_s: float = SOON_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)
