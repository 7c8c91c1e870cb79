"""Block world picture: roads with lines and marks, walls, loops, pads, pools and gates.

It is built from the driven surface's pieces, with fewer and longer faces and with paint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Block, Gate
from trackmania_rl.simulator.picture.block_scene import NEVER_PASSED, NO_GATE, BlockScene, Quads, make_block_scene
from trackmania_rl.simulator.picture.palette import Paint, paints_of_surfaces
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.block_world import GRASS_HEIGHT_M, BlockWorld, GateBox
from trackmania_rl.track.piece_mesh import Way, ways_of
from trackmania_rl.track.pieces import SHAPE_BITS, CrossSection, Piece, Polygon, footprint, stadium_pieces
from trackmania_rl.track.placed_blocks import to_world

BAND_M: Final = 8.0  # a road's shade changes after this length, so speed is visible
NEAR_STRAIGHT_M: Final = 8.0
NEAR_BENT_M: Final = 4.0
FAR_STRAIGHT_M: Final = 16.0
FAR_BENT_M: Final = 8.0  # face length along a road, near and far
TILE_M: Final = 16.0
COARSEST_M: Final = 0.1  # tolerance for a drawn cross-section
STEEP: Final = 1.0  # rise per metre across a road from which on it is a wall
CAP_ABOVE_M: Final = 0.5  # a level surface this far above the road is a wall's top
LINE_M: Final = (10.45, 11.05)  # white line on a road with borders (raised strip), from the middle
LEAST_BORDERED_M: Final = 12.9  # a wider cross-section has borders; others have the line at the edge
LINE_WIDTH_M: Final = 0.6
DASH_M: Final = 0.25
ARROW_M: Final = (8.4, 0.8)  # half width of a pad's arrow, at the begin and at the point
MARK_ABOVE_M: Final = 0.04
POST_M: Final = 0.9
BANNER_M: Final = (6.3, 8.7)
"""A banner's bottom and top above the trigger's lowest corner, which is some 1.3 m below the road."""
CHECKS: Final = 12  # columns on a finish's banner
WATER_BELOW_GRASS_M: Final = 0.6

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MARKED: Final = (Surface.ASPHALT, Surface.TURBO, Surface.TURBO_ROULETTE, Surface.FREE_WHEEL)
_PADS: Final = (Surface.TURBO, Surface.TURBO2, Surface.TURBO_ROULETTE)


class _Painter:
    """Collector for quadrilaterals and marks on them, in one block's axes."""

    def __init__(self) -> None:
        self._marks: list[tuple[FloatArray, IntArray]] = []
        self._faces: list[tuple[FloatArray, IntArray]] = []

    def add(self, corners_m: FloatArray, paint: npt.ArrayLike, *, is_mark: bool = False) -> None:
        """Add quadrilaterals (..., 4, 3) with a paint each, or one for all."""
        shape = corners_m.shape[:-2]
        paints = np.broadcast_to(np.asarray(paint, dtype=np.int64), shape).ravel()
        (self._marks if is_mark else self._faces).append((corners_m.reshape(-1, 4, 3), paints))

    def quads(self, gate: int = NO_GATE) -> Quads:
        """Return the quadrilaterals, marks first, between distinct points."""
        parts = self._marks + self._faces
        corners_m = np.concatenate([np.zeros((0, 4, 3)), *(part[0] for part in parts)])
        paint = np.concatenate([np.zeros(0, dtype=np.int64), *(part[1] for part in parts)])
        points_m, number = np.unique(corners_m.reshape(-1, 3), axis=0, return_inverse=True)
        return Quads(points_m, number.reshape(-1, 4), paint, gate)


