"""Means and standard deviations of every float of the observation, measured, as state_normalization.py has them."""

from __future__ import annotations

import textwrap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.observation import FIRST_BLOCK, ObservationLayout
from trackmania_rl.settings import ObservationSettings

MOST_DEVIATIONS: Final = 10.0
"""No value measured is further than so many standard deviations from the mean: what is nearly always 0 would otherwise
be huge for the network where it is not."""
ROWS_AT_A_TIME: Final = 10_000
NUMBERS_PER_LINE: Final = 12
COLUMNS: Final = 120

Statistics = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""block: (means, standard deviations)"""


class ObservationStatistics:
    """Sums over states, from which means and deviations follow.

    Args:
        layout: of the states, whose own floats are measured: views take the numbers of what they look at.

    Attributes:
        n_states: how many were added.
        sums: by name, (F,) float64 each, in standard deviations of the layout from its means: `sum`, `squares` (their
            sum), `lowest` and `highest`.
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
        """(F,) whether a float had one value in all states."""
        return self.sums["lowest"] == self.sums["highest"]  # type: ignore[no-any-return]

    def means_and_deviations(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (F,) means and (F,) standard deviations above 0, in the floats' own units.

        A float that never changed keeps the standard deviation that it has. No value is further than
        `MOST_DEVIATIONS` from the mean. The time in the mini-race keeps both: it is 0 while driving.

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

    def normalization(self, before: ObservationSettings) -> Statistics:
        """Return what state_normalization.py is to hold: blocks that the observation leaves out are as they were."""
        means, deviations = self.means_and_deviations()
        measured = {
            block.normalized_as: (_rounded(means[block.slice]), _rounded(deviations[block.slice]))
            for block in self._layout.own_blocks
        }
        return {**before.state_normalization, **measured}

    def text(self, before: ObservationSettings, told: str) -> str:
        """Write state_normalization.py.

        Args:
            before: settings whose statistics blocks keep that were not measured.
            told: what was measured, in a sentence.
        """
        comments = {block.normalized_as: f"{block.description}; {block.unit}" for block in self._layout.own_blocks}
        lines = ['"""Mean and standard deviation of every float of the observation, by block.', ""]
        lines += [textwrap.fill(told, COLUMNS), '"""', "", "# fmt: off", "state_normalization = {"]
        for name, statistics in self.normalization(before).items():
            comment = comments.get(name, "Not measured: this observation leaves the block out")
            comment = f"{comment[0].upper()}{comment[1:]}."
            lines += textwrap.wrap(comment, COLUMNS, initial_indent="    # ", subsequent_indent="    # ")
            lines += [f'    "{name}": (', *map(_written, statistics), "    ),"]
        return "\n".join([*lines, "}", "# fmt: on\n"])


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


def _written(values: tuple[Any, ...]) -> str:
    """Write numbers as a tuple, so many in each line."""
    if len(set(values)) == 1:
        return f"        ({values[0]!r},)" + (f" * {len(values)}," if len(values) > 1 else ",")
    if len(values) <= NUMBERS_PER_LINE:
        return f"        ({', '.join(map(repr, values))}),"
    lines = [values[i : i + NUMBERS_PER_LINE] for i in range(0, len(values), NUMBERS_PER_LINE)]
    numbers = "".join(f"            {', '.join(map(repr, line))},\n" for line in lines)
    return f"        (\n{numbers}        ),"
