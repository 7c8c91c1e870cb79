"""Ground of a replay window: a plane through the points that the ghost's wheels touched, made of the map's blocks.

A loaded wheel is 1 cm in the road (the depth that the game's contacts tolerate), so the lowest wheel gives the road's
height. A car's origin does not: it rides 4 cm higher in a long corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from research.replay_windows.ghost_motion import FloatArray
from research.replay_windows.ghost_race import GhostRace, is_pad
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Ribbon, Surface, build_ribbon
from trackmania_rl.track.pieces import road_kind
from trackmania_rl.track.placed_blocks import forward_of

TOLERATED_DEPTH_M: Final = float(STADIUM_CAR["tolerated_depth_m"][0])
ROAD_ABOVE_FLOOR_M: Final = 1.3446
"""Height of asphalt roads and platforms above their cell's floor; measured on ghosts."""
KNOWN_WITHIN_M: Final = 0.02  # a level road this near to such a height has it
EVEN_M: Final = 0.05  # the lowest wheels of a plane road are all within this of it
GRASS_HEIGHT_M: Final = 9.0  # of the stadium's grass
GRASS_WITHIN_M: Final = 0.2
"""A car without a block below and this near to the grass drives on it; bumps lift the car by up to 0.1 m."""
BUMPY_EVEN_M: Final = 0.12  # as EVEN_M, on grass
ASKED_ABOVE_M: Final = 0.5  # height above the road at which blocks are looked up
CELL_FLOOR_EVERY_M: Final = 8.0
HANGING_M: Final = 0.21  # a wheel this much higher than pressed in touches nothing
LEVEL_TILT: Final = 0.01  # rise per metre up to which a road is level
STEEPEST_WAY: Final = 0.9
"""Vertical part of the direction in which a plane is laid; the world allows no more than 0.98."""
BEHIND_M, AHEAD_M = 60.0, 60.0  # reach of the plane beyond the ghost's path
HALF_WIDTH_M: Final = 1000.0
ROAD_HALF_WIDTH_M: Final = 12.62  # from the middle to the inner face of a road's border; measured on ghosts
DROP_MS: Final = 150  # duration of a car's fall after the start or a respawn
START_BLOCK: Final = "StadiumRoadMainStartLine"
START_RAMP_M: Final = ((0.0, 0.0), (4.2, 0.0), (8.2, -0.145), (9.7, -0.255), (16.8, -0.64), (17.6, -0.6554))
"""(distance from the start, height) of the road behind the standard start block; measured on ghosts."""

_SURFACES: Final = {
    "asphalt": Surface.ASPHALT,
    "concrete": Surface.ASPHALT,
    "dirt": Surface.DIRT,
    "grass": Surface.GRASS,
}


@dataclass(frozen=True)
class Footing:
    """Place of a window's ground."""

    point_m: FloatArray  # (3,) of the plane
    normal: FloatArray  # (3,) unit, of the plane
    is_even: bool  # whether all lowest wheels are near to the plane
    highest_m: float  # how far the lowest wheel of a sample was above the road at most
    leaves_ground: bool  # whether all wheels are off the ground at a sample
    from_start: bool  # whether the ground is the start block's ramp, and the plane that behind it


def footing_of(race: GhostRace, samples: npt.NDArray[np.int64]) -> Footing:
    """Find the plane under a window's samples (K,)."""
    motion = race.motion
    up = np.array([0.0, 1.0, 0.0])
    near_flight = race.flies | np.roll(race.flies, 1) | np.roll(race.flies, -1)
    settled = np.ones(len(motion.time_ms), dtype=np.bool_)
    for respawn_ms in (0, *race.respawn_ms):
        settled &= (motion.time_ms < respawn_ms) | (motion.time_ms > respawn_ms + DROP_MS)
    grounded = samples[(settled & ~near_flight)[samples]]
    from_start = _is_on_start_ramp(race, motion.position_m[samples[0]])
    if len(grounded) == 0:
        far_below_m = motion.position_m[samples].mean(axis=0) - [0.0, 100.0, 0.0]
        return Footing(far_below_m, up, is_even=True, highest_m=0.0, leaves_ground=True, from_start=False)
    normal, even_m = up, EVEN_M
    for _ in range(3):
        bottoms_m = motion.wheel_bottoms_m(normal)[grounded]
        lowest_m = (bottoms_m @ normal).min(axis=1) + TOLERATED_DEPTH_M
        level_m = float(np.median(lowest_m))
        if normal is up and all(_is_grass(race, position_m) for position_m in motion.position_m[grounded]):
            level_m, even_m = GRASS_HEIGHT_M, BUMPY_EVEN_M
        if np.abs(lowest_m - level_m).max() <= even_m:
            break
        normal = _fitted_normal(bottoms_m.reshape(-1, 3))
    is_even = bool(np.abs(lowest_m - level_m).max() <= even_m)
    if normal is up:
        level_m = _known_height(level_m)
    leaves = bool(race.flies[samples].any() or (is_even and (lowest_m > level_m + HANGING_M).any()))
    middle_m = bottoms_m.reshape(-1, 3).mean(axis=0)
    point_m = middle_m + (level_m - middle_m @ normal) * normal
    return Footing(point_m, normal, is_even, float(lowest_m.max() - level_m), leaves, from_start)


