"""Variants held against the first one, run by run: the same track and the same seed make a pair.

Tracks differ far more than variants do, so differences are taken within pairs before they are averaged. Their standard
error says how much of a difference may be chance: two runs of one seed and one setting differ as well, since collectors
and learner run freely beside each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.driving.score import RunFigures

RunKey = tuple[str, int]
"""Track and seed of a run."""


@dataclass(frozen=True)
class Difference:
    """A variant's figure less the first variant's, over the pairs.

    Attributes:
        mean: of the pairs' differences.
        standard_error: of that mean: the differences' standard deviation / sqrt(pairs); inf with one pair.
        of_pairs: each pair's difference.
    """

    mean: float
    standard_error: float
    of_pairs: tuple[float, ...]

    @classmethod
    def of(cls, differences: Sequence[float]) -> Difference:
        """Of at least one pair."""
        n_pairs = len(differences)
        error = statistics.stdev(differences) / math.sqrt(n_pairs) if n_pairs > 1 else math.inf
        return cls(statistics.fmean(differences), error, tuple(differences))


@dataclass(frozen=True)
class Comparison:
    """One variant beside the first one, over the runs that both have.

    Attributes:
        variant: its name.
        n_pairs: runs of it with a run of the first variant of the same track, seed and length.
        frames: mean of those runs' actions.
        last_minute_score: mean of `RunFigures.last_minute_score`.
        mean_score: mean of `RunFigures.mean_score`.
        last_minute_difference: of the former to the first variant's; nothing but zeros for that one itself.
        mean_difference: of the latter.
    """

    variant: str
    n_pairs: int
    frames: float
    last_minute_score: float
    mean_score: float
    last_minute_difference: Difference
    mean_difference: Difference


def compare(runs: Mapping[str, Mapping[RunKey, RunFigures]]) -> list[Comparison]:
    """Hold each variant's runs against the first variant's.

    Args:
        runs: by variant, then by track and seed.

    Returns:
        The variants in the order given, those left out that share no run with the first.
    """
    first_runs = next(iter(runs.values()))
    comparisons = []
    for variant, own in runs.items():
        pairs = [
            (figures, first_runs[key])
            for key, figures in own.items()
            if key in first_runs and first_runs[key].minutes == figures.minutes
        ]
        if not pairs:
            continue
        comparisons.append(
            Comparison(
                variant=variant,
                n_pairs=len(pairs),
                frames=statistics.fmean(one.frames for one, _ in pairs),
                last_minute_score=statistics.fmean(one.last_minute_score for one, _ in pairs),
                mean_score=statistics.fmean(one.mean_score for one, _ in pairs),
                last_minute_difference=Difference.of(
                    [one.last_minute_score - first.last_minute_score for one, first in pairs]
                ),
                mean_difference=Difference.of([one.mean_score - first.mean_score for one, first in pairs]),
            )
        )
    return comparisons
