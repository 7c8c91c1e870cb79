"""The ribbon: how it is built over a line, where points are on it, and what is underneath."""

import numpy as np
import pytest

from trackmania_rl.simulator.tracks.world import (
    VERGE_WIDTH_M,
    Edge,
    Surface,
    build_ribbon,
    ground_at,
    has_wall,
    locate,
)


def left_arc(radius_m: float = 50.0, n: int = 300) -> np.ndarray:
    """A level line that starts to +z and turns left, towards +x."""
    angle = np.arange(n) * 0.5 / radius_m
    return np.stack([radius_m * (1 - np.cos(angle)), np.zeros(n), radius_m * np.sin(angle)], axis=1)


STRAIGHT = np.stack([np.zeros(400), np.zeros(400), 0.5 * np.arange(400)], axis=1)


def test_axes_are_right_handed_unit_vectors_and_positive_banking_lowers_the_left_border():
    ribbon = build_ribbon(left_arc(), banking_rad=0.1)
    for axes in (ribbon.forward, ribbon.left, ribbon.up):
        np.testing.assert_allclose(np.linalg.norm(axes, axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.cross(ribbon.left, ribbon.up), ribbon.forward, atol=1e-12)
    banked = build_ribbon(STRAIGHT, banking_rad=0.2)
    np.testing.assert_allclose(banked.left[100], [np.cos(0.2), -np.sin(0.2), 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (np.zeros((1, 3)), "N >= 2"),
        (np.full((5, 3), np.nan), "finite"),
        (STRAIGHT * 4.0, "2.000 m apart"),
        (STRAIGHT[:, [0, 2, 1]], "nearly vertical"),
    ],
)
def test_what_is_no_road_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        build_ribbon(line)
    with pytest.raises(ValueError, match="surface has shape"):
        build_ribbon(STRAIGHT, surface=np.zeros(7))
    with pytest.raises(ValueError, match="half_width_m has a value of -1"):
        build_ribbon(STRAIGHT, half_width_m=-1.0)


def test_locate_finds_points_set_out_from_the_road():
    ribbon = build_ribbon(left_arc(), banking_rad=0.15)
    generator = np.random.default_rng(1)
    hint = 80
    for index in range(82, 370, 3):
        lateral, height = generator.uniform(-8, 8), generator.uniform(0, 2)
        point = ribbon.center_m[index] + lateral * ribbon.left[index] + height * ribbon.up[index]
        place = locate(ribbon.sections, hint, *point)
        assert place.section in (index - 1, index)
        assert place.lateral_m == pytest.approx(lateral, abs=1e-6)
        assert place.height_m == pytest.approx(height, abs=1e-6)
        assert place.station_m == pytest.approx(ribbon.station_m[index], abs=1e-6)
        hint = place.section


def test_ground_on_road_verge_and_beyond():
    ribbon = build_ribbon(STRAIGHT, half_width_m=8.0, edge=Edge.GRASS, surface=Surface.DIRT)

    def ground(x):
        return ground_at(ribbon.sections, locate(ribbon.sections, 100, x, 0.5, 10.0))

    assert (ground(7.9).exists, ground(7.9).material, ground(7.9).height_m) == (True, Surface.DIRT, pytest.approx(0.5))
    assert (ground(8.1).exists, ground(8.1).material) == (True, Surface.GRASS)
    assert ground(-8.1).height_m == pytest.approx(0.5)
    assert not ground(8.0 + VERGE_WIDTH_M + 0.1).exists


def test_verge_of_a_banked_road_is_level_and_starts_at_its_border():
    ribbon = build_ribbon(STRAIGHT, half_width_m=8.0, edge=Edge.GRASS, banking_rad=0.3)
    for side in (1.0, -1.0):
        border = ribbon.center_m[100] + side * 8.0 * ribbon.left[100]
        ground = ground_at(ribbon.sections, locate(ribbon.sections, 100, *(border + np.array([side * 3.0, 1.0, 0.0]))))
        assert ground.material == Surface.GRASS
        np.testing.assert_allclose(ground.normal, [0.0, 1.0, 0.0], atol=1e-12)
        assert ground.height_m == pytest.approx(1.0)


def test_gaps_have_neither_ground_nor_walls():
    has_road = np.ones(400, dtype=bool)
    has_road[100:120] = False
    ribbon = build_ribbon(STRAIGHT, has_road=has_road)
    in_gap, on_road = locate(ribbon.sections, 80, 0.0, 0.5, 55.0), locate(ribbon.sections, 80, 0.0, 0.5, 45.0)
    assert not ground_at(ribbon.sections, in_gap).exists
    assert not has_wall(ribbon.sections, in_gap)
    assert ground_at(ribbon.sections, on_road).exists
    assert has_wall(ribbon.sections, on_road)
