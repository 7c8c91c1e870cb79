"""Checkpoints and finish: planes across a road or boxes in a block world, and driving until one is passed.

A gate counts once per lap, in any order. A lap's line counts when the lap's other gates are passed; the last lap's line
is the finish. A gate is passed in the tick during which a car part touches it. The passing time is the race time at
that tick's beginning, as in the game.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.physics.collision import World
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.world import Track

# Reach from the car's origin to the collision ellipsoids' far sides.
_NOSE_M: Final = 2.14
_TAIL_M: Final = 1.94
_SIDE_M: Final = 1.07
_REACH_M: Final = 3.0  # upper bound for any part's distance from the origin

_LOWEST_M: Final = -3.0  # lower end, below the road, for a car that bottoms out
_HIGHEST_M: Final = 12.0  # upper end, above the road, for a car that flies


class Gates(NamedTuple):
    """Race gates, the finish last; a type for numba.

    A road has one plane per race gate (G), a block world has one or more boxes per lap gate (B). The other kind's
    arrays are empty.
    """

    station_m: npt.NDArray[np.float64]  # (G,) arc length along the line, all laps
    sections: npt.NDArray[np.void]  # (G,) SECTION_DTYPE, nearest cross-sections
    boxes_m: npt.NDArray[np.float64]  # (B, 2, 3) lowest and highest corners, world axes
    gate_of_box: npt.NDArray[np.int64]  # (B,) number within a lap; the lap's line is the last
    per_lap: int  # including the lap's line
    total: int


def gates_of_track(track: Track) -> Gates:
    """Return a track's gates; raise ValueError if the laps would have unequal gate counts."""
    world = track.mesh_world
    records = track.ribbon.records
    if world is not None:
        per_lap = world.gates_per_lap
        boxes_m = np.ascontiguousarray(world.gate_boxes_m)
        return Gates(np.zeros(0), records[:0], boxes_m, world.gate_of_box, per_lap, per_lap * track.n_laps)
    stations_m = np.array([*track.checkpoint_stations_m, track.finish_station_m], dtype=np.float64)
    per_lap, left_over = divmod(len(stations_m), track.n_laps)
    if left_over:
        raise ValueError(
            f"track {track.name!r} has {len(stations_m)} gates for {track.n_laps} laps: every lap needs as many"
        )
    section = np.searchsorted(track.ribbon.station_m, stations_m).clip(0, len(records) - 1)
    no_gates = np.zeros(0, dtype=np.int64)
    return Gates(stations_m, records[section], np.zeros((0, 2, 3)), no_gates, per_lap, len(stations_m))


@compiled
def drive(
    car: npt.NDArray[np.void],
    controls: tuple[float, float, float],
    world: World,
    parameters: npt.NDArray[np.void],
    gates: Gates,
    gate_is_passed: npt.NDArray[np.int32],
    times_ms: npt.NDArray[np.int32],
    passed_count: int,
    max_ticks: int,
) -> tuple[int, int]:
    """Drive until a gate is passed or `max_ticks` are over; return the ticks and the passed gate count.

    Args:
        car: (1,) VEHICLE_DTYPE, changed in place.
        controls: Gas 0..1, brake 0..1, steer -1 (left) .. 1 (right), constant.
        world: The road or the mesh.
        parameters: The car's constants.
        gates: Gates that match the world's kind.
        gate_is_passed: (per_lap,) 0/1 for the current lap, changed in place.
        times_ms: (total,) in passing order, changed in place.
        passed_count: Gates passed so far.
        max_ticks: At least 1.
    """
    for ticks in range(1, max_ticks + 1):
        label_ms = car[0].clock_ms
        station_before_m = float(car[0].station_m)
        tick(car, controls[0], controls[1], controls[2], world, parameters)
        count = _pass_gates(car, station_before_m, label_ms, parameters, gates, gate_is_passed, times_ms, passed_count)
        if count != passed_count:
            return ticks, count
    return max_ticks, passed_count


