"""The picture of a world of blocks: which paint is where, its gray form, and the view of real cars."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.block_scene import BlockScene
from trackmania_rl.simulator.picture.camera import chase_camera
from trackmania_rl.simulator.picture.palette import COLORS, Paint
from trackmania_rl.simulator.picture.rasterizer import new_canvas
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.track.block_picture import scene_of
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.ghost_motion import motion_of

from .conftest import make_challenge

WIDTH_PX, HEIGHT_PX = 160, 120
ROAD = 3
"""The shape of a straight StadiumRoadMain."""


def make_scene(*blocks: Block) -> BlockScene:
    return scene_of(world_of(make_challenge(*blocks)))


def straight_road(n: int = 6) -> list[Block]:
    """A road along +z."""
    return [Block("StadiumRoadMain", (10, 1, z), 0, ROAD) for z in range(10, 10 + n)]


ON_ROAD_M = np.array((10.5 * 32.0, 9.3546, 10.0 * 32.0 + 20.0))


def moved(point_m, left_m: float, up_m: float, ahead_m: float) -> np.ndarray:
    return np.asarray(point_m) + np.array((left_m, up_m, ahead_m))


def see(scene: BlockScene, position_m=ON_ROAD_M, rotation=None, **options) -> np.ndarray:
    pose = position_m, np.eye(3) if rotation is None else rotation
    return Renderer(scene).render(*pose, 0, WIDTH_PX, HEIGHT_PX, **options)


def pixel_at(frame: np.ndarray, point_m, position_m=ON_ROAD_M, rotation=None) -> tuple[int, ...]:
    camera = chase_camera(position_m, np.eye(3) if rotation is None else rotation)
    right, down, ahead = camera.axes @ (np.asarray(point_m) - camera.position_m)
    focal_px = new_canvas(WIDTH_PX, HEIGHT_PX).focal_px
    row, column = (int(0.5 * size + focal_px * at / ahead) for size, at in ((HEIGHT_PX, down), (WIDTH_PX, right)))
    assert 0 <= row < HEIGHT_PX, "the point is above or below the picture"
    assert 0 <= column < WIDTH_PX, "the point is beside the picture"
    return tuple(frame[row, column].tolist())


def shades(*paints: Paint) -> set[tuple[int, ...]]:
    """All pixels that these paints may have."""
    return {tuple(pixel) for pixel in COLORS.paints[list(paints)].reshape(-1, 1).view(np.uint8).tolist()}


ASPHALT = shades(Paint.ASPHALT, Paint.ASPHALT_ALTERNATE)
GROUND = {tuple(pixel) for pixel in COLORS.ground.reshape(-1, 1).view(np.uint8).tolist()}
SKY = {tuple(pixel) for pixel in COLORS.sky.reshape(-1, 1).view(np.uint8).tolist()}


def test_a_road_has_lines_walls_and_ground_beside_it() -> None:
    frame = see(make_scene(*straight_road()))
    ahead_m = moved(ON_ROAD_M, 0.0, -0.01, 30.0)
    assert pixel_at(frame, moved(ahead_m, 4.0, 0.0, 0.0)) in ASPHALT
    assert pixel_at(frame, moved(ahead_m, 10.75, 0.0, 0.0)) in shades(Paint.BORDER_LINE)
    assert pixel_at(frame, moved(ahead_m, 12.62, 0.45, 0.0)) in shades(Paint.WALL, Paint.WALL_ALTERNATE)
    assert pixel_at(frame, moved(ahead_m, 13.0, 1.0, 0.0)) in shades(Paint.WALL_CAP)
    assert pixel_at(frame, moved(ahead_m, 60.0, -0.35, 100.0)) in GROUND
    assert pixel_at(frame, moved(ahead_m, 0.0, 30.0, 100.0)) in SKY


def test_checkpoints_are_gray_once_passed_and_the_finish_is_chequered() -> None:
    scene = make_scene(
        *straight_road(2),
        Block("StadiumRoadMainCheckpoint", (10, 1, 12), 0, 0),
        Block("StadiumRoadMain", (10, 1, 13), 0, ROAD),
        Block("StadiumRoadMainFinishLine", (10, 1, 14), 0, 0),
    )
    banner_m = np.array((10.5 * 32.0 + 3.0, 8.0 + 6.7, 12 * 32.0 + 16.09))
    assert pixel_at(see(scene), banner_m) in shades(Paint.CHECKPOINT)
    assert pixel_at(see(scene, passed_checkpoints=1), banner_m) in shades(Paint.PASSED_CHECKPOINT)
    seen = {tuple(pixel) for pixel in see(scene, moved(ON_ROAD_M, 0.0, 0.0, 96.0)).reshape(-1, 4).tolist()}
    assert seen & shades(Paint.FINISH_LIGHT)
    assert seen & shades(Paint.FINISH_DARK)
    assert not seen & shades(Paint.CHECKPOINT)


def test_gray_pictures_are_the_gray_of_the_coloured_ones() -> None:
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


@pytest.mark.parametrize("replay", ["B13-Obstacle_24.94_a.Replay.Gbx", "mydli_20.14.Replay.gbx"])
def test_real_cars_see_what_they_drive_on(replay: str, shared_data: Path) -> None:
    read = read_replay(shared_data / "replays" / replay)
    assert read.challenge is not None
    assert read.ghosts[0].samples is not None
    motion, renderer = motion_of(read.ghosts[0].samples), Renderer(scene_of(world_of(read.challenge)))
    seen = []
    for position_m, rotation in zip(motion.position_m, motion.rotation, strict=True):
        frame = renderer.render(position_m, rotation, 0, WIDTH_PX, HEIGHT_PX)
        pixel = pixel_at(frame, position_m + rotation @ (0.0, 0.0, 4.0), position_m, rotation)
        seen.append(pixel not in GROUND | SKY)
    assert np.mean(seen) > (0.95 if replay.startswith("B13") else 0.75)
