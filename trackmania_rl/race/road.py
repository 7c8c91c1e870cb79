"""A map for compiled functions: virtual checkpoints (zones), road borders and qualities, and the range finder.

Zone i surrounds centre i on the extended, smoothed line. The borders i - 1 (entry) and i (exit) are the midpoints to
the neighbouring centres. The current zone moves step by step, so a track may touch itself. Rules: docs/observation.rst.

The range finder measures the distance to the road's borders in 19 directions, from right over ahead to left: on the
track from above (`measure_ranges`) or in a picture (`PictureRangeFinder`), for a flat road and the chase camera.

Shapes: Q points along the road, Z zones on the map.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE

_compiled = compiler_for("road", [Path(__file__), Path(state_blob.__file__)])
_inner = _compiled(is_inner=True)

POINT_EVERY_M: Final = 1.0
"""Border point spacing: at 10 m radius the chords are 13 mm off."""

ROAD_QUALITIES: Final = (
    "half_width_m",
    "has_wall",
    "has_grass_beside",
    "is_dirt",
    "is_grass",
    "is_there",
    "banking",
)
"""Floats that describe the road at one place.

`half_width_m` is the distance to the nearer border, `is_there` is 0 in a jump's gap, and `banking` is a sine, positive
with the left border up.
"""
N_QUALITIES: Final = len(ROAD_QUALITIES)

BEAM_ANGLES_DEG: Final = tuple(range(-90, 91, 10))
"""Each beam's angle from straight ahead, positive to the left."""
N_BEAMS: Final = len(BEAM_ANGLES_DEG)
BORDER_GRAY: Final = (200, 255)
"""Darkest and brightest border gray in the simulated game's pictures."""
_SIGHT_PER_ROAD: Final = 0.75
"""Minimum ratio between a line of sight and the road along it; below, a bend is in between."""

