"""The simulated game's picture: a small software renderer in numba.

It shows the road from behind the car as the game's default camera does. A picture is a pure function of track, pose and
size; on one machine equal poses give equal bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.camera import chase_camera
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.mesh import Mesh, new_mesh
from trackmania_rl.simulator.object_mesh import (
    MOST_CAR_POINTS,
    MOST_CAR_QUADS,
    MOST_GATE_POINTS,
    MOST_GATE_QUADS,
    add_car,
    add_gates,
    add_shadow,
)
from trackmania_rl.simulator.rasterizer import Canvas, draw_background, draw_mesh, new_canvas
from trackmania_rl.simulator.road_mesh import MOST_ROAD_POINTS, MOST_ROAD_QUADS, Scenery, add_road, make_scenery
from trackmania_rl.simulator.world import Track

MAX_SIDE_PX = 4096
"""Longest side of a picture (the protocol's bound)."""
_FARTHEST_POSITION_M = 1e6
"""Beyond this distance from the world's origin, centimetres are lost and no game ever is."""


@compiled
def _draw_picture(
    canvas: Canvas,
    mesh: Mesh,
    scenery: Scenery,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    car_section: int,
    passed_checkpoints: int,
) -> None:
    camera = chase_camera(position_m, rotation)
    mesh.counts[:] = 0
    add_car(mesh, position_m, rotation)
    add_shadow(mesh, scenery.ribbon, car_section, position_m, rotation)
    add_gates(mesh, scenery, camera, car_section, passed_checkpoints)
    add_road(mesh, scenery, camera, car_section)
    canvas.inverse_depth_1_m[:] = 0.0
    draw_mesh(canvas, mesh, camera)
    draw_background(canvas, camera, scenery.ground_height_m)


class Renderer:
    """Draws pictures of one track. It keeps scratch memory, so threads need a renderer each."""

    def __init__(self, track: Track) -> None:
        """Prepares the track.

        Args:
            track: what to draw.

        Raises:
            ValueError: if the road has a surface without a colour.
        """
        self._scenery = make_scenery(track)
        n_gates = len(self._scenery.gate_section)
        self._mesh = new_mesh(
            MOST_CAR_POINTS + n_gates * MOST_GATE_POINTS + MOST_ROAD_POINTS,
            MOST_CAR_QUADS + n_gates * MOST_GATE_QUADS + MOST_ROAD_QUADS,
        )
        self._canvas = new_canvas(1, 1)

    def render(
        self,
        position_m: npt.ArrayLike,
        rotation: npt.ArrayLike,
        ribbon_index: int,
        width_px: int,
        height_px: int,
        passed_checkpoints: int = 0,
    ) -> npt.NDArray[np.uint8]:
        """Draws the view from behind a car.

        Args:
            position_m: (3,), the car's origin in the world.
            rotation: (3, 3), car to world; columns are the car's left, up and forward.
            ribbon_index: number of the cross-section at the car; out of range counts as the nearest end.
            width_px: 1..4096.
            height_px: 1..4096.
            passed_checkpoints: so many checkpoints, counted from the start, are drawn as passed.

        Returns:
            (height_px, width_px, 4) uint8, blue, green, red, 255; top row first. A new array.

        Raises:
            ValueError: if the size is out of range, or the pose is none: not of the shapes above, not finite, farther
                than 1,000 km away, or a matrix with elements beyond -1..1.
        """
        for name, side_px in (("width_px", width_px), ("height_px", height_px)):
            if not 1 <= side_px <= MAX_SIDE_PX:
                raise ValueError(f"{name} is {side_px}: a picture's side is 1..{MAX_SIDE_PX} pixels")
        position = np.ascontiguousarray(position_m, dtype=np.float64)
        turn = np.ascontiguousarray(rotation, dtype=np.float64)
        if position.shape != (3,) or turn.shape != (3, 3):
            raise ValueError(f"the pose has the shapes {position.shape} and {turn.shape}: give (3,) and (3, 3)")
        if not (np.abs(position).max() <= _FARTHEST_POSITION_M and np.abs(turn).max() <= 1.001):
            raise ValueError(f"no pose of a car: position {position.tolist()} m, rotation {turn.tolist()}")
        if self._canvas.pixels.shape != (height_px, width_px):
            self._canvas = new_canvas(width_px, height_px)
        frame = np.empty((height_px, width_px), dtype=np.uint32)
        last = len(self._scenery.ribbon.station_m) - 1
        section = min(max(int(ribbon_index), 0), last)
        canvas = self._canvas._replace(pixels=frame)
        _draw_picture(canvas, self._mesh, self._scenery, position, turn, section, passed_checkpoints)
        return frame.view(np.uint8).reshape(height_px, width_px, 4)
