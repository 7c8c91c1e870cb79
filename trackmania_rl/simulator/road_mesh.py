"""The road as a mesh: its surface with marks, the lines at its borders, walls, verges.

Only cross-sections near the car are taken, and fewer of them farther away, so a picture's cost does not grow with the
track. Textures go by the number of the cross-section, so they lie still on the road.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.camera import Camera, depth_in_view
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.mesh import Mesh, add_point, add_quad
from trackmania_rl.simulator.palette import LIGHT_LEVELS, LIGHT_STEP, PLAIN_LIGHT, Paint, color_at, paints_of_surfaces
from trackmania_rl.simulator.world import RIBBON_SPACING_M, VERGE_WIDTH_M, WALL_HEIGHT_M, Edge, Ribbon, Track

VIEW_AHEAD_M = 300.0
"""The road is drawn this far from the car in the direction the camera looks."""
VIEW_BEHIND_M = 20.0
"""The road is drawn this far on the car's other side."""
GROUND_BELOW_ROAD_M = 3.0
"""The stadium's ground lies this far below the lowest place of the road (9 m and 12 m in our tracks)."""

_LIGHT_LEVELS_PER_SLOPE = 1.2 / LIGHT_STEP
"""What rises ahead is turned to the camera and brighter, what falls is darker: 12 % for a slope of 10 %."""

_BAND_SECTIONS = 16
"""Cross-sections (8 m) after which most textures change."""
_PATCH_SECTIONS = 4
_BANDS_AND_STEPS = ((4, 2), (10, 4), (20, 8))
"""Up to so many bands from the car, every so-many-th cross-section is drawn; beyond them, one per band. The steps are
powers of two that divide a band, so that coarse and fine ones meet at its end."""

_LINE_WIDTH_M = 0.6
_WALL_CAP_M = 0.25
_DECK_THICKNESS_M = 0.8
"""A road without ground beside it looks like a slab of this height."""
_VERGE_SINK_M = 0.5
"""A verge is drawn so much lower at its outer end: another leg of the road that lies on it is seen, not hidden."""
_DASH_HALF_WIDTH_M = 0.25
_PATCH_WIDTH_M = 2.4
_ARROW_INSET = 0.1
"""Share of the road's width that is free beside the wide end of a turbo arrow."""
_MARK_OVER_ROAD_M = 0.04
"""Keeps marks in sight where the road is twisted from one cross-section to the next."""
_HASH_FACTOR = 2654435761
"""2^32 divided by the golden ratio: neighbouring numbers land far apart (Knuth's multiplicative hash)."""

# Places across the road, counted from the left, as rows behind a cross-section's first point.
_OUTER_LEFT, _CAP_LEFT, _FACE_LEFT, _BASE_LEFT, _BORDER_LEFT, _LINE_LEFT = range(6)
_LINE_RIGHT, _BORDER_RIGHT, _BASE_RIGHT, _FACE_RIGHT, _CAP_RIGHT, _OUTER_RIGHT = range(6, 12)

_MOST_SECTIONS = int((VIEW_AHEAD_M + VIEW_BEHIND_M) / RIBBON_SPACING_M) + 1
MOST_ROAD_POINTS = _MOST_SECTIONS * (12 + 4)
"""A road's mesh has at most so many points: 12 places and a mark per cross-section."""
MOST_ROAD_QUADS = _MOST_SECTIONS * 9
"""And so many quadrilaterals: mark, road, two lines, two caps, two faces, the slab's end."""


class Scenery(NamedTuple):
    """A track as the drawing functions take it.

    Attributes:
        ribbon: the road, P cross-sections.
        road_paint: (P,) int64, values of `Paint`.
        stretch_end: (P,) int64, the next cross-section that has another surface or edge, or begins or ends a gap.
        gate_section: (G,) int64, cross-sections of the checkpoints and, as the last one, of the finish.
        ground_height_m: height of the stadium's ground.
    """

    ribbon: Ribbon
    road_paint: npt.NDArray[np.int64]
    stretch_end: npt.NDArray[np.int64]
    gate_section: npt.NDArray[np.int64]
    ground_height_m: float


