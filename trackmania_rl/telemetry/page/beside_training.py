"""Live page for the run that trains (`train.py --dashboard`)."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.paths import WORKING_FOLDER, command_line_of
from trackmania_rl.processes import ENDS_WITHIN_S
from trackmania_rl.telemetry.page.command import FIRST_PORT, address, check_packages, listen
from trackmania_rl.training.hooks.hook import Hook

LOOPBACK: Final = "127.0.0.1"
PORTS_TRIED: Final = 20

log = logging.getLogger(__name__)


class ServePage(Hook):
    """Serves the run's live page from a separate process, which ends with the training."""

    def __init__(self) -> None:
        check_packages()
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the page and log the address. A `UserError` if no port is free."""
        port = _first_free_port()
        command = [sys.executable, "-m", "trackmania_rl.telemetry.page.command", str(self.run.folder.path.resolve())]
        self._process = subprocess.Popen(
            [*command, "--port", str(port), "--ends-with-stdin"],
            cwd=WORKING_FOLDER,
            stdin=subprocess.PIPE,  # closed by the system if this process is killed
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal ends the training, which ends the page
        )
        log.info("the live page of this run: %s", address(LOOPBACK, port, None))

    def tick(self) -> None:
        """Log a warning once the page has ended."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the live page has ended; %s opens it again or prints the reason", command_line_of("dashboard"))
            self._process = None

    def end(self) -> None:
        """End the page."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDS_WITHIN_S)
        self._process.kill()
        self._process.wait()


def _first_free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        with contextlib.suppress(UserError):
            listen(LOOPBACK, port).close()
            return port
    raise UserError(f"--dashboard: the ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are taken: end other pages")
