"""Measured means and deviations: what they are, and that the configuration reads the file."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_statistics import MOST_DEVIATIONS, ObservationStatistics
from trackmania_rl.settings import ObservationSettings, load_settings

N = 20_001


@pytest.fixture(scope="module")
def settings(repository_root: Path) -> ObservationSettings:
    return load_settings(repository_root / "config_files" / "config.py").observation


@pytest.fixture(scope="module")
def layout(settings: ObservationSettings) -> ObservationLayout:
    return ObservationLayout.from_settings(settings)


@pytest.fixture(scope="module")
def floats(layout: ObservationLayout) -> np.ndarray:
    """States whose floats have means and deviations of their own; one rarely changes, two never do."""
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(0, 2, layout.float_input_dim))
    floats = (scale * (rng.normal(0, 5, layout.float_input_dim) + rng.standard_normal((N, len(scale))))).astype("f4")
    floats[:, layout["mini_race_time_actions"]] = 0
    floats[:, layout["is_freewheeling"]] = 0
    floats[:, layout["gear"]] = 3
    floats[:, layout["gearbox_state"]] = 0
    floats[7, layout["gearbox_state"]] = 1
    return floats


@pytest.fixture(scope="module")
def statistics(layout: ObservationLayout, floats: np.ndarray) -> ObservationStatistics:
    statistics = ObservationStatistics(layout)
    for part in np.array_split(floats, [17, 5000]):
        statistics.add(part)
    return statistics


def test_means_and_deviations_are_those_of_all_states(layout, floats, statistics):
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


def test_the_configuration_reads_what_was_written(settings, layout, statistics, repository_root, tmp_path):
    shutil.copytree(repository_root / "config_files", tmp_path, dirs_exist_ok=True)
    (tmp_path / "state_normalization.py").write_text(statistics.text(settings, "Measured in a test."))
    read = load_settings(tmp_path / "config.py").observation
    assert read.state_normalization == statistics.normalization(settings)
    new = ObservationLayout.from_settings(read)
    means, deviations = statistics.means_and_deviations()
    np.testing.assert_allclose(new.mean, means, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(new.std, deviations, rtol=1e-3)
    assert read.state_normalization["range_finder_m"] == settings.state_normalization["range_finder_m"], "left out"
    assert max(map(len, (tmp_path / "state_normalization.py").read_text().splitlines())) <= 120