@inner
def _pass_gates(
    car: npt.NDArray[np.void],
    station_before_m: float,
    label_ms: int,
    parameters: npt.NDArray[np.void],
    gates: Gates,
    gate_is_passed: npt.NDArray[np.int32],
    times_ms: npt.NDArray[np.int32],
    passed_count: int,
) -> int:
    n_gates = len(times_ms)
    if passed_count == n_gates:
        return passed_count
    first_of_lap = passed_count - passed_count % gates.per_lap
    has_boxes = gates.gate_of_box.shape[0] > 0
    for in_lap in range(gates.per_lap):
        if gate_is_passed[in_lap]:
            continue
        is_line = in_lap == gates.per_lap - 1
        if is_line and passed_count - first_of_lap < gates.per_lap - 1:
            continue
        if has_boxes:
            is_touched = _is_in_box(car, parameters, gates, in_lap)
        else:
            is_touched = _sweeps_over(car, station_before_m, gates, first_of_lap + in_lap)
        if is_touched:
            gate_is_passed[in_lap] = 1
            times_ms[passed_count] = label_ms
            passed_count += 1
            car[0].is_freewheeling = 0
            if is_line and passed_count < n_gates:
                for other in range(len(gate_is_passed)):
                    gate_is_passed[other] = 0
    return passed_count


@inner
def _is_in_box(car: npt.NDArray[np.void], parameters: npt.NDArray[np.void], gates: Gates, in_lap: int) -> bool:
    for box in range(gates.gate_of_box.shape[0]):
        if gates.gate_of_box[box] == in_lap and touches_box(gates.boxes_m, box, car[0], parameters[0]):
            return True
    return False


@compiled
def touches_box(boxes_m: npt.NDArray[np.float64], box: int, car: CarRecord, parameters: ParametersRecord) -> bool:
    """Return whether a car touches a box.

    A part counts as its bounding box along the world's axes, which differs only beyond a box's edges. Wheels count with
    their dampers pressed in.
    """
    position_m = car.position_m
    for axis in range(3):
        if not boxes_m[box, 0, axis] - _REACH_M < position_m[axis] < boxes_m[box, 1, axis] + _REACH_M:
            return False
    for wheel in range(WHEELS):
        if _reaches(boxes_m, box, car, parameters.wheel_points_m[wheel], parameters.wheel_radii_m):
            return True
    for part in range(parameters.body_centers_m.shape[0]):
        if _reaches(boxes_m, box, car, parameters.body_centers_m[part], parameters.body_radii_m[part]):
            return True
    return False


@inner
def _reaches(
    boxes_m: npt.NDArray[np.float64],
    box: int,
    car: CarRecord,
    center: npt.NDArray[np.float64],
    radii: npt.NDArray[np.float64],
) -> bool:
    """Return whether an ellipsoid in car axes overlaps a box along each world axis."""
    position_m = car.position_m
    rotation = car.rotation
    for axis in range(3):
        middle_m = position_m[axis]
        reach_m2 = 0.0
        for own in range(3):
            middle_m += rotation[axis, own] * center[own]
            reach_m2 += (rotation[axis, own] * radii[own]) ** 2
        reach_m = math.sqrt(reach_m2)
        if middle_m - reach_m > boxes_m[box, 1, axis] or middle_m + reach_m < boxes_m[box, 0, axis]:
            return False
    return True


@inner
def _sweeps_over(car: npt.NDArray[np.void], station_before_m: float, gates: Gates, gate: int) -> bool:
    """Return whether the car, an ellipse in plan view, swept over a plane between its posts."""
    gate_station_m = gates.station_m[gate]
    here_m = float(car[0].station_m)
    nearest_m = min(station_before_m, here_m) - _NOSE_M
    furthest_m = max(station_before_m, here_m) + _NOSE_M
    if not nearest_m <= gate_station_m <= furthest_m:
        return False
    section = gates.sections[gate]
    position = car[0].position_m
    rotation = car[0].rotation
    forward = section.forward
    along = rotation[0, 2] * forward[0] + rotation[1, 2] * forward[1] + rotation[2, 2] * forward[2]
    across_squared = max(0.0, 1.0 - along * along)
    ahead_m = math.sqrt(((_NOSE_M if along >= 0.0 else _TAIL_M) * along) ** 2 + _SIDE_M**2 * across_squared)
    behind_m = math.sqrt(((_TAIL_M if along >= 0.0 else _NOSE_M) * along) ** 2 + _SIDE_M**2 * across_squared)
    if min(station_before_m, here_m) - behind_m > gate_station_m:
        return False
    if max(station_before_m, here_m) + ahead_m < gate_station_m:
        return False
    center = section.center_m
    left = section.left
    up = section.up
    lateral_m = height_m = 0.0
    for axis in range(3):
        offset_m = position[axis] - center[axis]
        lateral_m += offset_m * left[axis]
        height_m += offset_m * up[axis]
    return abs(lateral_m) <= section.half_width_m + _SIDE_M and _LOWEST_M <= height_m <= _HIGHEST_M
