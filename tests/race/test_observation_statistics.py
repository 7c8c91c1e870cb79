"""Measured means and deviations of the observation."""

import numpy as np
import pytest

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_statistics import MOST_DEVIATIONS, ObservationStatistics
from trackmania_rl.settings import load_settings

N = 20_001


def random_floats(layout: ObservationLayout) -> np.ndarray:
    """States whose floats have means and deviations of their own; one rarely changes, two never do."""
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(0, 2, layout.float_input_dim))
    floats = (scale * (rng.normal(0, 5, layout.float_input_dim) + rng.standard_normal((N, len(scale))))).astype("f4")
    for name, value in (("mini_race_time_actions", 0), ("is_freewheeling", 0), ("gear", 3), ("gearbox_state", 0)):
        floats[:, layout[name]] = value
    floats[7, layout["gearbox_state"]] = 1
    return floats


def test_means_and_deviations_are_those_of_all_states(repository_root):
    settings = load_settings(repository_root / "config_files" / "config.py").observation
    layout = ObservationLayout.from_settings(settings)
    floats, statistics = random_floats(layout), ObservationStatistics(layout)
    for part in np.array_split(floats, [17, 5000]):
        statistics.add(part)
    means, deviations = statistics.means_and_deviations()
    first, gear, rare = (layout.index(name) for name in ("mini_race_time_actions", "gear", "gearbox_state"))
    usual = np.setdiff1d(np.arange(len(means)), [first, gear, rare, layout.index("is_freewheeling")])
    np.testing.assert_allclose(means[usual], floats.mean(axis=0, dtype=np.float64)[usual], rtol=1e-6)
    np.testing.assert_allclose(deviations[usual], floats.std(axis=0, dtype=np.float64)[usual], rtol=1e-6)
    assert (means[first], deviations[first]) == (layout.mean[first], layout.std[first]), "it is set when sampled"
    assert (means[gear], deviations[gear]) == (pytest.approx(3), pytest.approx(layout.std[gear]))
    assert means[rare] == pytest.approx(1 / N)
    assert (1 - means[rare]) / deviations[rare] == pytest.approx(MOST_DEVIATIONS)
    assert np.flatnonzero(statistics.is_constant).tolist() == [first, gear, layout.index("is_freewheeling")]