def scene_of(world: BlockWorld, checkpoints: Sequence[GateBox] | None = None) -> BlockScene:
    """Prepare a world for drawing, with checkpoints in passing order (by default the file's)."""
    pieces = stadium_pieces()
    if checkpoints is None:
        checkpoints = [gate for gate in world.gates if gate.kind is Gate.CHECKPOINT]
    painted: dict[tuple[str, int], tuple[Quads, Quads]] = {}
    groups = []
    not_built = {*world.scenery, *world.replaced}
    for block in world.blocks:
        piece = pieces.find(block)
        if piece is None or block in not_built:
            continue
        kind = block.name, block.flags & SHAPE_BITS
        if kind not in painted:
            painted[kind] = _painted(piece, block, is_near=True), _painted(piece, block, is_near=False)
        near, far = painted[kind]
        groups.append((_placed(near, block), _placed(far, block)))
    origin = Block("", (0, 0, 0), 0, 0)
    groups += [
        (_painted(piece, origin, is_near=True), _painted(piece, origin, is_near=False)) for piece in world.fillings
    ]
    groups += [2 * (_pool(block),) for block in world.water]
    groups += [2 * (_checkpoint(gate, number),) for number, gate in enumerate(checkpoints)]
    groups += [2 * (_finish(gate),) for gate in world.gates if gate.kind in (Gate.FINISH, Gate.START_AND_FINISH)]
    return make_block_scene(groups, GRASS_HEIGHT_M)


def _placed(quads: Quads, block: Block) -> Quads:
    return replace(quads, points_m=to_world(quads.points_m, block))


def _painted(piece: Piece, block: Block, *, is_near: bool) -> Quads:
    painter = _Painter()
    spacing_m = (NEAR_STRAIGHT_M, NEAR_BENT_M) if is_near else (FAR_STRAIGHT_M, FAR_BENT_M)
    for way in ways_of(piece, block, *spacing_m):
        _paint_way(painter, way, is_near=is_near)
    for polygon in piece.polygons:
        _paint_polygon(painter, polygon, is_near=is_near)
    return painter.quads()


def _paint_way(painter: _Painter, way: Way, *, is_near: bool) -> None:
    places_m, paints = _columns(way.cross_section, with_lines=is_near)
    grid_m = way.across(places_m)
    length_m = np.linalg.norm(np.diff(way.center_m, axis=0), axis=1)
    begins_m = np.concatenate(([0.0], np.cumsum(length_m)))
    is_odd = np.floor(begins_m[:-1] / BAND_M + 1e-6).astype(np.int64) % 2
    has_alternate = np.isin(paints, _with_alternate())
    paint = paints + is_odd[:, None] * has_alternate
    painter.add(np.stack((grid_m[:-1, :-1], grid_m[1:, :-1], grid_m[1:, 1:], grid_m[:-1, 1:]), axis=2), paint)
    surface = way.cross_section.surface
    if not is_near or surface not in (*_MARKED, Surface.CONCRETE):
        return
    if surface in _PADS:
        _paint_arrows(painter, way, begins_m)
        return
    dash_m = _strip(way, DASH_M)
    corners_m = np.stack((dash_m[:-1, 0], dash_m[1:, 0], dash_m[1:, 1], dash_m[:-1, 1]), axis=1)
    painter.add(corners_m[is_odd == 0], Paint.DASH, is_mark=True)


def _paint_arrows(painter: _Painter, way: Way, begins_m: FloatArray) -> None:
    ahead = way if way.center_m[-1, 2] >= way.center_m[0, 2] else _reversed(way)
    for begin_m in np.arange(0.0, begins_m[-1] - 0.5 * BAND_M, BAND_M):
        ends = np.interp((begin_m, begin_m + BAND_M), begins_m, np.arange(len(begins_m)))
        first, last = np.rint(ends).astype(int)
        wide_m, point_m = (_strip(ahead, half_m) for half_m in ARROW_M)
        arrow_m = np.stack((wide_m[first, 0], point_m[last, 0], point_m[last, 1], wide_m[first, 1]))
        painter.add(arrow_m[None], Paint.TURBO_ARROW, is_mark=True)


def _strip(way: Way, half_m: float) -> FloatArray:
    """Return both sides (N, 2, 3) of a strip along a way's middle, just above it."""
    return replace(way, reach_m=None).across(np.array(((-half_m, MARK_ABOVE_M), (half_m, MARK_ABOVE_M))))


