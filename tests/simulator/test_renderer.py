"""The simulated game's picture: the same bytes for the same pose, at any size and pose."""

import cv2
import numpy as np
import pytest

from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Surface, Track, build_ribbon

WIDTH_PX, HEIGHT_PX = 160, 120


def car_pose(ribbon, station_m):
    """Position, rotation and section of a car on the middle of the road."""
    section = int(np.searchsorted(ribbon.station_m, station_m - 1e-6))
    rotation = np.stack([ribbon.left[section], ribbon.up[section], ribbon.forward[section]], axis=1)
    return ribbon.center_m[section] + 0.01 * ribbon.up[section], rotation, section


def gray(frame):
    return cv2.cvtColor(frame, cv2.COLOR_BGRA2GRAY).astype(int)


@pytest.fixture(scope="module")
def eventful_track():
    """Every surface and edge, hills, banks, a gap, gates."""
    index = np.arange(1200)
    slope = 0.15 * np.sin(index / 40.0)
    heading = np.cumsum(0.02 * np.sin(index / 70.0))
    level = np.sqrt(1.0 - slope**2)
    steps = RIBBON_SPACING_M * np.stack([level * np.sin(heading), slope, level * np.cos(heading)], axis=1)
    surfaces = np.array([surface.value for surface in Surface])
    ribbon = build_ribbon(
        np.array([800.0, 60.0, 800.0]) + np.cumsum(steps, axis=0),
        half_width_m=8.0 + 3.0 * np.sin(index / 100.0),
        banking_rad=0.4 * np.sin(index / 55.0),
        surface=surfaces[index // 60 % len(surfaces)],
        edge=index // 90 % len(Edge),
        has_road=index % 250 > 30,
    )
    return Track("test", ribbon, (60.0, 200.0, 400.0), 580.0)


def test_same_pose_gives_the_same_bytes_whatever_was_drawn_before(eventful_track):
    renderer = Renderer(eventful_track)
    pose, other = car_pose(eventful_track.ribbon, 100.0), car_pose(eventful_track.ribbon, 300.0)
    first = renderer.render(*pose, WIDTH_PX, HEIGHT_PX)
    kept = first.copy()
    renderer.render(*other, WIDTH_PX, HEIGHT_PX)
    renderer.render(*other, 31, 17)
    np.testing.assert_array_equal(renderer.render(*pose, WIDTH_PX, HEIGHT_PX), kept)
    np.testing.assert_array_equal(Renderer(eventful_track).render(*pose, WIDTH_PX, HEIGHT_PX), kept)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("size", [(1, 1), (161, 119), (4096, 2)])
def test_every_size_gives_opaque_bgra(eventful_track, size):
    frame = Renderer(eventful_track).render(*car_pose(eventful_track.ribbon, 100.0), *size)
    assert (frame.shape, frame.dtype) == ((size[1], size[0], 4), np.uint8)
    assert np.all(frame[..., 3] == 255)


def test_any_pose_draws_every_pixel(eventful_track):
    """Upside down, under the road, inside the ground, kilometres away: a picture comes, and the same one again."""
    random = np.random.default_rng(5)
    renderer, ribbon = Renderer(eventful_track), eventful_track.ribbon
    for trial in range(100):
        section = int(random.integers(-50, len(ribbon.station_m) + 50))
        rotation = np.linalg.qr(random.normal(size=(3, 3)))[0]
        spread_m = (2.0, 30.0, 1e4, 1e6)[trial % 4]
        near = ribbon.center_m[min(max(section, 0), len(ribbon.station_m) - 1)]
        position = np.clip(near + random.uniform(-spread_m, spread_m, 3), -1e6, 1e6)
        frame = renderer.render(position, rotation, section, 80, 60)
        assert np.all(frame[..., 3] == 255)
        np.testing.assert_array_equal(frame, renderer.render(position, rotation, section, 80, 60))


def test_gray_pictures_are_the_gray_of_the_coloured_ones(eventful_track):
    """Several races at once, each to its own row of its own frames; nothing else is written."""
    random, ribbon = np.random.default_rng(3), eventful_track.ribbon
    renderer, n_races, n_rows = Renderer(eventful_track), 7, 5
    cars = np.zeros(n_races, dtype=VEHICLE_DTYPE)
    frames = np.full((n_races, n_rows, 33, 47), 99, dtype=np.uint8)
    passed, rows = np.arange(n_races) % 4, random.integers(0, n_rows, n_races)
    for car in cars:
        car["position_m"], _, car["surface_index"] = car_pose(ribbon, random.uniform(20.0, 500.0))
        car["rotation"] = np.linalg.qr(random.normal(size=(3, 3)))[0]
    cars["rotation"][3:] = [car_pose(ribbon, ribbon.station_m[index])[1] for index in cars["surface_index"][3:]]
    races = np.array([6, 0, 2, 3, 5])
    renderer.render_gray(races, cars, passed, frames, rows)
    expected = np.full_like(frames, 99)
    for race in races:
        pose = (cars[race]["position_m"], cars[race]["rotation"], cars[race]["surface_index"])
        expected[race, rows[race]] = gray(renderer.render(*pose, 47, 33, passed_checkpoints=passed[race]))
    np.testing.assert_array_equal(frames, expected)
    cars["position_m"][race] = np.nan
    with pytest.raises(ValueError, match="no pose"):
        renderer.render_gray(races, cars, passed, frames, rows)
