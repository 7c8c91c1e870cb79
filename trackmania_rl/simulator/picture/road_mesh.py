"""The road as a mesh: its surface with marks, the lines at its borders, walls, verges.

Only cross-sections near the car are taken, and as few of them as are seen to matter, so a picture's cost does not grow
with the track. Textures go by the number of the cross-section, so they lie still on the road.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.picture.camera import Camera
from trackmania_rl.simulator.picture.mesh import Mesh, add_point, add_quad
from trackmania_rl.simulator.picture.palette import LIGHT_LEVELS, LIGHT_STEP, PLAIN_LIGHT, Paint, color_at, haze_at
from trackmania_rl.simulator.picture.scenery import (
    BAND_SECTIONS,
    BASE_LEFT,
    BASE_RIGHT,
    BORDER_LEFT,
    BORDER_RIGHT,
    CAP_LEFT,
    CAP_RIGHT,
    FACE_LEFT,
    FACE_RIGHT,
    LINE_LEFT,
    LINE_RIGHT,
    OUTER_LEFT,
    OUTER_RIGHT,
    PLACES,
    Scenery,
    section_after,
)
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, VERGE_WIDTH_M, WALL_HEIGHT_M, Edge, Ribbon

VIEW_AHEAD_M = 300.0
"""The road is drawn this far from the car in the direction the camera looks."""
VIEW_BEHIND_M = 20.0
"""The road is drawn this far on the car's other side."""

_LIGHT_LEVELS_PER_SLOPE = 1.2 / LIGHT_STEP
"""What rises ahead is turned to the camera and brighter, what falls is darker: 12 % for a slope of 10 %."""

_EDGE_REACH_M = 2.0
"""No wall and no slab reaches farther out than this."""
_PATCH_SECTIONS = 4
_PATCHES_SEEN_M = 80.0
"""From farther away, patches are not drawn."""
_DASH_HALF_WIDTH_M = 0.25
_PATCH_WIDTH_M = 2.4
_ARROW_INSET = 0.1
"""Share of the road's width that is free beside the wide end of a turbo arrow."""
_MARK_OVER_ROAD_M = 0.04
"""Keeps marks in sight where the road is twisted from one cross-section to the next."""
_HASH_FACTOR = 2654435761
"""2^32 divided by the golden ratio: neighbouring numbers land far apart (Knuth's multiplicative hash)."""

_MOST_SECTIONS = int((VIEW_AHEAD_M + VIEW_BEHIND_M) / RIBBON_SPACING_M) + 1
MOST_ROAD_POINTS = _MOST_SECTIONS * (PLACES + 4)
"""A road's mesh has at most so many points: its places and a mark per cross-section."""
MOST_ROAD_QUADS = _MOST_SECTIONS * 9
"""And so many quadrilaterals: mark, road, two lines, two caps, two faces, the slab's end."""


_ROAD = -1
"""Stands for the paint of the road's surface."""


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
"""(edges, 7, 5), what lies along the road: left and right place, paint, 1 if it has an alternate, 1 if slopes light it.
A row with two equal places ends an edge's list."""


@compiled
def visible_sections(ribbon: Ribbon, car_section: int, camera: Camera) -> tuple[int, int]:
    """First and last cross-section that are drawn for a car at `car_section`."""
    ahead, behind = int(VIEW_AHEAD_M / RIBBON_SPACING_M), int(VIEW_BEHIND_M / RIBBON_SPACING_M)
    along_road = 0.0
    for axis in range(3):
        along_road += camera.axes[2, axis] * ribbon.forward[car_section, axis]
    if along_road < 0.0:
        ahead, behind = behind, ahead
    return max(car_section - behind, 0), min(car_section + ahead, ribbon.station_m.shape[0] - 1)


@compiled
def add_place(mesh: Mesh, ribbon: Ribbon, section: int, left_m: float, up_m: float) -> int:
    """Adds a point of a cross-section, so far to the left of the road's centre and above its surface."""
    center, left, up = ribbon.center_m, ribbon.left, ribbon.up
    return add_point(
        mesh,
        center[section, 0] + left_m * left[section, 0] + up_m * up[section, 0],
        center[section, 1] + left_m * left[section, 1] + up_m * up[section, 1],
        center[section, 2] + left_m * left[section, 2] + up_m * up[section, 2],
    )


@compiled
def add_section(
    points_m: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], places_m: npt.NDArray[np.float64], section: int
) -> int:
    """Adds the places across a cross-section to a mesh's points and returns the first one's column."""
    first = counts[0]
    counts[0] = first + PLACES
    for axis in range(3):
        for place in range(PLACES):
            points_m[axis, first + place] = places_m[section, axis, place]
    return first


