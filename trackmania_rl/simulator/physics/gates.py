"""Checkpoints and finish: gates across the road, or boxes in a world of blocks, and driving until one is passed.

A gate counts once per lap, in any order; a lap's line counts when the lap's other gates are taken, and the last lap's
line is the finish. A gate is passed in the tick in whose interval any part of the car touches it, and its time is the
race time at the beginning of that tick (reference/tmnf_physics.md 1.15: floor to 10 ms, no interpolation).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.grounds import World
from trackmania_rl.simulator.physics.trigger_boxes import TriggerBoxes, touches_box
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.tracks.world import Ribbon, Track

# Reach of the car's collision ellipsoids from its origin (reference/tmnf_physics.md 1.3).
_NOSE_M: Final = 2.14
_TAIL_M: Final = 1.94
_SIDE_M: Final = 1.07

_LOWEST_M: Final = -3.0
"""A gate reaches this far below the road, for a car that bottoms out."""
_HIGHEST_M: Final = 12.0
"""A gate reaches this far above the road, for a car that flies through it."""


class Gates(NamedTuple):
    """The G gates of a race in driving order, all laps, the finish last; numba takes it as it is.

    Attributes:
        station_m: (G,) float64, arc length along the line.
        section: (G,) int64, nearest cross-section of the ribbon.
        per_lap: Gates of one lap, its line included; G is a multiple of it.
        total: G.
    """

    station_m: npt.NDArray[np.float64]
    section: npt.NDArray[np.int64]
    per_lap: int
    total: int


class BoxGates(NamedTuple):
    """The gates of a race in a world of blocks, of which one may have several boxes; numba takes it as it is.

    Attributes:
        boxes: B boxes; a gate is passed where a car touches one of its.
        gate: (B,) int64, number of the gate within a lap that a box belongs to; the lap's line is the last.
        per_lap: Gates of one lap, its line included.
        total: Gates of the race, all laps.
    """

    boxes: TriggerBoxes
    gate: npt.NDArray[np.int64]
    per_lap: int
    total: int


AnyGates = Gates | BoxGates


def gates_of_track(track: Track) -> AnyGates:
    """Lay out a track's gates.

    Raises:
        ValueError: If the gates cannot be dealt out to the laps evenly.
    """
    world = track.mesh_world
    if world is not None:
        boxes = TriggerBoxes(*(np.ascontiguousarray(corners_m) for corners_m in world.gate_boxes_m.transpose(1, 0, 2)))
        return BoxGates(boxes, world.gate_of_box, world.gates_per_lap, world.gates_per_lap * track.n_laps)
    return road_gates_of_track(track)


def road_gates_of_track(track: Track) -> Gates:
    """Lay out the gates across a ribbon.

    Raises:
        ValueError: If they cannot be dealt out to the laps evenly.
    """
    stations_m = np.array([*track.checkpoint_stations_m, track.finish_station_m], dtype=np.float64)
    per_lap, left_over = divmod(len(stations_m), track.n_laps)
    if left_over:
        raise ValueError(
            f"track {track.name!r} has {len(stations_m)} gates for {track.n_laps} laps: every lap needs as many"
        )
    section = np.searchsorted(track.ribbon.station_m, stations_m).clip(0, len(track.ribbon.station_m) - 1)
    return Gates(stations_m, section.astype(np.int64), per_lap, len(stations_m))


@compiled
def drive(
    car: npt.NDArray[np.void],
    controls: tuple[float, float, float],
    world: World,
    parameters: npt.NDArray[np.void],
    gates: AnyGates,
    gate_is_passed: npt.NDArray[np.int32],
    times_ms: npt.NDArray[np.int32],
    passed_count: int,
    max_ticks: int,
) -> tuple[int, int]:
    """Drive on until a gate is passed or `max_ticks` are over.

    Args:
        car: (1,) VEHICLE_DTYPE, changed in place.
        controls: Gas 0..1, brake 0..1, steer -1 (left) .. 1 (right), held all the time.
        world: The road, a ribbon or a mesh.
        parameters: The car's constants.
        gates: All gates, of the world's kind.
        gate_is_passed: (per_lap,) 0/1 for the gates of the current lap, changed in place.
        times_ms: (G,) times of the passed gates in the order of passing, changed in place.
        passed_count: How many gates are passed so far.
        max_ticks: At least 1.

    Returns:
        The ticks driven and the new count of passed gates.
    """
    for ticks in range(1, max_ticks + 1):
        label_ms = car[0].clock_ms
        station_before_m = float(car[0].station_m)
        tick(car, controls[0], controls[1], controls[2], world, parameters)
        count = _pass_gates(
            car, station_before_m, label_ms, world, parameters, gates, gate_is_passed, times_ms, passed_count
        )
        if count != passed_count:
            return ticks, count
    return max_ticks, passed_count


@compiled
def _pass_gates(
    car: npt.NDArray[np.void],
    station_before_m: float,
    label_ms: int,
    world: World,
    parameters: npt.NDArray[np.void],
    gates: AnyGates,
    gate_is_passed: npt.NDArray[np.int32],
    times_ms: npt.NDArray[np.int32],
    passed_count: int,
) -> int:
    """Count the gates of the current lap that the car touched in the tick from `station_before_m` on."""
    n_gates = len(times_ms)
    if passed_count == n_gates:
        return passed_count
    first_of_lap = passed_count - passed_count % gates.per_lap
    for in_lap in range(gates.per_lap):
        if gate_is_passed[in_lap]:
            continue
        is_line = in_lap == gates.per_lap - 1
        if is_line and passed_count - first_of_lap < gates.per_lap - 1:
            continue
        if _touches(car, station_before_m, world, parameters, gates, first_of_lap, in_lap):
            gate_is_passed[in_lap] = 1
            times_ms[passed_count] = label_ms
            passed_count += 1
            car[0].is_freewheeling = 0
            if is_line and passed_count < n_gates:
                gate_is_passed[:] = 0
    return passed_count


def _touches(
    car: npt.NDArray[np.void],
    station_before_m: float,
    world: World,
    parameters: npt.NDArray[np.void],
    gates: AnyGates,
    first_of_lap: int,
    in_lap: int,
) -> bool:
    """Whether the car touches a gate; of which kind the gates are, is known when this is compiled."""
    raise NotImplementedError("only compiled functions call this")


@overload(_touches, strict=False)
def _compiled_touches(
    car: Any, station_before_m: Any, world: Any, parameters: Any, gates: types.Type, first_of_lap: Any, in_lap: Any
) -> Any:
    if isinstance(gates, types.NamedTuple) and gates.instance_class is BoxGates:
        return lambda car, station_before_m, world, parameters, gates, first_of_lap, in_lap: _is_in_box(
            car, parameters, gates, in_lap
        )
    return lambda car, station_before_m, world, parameters, gates, first_of_lap, in_lap: _sweeps_over(
        car, station_before_m, world, gates, first_of_lap + in_lap
    )


@compiled
def _is_in_box(car: npt.NDArray[np.void], parameters: npt.NDArray[np.void], gates: BoxGates, in_lap: int) -> bool:
    """Whether the car touches one of the gate's boxes."""
    for box in range(gates.gate.shape[0]):
        if gates.gate[box] == in_lap and touches_box(
            gates.boxes, box, car[0].position_m, car[0].rotation, parameters[0]
        ):
            return True
    return False


