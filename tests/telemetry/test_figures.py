"""What figures are made of a race, and of quantities."""

import math

import numpy as np
import pytest
import torch

from trackmania_rl.telemetry.figures import quantile_figures, race_figures, value_figures
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import RaceHistory


def figures_of(*, is_explo: bool = False, is_generated: bool = False) -> dict[str, float]:
    times_ms = (8_000, 21_000, 40_000)
    race = RaceRecord(
        map_name="valley",
        is_explo=is_explo,
        collector=0,
        race_finished=True,
        race_time_ms=40_000,
        meters=900.0,
        furthest_zone=7,
        n_actions=800,
        cutoff_reason=None,
        is_generated=is_generated,
        checkpoint_times_ms=times_ms,
    )
    history = RaceHistory()
    history.add(race)
    return race_figures(race, history, q_values=np.array([[1.0, 3.0, 2.5], [0.0, -2.0, -4.0]], np.float32))


def test_splits_are_those_of_evaluated_races_on_one_track() -> None:
    splits = {name: value for name, value in figures_of().items() if name.startswith("rollout/split")}
    assert splits == {
        "rollout/split_1_s/evaluated/valley": 8.0,
        "rollout/split_2_s/evaluated/valley": 13.0,
        "rollout/split_3_s/evaluated/valley": 19.0,
    }
    assert not any(
        name.startswith("rollout/split") for name in figures_of(is_explo=True) | figures_of(is_generated=True)
    )


def test_values_of_a_race() -> None:
    figures = figures_of(is_explo=True)
    assert figures["rollout/mean_q/explored/valley"] == pytest.approx(0.5 / 6)
    assert figures["rollout/mean_value/explored/valley"] == pytest.approx(1.5)
    assert figures["rollout/action_gap/explored/valley"] == pytest.approx((0.5 + 2.0) / 2)


def test_an_agent_without_values_has_none() -> None:
    assert value_figures(np.full((4, 1), np.nan, np.float32)) == {}
    assert value_figures(np.ones((4, 1), np.float32)) == {"mean_q": 1.0, "mean_value": 1.0}


def test_quantiles_are_of_what_is_finite() -> None:
    values = torch.tensor([4.0, 0.0, math.inf, 1.0, 3.0, math.nan, 2.0])
    assert quantile_figures("norm", values, ("q1", "median", "max")) == {"norm_q1": 1, "norm_median": 2, "norm_max": 4}
    assert quantile_figures("norm", values[2:3]) == quantile_figures("norm", torch.zeros(0)) == {}
