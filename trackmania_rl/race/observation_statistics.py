"""Measured means and standard deviations of the observation's floats, for state_normalization.py."""

from __future__ import annotations

import pprint
import textwrap
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.observation import FIRST_BLOCK, ObservationLayout
from trackmania_rl.settings import ObservationSettings

MOST_DEVIATIONS: Final = 10.0
"""Standard deviations are raised until no value is further than this many of them from the mean. A float that is nearly
always 0 would otherwise be huge for the network when it is not."""
ROWS_AT_A_TIME: Final = 10_000
COLUMNS: Final = 120


class ObservationStatistics:
    """Sums over states, and the statistics computed from them.

    Args:
        layout: of the states; its own floats are measured.

    Attributes:
        n_states: number of states added.
        sums: by name, (F,) float64 each, normalized by the layout: `sum`, `squares` (their sum), `lowest`, `highest`.
    """

    def __init__(self, layout: ObservationLayout) -> None:
        self._layout = layout
        n_floats = layout.n_own_floats
        self._mean, self._std = (numbers[:n_floats].astype(np.float64) for numbers in (layout.mean, layout.std))
        self.n_states = 0
        self.sums = {
            "sum": np.zeros(n_floats),
            "squares": np.zeros(n_floats),
            "lowest": np.full(n_floats, np.inf),
            "highest": np.full(n_floats, -np.inf),
        }

    def add(self, floats: npt.NDArray[np.float32]) -> None:
        """Add states (n, F), not normalized."""
        sums = self.sums
        for first in range(0, len(floats), ROWS_AT_A_TIME):
            seen = (floats[first : first + ROWS_AT_A_TIME] - self._mean) / self._std
            self.n_states += len(seen)
            sums["sum"] += seen.sum(axis=0)
            sums["squares"] += np.square(seen).sum(axis=0)
            sums["lowest"] = np.minimum(sums["lowest"], seen.min(axis=0))
            sums["highest"] = np.maximum(sums["highest"], seen.max(axis=0))

    @property
    def is_constant(self) -> npt.NDArray[np.bool_]:
        """(F,) whether a float had the same value in all states."""
        return self.sums["lowest"] == self.sums["highest"]  # type: ignore[no-any-return]

    def means_and_deviations(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (F,) means and (F,) standard deviations above 0, in the floats' own units.

        A constant float keeps its standard deviation in the layout. The time in the mini-race keeps both numbers: it
        is 0 while playing.

        Raises:
            ValueError: if there is no state.
        """
        if self.n_states == 0:
            raise ValueError("no state was added")
        sums = self.sums
        mean = sums["sum"] / self.n_states
        std = np.sqrt(np.maximum(sums["squares"] / self.n_states - np.square(mean), 0.0))
        furthest = np.maximum(sums["highest"] - mean, mean - sums["lowest"])
        std = np.where(self.is_constant, 1.0, np.maximum(std, furthest / MOST_DEVIATIONS))
        first = self._layout[FIRST_BLOCK]
        mean[first], std[first] = 0.0, 1.0
        return self._mean + self._std * mean, self._std * std

    def text(self, before: ObservationSettings, told: str) -> str:
        """Return the text of state_normalization.py.

        Args:
            before: settings whose statistics blocks keep that were not measured.
            told: a sentence on the measurement.
        """
        means, deviations = self.means_and_deviations()
        measured = {
            block.normalized_as: (_rounded(means[block.slice]), _rounded(deviations[block.slice]))
            for block in self._layout.own_blocks
        }
        comments = {block.normalized_as: f"{block.description}; {block.unit}" for block in self._layout.own_blocks}
        lines = ['"""Mean and standard deviation of every float of the observation, by block.', ""]
        lines += [textwrap.fill(told, COLUMNS), '"""', "", "# fmt: off", "state_normalization = {"]
        for name, statistics in {**before.state_normalization, **measured}.items():
            comment = comments.get(name, "Not measured: this observation leaves the block out")
            comment = f"{comment[0].upper()}{comment[1:]}."
            lines += textwrap.wrap(comment, COLUMNS, initial_indent="    # ", subsequent_indent="    # ")
            numbers = pprint.pformat(statistics, width=COLUMNS - 8, compact=True)
            lines += [f'    "{name}":', f"{textwrap.indent(numbers, '        ')},"]
        return "\n".join([*lines, "}", "# fmt: on\n"])


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)
