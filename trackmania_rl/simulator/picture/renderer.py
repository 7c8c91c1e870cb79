"""Software renderer for the simulated game's pictures, in numba.

The view is from behind the car, like the game's default camera. On one machine equal poses give equal bytes, and the
gray picture is the coloured one's gray.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.picture.block_scene import (
    BlockScene,
    add_block_shadow,
    add_blocks,
    room_of,
    scene_of_world,
)
from trackmania_rl.simulator.picture.object_mesh import (
    MOST_CAR_POINTS,
    MOST_CAR_QUADS,
    MOST_GATE_POINTS,
    MOST_GATE_QUADS,
    add_car,
    add_gates,
    add_shadow,
)
from trackmania_rl.simulator.picture.palette import COLORS, GRAYS, Colors
from trackmania_rl.simulator.picture.rasterizer import (
    Camera,
    Canvas,
    Mesh,
    chase_camera,
    draw_background,
    draw_mesh,
    new_canvas,
    new_mesh,
)
from trackmania_rl.simulator.picture.road_mesh import MOST_ROAD_POINTS, MOST_ROAD_QUADS, Scenery, add_road, make_scenery
from trackmania_rl.simulator.tracks.world import Track

MAX_SIDE_PX = 4096  # protocol limit
_FARTHEST_POSITION_M = 1e6  # at this distance from the world's origin centimetres are lost
_LARGEST_ROTATION_ELEMENT = 1.001


class _Sprite(NamedTuple):
    """Car's pixels, the same on every picture with one size."""

    top: int  # row in the picture
    left: int  # column in the picture
    pixels: npt.NDArray[np.uint32]  # (h, w)
    inverse_depth_1_m: npt.NDArray[np.float32]  # (h, w) 0 outside the car


class _Easel(NamedTuple):
    """Working memory for pictures with one size and kind."""

    canvas: Canvas
    mesh: Mesh
    car: _Sprite


def _new_easel(width_px: int, height_px: int, scene: Scenery | BlockScene, palette: Colors) -> _Easel:
    canvas = new_canvas(width_px, height_px)
    if isinstance(scene, BlockScene):
        n_points, n_quads = room_of(scene)
    else:
        n_gates = len(scene.gate_section)
        n_points = n_gates * MOST_GATE_POINTS + MOST_ROAD_POINTS
        n_quads = n_gates * MOST_GATE_QUADS + MOST_ROAD_QUADS
    mesh = new_mesh(MOST_CAR_POINTS + n_points, MOST_CAR_QUADS + n_quads, palette)
    position_m = np.zeros(3)
    rotation = np.eye(3)
    canvas.inverse_depth_1_m[:] = 0.0
    add_car(mesh, position_m, rotation)
    draw_mesh(canvas, mesh, chase_camera(position_m, rotation))
    is_car = canvas.inverse_depth_1_m > 0.0
    rows, columns = (np.flatnonzero(is_car.any(axis=axis)) for axis in (1, 0))
    if len(rows) == 0:
        rows = columns = np.zeros(1, dtype=np.int64)
    box = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    car = _Sprite(int(rows[0]), int(columns[0]), canvas.pixels[box].copy(), canvas.inverse_depth_1_m[box].copy())
    return _Easel(canvas, mesh, car)


@inner
def _paste(canvas: Canvas, sprite: _Sprite) -> None:
    for row in range(sprite.pixels.shape[0]):
        for column in range(sprite.pixels.shape[1]):
            if sprite.inverse_depth_1_m[row, column] > 0.0:
                canvas.pixels[sprite.top + row, sprite.left + column] = sprite.pixels[row, column]
                canvas.inverse_depth_1_m[sprite.top + row, sprite.left + column] = sprite.inverse_depth_1_m[row, column]


def _add_track(
    easel: _Easel,
    scenery: Scenery,
    camera: Camera,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    surface_index: int,
    passed_checkpoints: int,
) -> None:
    canvas = easel.canvas
    mesh = easel.mesh
    car_section = min(max(surface_index, 0), scenery.ribbon.station_m.shape[0] - 1)
    add_shadow(mesh, scenery.ribbon, car_section, position_m, rotation)
    add_gates(mesh, scenery, camera, car_section, passed_checkpoints)
    half_width_per_m = 0.5 * canvas.pixels.shape[1] / canvas.focal_px
    add_road(mesh, scenery, camera, canvas.focal_px, half_width_per_m, car_section)


def _add_world(
    easel: _Easel,
    scene: BlockScene,
    camera: Camera,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    surface_index: int,
    passed_checkpoints: int,
) -> None:
    canvas = easel.canvas
    mesh = easel.mesh
    add_block_shadow(mesh, scene, position_m, rotation)
    add_blocks(mesh, scene, camera, canvas.focal_px, canvas.pixels.shape, passed_checkpoints)


def _add_scene(
    easel: _Easel,
    scene: Scenery | BlockScene,
    camera: Camera,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    surface_index: int,
    passed_checkpoints: int,
) -> None:
    """Add all but the car to the easel's mesh; the scene kind is chosen at compile time."""
    raise NotImplementedError("only compiled functions call this")


@overload(_add_scene, strict=False)
def _compiled_add_scene(
    easel: Any, scene: Any, camera: Any, position_m: Any, rotation: Any, surface_index: Any, passed_checkpoints: Any
) -> Any:
    return _add_world if scene.instance_class is BlockScene else _add_track


