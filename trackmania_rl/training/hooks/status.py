"""The state of a run for those outside: the terminal's view and the status file."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Final

from tensordict import TensorDictBase

from trackmania_rl.telemetry.run_status import RunStatus, StatusFile
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.hooks.hook import Hook, Interval

log = logging.getLogger(__name__)


EVERY_S: Final = 1.0
LEARNER_STALL_S: Final = 900.0
"""Time that the training loop may stand still. Compiling and saving take less."""


class ShowInTerminal(Hook):
    """Shows the run's figures.

    Args:
        view: open until the run ends.
    """

    def __init__(self, view: TerminalView) -> None:
        self._view = view

    takes_fragments = True

    def begin(self) -> None:
        """Show the figures that the run resumes with."""
        self._view.preview(self.run.statistics)

    def batch_process(self, _: TensorDictBase) -> None:
        """End the phases of the start."""
        self._view.end_start()

    def tick(self) -> None:
        """Show the figures, at the view's interval."""
        self._view.update(self.run.statistics)

    def end(self) -> None:
        """Show the figures a last time, and log what the end waits for."""
        log.info("the training ends: the last checkpoint is written, the collectors stop")
        self._view.try_to_show(self.run.statistics)


class TellStatus(Hook):
    """Writes the run's status file every second, from a thread of its own: an update may take longer."""

    takes_fragments = True

    def __init__(self) -> None:
        self._figures: dict[str, float] = {}
        self._losses: dict[str, float] = {}
        self._ticked_at_s = time.monotonic()
        self._raced_at_s: float | None = None
        self._saved_at_s: float | None = None
        self._bounds_s = 0.0, 0.0
        self._figures_due = Interval(is_due_at_first=True)
        self._file: StatusFile | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="status", daemon=True)

    def begin(self) -> None:
        """Write the first status and start the thread."""
        self._file = StatusFile(self.run.folder.path)
        self._take_figures()
        self._write(is_over=False)
        self._thread.start()

    def batch_process(self, _: TensorDictBase) -> None:
        """Note that a race has come in."""
        self._raced_at_s = time.monotonic()

    def tick(self) -> None:
        """Note the time of this pass of the training loop."""
        self._ticked_at_s = time.monotonic()
        if self._figures_due.is_due(EVERY_S):
            self._take_figures()

    def end(self) -> None:
        """Write that the run has ended."""
        if self._file is None:
            return
        self._ends.set()
        self._thread.join()
        self._take_figures()
        self._write(is_over=True)

    def _take_figures(self) -> None:
        """Copy the run's figures in the thread that changes them."""
        statistics, settings = self.run.statistics, self.run.settings.run
        rates = statistics.rates()
        self._bounds_s = settings.learner_silence_s, LEARNER_STALL_S
        self._losses = {name: value for name, value in statistics.last_metrics.items() if math.isfinite(value)}
        if statistics.checkpoint_time_s is not None:
            self._saved_at_s = time.monotonic() - (statistics.elapsed_s - statistics.checkpoint_time_s)
        self._figures = {
            "frames_total": statistics.frames_total,
            "races_total": statistics.races_total,
            "races_finished_total": statistics.races_finished_total,
            "updates_total": statistics.batches_total,
            "updates_not_finite_total": statistics.updates_not_finite,
            "races_refused_total": statistics.races_refused,
            "collector_restarts_total": statistics.collector_restarts,
            "collectors_alive": statistics.collectors_alive,
            "sessions_total": self.run.session,
            "frames_per_second": rates.actions_per_s,
            "races_per_second": rates.races_per_s,
            "updates_per_second": rates.batches_per_s,
            "learner_waiting_share": rates.learner_waiting_share,
            "replay_transitions": statistics.replay_transitions,
            "training_seconds_total": statistics.training_s,
        }

    def _tell(self) -> None:
        while not self._ends.wait(EVERY_S):
            self._write(is_over=False)

    def _write(self, *, is_over: bool) -> None:
        assert self._file is not None
        silence_s, stall_s = self._bounds_s
        self._file.write(
            RunStatus(
                is_over=is_over,
                told_at_s=time.monotonic(),
                ticked_at_s=self._ticked_at_s,
                raced_at_s=self._raced_at_s,
                saved_at_s=self._saved_at_s,
                silence_s=silence_s,
                stall_s=stall_s,
                figures=self._figures,
                losses=self._losses,
            )
        )
