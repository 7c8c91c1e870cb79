"""Time won and lost by section: of a race against another one, or against a medal's time.

Sections lie between a map's checkpoints, whose times every race has in `races.jsonl`; where a map has few, in equal
parts of its line. Both are lists of times, at which a race passed the sections' ends::

    best, race = best_line["checkpoint_times_ms"], line["checkpoint_times_ms"]
    sections = compare_sections(best, race, checkpoint_names(len(best)))
    against_gold = compare_sections(spread_time(gold_ms, best), race, checkpoint_names(len(best)))

A medal is one time for the whole map, so its sections are those of the best race, all slower (or faster) by the same
factor: a driver of the medal's time who loses everywhere alike. Spread by length instead, every slow corner would look
lost and every straight won, whoever drives. Against such a driver, a section with less lost than the others is one
that is driven well.
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
"""So much before an end counts as there: the last state of a finished race is the finish line, give or take a tick."""


@dataclass(frozen=True)
class Section:
    """The way from one checkpoint, part's end or the start to the next one or the finish.

    Attributes:
        name: of its end: "CP 1", ..., "finish".
        end_m: where it ends, along the line; NaN where that is not known.
        end_ms: race times at its end, of the race that is compared with (A), and of the one that is compared (B).
        section_ms: times of A and B for this section alone.
    """

    name: str
    end_m: float
    end_ms: tuple[int, int]
    section_ms: tuple[int, int]

    @property
    def lost_ms(self) -> int:
        """What B loses on A in this section; negative if it wins."""
        return self.section_ms[1] - self.section_ms[0]

    @property
    def behind_ms(self) -> int:
        """How far B lies behind A at its end."""
        return self.end_ms[1] - self.end_ms[0]


def compare_sections(
    a_end_ms: Sequence[int], b_end_ms: Sequence[int], names: Sequence[str], ends_m: Sequence[float] | None = None
) -> tuple[Section, ...]:
    """Compare race B with race A, as far as both came.

    Args:
        a_end_ms: race times of A at the sections' ends, in their order.
        b_end_ms: likewise of B.
        names: of the ends.
        ends_m: where the ends are, if that is known.
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
    """Name the ends of a race's sections; the last one is the finish if it came there."""
    names = [f"CP {number}" for number in range(1, n_ends + 1)]
    return [*names[:-1], FINISH] if last_is_finish and names else names


def equal_parts(length_m: float, n_parts: int = N_PARTS) -> npt.NDArray[np.float64]:
    """Return where equal parts of a line end, (n_parts,) metres; the last one at its end."""
    return length_m * np.arange(1, n_parts + 1) / n_parts


def part_names(ends_m: Sequence[float] | npt.NDArray[np.float64]) -> list[str]:
    """Name the ends of parts by their distance; the last one is the finish."""
    return [*(f"{end_m:.0f} m" for end_m in ends_m[:-1]), FINISH]


def times_at(
    ends_m: npt.NDArray[np.float64], meters: npt.NDArray[np.floating], time_ms: npt.NDArray[np.integer]
) -> list[int]:
    """Return when a race first was so far, for those of the ends that it reached.

    Args:
        ends_m: (K,) ascending.
        meters: (S,) how far it was at each of its states, as `LiveRace.meters_advanced`.
        time_ms: (S,) the race times of the states.
    """
    furthest_m = np.maximum.accumulate(meters.astype(np.float64))
    is_new = np.diff(furthest_m, prepend=-np.inf) > 0
    reached_m = ends_m[ends_m <= furthest_m[-1] + _NEARLY_M]
    return np.rint(np.interp(reached_m, furthest_m[is_new], time_ms[is_new])).astype(int).tolist()


def spread_time(total_ms: int, best_end_ms: Sequence[int]) -> list[int]:
    """Spread a medal's time over sections, in proportion to the best race; see the head of this module.

    Args:
        total_ms: the medal's time.
        best_end_ms: race times of the best race at the sections' ends; the last one is its finish.

    Returns:
        Race times at the sections' ends; the last one is `total_ms`.
    """
    return [round(end_ms * total_ms / best_end_ms[-1]) for end_ms in best_end_ms]
