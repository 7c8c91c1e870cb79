"""Classic way of reading a state: parsed with the `tminterface` package, floats joined by `np.hstack`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tminterface.structs import CheckpointData, SimStateData

GROUND_GROUPS = ({0, 1, 16, 18, 19}, {2, 20}, {5, 6, 8, 17}, {7, 26})
MATERIAL_ID_MASK = 0xFFFF


def parse(blob: bytes) -> Any:
    """Return the package's state object."""
    state = SimStateData(blob)
    state.cp_data.resize(CheckpointData.cp_states_field, state.cp_data.cp_states_length)
    state.cp_data.resize(CheckpointData.cp_times_field, state.cp_data.cp_times_length)
    return state


def read_floats(
    blob: bytes, previous_actions: Sequence[dict[str, bool]], zone_centers_m: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Return the floats of the observation from zones (Z, 3) ahead and previous actions as dictionaries of keys."""
    state = parse(blob)
    dynamics, car = state.dyna.current_state, state.scene_mobil
    position = np.array(dynamics.position)
    rotation = np.array(dynamics.rotation.to_numpy()).T  # world to car
    wheels = [wheel.real_time_state for wheel in state.simulation_wheels]
    return np.hstack(
        (
            0,
            np.array([keys[key] for keys in previous_actions for key in keys]),
            [wheel.is_sliding for wheel in wheels],
            [wheel.has_ground_contact for wheel in wheels],
            [wheel.damper_absorb for wheel in wheels],
            car.gearbox_state,
            car.engine.gear,
            car.engine.actual_rpm,
            0,
            [(wheel.contact_material_id & MATERIAL_ID_MASK) in group for wheel in wheels for group in GROUND_GROUPS],
            rotation.dot(np.array(dynamics.angular_speed)),
            rotation.dot(np.array(dynamics.linear_speed)),
            rotation.dot(np.array([0, 1, 0])),
            rotation.dot((zone_centers_m - position).T).T.ravel(),
            0,
            car.is_freewheeling,
        )
    ).astype(np.float32)
