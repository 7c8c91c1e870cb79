"""A piece's triangles, in the block's axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.pieces import (
    CELL_M,
    ArcSweep,
    CrossSection,
    Lane,
    LaneSweep,
    PathSweep,
    Piece,
    Polygon,
    size_cells,
)
from trackmania_rl.track.placed_blocks import lane_points, port_place, side_direction

SURFACE_ABOVE_LANE_M: Final = 0.3446
"""Lanes are 1.0 m above a cell's floor, the surface 1.3446 m."""
LEAST_AREA_M2: Final = 1e-6  # smaller triangles have no normal and are left out

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PieceMesh:
    """T triangles."""

    corners_m: FloatArray  # (T, 3, 3) counter-clockwise from the driven side
    surface: npt.NDArray[np.int64]  # (T,) `Surface` values


@dataclass(frozen=True)
class Way:
    """A swept cross-section's path: N places, in the block's axes."""

    cross_section: CrossSection
    center_m: FloatArray  # (N, 3) points at 0
    left: FloatArray  # (N, 3) the cross-section's first axis, not a unit vector where the road is banked
    up: FloatArray  # (N, 3) cross-section's second axis
    is_straight: bool
    reach_m: FloatArray | None = None  # (N, 2) cross-section's right and left end, if it varies along the way

    def across(self, places_m: FloatArray) -> FloatArray:
        """Return cross-section places (K, 2), ends included, at every place on the way: (N, K, 3)."""
        aside_m = np.tile(places_m[:, 0], (len(self.center_m), 1))
        if self.reach_m is not None:
            aside_m[:, [0, -1]] = self.reach_m * (-1.0, 1.0)
        return np.asarray(
            self.center_m[:, None] + aside_m[:, :, None] * self.left[:, None] + places_m[:, 1, None] * self.up[:, None]
        )


def mesh_of(piece: Piece, block: Block) -> PieceMesh:
    """Build a piece's triangles; the block's place does not matter."""
    parts = [_flat(polygon) for polygon in piece.polygons]
    parts += [_swept(way) for way in ways_of(piece, block)]
    corners_m = np.concatenate([np.zeros((0, 3, 3))] + [part.corners_m for part in parts])
    surface = np.concatenate([np.zeros(0, dtype=np.int64)] + [part.surface for part in parts])
    return PieceMesh(corners_m, surface)


def ways_of(piece: Piece, block: Block, straight_m: float | None = None, bent_m: float | None = None) -> list[Way]:
    """Return the ways for a piece's cross-sections.

    `straight_m` and `bent_m` are the spacings between places on straight and on other ways; by default the catalogue's.
    """
    ways = []
    for sweep in piece.sweeps:
        match sweep:
            case LaneSweep():
                spacing_m = straight_m if sweep.facets == 1 else bent_m
                ways += [_along_lane(sweep, lane, size_cells(block.name), spacing_m) for lane in piece.lanes]
            case PathSweep():
                ways.append(_along_path(sweep, straight_m if len(sweep.points_m) == 2 else bent_m))
            case ArcSweep():
                ways.append(_along_arc(sweep, bent_m))
    return ways


def _pieces(length_m: float, spacing_m: float | None, otherwise: int) -> int:
    return otherwise if spacing_m is None else max(round(length_m / spacing_m), 1)


def _flat(polygon: Polygon) -> PieceMesh:
    points_m = polygon.points_m
    fan = [(points_m[0], points_m[k], points_m[k + 1]) for k in range(1, len(points_m) - 1)]
    return _mesh(np.array(fan), polygon.surface)


