"""Totals over the map cycle."""

import pytest

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.settings import MapEntry
from trackmania_rl.telemetry.cycle_figures import cycle_figures, trained_and_blind
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import TrainingStatistics


def entry(name: str, *, fill_buffer: bool = True) -> MapEntry:
    return MapEntry(map_name=name, is_explo=False, fill_buffer=fill_buffer)


CYCLE = (entry("valley"), entry("kart"), entry("valley", fill_buffer=False), entry("ring", fill_buffer=False))


def evaluate(
    run: TrainingStatistics, name: str, time_ms: int, *, is_explo: bool = False, finished: bool = True
) -> None:
    run.add_race(RaceRecord(name, is_explo, 0, finished, time_ms, 10.0, 5, 20, None if finished else "too_long"))


def test_a_map_that_is_trained_on_once_is_not_blind() -> None:
    assert trained_and_blind(CYCLE) == ({"valley", "kart"}, {"ring"})


def test_times_are_added_up_when_all_maps_have_one() -> None:
    run = TrainingStatistics()
    assert cycle_figures(run, CYCLE) == {}
    evaluate(run, "valley", 20_000)
    evaluate(run, "kart", 10_000, is_explo=True)
    assert cycle_figures(run, CYCLE) == {"rollout/cycle/finish_rate/trained": 1.0}
    evaluate(run, "kart", 60_000, finished=False)
    evaluate(run, "kart", 12_000)
    evaluate(run, "ring", 60_000, finished=False)
    assert cycle_figures(run, CYCLE) == {
        "rollout/cycle/finish_rate/trained": 0.75,
        "rollout/cycle/best_time_s/trained": 32.0,
        "rollout/cycle/finish_rate/blind": 0.0,
    }


def test_ratios_are_of_the_maps_with_a_time_to_beat() -> None:
    run = TrainingStatistics()
    run.reference_times = {
        "valley": MedalTimes(19_000, 22_000, None, None),
        "ring": MedalTimes(None, 30_000, None, None),
    }
    evaluate(run, "valley", 20_900)
    figures = cycle_figures(run, CYCLE)
    assert (
        figures["rollout/cycle/best_over_author/trained"]
        == figures["rollout/cycle/median_over_author/trained"]
        == pytest.approx(1.1)
    )
    assert figures["rollout/cycle/best_over_gold/trained"] == pytest.approx(0.95)
    assert "rollout/cycle/best_time_s/trained" not in figures, "kart has no time"
    assert not any(name.endswith("/blind") for name in figures)
    evaluate(run, "ring", 33_000)
    figures = cycle_figures(run, CYCLE)
    assert figures["rollout/cycle/median_over_gold/blind"] == pytest.approx(1.1)
    assert "rollout/cycle/median_over_author/blind" not in figures