def ribbon_of(race: GhostRace, samples: npt.NDArray[np.int64], footing: Footing) -> Ribbon:
    """Lay the ground of a window."""
    motion = race.motion
    if footing.from_start:
        return _start_ribbon(race)
    path_m = motion.position_m[samples]
    heading = _heading(race, samples, footing)
    left = np.cross(footing.normal, heading)
    along_m = (path_m - footing.point_m) @ heading
    step = RIBBON_SPACING_M
    # Cross-sections lie on whole and half metres, as the borders of blocks do.
    offset_m = -float(footing.point_m @ heading)
    first_m = np.floor(along_m.min() - BEHIND_M - offset_m) + offset_m
    stations_m = np.arange(first_m, along_m.max() + AHEAD_M, step)
    center_m = footing.point_m + stations_m[:, None] * heading
    # A cross-section's surface goes on to the next one; the blocks are asked in between, where the ghost was.
    order, middle_m = np.argsort(along_m), stations_m + 0.5 * step
    aside_m = np.interp(middle_m, along_m[order], ((path_m - footing.point_m) @ left)[order])
    crossed_m = footing.point_m + middle_m[:, None] * heading + aside_m[:, None] * left
    surface = [_surface(race, point_m + ASKED_ABOVE_M * footing.normal) for point_m in crossed_m]
    level_left = np.cross([0.0, 1.0, 0.0], heading)
    level_left /= np.linalg.norm(level_left)
    banking_rad = np.arctan2(footing.normal @ level_left, footing.normal @ np.cross(heading, level_left))
    return build_ribbon(center_m, HALF_WIDTH_M, banking_rad, surface)


def pads_in(race: GhostRace, samples: npt.NDArray[np.int64]) -> bool:
    """Return whether the ghost crosses a turbo pad, or is still pushed by one."""
    first, last = (race.tick_of(int(time_ms)) for time_ms in race.motion.time_ms[samples[[0, -1]]])
    return bool((race.turbo_remaining_s[first:last] > 0.0).any())


def _is_on_start_ramp(race: GhostRace, position_m: FloatArray) -> bool:
    block = race.grid.under(race.motion.position_m[0])
    if block is None or block.name != START_BLOCK:
        return False
    aside_m, above_m, along_m = (position_m - race.motion.position_m[0]) @ race.motion.rotation[0]
    return bool(abs(aside_m) < ROAD_HALF_WIDTH_M and abs(above_m) < 1.0 and -1.0 < along_m < START_RAMP_M[-1][0])


def _is_grass(race: GhostRace, position_m: FloatArray) -> bool:
    return race.grid.under(position_m) is None and abs(position_m[1] - GRASS_HEIGHT_M) < GRASS_WITHIN_M


def _surface(race: GhostRace, point_m: FloatArray) -> Surface:
    block = race.grid.under(point_m)
    if block is None:
        return Surface.GRASS if abs(point_m[1] - ASKED_ABOVE_M - GRASS_HEIGHT_M) < GRASS_WITHIN_M else Surface.ASPHALT
    if is_pad(block):
        return Surface.TURBO
    kind = road_kind(block)
    return Surface.ASPHALT if kind is None else _SURFACES[kind[1]]


def _heading(race: GhostRace, samples: npt.NDArray[np.int64], footing: Footing) -> FloatArray:
    """Return the unit direction (3,) in the plane: the ghost's way, or that of a pad that it crosses."""
    motion = race.motion
    way = motion.position_m[samples[-1]] - motion.position_m[samples[0]]
    if np.linalg.norm(way) < 0.1:
        way = motion.rotation[samples[0], :, 2]
    for at in samples:
        block = race.grid.under(motion.position_m[at])
        if block is not None and is_pad(block):
            way = forward_of(block)
            break
    way = way - (way @ footing.normal) * footing.normal
    way = way / np.linalg.norm(way)
    if abs(way[1]) > STEEPEST_WAY:  # a plane may be laid along any line in it
        way = np.cross(footing.normal, [0.0, 1.0, 0.0])
        way = way / np.linalg.norm(way)
    return np.asarray(way)


def _start_ribbon(race: GhostRace) -> Ribbon:
    """Lay the start block's road, and the level behind it."""
    motion = race.motion
    start_m, heading = (
        motion.position_m[0],
        np.round(motion.rotation[0, :, 2]),
    )  # blocks lie along the axes; a race begins turned by up to 0.05 degrees
    distance_m = np.arange(0.0, 300.0, RIBBON_SPACING_M)
    ramp_m = np.array(START_RAMP_M)
    center_m = start_m + distance_m[:, None] * heading
    height_m = np.interp(distance_m, ramp_m[:, 0], ramp_m[:, 1])
    center_m[:, 1] = start_m[1] - float(STADIUM_CAR["spawn_height_m"][0]) + height_m
    asked_m = center_m + 0.5 * RIBBON_SPACING_M * heading + np.array([0.0, ASKED_ABOVE_M, 0.0])
    surface = [_surface(race, point_m) for point_m in asked_m]
    return build_ribbon(center_m, HALF_WIDTH_M, surface=surface)


def _known_height(level_m: float) -> float:
    floor_m = np.floor((level_m - ROAD_ABOVE_FLOOR_M) / CELL_FLOOR_EVERY_M + 0.5) * CELL_FLOOR_EVERY_M
    known_m = float(floor_m + ROAD_ABOVE_FLOOR_M)
    return known_m if abs(level_m - known_m) <= KNOWN_WITHIN_M else level_m


def _fitted_normal(points_m: FloatArray) -> FloatArray:
    """Return the upward unit normal (3,) of the plane nearest to points (N, 3)."""
    _, _, axes = np.linalg.svd(points_m - points_m.mean(axis=0))
    normal = axes[2]
    return np.asarray(normal if normal[1] >= 0.0 else -normal)


def surfaces_under(race: GhostRace, samples: npt.NDArray[np.int64], footing: Footing) -> set[Surface]:
    """Return the surfaces under the samples."""
    below = ASKED_ABOVE_M - ((race.motion.position_m[samples] - footing.point_m) @ footing.normal)
    return {_surface(race, point_m) for point_m in race.motion.position_m[samples] + below[:, None] * footing.normal}
