"""The simulated game's picture: same bytes for the same pose, any size and pose, and everything has its own gray."""

import itertools

import cv2
import numpy as np
import pytest

from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.camera import chase_camera
from trackmania_rl.simulator.picture.mesh import add_point, add_quad, new_mesh
from trackmania_rl.simulator.picture.palette import COLORS, GRAYS
from trackmania_rl.simulator.picture.rasterizer import draw_mesh, new_canvas
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.picture.scenery import make_scenery
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


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (161, 119), (64, 48), (2, 4096), (4096, 2), (4096, 4096)])
def test_every_size_gives_opaque_bgra(eventful_track, size):
    frame = picture(eventful_track, 100.0, size)
    assert frame.shape == (size[1], size[0], 4)
    assert frame.dtype == np.uint8
    assert np.all(frame[..., 3] == 255)


def test_any_pose_draws_every_pixel(eventful_track):
    """Upside down, under the road, inside the ground, kilometres away: a picture comes, and the same one again."""
    random = np.random.default_rng(5)
    renderer, ribbon = Renderer(eventful_track), eventful_track.ribbon
    for trial in range(300):
        section = int(random.integers(-50, len(ribbon.station_m) + 50))
        rotation = np.linalg.qr(random.normal(size=(3, 3)))[0]
        spread_m = (2.0, 30.0, 1e4, 1e6)[trial % 4]
        near = ribbon.center_m[min(max(section, 0), len(ribbon.station_m) - 1)]
        position = np.clip(near + random.uniform(-spread_m, spread_m, 3), -1e6, 1e6)
        frame = renderer.render(position, rotation, section, 80, 60)
        assert np.all(frame[..., 3] == 255)
        np.testing.assert_array_equal(frame, renderer.render(position, rotation, section, 80, 60))


@pytest.mark.parametrize("size", [(0, 10), (10, 0), (-1, 10), (4097, 10), (10, 4097)])
def test_impossible_sizes_are_refused(eventful_track, size):
    with pytest.raises(ValueError, match=r"_px is .*1\.\.4096"):
        picture(eventful_track, 100.0, size)


@pytest.mark.parametrize(
    ("position", "rotation", "message"),
    [
        ([np.nan, 0, 0], np.eye(3), "no pose"),
        ([np.inf, 0, 0], np.eye(3), "no pose"),
        ([2e6, 0, 0], np.eye(3), "no pose"),
        ([0, 0, 0], np.full((3, 3), np.nan), "no pose"),
        ([0, 0, 0], 3 * np.eye(3), "no pose"),
        ([0, 0], np.eye(3), "shapes"),
        ([0, 0, 0], np.eye(4), "shapes"),
    ],
)
def test_impossible_poses_are_refused(eventful_track, position, rotation, message):
    with pytest.raises(ValueError, match=message):
        Renderer(eventful_track).render(position, rotation, 0, 8, 8)


def test_a_surface_without_a_colour_is_refused():
    with pytest.raises(ValueError, match="surface 5000"):
        Renderer(make_track(surface=5000))


def test_surroundings_differ_from_the_road_and_from_each_other():
    ahead_m = CAR_STATION_M + 14.0
    walled, verged, dropped = (make_track(edge=edge) for edge in (Edge.WALL, Edge.GRASS, Edge.DROP))
    ribbon = walled.ribbon
    seen = {
        "road": gray_at(walled, place(ribbon, ahead_m, 4.0)),
        "border line": gray_at(walled, place(ribbon, ahead_m, 7.7)),
        "wall": gray_at(walled, place(ribbon, ahead_m, 8.0, 0.4)),
        "grass": gray_at(verged, place(ribbon, ahead_m, 9.5)),
        "ground": gray_at(dropped, place(ribbon, ahead_m, 9.5)),
        "sky": gray_at(walled, place(ribbon, CAR_STATION_M + 300.0, 100.0, 40.0)),
    }
    for (name, level), (other_name, other_level) in itertools.combinations(seen.items(), 2):
        if {name, other_name} == {"wall", "sky"}:
            continue  # the wall's cap is between them
        assert abs(level - other_level) >= LEAST_CONTRAST, (name, level, other_name, other_level)


def test_a_wall_has_a_dark_cap_against_the_sky_and_the_ground():
    track = make_track()
    point = place(track.ribbon, CAR_STATION_M + 12.0, 8.0, 0.88)
    face = gray_at(track, place(track.ribbon, CAR_STATION_M + 12.0, 8.0, 0.4))
    assert face - gray_at(track, point) >= LEAST_CONTRAST


