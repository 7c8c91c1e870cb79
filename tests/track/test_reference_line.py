"""Loading, extending and smoothing reference lines."""

import numpy as np
import pytest

from trackmania_rl.track.game_map import extend_and_smooth
from trackmania_rl.track.reference_line import ReferenceLineError, load_reference_line

SPACING_M = 0.5


def _straight(n=40):
    return np.arange(n)[:, None] * np.array([0.3, 0.0, 0.4])


def _saved(path, array):
    np.save(path, array)
    return path


def test_a_good_line_loads_unchanged(tmp_path):
    line = load_reference_line(_saved(tmp_path / "line.npy", _straight()), SPACING_M)
    assert line.dtype == np.float64
    np.testing.assert_array_equal(line, _straight())


def test_single_long_and_short_steps_are_resampled_with_one_notice(tmp_path, caplog):
    line = np.delete(_straight(200), (50, 51), axis=0)  # one step of 1.5 m
    line = np.insert(line, 120, line[120], axis=0)  # and one of 0 m
    path = _saved(tmp_path / "line.npy", line)
    for _ in range(2):
        loaded = load_reference_line(path, SPACING_M)
        np.testing.assert_allclose(np.linalg.norm(np.diff(loaded, axis=0), axis=1), SPACING_M, rtol=1e-6)
        np.testing.assert_allclose(loaded[[0, -1]], line[[0, -1]])
    (record,) = caplog.records
    for said in (str(path), "points 49 and 50 are 1.500 m apart", "2 of 198 steps", "line --resample"):
        assert said in record.getMessage()


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (_straight()[:, :2], r"shape \(40, 2\)"),
        (np.zeros((4, 3), dtype="U3"), "dtype"),
        (np.where(np.arange(40)[:, None] == 7, np.nan, _straight()), "1 points are not finite, the first is number 7"),
        (np.zeros((40, 3)), r"points 0 and 1 are 0\.000 m apart"),
        (np.delete(_straight(200), range(50, 61), axis=0), r"6\.000 m apart .* line --resample"),
    ],
)
def test_a_wrong_line_is_explained(tmp_path, array, says):
    path = _saved(tmp_path / "line.npy", array)
    with pytest.raises(ReferenceLineError, match=says) as caught:
        load_reference_line(path, SPACING_M)
    assert str(path) in str(caught.value)


def test_a_line_is_extended_straight_on_and_smoothed_by_points_five_places_away():
    line = np.cumsum(np.random.default_rng(0).normal(size=(60, 3)), axis=0)
    smoothed = extend_and_smooth(line, 7, 9)
    before = [line[0] + k * (line[0] - line[1]) for k in range(7, 0, -1)]
    after = [line[-1] + k * (line[-1] - line[-2]) for k in range(1, 10)]
    extended = before + list(line) + after
    for i, point in enumerate(smoothed):
        inner = 5 <= i < len(extended) - 5
        expected = (extended[i - 5] + extended[i + 5]) / 2 if inner else extended[i]
        np.testing.assert_allclose(point, expected, atol=1e-12)