def make_scenery(track: Track) -> Scenery:
    """Prepares a track for drawing.

    Raises:
        ValueError: if the road has a surface without a colour.
    """
    ribbon = track.ribbon
    last = len(ribbon.station_m) - 1
    is_change = (np.diff(ribbon.surface) != 0) | (np.diff(ribbon.edge) != 0) | np.diff(ribbon.has_road)
    changes = np.append(np.flatnonzero(is_change) + 1, last)
    next_change = np.searchsorted(changes, np.arange(last + 1), side="right")
    gate_stations_m = [*track.checkpoint_stations_m, track.finish_station_m]
    return Scenery(
        ribbon=ribbon,
        road_paint=paints_of_surfaces(ribbon.surface),
        stretch_end=changes[np.minimum(next_change, len(changes) - 1)].astype(np.int64),
        gate_section=np.minimum(np.searchsorted(ribbon.station_m, gate_stations_m), last).astype(np.int64),
        ground_height_m=float(np.min(ribbon.center_m[:, 1])) - GROUND_BELOW_ROAD_M,
    )


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
def _next_section(section: int, car_section: int) -> int:
    """The cross-section to draw after this one: farther from the car, steps are longer."""
    bands = abs(section // _BAND_SECTIONS - car_section // _BAND_SECTIONS)
    step = _BAND_SECTIONS
    for most_bands, fine_step in _BANDS_AND_STEPS:
        if bands <= most_bands:
            step = fine_step
            break
    return (section // step + 1) * step


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
def _add_verge_end(mesh: Mesh, ribbon: Ribbon, section: int, side: float) -> int:
    """Adds the outer end of a verge, which is level (but for its sink) however the road is banked."""
    center, left = ribbon.center_m, ribbon.left
    half_m = side * ribbon.half_width_m[section]
    width = side * VERGE_WIDTH_M / math.hypot(left[section, 0], left[section, 2])
    return add_point(
        mesh,
        center[section, 0] + (half_m + width) * left[section, 0],
        center[section, 1] + half_m * left[section, 1] - _VERGE_SINK_M,
        center[section, 2] + (half_m + width) * left[section, 2],
    )


@compiled
def add_section(mesh: Mesh, ribbon: Ribbon, section: int) -> int:
    """Adds the twelve places of a cross-section and returns the first one's row."""
    half_m = ribbon.half_width_m[section]
    first = _add_verge_end(mesh, ribbon, section, 1.0)
    add_place(mesh, ribbon, section, half_m, WALL_HEIGHT_M)
    add_place(mesh, ribbon, section, half_m, WALL_HEIGHT_M - _WALL_CAP_M)
    add_place(mesh, ribbon, section, half_m, -_DECK_THICKNESS_M)
    add_place(mesh, ribbon, section, half_m, 0.0)
    add_place(mesh, ribbon, section, half_m - _LINE_WIDTH_M, 0.0)
    add_place(mesh, ribbon, section, _LINE_WIDTH_M - half_m, 0.0)
    add_place(mesh, ribbon, section, -half_m, 0.0)
    add_place(mesh, ribbon, section, -half_m, -_DECK_THICKNESS_M)
    add_place(mesh, ribbon, section, -half_m, WALL_HEIGHT_M - _WALL_CAP_M)
    add_place(mesh, ribbon, section, -half_m, WALL_HEIGHT_M)
    _add_verge_end(mesh, ribbon, section, -1.0)
    return first


@compiled
def _add_strip(mesh: Mesh, near: int, far: int, a: int, b: int, color: np.uint32) -> None:
    """Adds what lies between two places, from one cross-section (its first row) to the next."""
    add_quad(mesh, near + a, near + b, far + b, far + a, color)


@compiled
def _add_share(mesh: Mesh, section_row: int, share: float) -> int:
    """Adds a point just above the road, so far (0..1) from a cross-section's right line to its left one."""
    points, right, left = mesh.points_m, section_row + _LINE_RIGHT, section_row + _LINE_LEFT
    border, cap = section_row + _BORDER_RIGHT, section_row + _CAP_RIGHT
    lift = _MARK_OVER_ROAD_M / WALL_HEIGHT_M
    return add_point(
        mesh,
        points[right, 0] + share * (points[left, 0] - points[right, 0]) + lift * (points[cap, 0] - points[border, 0]),
        points[right, 1] + share * (points[left, 1] - points[right, 1]) + lift * (points[cap, 1] - points[border, 1]),
        points[right, 2] + share * (points[left, 2] - points[right, 2]) + lift * (points[cap, 2] - points[border, 2]),
    )


@compiled
def add_mark(
    mesh: Mesh, near: int, far: int, right: float, left: float, far_right: float, far_left: float, color: np.uint32
) -> None:
    """Adds a mark on the road, to be called before the road is added.

    Args:
        mesh: what is added to.
        near: first row of the mark's first cross-section.
        far: first row of its last cross-section.
        right: its right end on the first cross-section, as a share of the road's width from the right line.
        left: its left end there; nothing is added if the two are equal on both cross-sections.
        far_right: its right end on the last cross-section.
        far_left: its left end there.
        color: pixel value.
    """
    if left > right or far_left > far_right:
        a = _add_share(mesh, near, right)
        b = _add_share(mesh, near, left)
        c = _add_share(mesh, far, far_left)
        d = _add_share(mesh, far, far_right)
        add_quad(mesh, a, b, c, d, color)


@compiled
def _add_road_mark(
    mesh: Mesh, near: int, far: int, section: int, end: int, paint: int, half_width_m: float, light: int, depth_m: float
) -> None:
    """Adds what moves past on a surface from cross-section `section` to `end`: dashes, patches, mown checks, arrows."""
    is_even_band = section // _BAND_SECTIONS % 2 == 0
    if paint == Paint.GRASS:
        right = 0.5 if is_even_band else 0.0
        color = color_at(Paint.GRASS_ALTERNATE, light, depth_m)
        add_mark(mesh, near, far, right, right + 0.5, right, right + 0.5, color)
    elif paint == Paint.TURBO:
        per_section = (0.5 - _ARROW_INSET) / _BAND_SECTIONS
        first = section - section % _BAND_SECTIONS
        inset = _ARROW_INSET + per_section * (section - first)
        far_inset = _ARROW_INSET + per_section * (end - first)
        color = color_at(Paint.TURBO_ARROW, light, depth_m)
        add_mark(mesh, near, far, inset, 1.0 - inset, far_inset, 1.0 - far_inset, color)
    elif paint == Paint.DIRT or paint == Paint.ICE:
        patch = section // _PATCH_SECTIONS
        if patch % 2 == 0 and end - section <= _PATCH_SECTIONS:
            share = min(_PATCH_WIDTH_M / (2.0 * half_width_m), 1.0)
            right = (1.0 - share) * ((patch * _HASH_FACTOR >> 16) % 64) / 63.0
            patch_paint = Paint.DIRT_PATCH if paint == Paint.DIRT else Paint.ICE_PATCH
            color = color_at(patch_paint, light, depth_m)
            add_mark(mesh, near, far, right, right + share, right, right + share, color)
    elif is_even_band:
        share = 0.5 * _DASH_HALF_WIDTH_M / half_width_m
        color = color_at(Paint.DASH, light, depth_m)
        add_mark(mesh, near, far, 0.5 - share, 0.5 + share, 0.5 - share, 0.5 + share, color)


@compiled
def _add_edges(mesh: Mesh, near: int, far: int, edge: int, alternate: int, light: int, depth_m: float) -> None:
    """Adds the lines at the road's borders and what stands or lies beyond them."""
    line = color_at(Paint.BORDER_LINE, light, depth_m)
    if edge == Edge.DROP:
        line = color_at(Paint.DROP_LINE + alternate, light, depth_m)
    _add_strip(mesh, near, far, _BORDER_LEFT, _LINE_LEFT, line)
    _add_strip(mesh, near, far, _LINE_RIGHT, _BORDER_RIGHT, line)
    if edge == Edge.GRASS:
        verge = color_at(Paint.VERGE + alternate, light, depth_m)
        _add_strip(mesh, near, far, _OUTER_LEFT, _BORDER_LEFT, verge)
        _add_strip(mesh, near, far, _BORDER_RIGHT, _OUTER_RIGHT, verge)
    elif edge == Edge.WALL:
        cap = color_at(Paint.WALL_CAP, PLAIN_LIGHT, depth_m)
        face = color_at(Paint.WALL + alternate, PLAIN_LIGHT, depth_m)
        _add_strip(mesh, near, far, _CAP_LEFT, _FACE_LEFT, cap)
        _add_strip(mesh, near, far, _CAP_RIGHT, _FACE_RIGHT, cap)
        _add_strip(mesh, near, far, _FACE_LEFT, _BASE_LEFT, face)
        _add_strip(mesh, near, far, _FACE_RIGHT, _BASE_RIGHT, face)
    else:
        slab = color_at(Paint.UNDERSIDE, PLAIN_LIGHT, depth_m)
        _add_strip(mesh, near, far, _BORDER_LEFT, _BASE_LEFT, slab)
        _add_strip(mesh, near, far, _BORDER_RIGHT, _BASE_RIGHT, slab)


@compiled
def _add_slab_end(mesh: Mesh, section_row: int, depth_m: float) -> None:
    """Adds the face that a jumping car sees below the road's new beginning."""
    color = color_at(Paint.UNDERSIDE, PLAIN_LIGHT, depth_m)
    first, second = section_row + _BORDER_LEFT, section_row + _BORDER_RIGHT
    add_quad(mesh, first, second, section_row + _BASE_RIGHT, section_row + _BASE_LEFT, color)


@compiled
def add_road(mesh: Mesh, scenery: Scenery, camera: Camera, car_section: int) -> None:
    """Adds the road around the car.

    Args:
        mesh: what is added to.
        scenery: the track.
        camera: where it is seen from.
        car_section: number of the cross-section at the car.
    """
    ribbon = scenery.ribbon
    section, last = visible_sections(ribbon, car_section, camera)
    near = add_section(mesh, ribbon, section)
    while section < last:
        end = min(_next_section(section, car_section), scenery.stretch_end[section], last)
        far = add_section(mesh, ribbon, end)
        depth_m = depth_in_view(camera, ribbon.center_m, section)
        is_in_view = max(depth_m, depth_in_view(camera, ribbon.center_m, end)) > -VERGE_WIDTH_M
        if ribbon.has_road[section] and is_in_view:
            alternate = section // _BAND_SECTIONS % 2
            light_step = round(ribbon.forward[section, 1] * _LIGHT_LEVELS_PER_SLOPE)
            light = min(max(PLAIN_LIGHT + light_step, 0), LIGHT_LEVELS - 1)
            paint = scenery.road_paint[section]
            half_width_m = ribbon.half_width_m[section]
            _add_road_mark(mesh, near, far, section, end, paint, half_width_m, light, depth_m)
            # Grass is mown in checks by its marks; the others change their shade from band to band.
            road = color_at(paint + (0 if paint == Paint.GRASS else alternate), light, depth_m)
            _add_strip(mesh, near, far, _LINE_LEFT, _LINE_RIGHT, road)
            _add_edges(mesh, near, far, ribbon.edge[section], alternate, light, depth_m)
            if section > 0 and not ribbon.has_road[section - 1]:
                _add_slab_end(mesh, near, depth_m)
        near, section = far, end
