"""Variants held against the first one: pairs of hand-made runs."""

import math
import statistics

import pytest


def figures(last_minute, mean, minutes=2, frames=500):
    from benchmarks.driving.score import Milestone, RunFigures

    return RunFigures(
        minutes=minutes,
        score_by_minute=(mean,) * minutes,
        frames_by_minute=(frames,) * minutes,
        first_finish=Milestone(),
        regular_finish=Milestone(),
        beats_scripted=Milestone(),
        best_ms=None,
        n_greedy=7,
        frames=frames,
        last_minute_score=last_minute,
    )


def test_differences_are_taken_between_runs_of_the_same_track_and_seed():
    from benchmarks.driving.comparison import Difference, compare

    base = {("valley", 3): figures(0.5, 0.4), ("ring", 3): figures(0.9, 0.8), ("ring", 4): figures(0.7, 0.6)}
    other = {
        ("ring", 4): figures(0.8, 0.7, frames=900),
        ("valley", 3): figures(0.7, 0.4, frames=700),
        ("kart", 3): figures(0.1, 0.1),  # the first variant has no such run
        ("ring", 3): figures(0.2, 0.2, minutes=5),  # of another length
    }
    first, second = compare({"base": base, "other": other})
    assert (first.variant, first.n_pairs, first.frames) == ("base", 3, 500)
    assert first.last_minute_difference == first.mean_difference == Difference(0.0, 0.0, (0.0, 0.0, 0.0))
    assert (first.last_minute_score, first.mean_score) == (pytest.approx(0.7), pytest.approx(0.6))
    assert (second.variant, second.n_pairs, second.frames) == ("other", 2, 800)
    assert (second.last_minute_score, second.mean_score) == (pytest.approx(0.75), pytest.approx(0.55))
    assert second.last_minute_difference.mean == pytest.approx(0.15)
    assert second.last_minute_difference.standard_error == pytest.approx(statistics.stdev([0.1, 0.2]) / math.sqrt(2))
    assert second.mean_difference.mean == pytest.approx(0.05)


def test_one_pair_has_no_standard_error_and_a_variant_without_pairs_no_line():
    from benchmarks.driving.comparison import compare
    from benchmarks.driving.report import comparison_table

    comparisons = compare(
        {
            "base": {("valley", 3): figures(0.5, 0.4)},
            "other": {("valley", 3): figures(0.25, 0.5)},
            "alone": {("valley", 4): figures(0.25, 0.5)},
        }
    )
    assert [one.variant for one in comparisons] == ["base", "other"]
    assert comparison_table(comparisons) == [
        ["variant", "runs", "frames", "last minute", "less base", "mean", "less base"],
        ["base", "1", "500", "0.500", "", "0.400", ""],
        ["other", "1", "500", "0.250", "-0.250", "0.500", "+0.100"],
    ]


def test_the_table_has_standard_errors():
    from benchmarks.driving.comparison import compare
    from benchmarks.driving.report import comparison_table

    base = {("valley", seed): figures(0.5, 0.5) for seed in (3, 4, 5, 6)}
    other = {("valley", seed): figures(0.6 if seed < 5 else 0.8, 0.5) for seed in (3, 4, 5, 6)}
    assert comparison_table(compare({"base": base, "other": other}))[-1] == [
        *("other", "4", "500", "0.700", "+0.200 ± 0.058", "0.500", "+0.000 ± 0.000"),
    ]