def test_surfaces_have_their_own_gray():
    surfaces = (Surface.ASPHALT, Surface.CONCRETE, Surface.GRASS, Surface.DIRT, Surface.ICE, Surface.FREE_WHEEL)
    means = {surface: mean_gray_of_road(make_track(surface=surface)) for surface in surfaces}
    for surface, other in itertools.combinations(surfaces, 2):
        assert abs(means[surface] - means[other]) >= 8, (surface, means[surface], other, means[other])


def test_turbo_has_the_strongest_pattern():
    def pattern(surface):
        track = make_track(surface=surface)
        row, column = pixel_of(track, place(track.ribbon, CAR_STATION_M + 16.0))
        return gray(picture(track))[row, column - 30 : column + 30].std()

    assert pattern(Surface.TURBO) > 2 * max(map(pattern, (Surface.ASPHALT, Surface.GRASS, Surface.DIRT, Surface.ICE)))


def test_a_drop_has_another_line_than_grass():
    dropped, verged = make_track(edge=Edge.DROP), make_track(edge=Edge.GRASS)
    points = [place(dropped.ribbon, CAR_STATION_M + ahead_m, 7.7) for ahead_m in np.arange(10, 26, 1)]
    drop_line = [gray_at(dropped, point) for point in points]
    verge_line = [gray_at(verged, point) for point in points]
    assert np.ptp(drop_line) > 100
    assert np.median(verge_line) > 200


def test_gates_are_seen_and_told_apart():
    station_m = CAR_STATION_M + 40.0
    plain = make_track()
    checkpoint, finish = make_track(checkpoints_m=[station_m]), make_track(finish_m=station_m)
    ribbon = plain.ribbon
    banner = [place(ribbon, station_m, left_m, 5.3) for left_m in np.linspace(-7.0, 7.0, 25)]
    without, with_checkpoint, passed, with_finish = (
        np.array([gray(frame)[pixel_of(plain, point)] for point in banner])
        for frame in (
            picture(plain),
            picture(checkpoint),
            picture(checkpoint, passed_checkpoints=1),
            picture(finish),
        )
    )
    assert np.all(without - with_checkpoint >= 60), "a checkpoint's banner is dark before the sky"
    assert np.ptp(with_finish) > 150, "the finish is chequered"
    assert np.ptp(with_checkpoint) < 30
    assert np.all(passed - with_checkpoint >= LEAST_CONTRAST)
    line = place(ribbon, CAR_STATION_M + 15.0, 4.0)
    assert gray_at(make_track(checkpoints_m=[CAR_STATION_M + 14.0]), line) - gray_at(plain, line) > 60


def test_a_gap_shows_the_ground():
    station_m = CAR_STATION_M + 20.0
    index = np.arange(LINE_POINTS) * RIBBON_SPACING_M
    gap = make_track(edge=Edge.DROP, has_road=abs(index - station_m) > 8.0)
    whole = make_track(edge=Edge.DROP)
    point = place(whole.ribbon, station_m, 3.0)
    assert gray_at(whole, point) - gray_at(gap, point) >= LEAST_CONTRAST