@compiled
def _add_share(
    points_m: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    near: int,
    far: int,
    along: float,
    share: float,
) -> int:
    """Adds a point just above the road, so far along (0..1) from one cross-section to another and so far across."""
    point = counts[0]
    counts[0] = point + 1
    lift = _MARK_OVER_ROAD_M / WALL_HEIGHT_M
    for axis in range(3):
        on_sections_m = (0.0, 0.0)
        for section in (near, far):
            right_m, left_m = points_m[axis, section + LINE_RIGHT], points_m[axis, section + LINE_LEFT]
            wall_m = points_m[axis, section + CAP_RIGHT] - points_m[axis, section + BORDER_RIGHT]
            on_sections_m = (on_sections_m[1], right_m + share * (left_m - right_m) + lift * wall_m)
        near_m, far_m = on_sections_m
        points_m[axis, point] = near_m + along * (far_m - near_m)
    return point


@compiled
def add_mark(
    mesh: Mesh, near: int, far: int, right: float, left: float, far_right: float, far_left: float, color: np.uint32
) -> None:
    """Adds a mark on the road, to be called before the road is added.

    Args:
        mesh: what is added to.
        near: first column of the mark's first cross-section.
        far: first column of its last cross-section.
        right: its right end on the first cross-section, as a share of the road's width from the right line.
        left: its left end there; nothing is added if the two are equal on both cross-sections.
        far_right: its right end on the last cross-section.
        far_left: its left end there.
        color: pixel value.
    """
    points_m, counts = mesh.points_m, mesh.counts
    if left > right or far_left > far_right:
        a = _add_share(points_m, counts, near, far, 0.0, right)
        b = _add_share(points_m, counts, near, far, 0.0, left)
        c = _add_share(points_m, counts, near, far, 1.0, far_left)
        d = _add_share(points_m, counts, near, far, 1.0, far_right)
        add_quad(mesh, a, b, c, d, color)


@compiled
def _add_patches(
    mesh: Mesh, near: int, far: int, section: int, end: int, half_width_m: float, color: np.uint32
) -> None:
    """Adds the patches that lie scattered on a road from cross-section `section` to `end`."""
    width = min(_PATCH_WIDTH_M / (2.0 * half_width_m), 1.0)
    per_section = 1.0 / (end - section)
    points_m, counts = mesh.points_m, mesh.counts
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


@compiled
def _add_road_mark(
    mesh: Mesh, near: int, far: int, section: int, end: int, paint: int, half_width_m: float, light: int, depth_m: float
) -> None:
    """Adds what moves past on a surface from cross-section `section` to `end`: dashes, patches, mown checks, arrows."""
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
    """Adds the road, the lines at its borders and what stands or lies beyond them, between two cross-sections."""
    corners, colors, paints, haze = mesh.corners, mesh.colors, mesh.palette.paints, haze_at(depth_m)
    quad = mesh.counts[1]
    for strip in range(_STRIPS.shape[1]):
        a, b, paint, is_alternating, is_lit = _STRIPS[edge, strip]
        if a == b:
            break
        if paint < 0:
            # Grass is mown in checks by its marks; the others change their shade from band to band.
            paint, is_alternating = road_paint, road_paint != Paint.GRASS
        corners[quad, 0] = near + a
        corners[quad, 1] = near + b
        corners[quad, 2] = far + b
        corners[quad, 3] = far + a
        colors[quad] = paints[paint + (alternate if is_alternating else 0), light if is_lit else PLAIN_LIGHT, haze]
        quad += 1
    mesh.counts[1] = quad


@compiled
def _add_slab_end(mesh: Mesh, section_column: int, depth_m: float) -> None:
    """Adds the face that a jumping car sees below the road's new beginning."""
    color = color_at(mesh.palette, Paint.UNDERSIDE, PLAIN_LIGHT, depth_m)
    first, second = section_column + BORDER_LEFT, section_column + BORDER_RIGHT
    add_quad(mesh, first, second, section_column + BASE_RIGHT, section_column + BASE_LEFT, color)


@compiled(inline="always")
def _section_in_view(camera: Camera, ribbon: Ribbon, section: int) -> tuple[float, float]:
    """How far a cross-section's centre is ahead of the camera and to its right, in metres."""
    center_m, position_m, axes = ribbon.center_m, camera.position_m, camera.axes
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
    """Adds the road around the car.

    Args:
        mesh: what is added to.
        scenery: the track.
        camera: where it is seen from.
        focal_px: focal length of the picture.
        half_width_per_m: half the width that the picture shows, in metres, for every metre ahead.
        car_section: number of the cross-section at the car.
    """
    ribbon, stretch_end, road_paint = scenery.ribbon, scenery.stretch_end, scenery.road_paint
    edges, half_width, has_road, forward = ribbon.edge, ribbon.half_width_m, ribbon.has_road, ribbon.forward
    section, last = visible_sections(ribbon, car_section, camera)
    points_m, counts, places_m = mesh.points_m, mesh.counts, scenery.places_m
    near = add_section(points_m, counts, places_m, section)
    near_depth_m, near_right_m = _section_in_view(camera, ribbon, section)
    while section < last:
        end = min(section_after(scenery, section, camera, focal_px), stretch_end[section], last)
        far = add_section(points_m, counts, places_m, end)
        far_depth_m, far_right_m = _section_in_view(camera, ribbon, end)
        edge, half_width_m = edges[section], half_width[section]
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
