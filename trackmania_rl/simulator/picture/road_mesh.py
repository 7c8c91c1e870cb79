"""A ribbon's road as a mesh: surface, marks, border lines, walls and verges, with detail levels.

Only cross-sections near the car are drawn, so the cost does not grow with the track.

Level of detail by screen-space error (Luebke et al., Level of Detail for 3D Graphics, 2003): each part has the longest
steps between cross-sections whose error, computed once per track, is below a fraction of a pixel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.picture.palette import (
    LIGHT_LEVELS,
    LIGHT_STEP,
    PLAIN_LIGHT,
    Paint,
    color_at,
    haze_at,
    paints_of_surfaces,
)
from trackmania_rl.simulator.picture.rasterizer import Camera, Mesh, add_point, add_quad
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, VERGE_WIDTH_M, WALL_HEIGHT_M, Edge, Ribbon, Track

GROUND_BELOW_ROAD_M = 3.0
"""Depth of the stadium's ground below the road's lowest place."""
LINE_WIDTH_M = 0.6
WALL_CAP_M = 0.25
DECK_THICKNESS_M = 0.8  # if a road has no ground beside it
_VERGE_SINK_M = 0.5
"""Lowers a verge's outer end, so another leg of the road on it stays visible."""
GATE_LINE_SECTIONS = 4  # 2 m

# Places across the road, from the left.
OUTER_LEFT, CAP_LEFT, FACE_LEFT, BASE_LEFT, BORDER_LEFT, LINE_LEFT = range(6)
LINE_RIGHT, BORDER_RIGHT, BASE_RIGHT, FACE_RIGHT, CAP_RIGHT, OUTER_RIGHT = range(6, 12)
PLACES = 12

BAND_SECTIONS = 16  # cross-sections (8 m) after which most textures change
_STEPS = (2, 4, 8, 16, 32)
"""Cross-sections drawn as one. Powers of two, so fine and coarse steps meet. With the longest, two bands get the
shade of the first."""
_MOST_ERROR_PX = 0.5
_SHADE_ERROR_M = 0.8
"""Error with one shade for two bands; with `_MOST_ERROR_PX` it applies from 170 m on in a 120-row picture."""
_MOST_TWIST_M = 0.03
"""Limit of the surface's bend if the bank changes within a step, so marks stay visible."""
_LEAST_DISTANCE_M = 3.0  # place to camera


class Scenery(NamedTuple):
    """Track prepared for drawing."""

    ribbon: Ribbon
    places_m: npt.NDArray[np.float64]  # (P, 3, PLACES) world coordinates
    # (bands, steps) a band's largest place shift, by each step in `_STEPS`
    step_error_m: npt.NDArray[np.float64]
    road_paint: npt.NDArray[np.int64]  # (P,) `Paint` values
    # (P,) next cross-section at which surface, edge, gap or gate line changes; no step crosses it
    stretch_end: npt.NDArray[np.int64]
    gate_section: npt.NDArray[np.int64]  # (G,) cross-sections at checkpoints and, last, at the finish
    ground_height_m: float