@compiled
def _sweeps_over(car: npt.NDArray[np.void], station_before_m: float, ribbon: Ribbon, gates: Gates, gate: int) -> bool:
    """Whether the car, an ellipse seen from above, swept over the gate and between its posts."""
    section, gate_station_m = gates.section[gate], gates.station_m[gate]
    here_m = float(car[0].station_m)
    nearest_m, furthest_m = min(station_before_m, here_m) - _NOSE_M, max(station_before_m, here_m) + _NOSE_M
    if not nearest_m <= gate_station_m <= furthest_m:
        return False
    position, rotation, forward = car[0].position_m, car[0].rotation, ribbon.forward[section]
    along = rotation[0, 2] * forward[0] + rotation[1, 2] * forward[1] + rotation[2, 2] * forward[2]
    across_squared = max(0.0, 1.0 - along * along)
    ahead_m = math.sqrt(((_NOSE_M if along >= 0.0 else _TAIL_M) * along) ** 2 + _SIDE_M**2 * across_squared)
    behind_m = math.sqrt(((_TAIL_M if along >= 0.0 else _NOSE_M) * along) ** 2 + _SIDE_M**2 * across_squared)
    station_m = float(car[0].station_m)
    if min(station_before_m, station_m) - behind_m > gate_station_m:
        return False
    if max(station_before_m, station_m) + ahead_m < gate_station_m:
        return False
    lateral_m = height_m = 0.0
    for axis in range(3):
        offset_m = position[axis] - ribbon.center_m[section, axis]
        lateral_m += offset_m * ribbon.left[section, axis]
        height_m += offset_m * ribbon.up[section, axis]
    return abs(lateral_m) <= ribbon.half_width_m[section] + _SIDE_M and _LOWEST_M <= height_m <= _HIGHEST_M
