"""Time won and lost by section, of a race against another race or a medal's time.

Sections end at checkpoints, or at equal parts of a line with few checkpoints. Races are lists of times at these ends.
A medal is one time for the whole map. Its sections are those of the best race, all scaled by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

N_PARTS: Final = 10
"""Equal parts of a line that has few checkpoints."""
FINISH: Final = "finish"

_NEARLY_M: Final = 1.0
"""Tolerance: the last state of a finished race is within a tick of the finish line."""


@dataclass(frozen=True)
class Section:
    """Section of a map.

    Attributes:
        name: of its end: "CP 1", ..., "finish".
        end_m: end along the line; NaN if unknown.
        end_ms: race times of A and B at the end.
        section_ms: times of A and B in the section.
    """

    name: str
    end_m: float
    end_ms: tuple[int, int]
    section_ms: tuple[int, int]

    @property
    def lost_ms(self) -> int:
        """Time that B loses to A in the section; negative if it wins."""
        return self.section_ms[1] - self.section_ms[0]

    @property
    def behind_ms(self) -> int:
        """Time that B is behind A at the end."""
        return self.end_ms[1] - self.end_ms[0]


def compare_sections(
    a_end_ms: Sequence[int], b_end_ms: Sequence[int], names: Sequence[str], ends_m: Sequence[float] | None = None
) -> tuple[Section, ...]:
    """Compare race B with race A, as far as both came.

    Args:
        a_end_ms: race times of A at the ends.
        b_end_ms: race times of B at the ends.
        names: of the ends.
        ends_m: ends along the line, if known.
    """
    sections: list[Section] = []
    before_ms = (0, 0)
    ends_m = [math.nan] * len(names) if ends_m is None else ends_m
    for name, end_m, a_ms, b_ms in zip(names, ends_m, a_end_ms, b_end_ms, strict=False):
        section_ms = (a_ms - before_ms[0], b_ms - before_ms[1])
        before_ms = (a_ms, b_ms)
        sections.append(Section(name, end_m, before_ms, section_ms))
    return tuple(sections)


def checkpoint_names(n_ends: int, *, last_is_finish: bool = True) -> list[str]:
    """Name the ends of sections. The last end is the finish if the race reached it."""
    names = [f"CP {number}" for number in range(1, n_ends + 1)]
    return [*names[:-1], FINISH] if last_is_finish and names else names


def equal_parts(length_m: float, n_parts: int = N_PARTS) -> npt.NDArray[np.float64]:
    """Return the ends of equal parts of a line, (n_parts,) in metres."""
    return length_m * np.arange(1, n_parts + 1) / n_parts


def part_names(ends_m: Sequence[float] | npt.NDArray[np.float64]) -> list[str]:
    """Name the ends of parts by their distance; the last one is the finish."""
    return [*(f"{end_m:.0f} m" for end_m in ends_m[:-1]), FINISH]


def times_at(
    ends_m: npt.NDArray[np.float64], meters: npt.NDArray[np.floating], time_ms: npt.NDArray[np.integer]
) -> list[int]:
    """Return the times at which a race first reached distances, for those that it reached.

    Args:
        ends_m: (K,) ascending.
        meters: (S,) distance at each state, `LiveRace.meters_advanced`.
        time_ms: (S,) race times of the states.
    """
    furthest_m = np.maximum.accumulate(meters.astype(np.float64))
    is_new = np.diff(furthest_m, prepend=-np.inf) > 0
    reached_m = ends_m[ends_m <= furthest_m[-1] + _NEARLY_M]
    return np.rint(np.interp(reached_m, furthest_m[is_new], time_ms[is_new])).astype(int).tolist()


def spread_time(total_ms: int, best_end_ms: Sequence[int]) -> list[int]:
    """Spread a medal's time over sections in proportion to the best race.

    Args:
        total_ms: time of the medal.
        best_end_ms: race times of the best race at the ends; the last one is its finish.

    Returns:
        Race times at the ends; the last one is `total_ms`.
    """
    return [round(end_ms * total_ms / best_end_ms[-1]) for end_ms in best_end_ms]