def make_scenery(track: Track) -> Scenery:
    """Prepare a track for drawing; raise ValueError if the road has a surface without a colour."""
    ribbon = track.ribbon
    last = len(ribbon.station_m) - 1
    is_change = (np.diff(ribbon.surface) != 0) | (np.diff(ribbon.edge) != 0) | np.diff(ribbon.has_road)
    gate_stations_m = [*track.checkpoint_stations_m, track.finish_station_m]
    gate_section = np.minimum(np.searchsorted(ribbon.station_m, gate_stations_m), last).astype(np.int64)
    of_gates = np.minimum(gate_section[:, None] + (0, GATE_LINE_SECTIONS // 2, GATE_LINE_SECTIONS), last)
    changes = np.unique(np.concatenate([np.flatnonzero(is_change) + 1, of_gates.ravel(), [last]]))
    next_change = np.searchsorted(changes, np.arange(last + 1), side="right")
    places_m = _places(ribbon)
    return Scenery(
        ribbon=ribbon,
        places_m=places_m,
        step_error_m=np.stack([_step_error(places_m, ribbon.up, step) for step in _STEPS], axis=1),
        road_paint=paints_of_surfaces(ribbon.surface),
        stretch_end=changes[np.minimum(next_change, len(changes) - 1)].astype(np.int64),
        gate_section=gate_section,
        ground_height_m=float(np.min(ribbon.center_m[:, 1])) - GROUND_BELOW_ROAD_M,
    )


def _places(ribbon: Ribbon) -> npt.NDArray[np.float64]:
    half_m = ribbon.half_width_m
    columns_of_side = {1.0: slice(OUTER_LEFT, LINE_RIGHT), -1.0: slice(OUTER_RIGHT, LINE_LEFT, -1)}
    places_m = np.empty((len(half_m), 3, PLACES))
    for side, columns in columns_of_side.items():
        # The verge's outer end, level (but for the sink) on a banked road too; then the lower ends for the wall's top,
        # the cap and the slab, the road's border and the line's inner end.
        verge_m = side * VERGE_WIDTH_M / np.hypot(ribbon.left[:, 0], ribbon.left[:, 2])
        left_m = side * (half_m[:, None] - np.array([0.0, 0.0, 0.0, 0.0, 0.0, LINE_WIDTH_M]))
        up_m = np.array([0.0, WALL_HEIGHT_M, WALL_HEIGHT_M - WALL_CAP_M, -DECK_THICKNESS_M, 0.0, 0.0])
        of_side = (
            ribbon.center_m[:, :, None] + left_m[:, None, :] * ribbon.left[:, :, None] + up_m * ribbon.up[:, :, None]
        )
        of_side[:, :, 0] += verge_m[:, None] * ribbon.left * (1.0, 0.0, 1.0) - (0.0, _VERGE_SINK_M, 0.0)
        places_m[:, :, columns] = of_side
    return places_m


def _step_error(places_m: npt.NDArray[np.float64], up: npt.NDArray[np.float64], step: int) -> npt.NDArray[np.float64]:
    """Return the places' shift (m) per band if every `step`-th cross-section is drawn; infinite at bends."""
    last = len(places_m) - 1
    section = np.arange(last + 1)
    first_of_band = np.arange(0, last + 1, BAND_SECTIONS)
    if step == min(_STEPS):
        return np.zeros(len(first_of_band))
    near = section // step * step
    far = np.minimum(near + step, last)
    share = ((section - near) / np.maximum(far - near, 1))[:, None, None]
    counting_m = places_m[:, :, CAP_LEFT:OUTER_RIGHT]
    drawn_m = (1.0 - share) * counting_m[near] + share * counting_m[far]
    moved_m = np.linalg.norm(drawn_m - counting_m, axis=1).max(axis=1)
    # A bent quadrilateral's middle is halfway between its diagonals.
    across_m = places_m[:, :, LINE_LEFT] - places_m[:, :, LINE_RIGHT]
    bend_m = 0.25 * np.sum((across_m[far] - across_m[near]) * up[section], axis=1)
    is_twisted = np.abs(bend_m) > _MOST_TWIST_M
    error_m = np.maximum.reduceat(np.where(is_twisted, np.inf, moved_m), first_of_band)
    if step <= BAND_SECTIONS:
        return error_m
    bands = step // BAND_SECTIONS
    of_group = np.maximum.reduceat(error_m, np.arange(0, len(error_m), bands))
    return np.maximum(np.repeat(of_group, bands)[: len(error_m)], _SHADE_ERROR_M)


@compiled(inline="always")
def section_after(scenery: Scenery, section: int, camera: Camera, focal_px: float) -> int:
    """Return the cross-section to draw next: the last one that the error in pixels allows."""
    center_m = scenery.ribbon.center_m
    position_m = camera.position_m
    step_error_m = scenery.step_error_m
    band = section // BAND_SECTIONS
    middle = min(band * BAND_SECTIONS + BAND_SECTIONS // 2, center_m.shape[0] - 1)
    squares_m2 = 0.0
    for axis in range(3):
        squares_m2 += (center_m[middle, axis] - position_m[axis]) ** 2
    reach_m = 0.5 * BAND_SECTIONS * RIBBON_SPACING_M + scenery.ribbon.half_width_m[middle]
    distance_m = max(math.sqrt(squares_m2) - reach_m, _LEAST_DISTANCE_M)
    most_error_m = _MOST_ERROR_PX * distance_m / focal_px
    step = _STEPS[0]
    for level, longer_step in enumerate(_STEPS):
        if step_error_m[band, level] <= most_error_m:
            step = longer_step
    return (section // step + 1) * step


VIEW_AHEAD_M = 300.0
VIEW_BEHIND_M = 20.0

_LIGHT_LEVELS_PER_SLOPE = 1.2 / LIGHT_STEP
"""A rising road is brighter, a falling one darker: 12 % for a 10 % slope."""

_EDGE_REACH_M = 2.0  # for walls and slabs
_PATCH_SECTIONS = 4
_PATCHES_SEEN_M = 80.0
_DASH_HALF_WIDTH_M = 0.25
_PATCH_WIDTH_M = 2.4
_ARROW_INSET = 0.1  # width share left free beside a turbo arrow's wide end
_MARK_OVER_ROAD_M = 0.04  # keeps marks visible where the road is twisted
_HASH_FACTOR = 2654435761  # 2^32 divided by the golden ratio (Knuth's multiplicative hash)

_MOST_SECTIONS = int((VIEW_AHEAD_M + VIEW_BEHIND_M) / RIBBON_SPACING_M) + 1
MOST_ROAD_POINTS = _MOST_SECTIONS * (PLACES + 4)  # each cross-section's places and a mark
MOST_ROAD_QUADS = _MOST_SECTIONS * 9
"""Per cross-section a mark, road, two lines, two caps, two faces and a slab's end."""


_ROAD = -1


def _strips_of(edge: Edge) -> list[tuple[int, int, int, int, int]]:
    line = (Paint.DROP_LINE, 1) if edge == Edge.DROP else (Paint.BORDER_LINE, 0)
    beyond = {
        Edge.GRASS: [(OUTER_LEFT, BORDER_LEFT, Paint.VERGE, 1, 1), (BORDER_RIGHT, OUTER_RIGHT, Paint.VERGE, 1, 1)],
        Edge.WALL: [
            (CAP_LEFT, FACE_LEFT, Paint.WALL_CAP, 0, 0),
            (CAP_RIGHT, FACE_RIGHT, Paint.WALL_CAP, 0, 0),
            (FACE_LEFT, BASE_LEFT, Paint.WALL, 1, 0),
            (FACE_RIGHT, BASE_RIGHT, Paint.WALL, 1, 0),
        ],
        Edge.DROP: [
            (BORDER_LEFT, BASE_LEFT, Paint.UNDERSIDE, 0, 0),
            (BORDER_RIGHT, BASE_RIGHT, Paint.UNDERSIDE, 0, 0),
        ],
    }
    return [
        (LINE_LEFT, LINE_RIGHT, _ROAD, 1, 1),
        (BORDER_LEFT, LINE_LEFT, *line, 1),
        (LINE_RIGHT, BORDER_RIGHT, *line, 1),
        *beyond[edge],
    ]


_MOST_STRIPS = 7
_STRIPS = np.array(
    [_strips_of(edge) + [(0, 0, 0, 0, 0)] * (_MOST_STRIPS - len(_strips_of(edge))) for edge in Edge], dtype=np.int64
)
"""(edges, 7, 5) strips along the road: left and right place, paint, 1 if it has an alternate, 1 if slopes light it. A
row with two equal places ends an edge's list."""


@inner
def visible_sections(ribbon: Ribbon, car_section: int, camera: Camera) -> tuple[int, int]:
    """Return the first and the last cross-section to draw."""
    ahead = int(VIEW_AHEAD_M / RIBBON_SPACING_M)
    behind = int(VIEW_BEHIND_M / RIBBON_SPACING_M)
    along_road = 0.0
    for axis in range(3):
        along_road += camera.axes[2, axis] * ribbon.forward[car_section, axis]
    if along_road < 0.0:
        ahead, behind = behind, ahead
    return max(car_section - behind, 0), min(car_section + ahead, ribbon.station_m.shape[0] - 1)


@inner
def add_place(mesh: Mesh, ribbon: Ribbon, section: int, left_m: float, up_m: float) -> int:
    """Add a cross-section's point, given by the distances left from the centre and above the surface."""
    center = ribbon.center_m
    left = ribbon.left
    up = ribbon.up
    return add_point(
        mesh,
        center[section, 0] + left_m * left[section, 0] + up_m * up[section, 0],
        center[section, 1] + left_m * left[section, 1] + up_m * up[section, 1],
        center[section, 2] + left_m * left[section, 2] + up_m * up[section, 2],
    )


@inner
def add_section(
    points_m: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], places_m: npt.NDArray[np.float64], section: int
) -> int:
    """Add the places across a cross-section; return the first one's column."""
    first = counts[0]
    counts[0] = first + PLACES
    for axis in range(3):
        for place in range(PLACES):
            points_m[axis, first + place] = places_m[section, axis, place]
    return first


@inner
def _add_share(
    points_m: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    near: int,
    far: int,
    along: float,
    share: float,
) -> int:
    """Add a point just above the road, at shares (0..1) between two cross-sections and across the width."""
    point = counts[0]
    counts[0] = point + 1
    lift = _MARK_OVER_ROAD_M / WALL_HEIGHT_M
    for axis in range(3):
        on_sections_m = (0.0, 0.0)
        for section in (near, far):
            right_m = points_m[axis, section + LINE_RIGHT]
            left_m = points_m[axis, section + LINE_LEFT]
            wall_m = points_m[axis, section + CAP_RIGHT] - points_m[axis, section + BORDER_RIGHT]
            on_sections_m = (on_sections_m[1], right_m + share * (left_m - right_m) + lift * wall_m)
        near_m, far_m = on_sections_m
        points_m[axis, point] = near_m + along * (far_m - near_m)
    return point


@inner
def add_mark(
    mesh: Mesh, near: int, far: int, right: float, left: float, far_right: float, far_left: float, color: np.uint32
) -> None:
    """Add a mark between two cross-sections (their first columns), before the road is added.

    The ends are road width shares from the right line; equal ends on both cross-sections add nothing.
    """
    points_m = mesh.points_m
    counts = mesh.counts
    if left > right or far_left > far_right:
        a = _add_share(points_m, counts, near, far, 0.0, right)
        b = _add_share(points_m, counts, near, far, 0.0, left)
        c = _add_share(points_m, counts, near, far, 1.0, far_left)
        d = _add_share(points_m, counts, near, far, 1.0, far_right)
        add_quad(mesh, a, b, c, d, color)


@inner
def _add_patches(
    mesh: Mesh, near: int, far: int, section: int, end: int, half_width_m: float, color: np.uint32
) -> None:
    width = min(_PATCH_WIDTH_M / (2.0 * half_width_m), 1.0)
    per_section = 1.0 / (end - section)
    points_m = mesh.points_m
    counts = mesh.counts
    for patch in range(section // _PATCH_SECTIONS, (end - 1) // _PATCH_SECTIONS + 1):
        if patch % 2 == 0:
            right = (1.0 - width) * ((patch * _HASH_FACTOR >> 16) % 64) / 63.0
            begins = (max(patch * _PATCH_SECTIONS, section) - section) * per_section
            ends = (min((patch + 1) * _PATCH_SECTIONS, end) - section) * per_section
            a = _add_share(points_m, counts, near, far, begins, right)
            b = _add_share(points_m, counts, near, far, begins, right + width)
            c = _add_share(points_m, counts, near, far, ends, right + width)
            d = _add_share(points_m, counts, near, far, ends, right)
            add_quad(mesh, a, b, c, d, color)


@inner
def _add_road_mark(
    mesh: Mesh, near: int, far: int, section: int, end: int, paint: int, half_width_m: float, light: int, depth_m: float
) -> None:
    is_even_band = section // BAND_SECTIONS % 2 == 0
    if paint == Paint.GRASS:
        right = 0.5 if is_even_band else 0.0
        color = color_at(mesh.palette, Paint.GRASS_ALTERNATE, light, depth_m)
        add_mark(mesh, near, far, right, right + 0.5, right, right + 0.5, color)
    elif paint == Paint.TURBO:
        per_section = (0.5 - _ARROW_INSET) / BAND_SECTIONS
        first = section - section % BAND_SECTIONS
        inset = _ARROW_INSET + per_section * (section - first)
        far_inset = _ARROW_INSET + per_section * (end - first)
        color = color_at(mesh.palette, Paint.TURBO_ARROW, light, depth_m)
        add_mark(mesh, near, far, inset, 1.0 - inset, far_inset, 1.0 - far_inset, color)
    elif paint == Paint.DIRT or paint == Paint.ICE:
        if depth_m < _PATCHES_SEEN_M:
            patch_paint = Paint.DIRT_PATCH if paint == Paint.DIRT else Paint.ICE_PATCH
            color = color_at(mesh.palette, patch_paint, light, depth_m)
            _add_patches(mesh, near, far, section, end, half_width_m, color)
    elif is_even_band:
        share = 0.5 * _DASH_HALF_WIDTH_M / half_width_m
        color = color_at(mesh.palette, Paint.DASH, light, depth_m)
        add_mark(mesh, near, far, 0.5 - share, 0.5 + share, 0.5 - share, 0.5 + share, color)


@compiled(inline="always")
def _add_strips(
    mesh: Mesh, near: int, far: int, edge: int, road_paint: int, alternate: int, light: int, depth_m: float
) -> None:
    corners = mesh.corners
    colors = mesh.colors
    paints = mesh.palette.paints
    haze = haze_at(depth_m)
    quad = mesh.counts[1]
    for strip in range(_STRIPS.shape[1]):
        a, b, paint, is_alternating, is_lit = _STRIPS[edge, strip]
        if a == b:
            break
        if paint < 0:
            # Mown grass has checks as marks; other surfaces change shade between bands.
            paint = road_paint
            is_alternating = road_paint != Paint.GRASS
        corners[quad, 0] = near + a
        corners[quad, 1] = near + b
        corners[quad, 2] = far + b
        corners[quad, 3] = far + a
        colors[quad] = paints[paint + (alternate if is_alternating else 0), light if is_lit else PLAIN_LIGHT, haze]
        quad += 1
    mesh.counts[1] = quad


@inner
def _add_slab_end(mesh: Mesh, section_column: int, depth_m: float) -> None:
    color = color_at(mesh.palette, Paint.UNDERSIDE, PLAIN_LIGHT, depth_m)
    first = section_column + BORDER_LEFT
    second = section_column + BORDER_RIGHT
    add_quad(mesh, first, second, section_column + BASE_RIGHT, section_column + BASE_LEFT, color)


@compiled(inline="always")
def _section_in_view(camera: Camera, ribbon: Ribbon, section: int) -> tuple[float, float]:
    """Return a cross-section centre's metres ahead of the camera and to its right."""
    center_m = ribbon.center_m
    position_m = camera.position_m
    axes = camera.axes
    right_m, depth_m = 0.0, 0.0
    for axis in range(3):
        away_m = center_m[section, axis] - position_m[axis]
        right_m += away_m * axes[0, axis]
        depth_m += away_m * axes[2, axis]
    return depth_m, right_m


@compiled
def add_road(
    mesh: Mesh, scenery: Scenery, camera: Camera, focal_px: float, half_width_per_m: float, car_section: int
) -> None:
    """Add the road around the car; the view is twice `half_width_per_m` wide per metre ahead."""
    ribbon = scenery.ribbon
    stretch_end = scenery.stretch_end
    road_paint = scenery.road_paint
    edges = ribbon.edge
    half_width = ribbon.half_width_m
    has_road = ribbon.has_road
    forward = ribbon.forward
    section, last = visible_sections(ribbon, car_section, camera)
    points_m = mesh.points_m
    counts = mesh.counts
    places_m = scenery.places_m
    near = add_section(points_m, counts, places_m, section)
    near_depth_m, near_right_m = _section_in_view(camera, ribbon, section)
    while section < last:
        end = min(section_after(scenery, section, camera, focal_px), stretch_end[section], last)
        far = add_section(points_m, counts, places_m, end)
        far_depth_m, far_right_m = _section_in_view(camera, ribbon, end)
        edge = edges[section]
        half_width_m = half_width[section]
        reach_m = max(half_width_m, half_width[end]) + (VERGE_WIDTH_M if edge == Edge.GRASS else _EDGE_REACH_M)
        nearest_m = min(abs(near_right_m), abs(far_right_m)) if near_right_m * far_right_m > 0.0 else 0.0
        farthest_ahead_m = max(near_depth_m, far_depth_m) + reach_m
        is_in_view = nearest_m - reach_m <= farthest_ahead_m * half_width_per_m and farthest_ahead_m > 0.0
        if has_road[section] and is_in_view:
            alternate = section // BAND_SECTIONS % 2
            light_step = round(forward[section, 1] * _LIGHT_LEVELS_PER_SLOPE)
            light = min(max(PLAIN_LIGHT + light_step, 0), LIGHT_LEVELS - 1)
            paint = road_paint[section]
            _add_road_mark(mesh, near, far, section, end, paint, half_width_m, light, near_depth_m)
            _add_strips(mesh, near, far, edge, paint, alternate, light, near_depth_m)
            if section > 0 and not has_road[section - 1]:
                _add_slab_end(mesh, near, near_depth_m)
        near, section, near_depth_m, near_right_m = far, end, far_depth_m, far_right_m
