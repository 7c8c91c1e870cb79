import numpy as np
import pytest

from trackmania_rl.telemetry.racing_line import BACKGROUND, ROAD, draw_racing_line


def straight_line(n_points, along=(1.0, 0.0, 0.0)):
    return np.arange(n_points)[:, None] * 0.5 * np.array(along)


def draw(reference_line_m, positions_m):
    return draw_racing_line(
        reference_line_m, positions_m, ms_per_action=50, title="flat", subtitle="", road_width_m=16.0
    )


def is_coloured(picture):
    """Pixels of the driven line and the start: everything else is nearly gray."""
    return picture.max(axis=2).astype(int) - picture.min(axis=2) > 90


def test_the_line_lies_where_it_was_driven():
    # Driven along the second half of a straight, 4 m to the side of positive z, which is further down in the picture.
    positions_m = straight_line(200)[100:] + np.array([0.0, 0.0, 4.0])
    picture = draw(straight_line(200), positions_m.astype(np.float32))
    road_rows = np.flatnonzero((picture == ROAD).all(axis=2).sum(axis=1) > 100)
    rows, columns = np.nonzero(is_coloured(picture[: road_rows[-1]]) & (np.arange(picture.shape[1]) > 60))
    assert rows.mean() > (road_rows[0] + road_rows[-1]) / 2
    assert columns.min() > picture.shape[1] * 0.4
    assert columns.max() > picture.shape[1] * 0.9


def test_fast_is_red_and_slow_is_blue():
    slow_m = straight_line(200) * 0.5
    fast_m = slow_m[-1] + straight_line(100) * 4
    positions_m = np.concatenate([slow_m, fast_m])
    picture = draw(positions_m, positions_m).astype(int)
    legend_px = 56
    rows, columns = np.nonzero(is_coloured(picture[:-legend_px]))
    line = picture[rows, columns]
    left = (columns > columns.min() + 30) & (columns < picture.shape[1] * 0.15)
    right = columns > picture.shape[1] * 0.6
    assert (line[left, 2] > line[left, 0]).mean() > 0.9
    assert (line[right, 0] > line[right, 2]).mean() > 0.9


@pytest.mark.parametrize("n_positions", [1, 2])
@pytest.mark.parametrize("n_points", [1, 2, 500])
def test_short_races_and_lines_are_drawn(n_points, n_positions):
    picture = draw(straight_line(n_points, along=(0.0, 0.0, 1.0)), straight_line(n_positions))
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert (picture != BACKGROUND).any()


@pytest.mark.parametrize("shape", [(0, 3), (5, 2), (3,)])
def test_other_shapes_are_refused_by_name(shape):
    with pytest.raises(ValueError, match="positions_m has shape"):
        draw(straight_line(5), np.zeros(shape))
