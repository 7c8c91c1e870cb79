"""A track prepared for drawing: places across the road, and how coarsely each part of it may be drawn from afar.

Level of detail by screen-space error (Luebke et al., Level of Detail for 3D Graphics, 2003): drawing only every n-th
cross-section moves the road's edges by some centimetres, computed here once; a part of the road is drawn with the
longest steps whose error stays below a fraction of a pixel at its distance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.picture.camera import Camera
from trackmania_rl.simulator.picture.palette import paints_of_surfaces
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, VERGE_WIDTH_M, WALL_HEIGHT_M, Ribbon, Track

GROUND_BELOW_ROAD_M = 3.0
"""The stadium's ground lies this far below the lowest place of the road (9 m and 12 m in our tracks)."""
LINE_WIDTH_M = 0.6
WALL_CAP_M = 0.25
DECK_THICKNESS_M = 0.8
"""A road without ground beside it looks like a slab of this height."""
_VERGE_SINK_M = 0.5
"""A verge is drawn so much lower at its outer end: another leg of the road that lies on it is seen, not hidden."""
GATE_LINE_SECTIONS = 4
"""Cross-sections (2 m) that the line under a gate is long; it may have two rows."""

# Places across the road, counted from the left.
OUTER_LEFT, CAP_LEFT, FACE_LEFT, BASE_LEFT, BORDER_LEFT, LINE_LEFT = range(6)
LINE_RIGHT, BORDER_RIGHT, BASE_RIGHT, FACE_RIGHT, CAP_RIGHT, OUTER_RIGHT = range(6, 12)
PLACES = 12

BAND_SECTIONS = 16
"""Cross-sections (8 m) after which most textures change."""
_STEPS = (2, 4, 8, 16, 32)
"""So many cross-sections are drawn as one. Powers of two, so that fine and coarse ones meet. With the longest,
two bands get the shade of the first."""
_MOST_ERROR_PX = 0.5
_SHADE_ERROR_M = 0.8
"""Error of giving two bands one shade; with `_MOST_ERROR_PX` they get it from 170 m on in a picture of 120 rows."""
_MOST_TWIST_M = 0.03
"""Where the road's bank changes within a step, its surface is bent by this at most, so that marks stay in sight."""
_LEAST_DISTANCE_M = 3.0
"""No part of the road counts as nearer to the camera."""


class Scenery(NamedTuple):
    """A track as the drawing functions take it.

    Attributes:
        ribbon: the road, P cross-sections.
        places_m: (P, 3, PLACES) float64, world coordinates of the places across the road.
        step_error_m: (bands, steps) float64, how far drawing with each of `_STEPS` moves a place of the band at most.
        road_paint: (P,) int64, values of `Paint`.
        stretch_end: (P,) int64, the next cross-section that has another surface or edge, begins or ends a gap,
            or begins or ends a row of the line under a gate; no step leads over it.
        gate_section: (G,) int64, cross-sections of the checkpoints and, as the last one, of the finish.
        ground_height_m: height of the stadium's ground.
    """

    ribbon: Ribbon
    places_m: npt.NDArray[np.float64]
    step_error_m: npt.NDArray[np.float64]
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
    """World coordinates (P, 3, PLACES) of the places across the road."""
    half_m = ribbon.half_width_m
    columns_of_side = {1.0: slice(OUTER_LEFT, LINE_RIGHT), -1.0: slice(OUTER_RIGHT, LINE_LEFT, -1)}
    places_m = np.empty((len(half_m), 3, PLACES))
    for side, columns in columns_of_side.items():
        # Outer end of the verge, which is level (but for its sink) however the road is banked; then the wall's top, the
        # lower end of its cap, the slab's lower end, the road's border and the line's inner end.
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
    """How far (m) drawing every `step`-th cross-section moves a place, for every band; infinite where it bends it."""
    last = len(places_m) - 1
    section = np.arange(last + 1)
    first_of_band = np.arange(0, last + 1, BAND_SECTIONS)
    if step == min(_STEPS):
        return np.zeros(len(first_of_band))
    near = section // step * step
    far = np.minimum(near + step, last)
    share = ((section - near) / np.maximum(far - near, 1))[:, None, None]
    # Where a verge ends does not matter.
    counting_m = places_m[:, :, CAP_LEFT:OUTER_RIGHT]
    drawn_m = (1.0 - share) * counting_m[near] + share * counting_m[far]
    moved_m = np.linalg.norm(drawn_m - counting_m, axis=1).max(axis=1)
    # The diagonals of a bent quadrilateral pass each other, and its middle is halfway between them.
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
    """The cross-section to draw after this one: the last one that the error in pixels allows."""
    center_m, position_m, step_error_m = scenery.ribbon.center_m, camera.position_m, scenery.step_error_m
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
