"""The picture of a world of blocks: which paint is where, its gray form, and the view of real cars."""

import cv2
import numpy as np

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.palette import COLORS, Paint
from trackmania_rl.simulator.picture.rasterizer import chase_camera, new_canvas
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.track.block_picture import scene_of
from trackmania_rl.track.block_world import world_of

from .conftest import make_challenge

WIDTH_PX, HEIGHT_PX = 160, 120
ROAD = 3
"""The shape of a straight StadiumRoadMain."""


def make_scene(*blocks):
    return scene_of(world_of(make_challenge(*blocks)))


def straight_road(n=6):
    """A road along +z."""
    return [Block("StadiumRoadMain", (10, 1, z), 0, ROAD) for z in range(10, 10 + n)]


ON_ROAD_M = np.array((10.5 * 32.0, 9.3546, 10.0 * 32.0 + 20.0))


def pixel_at(frame, left_m, up_m, ahead_m):
    """The picture's pixel at a place as seen from the car on the road."""
    camera = chase_camera(ON_ROAD_M, np.eye(3))
    right, down, ahead = camera.axes @ (ON_ROAD_M + np.array((left_m, up_m, ahead_m)) - camera.position_m)
    focal_px = new_canvas(WIDTH_PX, HEIGHT_PX).focal_px
    row, column = (int(0.5 * size + focal_px * at / ahead) for size, at in ((HEIGHT_PX, down), (WIDTH_PX, right)))
    assert 0 <= row < HEIGHT_PX, "the point is above or below the picture"
    assert 0 <= column < WIDTH_PX, "the point is beside the picture"
    return tuple(frame[row, column].tolist())


def shades(*paints):
    """All pixels that these paints may have."""
    return {tuple(pixel) for pixel in COLORS.paints[list(paints)].reshape(-1, 1).view(np.uint8).tolist()}


ASPHALT = shades(Paint.ASPHALT, Paint.ASPHALT_ALTERNATE)
GROUND = {tuple(pixel) for pixel in COLORS.ground.reshape(-1, 1).view(np.uint8).tolist()}
SKY = {tuple(pixel) for pixel in COLORS.sky.reshape(-1, 1).view(np.uint8).tolist()}


def test_a_road_has_lines_walls_and_ground_beside_it():
    frame = Renderer(make_scene(*straight_road())).render(ON_ROAD_M, np.eye(3), 0, WIDTH_PX, HEIGHT_PX)
    assert pixel_at(frame, 4.0, -0.01, 30.0) in ASPHALT
    assert pixel_at(frame, 10.75, -0.01, 30.0) in shades(Paint.BORDER_LINE)
    assert pixel_at(frame, 12.62, 0.44, 30.0) in shades(Paint.WALL, Paint.WALL_ALTERNATE)
    assert pixel_at(frame, 13.0, 0.99, 30.0) in shades(Paint.WALL_CAP)
    assert pixel_at(frame, 60.0, -0.36, 130.0) in GROUND
    assert pixel_at(frame, 0.0, 29.99, 130.0) in SKY


def test_gray_pictures_are_the_gray_of_the_coloured_ones():
    scene = make_scene(*straight_road(2), Block("StadiumLoopLeft", (10, 1, 12), 0, 0))
    random, n_cars = np.random.default_rng(3), 5
    cars = np.zeros(n_cars, dtype=VEHICLE_DTYPE)
    cars["position_m"] = ON_ROAD_M + random.uniform(-20.0, 20.0, (n_cars, 3))
    cars["rotation"] = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(n_cars)]
    frames, zeros = np.zeros((n_cars, 1, 33, 47), dtype=np.uint8), np.zeros(n_cars, dtype=np.int64)
    renderer = Renderer(scene)
    renderer.render_gray(np.arange(n_cars), cars, zeros, frames, zeros)
    for car, frame in zip(cars, frames[:, 0], strict=True):
        seen = renderer.render(car["position_m"], car["rotation"], 0, 47, 33)
        np.testing.assert_array_equal(frame, cv2.cvtColor(seen, cv2.COLOR_BGRA2GRAY))
