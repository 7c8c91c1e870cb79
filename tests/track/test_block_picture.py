"""The picture of a world of blocks: what is seen where, from both sides, near and far, and of any list of blocks."""

import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pygbx import STADIUM_BLOCK_OFFSETS

from trackmania_rl.gbx.challenge import Block, Challenge, MedalTimes
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.simulator.physics.vehicle_state import VEHICLE_DTYPE
from trackmania_rl.simulator.picture.block_scene import BlockScene
from trackmania_rl.simulator.picture.camera import chase_camera
from trackmania_rl.simulator.picture.palette import COLORS, PLAIN_LIGHT, Paint
from trackmania_rl.simulator.picture.rasterizer import new_canvas
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.track.block_picture import scene_of
from trackmania_rl.track.block_world import BlockWorldError, world_of
from trackmania_rl.track.ghost_motion import motion_of
from trackmania_rl.track.piece_catalogue import stadium_pieces

WIDTH_PX, HEIGHT_PX = 160, 120
ROAD = 3
"""The shape of a straight StadiumRoadMain."""
MOST_S, MOST_BYTES = 5.0, 1 << 30


def make_challenge(*blocks: Block) -> Challenge:
    times = MedalTimes(None, None, None, None)
    return Challenge("uid", "made", "me", "Stadium", "Day", (32, 32, 32), 1, times, tuple(blocks))


def make_scene(*blocks: Block) -> BlockScene:
    return scene_of(world_of(make_challenge(*blocks)))


def straight_road(*, x: int = 10, layer: int = 1, first: int = 10, n: int = 6) -> list[Block]:
    """A road along +z."""
    return [Block("StadiumRoadMain", (x, layer, z), 0, ROAD) for z in range(first, first + n)]


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


@pytest.mark.parametrize("quarter_turns", [0, 1, 2, 3])
def test_a_road_looks_the_same_whichever_way_it_lies(quarter_turns: int) -> None:
    """But for light: what is road stays road."""
    ahead = np.array(((0, 1), (-1, 0), (0, -1), (1, 0))[quarter_turns])
    cells = [(16 + k * int(ahead[0]), 1, 16 + k * int(ahead[1])) for k in range(5)]
    scene = make_scene(*(Block("StadiumRoadMain", cell, quarter_turns, ROAD) for cell in cells))
    forward = np.array((ahead[0], 0.0, ahead[1]))
    rotation = np.stack((np.cross((0.0, 1.0, 0.0), forward), (0.0, 1.0, 0.0), forward), axis=1)
    position_m = np.array((16.5 * 32.0, 9.3546, 16.5 * 32.0))
    along_z = make_scene(*straight_road(x=16, first=16, n=5))
    is_road = [
        np.array([[tuple(pixel) in ASPHALT for pixel in row] for row in frame.tolist()])
        for frame in (see(scene, position_m, rotation), see(along_z, position_m))
    ]
    assert is_road[1].mean() > 0.3
    assert (is_road[0] != is_road[1]).mean() < 0.01


def test_from_below_a_road_is_an_underside() -> None:
    scene = make_scene(*straight_road(layer=3))
    deck_m = moved(ON_ROAD_M, 0.0, 16.0, 60.0)
    assert pixel_at(see(scene), deck_m) in shades(Paint.UNDERSIDE)
    above_m = moved(ON_ROAD_M, 0.0, 24.0, 0.0)
    assert pixel_at(see(scene, above_m), moved(deck_m, 3.0, 0.0, 0.0), above_m) in ASPHALT


def test_a_loop_rises_and_its_inside_is_painted() -> None:
    frame = see(make_scene(*straight_road(n=2), Block("StadiumLoopLeft", (10, 1, 12), 0, 0)))
    angle = np.radians(60.0)
    along, across_m = 42.655 * np.array((np.sin(angle), -np.cos(angle))), 64.0 * angle / np.pi
    on_loop_m = np.array((10.5 * 32.0 + across_m + 2.0, 8.0 + 44.0 + along[1], 12 * 32.0 + along[0]))
    assert pixel_at(frame, on_loop_m) in ASPHALT
    without = see(make_scene(*straight_road(n=2)))
    assert pixel_at(without, on_loop_m) in SKY


