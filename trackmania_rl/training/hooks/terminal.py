"""The terminal's view of a run."""

from __future__ import annotations

import logging

from tensordict import TensorDictBase

from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class ShowInTerminal(Hook):
    """Shows the run's figures.

    Args:
        view: which is open while the run goes on.
    """

    def __init__(self, view: TerminalView) -> None:
        self._view = view

    takes_fragments = True

    def begin(self) -> None:
        """Show what the run resumes from."""
        self._view.preview(self.run.statistics)

    def batch_process(self, _: TensorDictBase) -> None:
        """End the phases of the start."""
        self._view.end_start()

    def tick(self) -> None:
        """Show them, if it is time."""
        self._view.update(self.run.statistics)

    def end(self) -> None:
        """Show them a last time, and what the user then waits for."""
        log.info("the training ends: the last checkpoint is written, the collectors stop")
        self._view.try_to_show(self.run.statistics)