@compiled
def _draw_picture(
    easel: _Easel,
    scene: Scenery | BlockScene,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    surface_index: int,
    passed_checkpoints: int,
) -> bool:
    """Draw a picture; return whether the pose is possible for a car."""
    for axis in range(3):
        if not abs(position_m[axis]) <= _FARTHEST_POSITION_M:
            return False
        for other in range(3):
            if not abs(rotation[axis, other]) <= _LARGEST_ROTATION_ELEMENT:
                return False
    canvas = easel.canvas
    mesh = easel.mesh
    camera = chase_camera(position_m, rotation)
    mesh.counts[:] = 0
    _add_scene(easel, scene, camera, position_m, rotation, surface_index, passed_checkpoints)
    draw_background(canvas, camera, mesh.palette, scene.ground_height_m)
    _paste(canvas, easel.car)
    draw_mesh(canvas, mesh, camera)
    return True


@compiled
def _draw_gray_pictures(
    easel: _Easel,
    scene: Scenery | BlockScene,
    races: npt.NDArray[np.int64],
    cars: npt.NDArray[np.void],
    passed_checkpoints: npt.NDArray[np.int64],
    frames: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
) -> int:
    """Draw one picture per race; return the race with an impossible pose, or -1."""
    position = np.empty(3)
    rotation = np.empty((3, 3))
    pixels = easel.canvas.pixels
    height_px, width_px = pixels.shape
    for i in range(races.shape[0]):
        race = races[i]
        car = cars[race]
        for axis in range(3):
            position[axis] = car.position_m[axis]
            for other in range(3):
                rotation[axis, other] = car.rotation[axis, other]
        if not _draw_picture(easel, scene, position, rotation, car.surface_index, passed_checkpoints[race]):
            return race
        frame = frames[race, rows[race]]
        for row in range(height_px):
            for column in range(width_px):
                frame[row, column] = np.uint8(pixels[row, column])
    return -1


class Renderer:
    """Renderer for one track or world. The working memory is not shared, so threads need one each.

    Raises:
        ValueError: if the road has a surface without a colour.
    """

    def __init__(self, track: Track | BlockScene) -> None:
        self._scene = track if isinstance(track, BlockScene) else scene_of_track(track)
        self._color_easel: _Easel | None = None
        self._gray_easel: _Easel | None = None

    def render(
        self,
        position_m: npt.ArrayLike,
        rotation: npt.ArrayLike,
        surface_index: int,
        width_px: int,
        height_px: int,
        passed_checkpoints: int = 0,
    ) -> npt.NDArray[np.uint8]:
        """Draw the view from behind a car.

        Args:
            position_m: (3,), the car's origin in the world.
            rotation: (3, 3), car to world; columns are the car's left, up and forward.
            surface_index: cross-section at the car, clipped to the ribbon; unused for worlds of blocks.
            width_px: 1..4096.
            height_px: 1..4096.
            passed_checkpoints: this many checkpoints from the start are drawn as passed.

        Returns:
            (height_px, width_px, 4) uint8, blue, green, red, 255; top row first. A new array.

        Raises:
            ValueError: if the size is out of range, or the pose has other shapes, is not finite, is farther than 1,000
                km away, or has matrix elements beyond -1..1.
        """
        self._color_easel = self._easel_of_size(self._color_easel, width_px, height_px, COLORS)
        position = np.ascontiguousarray(position_m, dtype=np.float64)
        turn = np.ascontiguousarray(rotation, dtype=np.float64)
        if position.shape != (3,) or turn.shape != (3, 3):
            raise ValueError(f"the pose has the shapes {position.shape} and {turn.shape}: give (3,) and (3, 3)")
        frame = np.empty((height_px, width_px), dtype=np.uint32)
        easel = self._color_easel._replace(canvas=self._color_easel.canvas._replace(pixels=frame))
        if not _draw_picture(easel, self._scene, position, turn, int(surface_index), passed_checkpoints):
            raise _no_pose(position, turn)
        return frame.view(np.uint8).reshape(height_px, width_px, 4)

    def render_gray(
        self,
        races: npt.NDArray[np.int64],
        cars: npt.NDArray[np.void],
        passed_checkpoints: npt.NDArray[np.int64],
        frames: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Draw gray pictures for several races on this track: OpenCV's COLOR_BGRA2GRAY of `render`; raise as `render`.

        Args:
            races: (n,) int64, race numbers.
            cars: (K,) VEHICLE_DTYPE.
            passed_checkpoints: (K,) int64.
            frames: (K, R, height_px, width_px) uint8, C order. A race's picture is written to the race's row.
            rows: (K,) int64, 0..R-1.
        """
        height_px, width_px = frames.shape[2:]
        self._gray_easel = self._easel_of_size(self._gray_easel, width_px, height_px, GRAYS)
        wrong = _draw_gray_pictures(self._gray_easel, self._scene, races, cars, passed_checkpoints, frames, rows)
        if wrong >= 0:
            raise _no_pose(cars[wrong]["position_m"], cars[wrong]["rotation"])

    def _easel_of_size(self, easel: _Easel | None, width_px: int, height_px: int, palette: Colors) -> _Easel:
        for name, side_px in (("width_px", width_px), ("height_px", height_px)):
            if not 1 <= side_px <= MAX_SIDE_PX:
                raise ValueError(f"{name} is {side_px}: a picture's side is 1..{MAX_SIDE_PX} pixels")
        if easel is not None and easel.canvas.pixels.shape == (height_px, width_px):
            return easel
        return _new_easel(width_px, height_px, self._scene, palette)


def scene_of_track(track: Track) -> Scenery | BlockScene:
    """Prepare a track for drawing; raise as `Renderer`."""
    return make_scenery(track) if track.mesh_world is None else scene_of_world(track.mesh_world)


def _no_pose(position_m: npt.NDArray[np.floating], rotation: npt.NDArray[np.floating]) -> ValueError:
    return ValueError(f"no pose of a car: position {position_m.tolist()} m, rotation {rotation.tolist()}")
