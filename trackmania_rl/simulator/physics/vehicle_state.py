"""Car's state in memory: rounded between ticks, in double precision within one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import inner

WHEELS = 4  # front-left, front-right, rear-right, rear-left, as in the game
FRONT_WHEELS = 2

VEHICLE_DTYPE = np.dtype(
    [
        ("position_m", np.float32, (3,)),  # body's origin, 1 cm above the road at rest
        ("quaternion", np.float32, (4,)),  # (w, x, y, z) car to world
        ("rotation", np.float32, (3, 3)),  # the same; columns are the car's left, up and forward
        ("velocity_m_s", np.float32, (3,)),  # mass centre, world axes
        ("angular_velocity_rad_s", np.float32, (3,)),  # world axes
        ("force_m_s2", np.float32, (3,)),  # last substep's, per unit mass, car axes
        ("local_speed_m_s", np.float32, (3,)),  # at the last substep's start
        ("stored_angular_velocity_rad_s", np.float32, (3,)),  # car axes, at the last ground contact
        ("wheel_damper_absorb_m", np.float32, (WHEELS,)),  # 0 = compressed, 0.2 = hanging
        ("wheel_push_m", np.float32, (WHEELS,)),  # upward correction that the next substep subtracts from the damper
        ("wheel_is_sliding", np.int32, (WHEELS,)),  # 0/1; unchanged in the air
        ("wheel_has_ground_contact", np.int32, (WHEELS,)),  # 0/1
        ("wheel_material", np.int32, (WHEELS,)),  # TMNF material id under the wheel, 0 in the air
        ("wheel_contact_normal", np.float32, (WHEELS, 3)),  # ground's normal, car axes
        ("gear", np.int32),  # 0 reverse, 1..5
        ("gearbox_state", np.int32),  # engine.GearboxState
        ("gear_timer_s", np.float32),  # rest of a gear change's first phase
        ("actual_rpm", np.float32),  # from the speed
        ("clamped_rpm", np.float32),  # engine speed, 0..11000
        ("slide_factor", np.float32),  # 1..1.15, wheel speed / road speed
        ("is_reversing", np.int32),  # 0/1: the brake key drives backwards
        ("is_freewheeling", np.int32),  # 0/1; cleared at a checkpoint
        ("is_sliding", np.int32),  # 0/1
        ("was_grounded", np.int32),  # 0/1: chose gravity and drag in the last substep
        ("turning_rate", np.float32),  # the steering ramp, -1 left .. 1 right
        ("turbo_boost_factor", np.float32),  # from the last turbo pad
        ("turbo_remaining_s", np.float32),
        ("has_any_lateral_contact", np.int32),  # 0/1: a wheel touched a wall in the last collision pass
        ("last_lateral_contact_time_ms", np.int32),  # by clock_ms; NEVER_MS for never
        ("clock_ms", np.int32),
        ("surface_index", np.int32),  # cross-section at or before the car
        ("station_m", np.float32),  # arc length along the line, 0 at the start
    ]
)
"""One car between ticks. All floats are float32 and all integers int32: copied fields restore it bit for bit."""

CarRecord = Any  # element in a `WORK_DTYPE` array; numba reads its fields as attributes
ParametersRecord = Any  # element in `VehicleParameters.packed()`

NEVER_MS = -(1 << 30)


def _widened(dtype: np.dtype) -> list[tuple[str, type, tuple[int, ...]]]:
    assert dtype.names is not None
    return [
        (name, np.float64 if dtype[name].base == np.float32 else np.int64, dtype[name].shape) for name in dtype.names
    ]


WORK_DTYPE = np.dtype(
    [
        *_widened(VEHICLE_DTYPE),
        ("gas", np.float64),
        ("brake", np.float64),
        ("steer", np.float64),
        ("spin_rad_s", np.float64, (3,)),  # car axes
        ("motion_m_s", np.float64, (3,)),  # car axes, during a collision pass
        ("torque_rad_s2", np.float64, (3,)),  # this substep's, car axes, before the inverse inertia
        ("correction_m", np.float64, (3,)),  # this collision pass's, car axes
        ("any_wheel_over_limit", np.int64),  # 0/1: a wheel reached its lateral limit in this substep
    ]
)
"""The same car within a tick, with the current substep's sums."""

_FIELD_DTYPES = [VEHICLE_DTYPE[name] for name in VEHICLE_DTYPE.names or ()]
_IS_FLOAT = np.concatenate([np.full(dtype.shape, dtype.base == np.float32).ravel() for dtype in _FIELD_DTYPES])
"""Type of each 32-bit word in `VEHICLE_DTYPE`, and of each 64-bit word that `WORK_DTYPE` begins with."""


@inner
def copy_state(
    source_floats: npt.NDArray[np.floating],
    source_integers: npt.NDArray[np.signedinteger],
    target_floats: npt.NDArray[np.floating],
    target_integers: npt.NDArray[np.signedinteger],
) -> None:
    """Copy the state between cars, rounded where the target is narrower.

    Each car is two word views; a copy by field names would take seconds to compile.
    """
    for word in range(len(_IS_FLOAT)):
        if _IS_FLOAT[word]:
            target_floats[word] = source_floats[word]
        else:
            target_integers[word] = source_integers[word]


@inner
def is_grounded(car: CarRecord) -> bool:
    """Return whether any wheel is on the ground."""
    contact = car.wheel_has_ground_contact
    return contact[0] + contact[1] + contact[2] + contact[3] > 0


def new_vehicle() -> npt.NDArray[np.void]:
    """Return a (1,) `VEHICLE_DTYPE` car at rest in the air at the world's origin, level, heading to +z."""
    car = np.zeros(1, VEHICLE_DTYPE)
    car["quaternion"][0, 0] = 1.0
    car["rotation"][0] = np.eye(3)
    car["gear"] = 1
    car["slide_factor"] = 1.0
    car["last_lateral_contact_time_ms"] = NEVER_MS
    return car
