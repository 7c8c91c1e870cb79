"""A logger in a thread of its own: its server may be slow or away, and the learner waits for neither."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.errors import one_line
from trackmania_rl.telemetry.loggers.protocol import RunLogger

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
"""So many figures, pictures and so on wait for a slow logger; what comes then is left out."""
COMPLAINS_EVERY_S: Final = 60.0
CLOSES_WITHIN_S: Final = 30.0

Work = Callable[[RunLogger], object]


class InBackground:
    """Hands everything to a logger that lives in a thread: it is made, used and closed there. A `RunLogger`.

    What the logger cannot take is told, at most once a minute, and is missing there; nothing else is lost.

    Args:
        name: what it is called in messages.
        make: makes the logger.

    Raises:
        Exception: what `make` raises.
    """

    def __init__(self, name: str, make: Callable[[], RunLogger]) -> None:
        self._name = name
        self._waiting: queue.Queue[Work | None] = queue.Queue(MOST_WAITING)
        self._complained_s = -COMPLAINS_EVERY_S
        is_open: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, is_open), name=f"{name} logger", daemon=True)
        self._thread.start()
        is_open.result()

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_figures(figures, step))

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_histogram(name, values, step))

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_picture(name, picture, step))

    def log_film(self, name: str, film: Path, step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_film(name, film, step))

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_recording(name, recording, step))

    def log_text(self, name: str, text: str, step: int) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_text(name, text, step))

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.log_settings(settings))

    def flush(self) -> None:
        """See `RunLogger`."""
        self._do(lambda logger: logger.flush())

    def reopen(self) -> None:
        """Go on: the thread survives every error."""

    def close(self) -> None:
        """Let the logger take what waits; it is given up after `CLOSES_WITHIN_S`."""
        ends_s = time.monotonic() + CLOSES_WITHIN_S
        with contextlib.suppress(queue.Full):  # told below, as the thread still runs
            self._waiting.put(None, timeout=CLOSES_WITHIN_S)
        self._thread.join(max(0.0, ends_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s: did not take the last figures within %g s", self._name, CLOSES_WITHIN_S)

    def _do(self, work: Work) -> None:
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self._complain("it is too slow, so that figures are left out")

    def _run(self, make: Callable[[], RunLogger], is_open: Future[None]) -> None:
        try:
            logger = make()
        except BaseException as error:
            is_open.set_exception(error)
            return
        is_open.set_result(None)
        for work in iter(self._waiting.get, None):
            self._survive(work, logger)
        self._survive(lambda logger: logger.close(), logger)

    def _survive(self, work: Work, logger: RunLogger) -> None:
        try:
            work(logger)
        except Exception as error:  # a server, or a user's own logger, may fail in any way; the run goes on
            self._complain(f"{type(error).__name__}: {one_line(error)}")

    def _complain(self, reason: str) -> None:
        """Say what is wrong, now and then."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAINS_EVERY_S:
            self._complained_s = now_s
            log.error("%s does not take the run's figures: %s; the run goes on without them there", self._name, reason)