def test_pads_have_arrows_pools_are_blue_and_platforms_concrete() -> None:
    scene = make_scene(
        Block("StadiumRoadMain", (10, 1, 10), 0, ROAD),
        Block("StadiumRoadMainTurbo", (10, 1, 11), 0, 0),
        Block("StadiumPool", (11, 0, 12), 0, 0),
        Block("StadiumPlatformRoad", (9, 1, 12), 0, 0),
    )
    frame = see(scene)
    seen = {tuple(pixel) for pixel in frame.reshape(-1, 4).tolist()}
    for paint in (Paint.TURBO, Paint.TURBO_ARROW, Paint.CONCRETE, Paint.WATER):
        assert seen & shades(paint), paint


def test_checkpoints_are_gray_once_passed_and_the_finish_is_chequered() -> None:
    scene = make_scene(
        *straight_road(n=2),
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


def test_the_shadow_lies_on_what_is_below_the_car_as_it_stands() -> None:
    """Also upside down in a loop."""
    scene = make_scene(Block("StadiumLoopLeft", (10, 1, 10), 0, 0))
    top_m = np.array((10.5 * 32.0 + 62.0, 8.0 + 44.0 + 42.655 - 0.01, 320.0 + 0.5))
    upside_down = np.diag((1.0, -1.0, -1.0))
    assert (see(scene, top_m, upside_down) == shade_of_shadow()).all(axis=-1).sum() > 20
    far_below_m = moved(top_m, 0.0, -34.0, 0.0)
    assert not (see(scene, far_below_m, upside_down) == shade_of_shadow()).all(axis=-1).any()


def shade_of_shadow() -> np.ndarray:
    return COLORS.paints[Paint.SHADOW, PLAIN_LIGHT, 0].reshape(1).view(np.uint8)


def test_what_is_far_away_or_behind_costs_nothing() -> None:
    near = straight_road()
    far = [Block("StadiumRoadMain", (x, 9, z), 0, ROAD) for x in range(25, 32) for z in range(25, 32)]
    np.testing.assert_array_equal(see(make_scene(*near)), see(make_scene(*near, *far)))


def test_gray_pictures_are_the_gray_of_the_coloured_ones() -> None:
    scene = make_scene(*straight_road(n=2), Block("StadiumLoopLeft", (10, 1, 12), 0, 0))
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


def test_an_empty_world_has_ground_and_sky() -> None:
    frame = see(make_scene())
    seen = {tuple(pixel) for pixel in frame.reshape(-1, 4).tolist()}
    assert seen & GROUND
    assert seen & SKY


@pytest.mark.parametrize("replay", ["B13-Obstacle_24.94_a.Replay.Gbx", "mydli_20.14.Replay.gbx"])
def test_real_cars_see_what_they_drive_on(replay: str, shared_data: Path) -> None:
    """What is 4 m before a car on a surface is neither sky nor ground; flights and grass are the rest."""
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


NAMES = [*sorted({name for name, _ in stadium_pieces().by_name} | set(STADIUM_BLOCK_OFFSETS)), "Mystery", ""]
BLOCKS = st.builds(
    Block,
    st.sampled_from(NAMES),
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
PLACES = st.tuples(*[st.floats(-100.0, 1400.0)] * 3)


@given(st.lists(BLOCKS, max_size=60), PLACES, st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_world_is_drawn(blocks: list[Block], place_m: tuple[float, float, float], seed: int) -> None:
    check_any(blocks, place_m, seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@given(st.lists(BLOCKS, max_size=400), PLACES, st.integers(0, 2**32 - 1))
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_ten_thousand_worlds_are_drawn(blocks: list[Block], place_m: tuple[float, float, float], seed: int) -> None:
    check_any(blocks, place_m, seed)


def check_any(blocks: list[Block], place_m: tuple[float, float, float], seed: int) -> None:
    see(make_scene())  # compiled outside of the time
    process = psutil.Process()
    begin_s, begin_bytes = time.process_time(), process.memory_info().rss
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    try:
        frame = see(make_scene(*blocks), np.array(place_m), rotation)
    except BlockWorldError:
        return
    assert time.process_time() - begin_s < MOST_S
    assert process.memory_info().rss - begin_bytes < MOST_BYTES
    assert frame.shape == (HEIGHT_PX, WIDTH_PX, 4)
    assert (frame[..., 3] == 255).all()