_SIDEWAYS = np.array([math.sin(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
_AHEAD = np.array([math.cos(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
assert STATE_HEAD_DTYPE.fields is not None
_ROTATION_WORD = STATE_HEAD_DTYPE.fields["rotation"][1] // 4
_POSITION_WORD = STATE_HEAD_DTYPE.fields["position_m"][1] // 4

STEP_PX: Final = 0.5
"""Half a pixel, so no one-pixel border is skipped."""
CAR_BOX_M: Final = ((-1.2, 1.2), (0.0, 1.1), (-2.2, 2.4))
"""(right, left), (bottom, top) and (rear, front) for the car with shadow, which hides the ground."""

ZONES_AFTER_END: Final = 1000
"""Zones straight on beyond the line's end."""

FloatArray = npt.NDArray[np.float64]


class KnownRoad(NamedTuple):
    """One map's road, for compiled functions."""

    left_m: npt.NDArray[np.float64]  # (Q, 2) left border from above, world x and z
    right_m: npt.NDArray[np.float64]  # (Q, 2)
    is_there: npt.NDArray[np.bool_]  # (Q,) whether a border leads to the next point; False at a gap
    qualities: npt.NDArray[np.float32]  # (Q, N_QUALITIES)
    point_of_zone: npt.NDArray[np.int64]  # (Z,) point beside each zone

    @classmethod
    def nowhere(cls) -> KnownRoad:
        """Return an empty road."""
        return cls(
            np.empty((0, 2)),
            np.empty((0, 2)),
            np.empty(0, dtype=np.bool_),
            np.empty((0, N_QUALITIES), dtype=np.float32),
            np.empty(0, dtype=np.int64),
        )


@_compiled
def observe_road(floats: npt.NDArray[np.float32], zone_idx: int, zone_stride: int, road: KnownRoad) -> None:
    """Write the road's qualities at every `zone_stride`-th zone from `zone_idx` on, (n x N_QUALITIES,)."""
    for i in range(len(floats) // N_QUALITIES):
        point = road.point_of_zone[zone_idx + i * zone_stride]
        for quality in range(N_QUALITIES):
            floats[i * N_QUALITIES + quality] = road.qualities[point, quality]


@_compiled
def measure_ranges(
    ranges_m: npt.NDArray[np.float32],
    head_f32: npt.NDArray[np.float32],
    zone_idx: int,
    road: KnownRoad,
    reach_m: float,
) -> None:
    """Write the distance from the car's origin to the nearest border along each beam, at most `reach_m`."""
    x = float(head_f32[_POSITION_WORD])
    z = float(head_f32[_POSITION_WORD + 2])
    # The matrix is car to world, row-major: the last column is the car's forward axis.
    forward_x = float(head_f32[_ROTATION_WORD + 2])
    forward_z = float(head_f32[_ROTATION_WORD + 8])
    level = math.sqrt(forward_x * forward_x + forward_z * forward_z)
    if level > 0.0:
        forward_x = forward_x / level
        forward_z = forward_z / level
    here = road.point_of_zone[zone_idx]
    n_points = int(reach_m / (_SIGHT_PER_ROAD * POINT_EVERY_M)) + 1
    first = max(here - n_points, 0)
    end = min(here + n_points, len(road.is_there))
    nearest_m = np.full(N_BEAMS, reach_m)
    before = np.zeros(N_BEAMS)
    for points_m in (road.left_m, road.right_m):
        last_ahead = 0.0
        last_left = 0.0
        for point in range(first, end):
            dx = points_m[point, 0] - x
            dz = points_m[point, 1] - z
            ahead = dx * forward_x + dz * forward_z
            left = dx * forward_z - dz * forward_x
            is_piece = point > first and road.is_there[point - 1] and (ahead >= 0.0 or last_ahead >= 0.0)
            for beam in range(N_BEAMS):
                # Distance to the beam's left: a piece crosses the beam where the sign changes.
                aside = left * _AHEAD[beam] - ahead * _SIDEWAYS[beam]
                if is_piece and (aside >= 0.0) != (before[beam] >= 0.0):
                    share = before[beam] / (before[beam] - aside)
                    to_m = (last_ahead + share * (ahead - last_ahead)) * _AHEAD[beam] + (
                        last_left + share * (left - last_left)
                    ) * _SIDEWAYS[beam]
                    if 0.0 <= to_m < nearest_m[beam]:
                        nearest_m[beam] = to_m
                before[beam] = aside
            last_ahead, last_left = ahead, left
    for beam in range(N_BEAMS):
        ranges_m[beam] = nearest_m[beam]


class ChaseCamera(NamedTuple):
    """Camera behind the car, in the car's axes, in the simulated game; the real one is similar."""

    behind_m: float = 7.5  # the car's origin
    above_m: float = 3.4  # the car's origin and the ground
    pitch_down_rad: float = math.radians(11.0)
    field_of_view_rad: float = math.radians(60.0)  # vertical


class PictureRangeFinder:
    """Range finder in pictures with one size.

    Attributes:
        limits_m: (N_BEAMS,) float32, range at which each beam leaves the picture.
    """

    def __init__(self, width_px: int, height_px: int, reach_m: float) -> None:
        beams = [_samples(angle, width_px, height_px, reach_m, ChaseCamera()) for angle in BEAM_ANGLES_DEG]
        most = max(len(pixels) for pixels, _, _ in beams)
        # One sample more per beam always counts as a border.
        self._pixels = np.zeros((N_BEAMS, most + 1), dtype=np.int64)
        self._ranges_m = np.zeros((N_BEAMS, most + 1), dtype=np.float32)
        self._is_over = np.ones((N_BEAMS, most + 1), dtype=np.bool_)
        for beam, (pixels, ranges_m, end_m) in enumerate(beams):
            n = len(pixels)
            self._pixels[beam, :n] = pixels
            self._ranges_m[beam, :n] = ranges_m
            self._ranges_m[beam, n:] = end_m
            self._is_over[beam, :n] = False
        self.limits_m = self._ranges_m[:, -1].copy()
        self._every_beam = np.arange(N_BEAMS)

    def measure(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Measure the ranges (N_BEAMS,) in a gray picture (height_px, width_px); `limits_m` without a border."""
        is_border = (frame >= BORDER_GRAY[0]) & (frame <= BORDER_GRAY[1])
        widened = is_border.copy()  # otherwise a beam could pass between two pixels that touch at a corner
        widened[:, 1:] |= is_border[:, :-1]
        is_hit = widened.reshape(-1)[self._pixels] | self._is_over
        ranges_m: npt.NDArray[np.float32] = self._ranges_m[self._every_beam, is_hit.argmax(axis=1)]
        return ranges_m


def _samples(
    angle_deg: float, width_px: int, height_px: int, reach_m: float, camera: ChaseCamera
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float]:
    """Return a beam's pixels (n,) as indices into the flat picture, pixel ranges (n,), and the beam end's range."""
    # From 0.1 m to the reach in steps of 0.2 %: less than half a pixel.
    n = math.ceil(math.log(reach_m / 0.1) / math.log(1.002))
    along_m = np.append(0.1 * 1.002 ** np.arange(n), reach_m)
    left_m = along_m * math.sin(math.radians(angle_deg))
    ahead_m = along_m * math.cos(math.radians(angle_deg)) + camera.behind_m
    cosine = math.cos(camera.pitch_down_rad)
    sine = math.sin(camera.pitch_down_rad)
    depth_m = ahead_m * cosine + camera.above_m * sine
    focal_px = 0.5 * height_px / math.tan(0.5 * camera.field_of_view_rad)
    column = 0.5 * width_px - focal_px * left_m / depth_m
    row = 0.5 * height_px + focal_px * (camera.above_m * cosine - ahead_m * sine) / depth_m
    is_inside = (row >= 0) & (row < height_px) & (column >= 0) & (column < width_px)
    seen = np.flatnonzero(is_inside & ~_is_behind_car(left_m, ahead_m, camera))
    leaves = np.flatnonzero(~is_inside)
    seen = seen[seen < leaves[0]] if len(leaves) else seen
    moved_px = np.hypot(np.diff(column[seen], prepend=np.inf), np.diff(row[seen], prepend=np.inf))
    kept = []
    since_px = math.inf
    for place, step_px in zip(seen.tolist(), moved_px.tolist(), strict=True):
        since_px += step_px
        if since_px >= STEP_PX:
            kept.append(place)
            since_px = 0.0
    end_m = float(along_m[leaves[0]]) if len(leaves) else reach_m
    return row[kept].astype(np.int64) * width_px + column[kept].astype(np.int64), along_m[kept], end_m


def _is_behind_car(
    left_m: npt.NDArray[np.float64], ahead_m: npt.NDArray[np.float64], camera: ChaseCamera
) -> npt.NDArray[np.bool_]:
    """Return which points on the ground (n,) the car's box hides from the camera."""
    # Intersect the line from camera (share 0) to point (share 1) with the box's pairs of sides.
    begins = np.zeros(len(left_m))
    ends = np.ones(len(left_m))
    ways = (
        (0.0, left_m, CAR_BOX_M[0]),
        (camera.above_m, np.full(len(left_m), -camera.above_m), CAR_BOX_M[1]),
        (-camera.behind_m, ahead_m, CAR_BOX_M[2]),
    )
    for start_m, way_m, (low_m, high_m) in ways:
        way_m = np.where(np.abs(way_m) < 1e-9, 1e-9, way_m)
        at = np.sort([(low_m - start_m) / way_m, (high_m - start_m) / way_m], axis=0)
        begins = np.maximum(begins, at[0])
        ends = np.minimum(ends, at[1])
    return begins < ends


class VirtualCheckpoints(NamedTuple):
    """One map's zones, for compiled functions. Z zones; border i is between zones i and i + 1."""

    centers_m: FloatArray  #: (Z, 3) world axes
    border_m: FloatArray  #: (Z - 1, 3)
    border_distance_m: FloatArray  #: (Z - 1,) line length from border 0 to border i
    border_direction: FloatArray  #: (Z - 2, 3) unit vector from border i to border i + 1
    first_zone_idx: int  #: the line's first point, where a race begins
    last_zone_idx: int  #: the line's last point
    max_center_distance_m: float
    real_checkpoint_m: FloatArray  #: (Z, 3) the map's checkpoint in a zone
    #: (Z,) a zone is left forwards, or re-entered backwards, only this near to the checkpoint; else infinite
    real_checkpoint_radius_m: FloatArray

    @property
    def finish_zone_idx(self) -> int:
        """Finish index, one beyond the last zone."""
        return self.last_zone_idx + 1

    @property
    def start_m(self) -> float:
        """Metres along the line at the first zone's entry."""
        return float(self.border_distance_m[self.first_zone_idx - 1])

    @property
    def finish_m(self) -> float:
        """Metres along the line at the last zone's exit."""
        return float(self.border_distance_m[self.last_zone_idx])

    @property
    def length_m(self) -> float:
        """Metres from the first zone's entry to the finish."""
        return self.finish_m - self.start_m


@_inner
def move_zone(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> int:
    """Move a zone index, 1 to `last_zone_idx`, forwards while the next centre is nearer the car, then likewise back."""
    centers = zones.centers_m
    limit_m = zones.max_center_distance_m
    here_m = distance_m(centers[zone_idx], position_m)
    while zone_idx < zones.last_zone_idx:
        next_m = distance_m(centers[zone_idx + 1], position_m)
        if next_m > here_m or next_m > limit_m or not _real_checkpoint_is_near(zone_idx, position_m, zones):
            break
        zone_idx += 1
        here_m = next_m
    while zone_idx >= 2:
        previous_m = distance_m(centers[zone_idx - 1], position_m)
        if (
            previous_m >= here_m
            or previous_m > limit_m
            or not _real_checkpoint_is_near(zone_idx - 1, position_m, zones)
        ):
            break
        zone_idx -= 1
        here_m = previous_m
    return zone_idx


@_inner
def meters_along_line(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> float:
    """Return the length of all segments before the current zone (>= 1) plus the clipped projection on its segment."""
    entry = zone_idx - 1
    along_m = 0.0
    for axis in range(3):
        along_m += (position_m[axis] - zones.border_m[entry, axis]) * zones.border_direction[entry, axis]
    segment_m = zones.border_distance_m[entry + 1] - zones.border_distance_m[entry]
    return zones.border_distance_m[entry] + min(max(along_m, 0.0), segment_m)


@_compiled
def distance_m(a: FloatArray, b: FloatArray) -> float:
    """Return the distance between two points (3,)."""
    return math.sqrt((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2)


@_inner
def _real_checkpoint_is_near(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> bool:
    return distance_m(zones.real_checkpoint_m[zone_idx], position_m) < zones.real_checkpoint_radius_m[zone_idx]
