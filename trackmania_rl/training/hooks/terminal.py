"""The terminal's view of a run."""

from __future__ import annotations

from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.hooks.hook import Hook


class ShowInTerminal(Hook):
    """Shows the run's figures.

    Args:
        view: which is open while the run goes on.
    """

    def __init__(self, view: TerminalView) -> None:
        self._view = view

    def tick(self) -> None:
        """Show them, if it is time."""
        self._view.update(self.run.statistics)
