"""The simulated game's picture: same bytes for the same pose, any size and pose, and everything has its own gray."""

import itertools

import cv2
import numpy as np
import pytest

from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.camera import chase_camera
from trackmania_rl.simulator.picture.rasterizer import new_canvas
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Ribbon, Surface, Track, build_ribbon

WIDTH_PX, HEIGHT_PX = 160, 120
LINE_POINTS = 1200
CAR_STATION_M = 50.0
LEAST_CONTRAST = 15
"""Gray levels (of 256) that a network can be asked to tell apart."""


def line_points(slope=0.0, curvature_1_m=0.0, n=LINE_POINTS):
    heading = curvature_1_m * RIBBON_SPACING_M * np.arange(n)
    level = np.sqrt(1.0 - slope**2)
    steps = RIBBON_SPACING_M * np.stack([level * np.sin(heading), np.full(n, slope), level * np.cos(heading)], axis=1)
    return np.array([300.0, 40.0, 300.0]) + np.cumsum(steps, axis=0)


def make_track(line_m=None, checkpoints_m=(), finish_m=580.0, **ribbon_options):
    ribbon = build_ribbon(line_points() if line_m is None else line_m, **ribbon_options)
    return Track("test", ribbon, tuple(checkpoints_m), finish_m)


def section_at(ribbon: Ribbon, station_m: float) -> int:
    return int(np.searchsorted(ribbon.station_m, station_m - 1e-6))


def place(ribbon: Ribbon, station_m: float, left_m=0.0, up_m=0.0):
    section = section_at(ribbon, station_m)
    return ribbon.center_m[section] + left_m * ribbon.left[section] + up_m * ribbon.up[section]


def car_pose(ribbon: Ribbon, station_m=CAR_STATION_M, up_m=0.01):
    section = section_at(ribbon, station_m)
    rotation = np.stack([ribbon.left[section], ribbon.up[section], ribbon.forward[section]], axis=1)
    return place(ribbon, station_m, up_m=up_m), rotation, section


def picture(track: Track, station_m=CAR_STATION_M, size=(WIDTH_PX, HEIGHT_PX), **options):
    position, rotation, section = car_pose(track.ribbon, station_m)
    return Renderer(track).render(position, rotation, section, *size, **options)


def gray(frame):
    return cv2.cvtColor(frame, cv2.COLOR_BGRA2GRAY).astype(int)


def pixel_of(track: Track, point_m, station_m=CAR_STATION_M):
    """Row and column of the picture's pixel at a world point."""
    position, rotation, _ = car_pose(track.ribbon, station_m)
    camera = chase_camera(position, rotation)
    right, down, ahead = camera.axes @ (point_m - camera.position_m)
    focal = new_canvas(WIDTH_PX, HEIGHT_PX).focal_px
    return int(0.5 * HEIGHT_PX + focal * down / ahead), int(0.5 * WIDTH_PX + focal * right / ahead)


def gray_at(track: Track, point_m, **options) -> int:
    return gray(picture(track, **options))[pixel_of(track, point_m)]


def mean_gray_of_road(track: Track) -> float:
    """Of the road ahead of the car, 10 m to 26 m away: two repetitions of its texture."""
    frame = gray(picture(track))
    corners = [
        pixel_of(track, place(track.ribbon, CAR_STATION_M + ahead_m, left_m))
        for ahead_m, left_m in ((10, 5), (10, -5), (26, -5), (26, 5))
    ]
    mask = np.zeros(frame.shape, dtype=np.uint8)
    cv2.fillConvexPoly(mask, np.array([(column, row) for row, column in corners]), 1)
    return frame[mask == 1].mean()


@pytest.fixture(scope="module")
def eventful_track() -> Track:
    """Every surface and edge, hills, banks, a gap, gates."""
    n = LINE_POINTS
    index = np.arange(n)
    slope = 0.15 * np.sin(index / 40.0)
    heading = np.cumsum(0.02 * np.sin(index / 70.0))
    level = np.sqrt(1.0 - slope**2)
    steps = RIBBON_SPACING_M * np.stack([level * np.sin(heading), slope, level * np.cos(heading)], axis=1)
    surfaces = np.array([surface.value for surface in Surface])
    return make_track(
        np.array([800.0, 60.0, 800.0]) + np.cumsum(steps, axis=0),
        checkpoints_m=(60.0, 200.0, 400.0),
        half_width_m=8.0 + 3.0 * np.sin(index / 100.0),
        banking_rad=0.4 * np.sin(index / 55.0),
        surface=surfaces[index // 60 % len(surfaces)],
        edge=index // 90 % len(Edge),
        has_road=index % 250 > 30,
    )


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


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (161, 119), (2, 4096), (4096, 2)])
def test_every_size_gives_opaque_bgra(eventful_track, size):
    frame = picture(eventful_track, 100.0, size)
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


@pytest.mark.parametrize(
    ("position", "rotation", "size", "message"),
    [
        ([np.nan, 0, 0], np.eye(3), (8, 8), "no pose"),
        ([2e6, 0, 0], np.eye(3), (8, 8), "no pose"),
        ([0, 0, 0], 3 * np.eye(3), (8, 8), "no pose"),
        ([0, 0], np.eye(3), (8, 8), "shapes"),
        ([0, 0, 0], np.eye(4), (8, 8), "shapes"),
        ([0, 0, 0], np.eye(3), (0, 10), r"_px is .*1\.\.4096"),
        ([0, 0, 0], np.eye(3), (10, 4097), r"_px is .*1\.\.4096"),
    ],
)
def test_impossible_poses_and_sizes_are_refused(eventful_track, position, rotation, size, message):
    with pytest.raises(ValueError, match=message):
        Renderer(eventful_track).render(position, rotation, 0, *size)