def test_the_car_and_its_shadow():
    track = make_track()
    renderer, ribbon = Renderer(track), track.ribbon
    on_road = renderer.render(*car_pose(ribbon), WIDTH_PX, HEIGHT_PX)
    flying = renderer.render(*car_pose(ribbon, up_m=2.0), WIDTH_PX, HEIGHT_PX)
    body = pixel_of(track, place(ribbon, CAR_STATION_M - 1.9, 0.0, 0.35))
    assert gray(on_road)[body] - mean_gray_of_road(track) >= LEAST_CONTRAST
    darkest = gray(on_road)[:, WIDTH_PX // 2 + 6 :].min()
    assert darkest < mean_gray_of_road(track) - LEAST_CONTRAST
    # The camera is bolted to the car: its place in the picture stays, while road and shadow move.
    assert gray(flying)[body] == gray(on_road)[body]
    assert np.any(flying != on_road)


def test_moving_on_changes_the_road():
    track = make_track()
    frames = [gray(picture(track, CAR_STATION_M + metres)) for metres in (0.0, 1.0, 2.0)]
    below_horizon = slice(HEIGHT_PX // 2, None)
    for before, after in itertools.pairwise(frames):
        assert np.mean(np.abs(after - before)[below_horizon] > 8) > 0.01


def test_slopes_change_picture_and_light():
    """A road that rises 20 m ahead is seen higher and brighter than a level one, one that falls lower."""

    def bent(slope):
        n_level = int((CAR_STATION_M + 20.0) / RIBBON_SPACING_M)
        line = line_points()
        line[n_level:, 1] += slope * RIBBON_SPACING_M * np.arange(LINE_POINTS - n_level)
        line[n_level:, 2] -= (1.0 - np.sqrt(1.0 - slope**2)) * RIBBON_SPACING_M * np.arange(LINE_POINTS - n_level)
        return make_track(line)

    rising, level, falling = (bent(slope) for slope in (0.15, 0.0, -0.15))
    far = [pixel_of(track, place(track.ribbon, CAR_STATION_M + 60.0, 4.0)) for track in (rising, level, falling)]
    assert far[0][0] < far[1][0] < far[2][0]
    up, flat = (gray(picture(track))[pixel] for track, pixel in zip((rising, level), far[:2], strict=True))
    assert up - flat >= 8


def test_a_bank_tilts_the_horizon():
    sky_is_right = gray(picture(make_track(banking_rad=0.3)))
    # Rolled to its left side, the car sees the horizon fall to the right.
    left_column, right_column = sky_is_right[:, 5], sky_is_right[:, -5]
    assert np.sum(right_column > 150) > np.sum(left_column > 150) + 10


def test_upside_down_the_sky_is_below():
    track = make_track()
    position, rotation, section = car_pose(track.ribbon, up_m=30.0)
    renderer = Renderer(track)
    upright = renderer.render(position, rotation, section, WIDTH_PX, HEIGHT_PX).astype(int)
    turned = renderer.render(position, rotation @ np.diag([-1.0, -1.0, 1.0]), section, WIDTH_PX, HEIGHT_PX).astype(int)
    blueness = upright[..., 0] - upright[..., 2]
    assert blueness[2].mean() > 40 > blueness[-2].mean()
    blueness = turned[..., 0] - turned[..., 2]
    assert blueness[-2].mean() > 40


def test_only_the_road_near_the_car_counts():
    """A longer track gives the same picture, so its cost cannot grow."""
    short, long = make_track(line_points()), make_track(line_points(n=3 * LINE_POINTS))
    np.testing.assert_array_equal(picture(short), picture(long))


def test_a_car_that_turned_round_sees_the_road_behind_it():
    track = make_track()
    position, rotation, section = car_pose(track.ribbon, 400.0)
    about = rotation @ np.diag([-1.0, 1.0, -1.0])
    frame = gray(Renderer(track).render(position, about, section, WIDTH_PX, HEIGHT_PX))
    ahead = gray(picture(track, 400.0))
    row, column = pixel_of(track, place(track.ribbon, 460.0, 7.8), 400.0)
    assert abs(frame[row - 2 : row + 3, column - 4 : column + 5].max() - ahead[row, column]) < 60


def test_the_other_leg_of_a_hairpin_is_not_hidden_by_grass():
    """Verges are 30 m wide: those of one leg lie on the other leg's road, which must be seen all the same."""
    legs = np.concatenate([np.zeros(160), np.full(80, np.pi / 40.0 / 0.995), np.zeros(400)])
    heading = np.cumsum(legs)
    steps = RIBBON_SPACING_M * np.stack([np.sin(heading), np.zeros(640), np.cos(heading)], axis=1)
    track = make_track(np.array([300.0, 40.0, 300.0]) + np.cumsum(steps, axis=0), edge=Edge.GRASS, half_width_m=5.0)
    back_leg = place(track.ribbon, 150.0, 2.0)
    blue, green, red, _ = picture(track)[pixel_of(track, back_leg)].astype(int)
    assert green - max(blue, red) < 10


def _mesh_of(quads):
    """A mesh of (4 world corners, colour) quadrilaterals."""
    mesh = new_mesh(4 * len(quads), len(quads))
    for corners, color in quads:
        rows = [add_point(mesh, *map(float, corner)) for corner in corners]
        add_quad(mesh, *rows, np.uint32(color))
    return mesh


def _draw(quads, size=40):
    """Draws in front of a camera at the world's origin that looks along z with y up."""
    canvas = new_canvas(size, size)
    canvas.pixels[:] = 0
    canvas.inverse_depth_1_m[:] = 0.0
    camera = chase_camera(np.zeros(3), np.eye(3))._replace(position_m=np.zeros(3), axes=np.diag([1.0, -1.0, 1.0]))
    draw_mesh(canvas, _mesh_of(quads), camera)
    return canvas


def _square(left, right, bottom, top, z):
    return [(left, bottom, z), (right, bottom, z), (right, top, z), (left, top, z)]


def test_a_square_covers_the_pixels_whose_centres_it_holds():
    canvas = _draw([(_square(-1.0, 1.0, -1.0, 1.0, 10.0), 7)])
    half_px = canvas.focal_px / 10.0
    centers = np.arange(40) + 0.5 - 20.0
    inside = abs(centers) < half_px
    np.testing.assert_array_equal(canvas.pixels == 7, np.outer(inside, inside))
    np.testing.assert_allclose(canvas.inverse_depth_1_m[canvas.pixels == 7], 0.1, rtol=1e-6)


def test_neighbours_leave_no_pixel_between_them():
    random = np.random.default_rng(2)
    for _ in range(50):
        middle = random.uniform(-4.0, 4.0, size=(2, 2))
        top, bottom = (middle[0, 0], 20.0, 10.0 + middle[0, 1]), (middle[1, 0], -20.0, 10.0 + middle[1, 1])
        left = [(-20.0, -20.0, 8.0), bottom, top, (-20.0, 20.0, 8.0)]
        right = [bottom, (20.0, -20.0, 8.0), (20.0, 20.0, 8.0), top]
        assert np.all(_draw([(left, 1), (right, 2)]).pixels > 0)


def test_the_nearer_one_is_seen_in_either_order_and_the_first_of_equals():
    near, far = (_square(-1, 1, -1, 1, 4.0), 1), (_square(-3, 3, -3, 3, 8.0), 2)
    for quads in ([near, far], [far, near]):
        assert _draw(quads).pixels[20, 20] == 1
    assert _draw([(near[0], 5), (near[0], 6)]).pixels[20, 20] == 5


def test_what_reaches_behind_the_camera_is_cut_off():
    floor = [(-3.0, -1.0, -10.0), (3.0, -1.0, -10.0), (3.0, -1.0, 100.0), (-3.0, -1.0, 100.0)]
    pixels = _draw([(floor, 3)]).pixels
    assert np.all(pixels[-1, :] == 3), "the floor is below the camera"
    assert not np.any(pixels[:20]), "nothing of it is above the horizon"
    assert not np.any(_draw([(_square(-1, 1, -1, 1, -5.0), 3)]).pixels)


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


def test_every_colour_has_its_gray():
    for colors, grays in zip(COLORS, GRAYS, strict=True):
        pixels = colors.reshape(1, -1, 1).view(np.uint8)
        np.testing.assert_array_equal(gray(pixels), grays.reshape(1, -1))


def test_an_impossible_pose_among_gray_pictures_is_refused(eventful_track):
    cars, rows = np.zeros(2, dtype=VEHICLE_DTYPE), np.zeros(2, dtype=np.int64)
    cars["rotation"] = np.eye(3)
    cars["position_m"][1] = np.nan
    frames = np.zeros((2, 1, 8, 8), dtype=np.uint8)
    renderer = Renderer(eventful_track)
    renderer.render_gray(np.array([0]), cars, rows, frames, rows)
    with pytest.raises(ValueError, match=r"no pose.*nan"):
        renderer.render_gray(np.array([0, 1]), cars, rows, frames, rows)


@pytest.mark.parametrize("step", [4, 8, 16, 32])
def test_the_error_of_a_step_is_how_far_it_moves_the_road(eventful_track, step):
    """Against a loop over cross-sections and places."""
    scenery, ribbon = make_scenery(eventful_track), eventful_track.ribbon
    last = len(ribbon.station_m) - 1
    for band in (0, 5, 11, last // 16):
        group = range(band * 16, band * 16 + 16) if step <= 16 else range(band // 2 * 32, band // 2 * 32 + 32)
        moved_m = 0.8 if step == 32 else 0.0
        is_bent = False
        for section in group:
            if section > last:
                break
            near = section // step * step
            far = min(near + step, last)
            share = (section - near) / max(far - near, 1)
            half_m = [ribbon.half_width_m[index] for index in (near, section, far)]
            for side in (1.0, -1.0):
                for inset_m, up_m in ((0.0, 1.0), (0.0, 0.75), (0.0, -0.8), (0.0, 0.0), (0.6, 0.0)):
                    a, here, b = (
                        ribbon.center_m[index] + side * (half - inset_m) * ribbon.left[index] + up_m * ribbon.up[index]
                        for index, half in zip((near, section, far), half_m, strict=True)
                    )
                    moved_m = max(moved_m, np.linalg.norm((1 - share) * a + share * b - here))
            widths = [2.0 * (half_m[i] - 0.6) * ribbon.left[index] for i, index in ((0, near), (2, far))]
            is_bent |= abs((widths[1] - widths[0]) @ ribbon.up[section]) / 4.0 > 0.03
        level = {4: 1, 8: 2, 16: 3, 32: 4}[step]
        np.testing.assert_allclose(scenery.step_error_m[band, level], np.inf if is_bent else moved_m)
