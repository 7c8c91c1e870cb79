"""Triangle world file, made from a map's blocks, ready to be driven and drawn.

It is a safetensors file beside a track file, written by `scripts/tools/maps.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import read_bounded
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, build_surface_mesh
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Surface, Track, build_ribbon

MAX_WORLD_BYTES: Final = 24 << 20  # some 15 times a campaign map's world
MAX_HEADER_BYTES: Final = 64 << 10
MAX_TRIANGLES: Final = 400_000
MAX_GATES: Final = 1000
FARTHEST_M: Final = 100_000.0  # upper bound for coordinates
LEAST_AREA_M2: Final = 1e-9
N_PAINTS: Final = 43  # members in `picture.palette.Paint`
WAY_HALF_WIDTH_M: Final = 12.0  # as drawn on a plan

FloatArray = npt.NDArray[np.float64]


class WorldFileError(UserError, ValueError):
    """A world's file cannot be used."""


@dataclass(frozen=True)
class MeshWorld:
    """Triangle world with gates and picture; the fields are the file's arrays.

    T triangles, B boxes for L gates, N way points; scene: P points, Q quadrilaterals, G groups.
    """

    corners_m: FloatArray  # (T, 3, 3) world metres, counter-clockwise from the driven side
    surface: npt.NDArray[np.int64]  # (T,) `Surface` values
    forward: FloatArray  # (T, 3) unit vectors, a pad's push direction
    has_grass: npt.NDArray[np.bool_]  # (X, Z) True if the stadium's grass is in a cell column
    grass_height_m: FloatArray
    gate_boxes_m: FloatArray  # (B, 2, 3) gate boxes' lowest and highest corners
    # (B,) gate within a lap, the lap's line last; a gate may have several boxes
    gate_of_box: npt.NDArray[np.int64]
    respawn_m: FloatArray  # (L, 3) car's origin after a respawn at each gate in a lap; the last one is the start
    respawn_rotation: FloatArray  # (L, 3, 3) car to world after the respawn
    way_up: FloatArray  # (N, 3) ground normals along the line
    scene_points_m: FloatArray  # (P, 3) world metres
    scene_corners: npt.NDArray[np.int64]  # (Q, 4) rows in `scene_points_m`
    scene_paint: npt.NDArray[np.int64]  # (Q,) `Paint` values
    scene_gate: npt.NDArray[np.int64]  # (Q,) -1 for none
    # (G, 3) rows: a group's near version begin, far version begin, and end
    scene_first_point: npt.NDArray[np.int64]
    scene_first_quad: npt.NDArray[np.int64]  # (G, 3) likewise, in `scene_corners`

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate a file.

        Raises:
            WorldFileError: if not a world.
        """
        # Machines that only keep games (scripts/keep_games.py) lack this package.
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content = read_bounded(path, MAX_WORLD_BYTES, WorldFileError)
        if len(content) < 8 or int.from_bytes(content[:8], "little") > MAX_HEADER_BYTES:
            raise WorldFileError(f"{path}: is damaged, or no world: it does not begin as one")
        try:
            arrays = load(bytes(content))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WorldFileError(f"{path}: is damaged, or no world: {one_line(error, 80)}") from None
        names = {field.name for field in fields(cls)}
        if lacking := names - arrays.keys():
            raise WorldFileError(
                f"{path}: is no world of this version (it lacks {min(lacking)}): make it anew with "
                "scripts/tools/maps.py add or track"
            )
        if unknown := arrays.keys() - names:
            raise WorldFileError(f"{path}: is no world: it has {min(unknown)}, which no world has")
        for name, array in arrays.items():
            if array.dtype != _DTYPES[name]:
                raise WorldFileError(f"{path}: is damaged: {name} is of {array.dtype}, and not of {_DTYPES[name]}")
        read = cls(**{name: array.astype(_WIDE[array.dtype.kind]) for name, array in arrays.items()})
        try:
            read._check()
        except ValueError as error:
            raise WorldFileError(f"{path}: is damaged: {error}") from error
        return read

    def content(self) -> bytes:
        """Return the file content, for `read`."""
        from safetensors.numpy import save

        return save({name: np.ascontiguousarray(getattr(self, name), dtype) for name, dtype in _DTYPES.items()})

    @cached_property
    def mesh(self) -> SurfaceMesh:
        """Triangle mesh; raises ValueError if they are further apart than the largest map is wide."""
        return build_surface_mesh(
            self.corners_m, self.surface, self.forward, self.has_grass, float(self.grass_height_m[0])
        )

    @property
    def gates_per_lap(self) -> int:
        """Checkpoints per lap plus the lap's line."""
        return int(self.gate_of_box.max()) + 1

    def _check(self) -> None:
        n = len(self.surface)
        boxes = len(self.gate_of_box)
        way = len(self.way_up)
        if not 0 < n <= MAX_TRIANGLES or not 0 < boxes <= MAX_GATES:
            raise ValueError(f"it has {n} triangles and {boxes} gates")
        gates = self.gates_per_lap
        if not np.array_equal(np.unique(self.gate_of_box), np.arange(gates)):
            raise ValueError("the gates are not numbered one after the other")
        expected = {
            "corners_m": (n, 3, 3),
            "surface": (n,),
            "forward": (n, 3),
            "grass_height_m": (1,),
            "gate_boxes_m": (boxes, 2, 3),
            "gate_of_box": (boxes,),
            "respawn_m": (gates, 3),
            "respawn_rotation": (gates, 3, 3),
            "way_up": (way, 3),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has the shape {getattr(self, name).shape}, and not {shape}")
        if self.has_grass.ndim != 2 or self.has_grass.size == 0 or max(self.has_grass.shape) > 256:
            raise ValueError(f"has_grass has the shape {self.has_grass.shape}")
        for name in ("corners_m", "grass_height_m", "gate_boxes_m", "respawn_m", "scene_points_m"):
            if not (np.abs(getattr(self, name)) <= FARTHEST_M).all():  # also false for NaN
                raise ValueError(f"{name} has a place outside of every map")
        for name in ("forward", "respawn_rotation", "way_up"):
            if not (np.abs(getattr(self, name)) <= 1.001).all():
                raise ValueError(f"{name} has what is no direction")
        if not np.allclose(self.respawn_rotation @ self.respawn_rotation.swapaxes(1, 2), np.eye(3), atol=1e-3):
            raise ValueError("respawn_rotation is no rotation")
        if not (np.linalg.norm(self.way_up, axis=1) > 0.5).all():
            raise ValueError("way_up has what is no direction")
        if not np.isin(self.surface, [int(surface) for surface in Surface]).all():
            raise ValueError("a triangle is of a surface that there is not")
        sides_m = self.corners_m[:, 1:] - self.corners_m[:, :1]
        if (np.linalg.norm(np.cross(sides_m[:, 0], sides_m[:, 1]), axis=1) < LEAST_AREA_M2).any():
            raise ValueError("a triangle has no area")
        self._check_scene()

    def _check_scene(self) -> None:
        """Raise where compiled code would read beyond an array."""
        corners = self.scene_corners
        paint = self.scene_paint
        first_quad = self.scene_first_quad
        points_m = self.scene_points_m
        first_point = self.scene_first_point
        n_points = len(points_m)
        n_quads = len(corners)
        n_groups = len(first_point)
        shapes = points_m.shape, corners.shape, paint.shape, self.scene_gate.shape, first_point.shape, first_quad.shape
        if shapes != ((n_points, 3), (n_quads, 4), (n_quads,), (n_quads,), (n_groups, 3), (n_groups, 3)):
            raise ValueError(f"a scene's parts have the shapes {shapes}")
        if n_quads and (paint.min() < 0 or paint.max() >= N_PAINTS):
            raise ValueError("the scene has a paint that there is not")
        for first, number, what in ((first_point, n_points, "points"), (first_quad, n_quads, "quadrilaterals")):
            ends = np.concatenate([[0], first[:, 2]])
            if (np.diff(first, axis=1) < 0).any() or (first[:, 0] != ends[:-1]).any() or ends[-1] != number:
                raise ValueError(f"the scene's groups do not hold its {what} one after the other")
        if (first_point[:, 1] <= first_point[:, 0]).any():
            raise ValueError("a group of the scene has no points")
        lowest = np.repeat(first_point[:, :2].ravel(), np.diff(first_quad, axis=1).ravel())
        beyond = np.repeat(first_point[:, 1:].ravel(), np.diff(first_quad, axis=1).ravel())
        if ((corners < lowest[:, None]) | (corners >= beyond[:, None])).any():
            raise ValueError("a quadrilateral of the scene has a corner that is none of its group's points")


def track_in_world(name: str, line_m: FloatArray, world: MeshWorld, n_laps: int = 1) -> Track:
    """Return a track that is a triangle world; the ribbon is the way through it.

    Raises:
        ValueError: if the line (N, 3) is not the world's, or the triangles make no mesh.
    """
    assert len(world.mesh.records) > 0  # raises if the mesh cannot be built
    if len(world.way_up) != len(line_m):
        raise ValueError(f"made for a line of {len(world.way_up)} points, and not of {len(line_m)}")
    n_checkpoints = (world.gates_per_lap - 1) * n_laps + n_laps - 1
    middle_m = world.gate_boxes_m.mean(axis=1)
    nearest = [int(np.linalg.norm(line_m - place_m, axis=1).argmin()) for place_m in middle_m]
    stations_m = sorted(
        RIBBON_SPACING_M * point
        for point, gate in zip(nearest, world.gate_of_box, strict=True)
        if gate < world.gates_per_lap - 1
    )
    return Track(
        name,
        build_ribbon(line_m, half_width_m=WAY_HALF_WIDTH_M, up=world.way_up),
        tuple(stations_m[:n_checkpoints]),
        RIBBON_SPACING_M * (len(line_m) - 1),
        n_laps,
        world,
    )


_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "corners_m": np.dtype(np.float64),
    "surface": np.dtype(np.int16),
    "forward": np.dtype(np.float64),
    "has_grass": np.dtype(np.bool_),
    "grass_height_m": np.dtype(np.float64),
    "gate_boxes_m": np.dtype(np.float64),
    "gate_of_box": np.dtype(np.int32),
    "respawn_m": np.dtype(np.float64),
    "respawn_rotation": np.dtype(np.float64),
    "way_up": np.dtype(np.float32),
    "scene_points_m": np.dtype(np.float32),
    "scene_corners": np.dtype(np.int32),
    "scene_paint": np.dtype(np.int16),
    "scene_gate": np.dtype(np.int64),
    "scene_first_point": np.dtype(np.int32),
    "scene_first_quad": np.dtype(np.int32),
}
_WIDE: Final = {"f": np.float64, "i": np.int64, "b": np.bool_}