def test_surroundings_differ_from_the_road_and_from_each_other():
    ahead_m = CAR_STATION_M + 14.0
    walled, verged, dropped = (make_track(edge=edge) for edge in (Edge.WALL, Edge.GRASS, Edge.DROP))
    ribbon, distance_m = walled.ribbon, np.arange(LINE_POINTS) * RIBBON_SPACING_M
    gap = make_track(edge=Edge.DROP, has_road=abs(distance_m - ahead_m) > 8.0)
    seen = {
        "road": gray_at(walled, place(ribbon, ahead_m, 4.0)),
        "border line": gray_at(walled, place(ribbon, ahead_m, 7.7)),
        "wall": gray_at(walled, place(ribbon, ahead_m, 8.0, 0.4)),
        "grass": gray_at(verged, place(ribbon, ahead_m, 9.5)),
        "ground": gray_at(dropped, place(ribbon, ahead_m, 9.5)),
    }
    for (name, level), (other_name, other_level) in itertools.combinations(seen.items(), 2):
        assert abs(level - other_level) >= LEAST_CONTRAST, (name, level, other_name, other_level)
    assert seen["road"] - gray_at(gap, place(ribbon, ahead_m, 4.0)) >= LEAST_CONTRAST, "a gap shows the ground"
    cap = gray_at(walled, place(ribbon, CAR_STATION_M + 12.0, 8.0, 0.88))
    sky = gray_at(walled, place(ribbon, CAR_STATION_M + 300.0, 100.0, 40.0))
    assert min(seen["wall"], sky) - cap >= LEAST_CONTRAST, "between the wall and the sky"


def test_surfaces_have_their_own_gray_and_turbo_the_strongest_pattern():
    surfaces = (Surface.ASPHALT, Surface.CONCRETE, Surface.GRASS, Surface.DIRT, Surface.ICE, Surface.FREE_WHEEL)
    means, patterns = {}, {}
    for surface in (*surfaces, Surface.TURBO):
        track = make_track(surface=surface)
        means[surface] = mean_gray_of_road(track)
        row, column = pixel_of(track, place(track.ribbon, CAR_STATION_M + 16.0))
        patterns[surface] = gray(picture(track))[row, column - 30 : column + 30].std()
    for surface, other in itertools.combinations(surfaces, 2):
        assert abs(means[surface] - means[other]) >= 8, (surface, means[surface], other, means[other])
    assert all(patterns[Surface.TURBO] > 2 * patterns[other] for other in surfaces if other is not Surface.CONCRETE)


def test_gates_are_seen_and_told_apart():
    station_m = CAR_STATION_M + 40.0
    plain = make_track()
    checkpoint, finish = make_track(checkpoints_m=[station_m]), make_track(finish_m=station_m)
    banner = [pixel_of(plain, place(plain.ribbon, station_m, left_m, 5.3)) for left_m in np.linspace(-7.0, 7.0, 25)]
    frames = (picture(plain), picture(checkpoint), picture(checkpoint, passed_checkpoints=1), picture(finish))
    without, ahead, passed, finishing = (np.array([gray(frame)[pixel] for pixel in banner]) for frame in frames)
    assert np.all(without - ahead >= 60), "a checkpoint's banner is dark before the sky"
    assert np.ptp(finishing) > 150, "the finish is chequered"
    assert np.ptp(ahead) < 30
    assert np.all(passed - ahead >= LEAST_CONTRAST)


def test_the_other_leg_of_a_hairpin_is_not_hidden_by_grass():
    """Verges are 30 m wide: those of one leg lie on the other leg's road, which must be seen all the same."""
    legs = np.concatenate([np.zeros(160), np.full(80, np.pi / 40.0 / 0.995), np.zeros(400)])
    heading = np.cumsum(legs)
    steps = RIBBON_SPACING_M * np.stack([np.sin(heading), np.zeros(640), np.cos(heading)], axis=1)
    track = make_track(np.array([300.0, 40.0, 300.0]) + np.cumsum(steps, axis=0), edge=Edge.GRASS, half_width_m=5.0)
    back_leg = place(track.ribbon, 150.0, 2.0)
    blue, green, red, _ = picture(track)[pixel_of(track, back_leg)].astype(int)
    assert green - max(blue, red) < 10


def test_gray_pictures_are_the_gray_of_the_coloured_ones(eventful_track):
    """Several races at once, each to its own row of its own frames; nothing else is written."""
    random, ribbon = np.random.default_rng(3), eventful_track.ribbon
    renderer, n_races, n_rows = Renderer(eventful_track), 7, 5
    cars = np.zeros(n_races, dtype=VEHICLE_DTYPE)
    frames = np.full((n_races, n_rows, 33, 47), 99, dtype=np.uint8)
    passed, rows = np.arange(n_races) % 4, random.integers(0, n_rows, n_races)
    for car in cars:
        car["position_m"], _, car["ribbon_index"] = car_pose(ribbon, random.uniform(20.0, 500.0))
        car["rotation"] = np.linalg.qr(random.normal(size=(3, 3)))[0]
    cars["rotation"][3:] = [car_pose(ribbon, ribbon.station_m[index])[1] for index in cars["ribbon_index"][3:]]
    races = np.array([6, 0, 2, 3, 5])
    renderer.render_gray(races, cars, passed, frames, rows)
    expected = np.full_like(frames, 99)
    for race in races:
        pose = (cars[race]["position_m"], cars[race]["rotation"], cars[race]["ribbon_index"])
        expected[race, rows[race]] = gray(renderer.render(*pose, 47, 33, passed_checkpoints=passed[race]))
    np.testing.assert_array_equal(frames, expected)