def _along_lane(sweep: LaneSweep, lane: Lane, size: tuple[int, int], spacing_m: float | None) -> Way:
    points_m, bank = lane_points(lane, size)
    length_m = float(np.linalg.norm(np.diff(points_m, axis=0), axis=1).sum())
    facets = _pieces(length_m, spacing_m, sweep.facets)
    at = np.rint(np.linspace(0, len(points_m) - 1, facets + 1)).astype(int)
    ahead = np.gradient(points_m[:, [0, 2]], axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    ahead[0] = -side_direction(lane.begin.side)
    ahead[-1] = side_direction(lane.end.side)
    level_left = np.stack((ahead[at, 1], np.zeros(len(at)), -ahead[at, 0]), axis=1)
    up = np.broadcast_to((0.0, 1.0, 0.0), level_left.shape)
    center_m = points_m[at] + (0.0, SURFACE_ABOVE_LANE_M, 0.0)
    left = level_left + bank[at, None] * up
    plane = _plane_of(lane, size)
    if plane is not None:
        begin_m, gradient = plane
        center_m[:, 1] = lane.begin.height_m + SURFACE_ABOVE_LANE_M + (center_m[:, [0, 2]] - begin_m) @ gradient
        left = level_left + (level_left[:, [0, 2]] @ gradient)[:, None] * up
    reach_m = _reach(center_m, level_left, size) if sweep.fills_block else None
    return Way(sweep.cross_section, center_m, left, up, sweep.facets == 1, reach_m)


def _reach(center_m: FloatArray, level_left: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Return the distances (N, 2) to a block's cell border, to the right and to the left."""
    place_m = center_m[:, [0, 2]]
    ahead = level_left[:, [0, 2]]
    reach_m = []
    for direction in (-ahead, ahead):
        to_border_m = np.where(direction > 0.0, np.array(size) * CELL_M - place_m, place_m)
        is_along = np.abs(direction) < 1e-9
        reach_m.append(np.where(is_along, np.inf, to_border_m / np.where(is_along, 1.0, np.abs(direction))).min(axis=1))
    return np.stack(reach_m, axis=1)


def _plane_of(lane: Lane, size: tuple[int, int]) -> tuple[FloatArray, FloatArray] | None:
    """Return a point (x, z) and the gradient of a lane's plane, if the ports are in one."""
    gradient = np.array(lane.begin.gradient)
    begin_m = port_place(lane.begin, size)
    end_m = port_place(lane.end, size)
    rise_m = lane.end.height_m - lane.begin.height_m
    is_plane = lane.begin.gradient == lane.end.gradient and abs((end_m - begin_m) @ gradient - rise_m) < 1e-6
    return (begin_m, gradient) if is_plane else None


def _along_path(sweep: PathSweep, spacing_m: float | None) -> Way:
    center_m = sweep.points_m
    if spacing_m is not None:
        along_m = np.concatenate(([0.0], np.cumsum(np.linalg.norm(np.diff(center_m, axis=0), axis=1))))
        at_m = np.linspace(0.0, along_m[-1], _pieces(along_m[-1], spacing_m, 1) + 1)
        center_m = np.stack([np.interp(at_m, along_m, center_m[:, axis]) for axis in range(3)], axis=1)
    ahead = np.gradient(center_m[:, [0, 2]], axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    left = np.stack((ahead[:, 1], np.zeros(len(ahead)), -ahead[:, 0]), axis=1)
    up = np.broadcast_to((0.0, 1.0, 0.0), center_m.shape)
    return Way(sweep.cross_section, center_m, left, up, len(sweep.points_m) == 2)


def _along_arc(sweep: ArcSweep, spacing_m: float | None) -> Way:
    length_m = sweep.radius_m * abs(float(sweep.angles_rad[1] - sweep.angles_rad[0]))
    share = np.linspace(0.0, 1.0, _pieces(length_m, spacing_m, sweep.facets) + 1)
    angle = sweep.angles_rad[0] + share * (sweep.angles_rad[1] - sweep.angles_rad[0])
    sine = np.sin(angle)
    cosine = np.cos(angle)
    zero = np.zeros(len(angle))
    center_m = np.stack(
        (
            sweep.across_m[0] + share * (sweep.across_m[1] - sweep.across_m[0]),
            sweep.center_m[1] - sweep.radius_m * cosine,
            sweep.center_m[0] + sweep.radius_m * sine,
        ),
        axis=1,
    )
    up = np.stack((zero, cosine, -sine), axis=1)
    left = np.broadcast_to((np.sign(sweep.angles_rad[1] - sweep.angles_rad[0]), 0.0, 0.0), center_m.shape)
    return Way(sweep.cross_section, center_m, left, up, is_straight=False)


def _swept(way: Way) -> PieceMesh:
    """Return triangles between the cross-sections at a way's N places."""
    grid_m = way.across(way.cross_section.points_m)  # (N, K, 3)
    right = grid_m[:-1, :-1]
    left_on = grid_m[1:, 1:]
    on = grid_m[1:, :-1]
    beside = grid_m[:-1, 1:]
    first = np.stack((right, on, left_on), axis=2)
    second = np.stack((right, left_on, beside), axis=2)
    # A quadrilateral's two triangles are neighbours, so flat ones become one face.
    return _mesh(np.stack((first, second), axis=2).reshape(-1, 3, 3), way.cross_section.surface)


def _mesh(corners_m: FloatArray, surface: Surface) -> PieceMesh:
    across = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    kept = corners_m[0.5 * np.linalg.norm(across, axis=1) > LEAST_AREA_M2]
    return PieceMesh(kept, np.full(len(kept), int(surface), dtype=np.int64))