def _reversed(way: Way) -> Way:
    return replace(way, center_m=way.center_m[::-1], left=-way.left[::-1], up=way.up[::-1])


def _columns(section: CrossSection, *, with_lines: bool) -> tuple[FloatArray, IntArray]:
    """Return a road's cross-section points (K, 2), right to left, and the paints between them (K - 1,)."""
    places_m = _simplified(section.points_m, COARSEST_M)
    is_marked = section.surface in _MARKED
    line_m = LINE_M if places_m[-1, 0] > LEAST_BORDERED_M else (places_m[-1, 0] - LINE_WIDTH_M, places_m[-1, 0])
    if with_lines and is_marked:
        road = int(np.argmax(np.diff(places_m[:, 0])))
        cuts_m = np.array([-line_m[1], -line_m[0], line_m[0], line_m[1]])
        cuts_m = cuts_m[(cuts_m > places_m[road, 0]) & (cuts_m < places_m[road + 1, 0])]
        heights_m = np.interp(cuts_m, places_m[road : road + 2, 0], places_m[road : road + 2, 1])
        cuts = np.stack((cuts_m, heights_m), axis=1)
        places_m = np.concatenate((places_m[: road + 1], cuts, places_m[road + 1 :]))
    surface = int(paints_of_surfaces(np.array([int(section.surface)]))[0])
    middle_m = 0.5 * (places_m[1:] + places_m[:-1])
    way_m = np.diff(places_m, axis=0)
    paints = np.full(len(way_m), surface)
    if is_marked:
        from_middle_m = np.abs(middle_m[:, 0])
        is_line = (from_middle_m > line_m[0]) & (from_middle_m < line_m[1]) & (np.abs(way_m[:, 1]) < COARSEST_M)
        paints[is_line & with_lines] = Paint.BORDER_LINE
        paints[middle_m[:, 1] > CAP_ABOVE_M] = Paint.WALL_CAP
        paints[np.abs(way_m[:, 1]) > STEEP * np.abs(way_m[:, 0])] = Paint.WALL
    return places_m, paints


def _simplified(points_m: FloatArray, tolerance_m: float) -> FloatArray:
    """Simplify a polyline (K, 2) within a tolerance (Douglas and Peucker)."""
    if len(points_m) < 3:
        return points_m
    begin_m = points_m[0]
    way_m = points_m[-1] - points_m[0]
    share = np.clip((points_m - begin_m) @ way_m / max(float(way_m @ way_m), 1e-12), 0.0, 1.0)
    away_m = np.linalg.norm(points_m - begin_m - share[:, None] * way_m, axis=1)
    farthest = int(np.argmax(away_m))
    if away_m[farthest] <= tolerance_m:
        return points_m[[0, -1]]
    first = _simplified(points_m[: farthest + 1], tolerance_m)
    return np.concatenate((first[:-1], _simplified(points_m[farthest:], tolerance_m)))


def _with_alternate() -> IntArray:
    return np.array(
        [paint for paint in Paint if f"{paint.name}_ALTERNATE" in Paint.__members__ and paint is not Paint.DROP_LINE],
        dtype=np.int64,
    )


