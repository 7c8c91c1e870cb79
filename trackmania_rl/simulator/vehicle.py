"""The StadiumCar at 100 Hz: its state, how it is put on a track, and one tick."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trackmania_rl.simulator.world import Ribbon, Track

TICK_MS = 10
"""Length of one tick of the game."""
NO_CONTACT_MATERIAL = 0
"""Material id of a wheel in the air."""

VEHICLE_DTYPE = np.dtype(
    [
        ("position_m", np.float32, (3,)),  # of the body's origin, 1 cm above the road at rest
        ("quaternion", np.float32, (4,)),  # (w, x, y, z), car to world; kept beside the matrix as the game does
        ("rotation", np.float32, (3, 3)),  # the same turn as a matrix; columns are the car's left, up and forward
        ("velocity_m_s", np.float32, (3,)),  # of the centre of mass, world axes
        ("angular_velocity_rad_s", np.float32, (3,)),  # world axes
        ("force_m_s2", np.float32, (3,)),  # sum of the last substep's forces per unit mass, car axes
        ("local_speed_m_s", np.float32, (3,)),  # velocity in car axes at the start of the last substep
        ("stored_angular_velocity_rad_s", np.float32, (3,)),  # car axes, at the last ground contact
        # Wheels: front-left, front-right, rear-right, rear-left.
        ("wheel_damper_absorb_m", np.float32, (4,)),  # 0 = compressed, 0.2 = hanging
        ("wheel_push_m", np.float32, (4,)),  # upward correction that the next substep takes out of the damper
        ("wheel_is_sliding", np.int32, (4,)),  # 0/1; keeps its last value in the air
        ("wheel_has_ground_contact", np.int32, (4,)),  # 0/1
        ("wheel_material", np.int32, (4,)),  # TMNF material id under the wheel
        # Engine.
        ("gear", np.int32),  # 0 reverse, 1..5
        ("gearbox_state", np.int32),  # 0 driving, 1 changing gear (no drive), 2 taking off, 3 taking off backwards
        ("gear_timer_s", np.float32),  # rest of the first phase of a gear change
        ("actual_rpm", np.float32),  # what the speed asks for
        ("clamped_rpm", np.float32),  # what the engine turns at, 0..11000
        ("slide_factor", np.float32),  # 1..1.15
        ("is_reversing", np.int32),  # 0/1: the brake key drives backwards
        ("is_freewheeling", np.int32),  # 0/1
        ("is_sliding", np.int32),  # 0/1, the car as a whole
        ("turning_rate", np.float32),  # the steering ramp, -1 left .. 1 right
        ("turbo_boost_factor", np.float32),  # of the last turbo pad
        ("turbo_remaining_s", np.float32),
        ("has_any_lateral_contact", np.int32),  # 0/1: a wheel touched a wall in the last collision pass
        ("last_lateral_contact_time_ms", np.int32),  # race clock of it, -1 for never
        ("clock_ms", np.int32),  # ticks driven x 10: the label of this state
        ("ribbon_index", np.int32),  # cross-section at or before the car
        ("station_m", np.float32),  # arc length of the car along the line, 0 at the start
    ]
)
"""One car. All floats are float32 and all integers int32, so that a blob of such fields restores a state bit for bit."""


def spawn_vehicle(track: Track) -> npt.NDArray[np.void]:
    """A car at rest on the start line, hanging 0.21 m above the road as the game places it.

    Args:
        track: where to drive.

    Returns:
        (1,) array of `VEHICLE_DTYPE`.
    """
    raise NotImplementedError


@njit(cache=True)
def tick(
    car: npt.NDArray[np.void], gas: float, brake: float, steer: float, ribbon: Ribbon, parameters: npt.NDArray[np.void]
) -> None:
    """Drives the car 10 ms on.

    Args:
        car: (1,) array of `VEHICLE_DTYPE`, changed in place.
        gas: throttle, 0..1.
        brake: brake, 0..1.
        steer: -1 left .. 1 right.
        ribbon: the road.
        parameters: the car's constants, `vehicle_parameters.STADIUM_CAR`.
    """
