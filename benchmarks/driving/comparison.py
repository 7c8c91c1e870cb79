"""Variants held against one of them, run by run: the same track and the same seed make a pair.

Tracks differ far more than variants do, so differences are taken within pairs before they are averaged. Their standard
error says how much of a difference may be chance: two runs of one seed and one setting differ as well, since collectors
and learner run freely beside each other. Runs of two folders make no pair: a machine's speed is not the same for long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.driving.results import RunResult
from trackmania_rl.errors import UserError


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
    """One variant beside another, over the runs that both have.

    Attributes:
        variant: its name.
        n_pairs: runs of it beside which the other has one of the same track, seed and length.
        frames: mean of those runs' actions.
        last_minute_score: mean of `RunFigures.last_minute_score`.
        mean_score: mean of `RunFigures.mean_score`.
        last_minute_difference: of the former to the other's; nothing but zeros for that one itself.
        mean_difference: of the latter.
    """

    variant: str
    n_pairs: int
    frames: float
    last_minute_score: float
    mean_score: float
    last_minute_difference: Difference
    mean_difference: Difference


def check_against(against: str | None, variants: Sequence[str]) -> None:
    """Raise UserError if the others are to be held against a variant that there is not; None is for any."""
    if against is not None and against not in variants:
        names = ", ".join(dict.fromkeys(variants))
        raise UserError(f"--against {against}: there is no such variant, only {names}")


def compare(folders: Sequence[Sequence[RunResult]], against: str) -> list[Comparison]:
    """Hold each variant's runs against one variant's of the same folder.

    Args:
        folders: the runs of each.
        against: name of a variant.

    Returns:
        That variant and then the others, in the order in which they come; none for those that share no run with it.
    """
    pairs: dict[str, list[tuple[RunResult, RunResult]]] = {against: []}
    for results in folders:
        base = {(one.track, one.seed, one.minutes): one for one in results if one.variant == against}
        for one in results:
            if (key := (one.track, one.seed, one.minutes)) in base:
                pairs.setdefault(one.variant, []).append((one, base[key]))
    return [
        Comparison(
            variant=variant,
            n_pairs=len(own),
            frames=statistics.fmean(one.frames for one, _ in own),
            last_minute_score=statistics.fmean(one.last_minute_score for one, _ in own),
            mean_score=statistics.fmean(one.mean_score for one, _ in own),
            last_minute_difference=Difference.of([one.last_minute_score - base.last_minute_score for one, base in own]),
            mean_difference=Difference.of([one.mean_score - base.mean_score for one, base in own]),
        )
        for variant, own in pairs.items()
        if own
    ]