def _paint_polygon(painter: _Painter, polygon: Polygon, *, is_near: bool) -> None:
    points_m = polygon.points_m
    paint = int(paints_of_surfaces(np.array([int(polygon.surface)]))[0])
    if len(points_m) != 4:
        for k in range(1, len(points_m) - 1):
            painter.add(points_m[[0, k, k + 1, k + 1]][None], paint)
        return
    sides_m = np.linalg.norm(np.roll(points_m, -1, axis=0) - points_m, axis=1)
    n_along, n_across = (max(round(max(sides_m[k], sides_m[k + 2]) / TILE_M), 1) for k in (0, 1))
    u = np.linspace(0.0, 1.0, n_along + 1)[:, None, None]
    v = np.linspace(0.0, 1.0, n_across + 1)[None, :, None]
    a, b, c, d = points_m
    grid_m = (1 - u) * (1 - v) * a + u * (1 - v) * b + u * v * c + (1 - u) * v * d
    is_odd = (np.arange(n_along)[:, None] + np.arange(n_across)) % 2
    tiles_m = np.stack((grid_m[:-1, :-1], grid_m[1:, :-1], grid_m[1:, 1:], grid_m[:-1, 1:]), axis=2)
    painter.add(tiles_m, paint + is_odd)
    if is_near and polygon.surface in _PADS:
        middle_m = points_m.mean(axis=0)
        up_m = np.array((0.0, MARK_ABOVE_M, 0.0))
        for begin_m in np.arange(-2.0 * BAND_M, 2.0 * BAND_M, BAND_M):
            (wide_m, narrow_m), end_m = ARROW_M, begin_m + BAND_M
            arrow_m = np.array(
                ((-wide_m, 0, begin_m), (-narrow_m, 0, end_m), (narrow_m, 0, end_m), (wide_m, 0, begin_m))
            )
            painter.add((middle_m + up_m + arrow_m)[None], Paint.TURBO_ARROW, is_mark=True)


def _pool(block: Block) -> Quads:
    painter = _Painter()
    for x, _, z in footprint(block.name):
        low_m = np.array((x, 0, z)) * BLOCK_SIZE_M
        ends_m = np.array(((0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 0))) * BLOCK_SIZE_M
        painter.add((low_m + ends_m)[None], Paint.WATER)
    quads = _placed(painter.quads(), block)
    quads.points_m[:, 1] = GRASS_HEIGHT_M - WATER_BELOW_GRASS_M
    return quads


def _checkpoint(gate: GateBox, number: int) -> Quads:
    painter = _Painter()
    frame = _Frame(gate.trigger_m)
    low_m, high_m = BANNER_M
    margin_m = (high_m - low_m) / 3.0
    painter.add(frame.upright(0.0, 1.0, low_m + margin_m, high_m - margin_m), Paint.CHECKPOINT_STRIPE, is_mark=True)
    painter.add(frame.upright(0.0, 1.0, low_m, high_m), Paint.CHECKPOINT)
    for begin, end in frame.posts:
        painter.add(frame.upright(begin, end, 0.0, high_m), Paint.CHECKPOINT)
    return painter.quads(gate=number)


def _finish(gate: GateBox) -> Quads:
    painter = _Painter()
    frame = _Frame(gate.trigger_m)
    rows = np.linspace(*BANNER_M, 3)
    for column in range(CHECKS):
        for row in range(2):
            paint = (Paint.FINISH_LIGHT, Paint.FINISH_DARK)[(column + row) % 2]
            across = column / CHECKS, (column + 1) / CHECKS
            painter.add(frame.upright(*across, rows[row], rows[row + 1]), paint)
    for begin, end in frame.posts:
        heights = np.linspace(0.0, BANNER_M[1], 5)
        for row in range(4):
            paint = (Paint.FINISH_LIGHT, Paint.FINISH_DARK)[row % 2]
            painter.add(frame.upright(begin, end, heights[row], heights[row + 1]), paint)
    return painter.quads(gate=NEVER_PASSED)


class _Frame:
    """Plane through a gate trigger's middle, across the road."""

    def __init__(self, trigger_m: FloatArray) -> None:
        low_m, high_m = trigger_m
        size_m = high_m - low_m
        self._across = 0 if size_m[0] > size_m[2] else 2
        self._low_m = 0.5 * (low_m + high_m)
        self._width_m = float(size_m[self._across])
        self._low_m[1] = low_m[1]
        self._low_m[self._across] = low_m[self._across]
        post = POST_M / self._width_m
        self.posts: Final = ((-post, 0.0), (1.0, 1.0 + post))

    def upright(self, begin: float, end: float, bottom_m: float, top_m: float) -> FloatArray:
        """Return a rectangle (1, 4, 3); `begin` and `end` are width shares."""
        corners_m = np.tile(self._low_m, (4, 1))
        corners_m[:, self._across] += self._width_m * np.array((begin, end, end, begin))
        corners_m[:, 1] += (bottom_m, bottom_m, top_m, top_m)
        return corners_m[None]
