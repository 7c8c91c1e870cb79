"""When a replay's car passes the gates of its map, by their triggers in the world that the map's blocks make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.trigger_boxes import TriggerBoxes, touches_box
from trackmania_rl.simulator.physics.vehicle import TICK_MS
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.track.block_world import GateBox
from trackmania_rl.track.ghost_motion import GhostMotion, rotation_vectors

NOT_PASSED: Final = -1
BEYOND_MS: Final = 100
"""A race ends between two samples: behind the last one the car is taken to go on as it did."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def gate_times_ms(motion: GhostMotion, gates: Sequence[GateBox]) -> IntArray:
    """(G,) race time at which a car on a ghost's path first triggers each gate, -1 for never.

    Args:
        motion: the ghost's.
        gates: those whose trigger is not known are never passed.
    """
    nowhere_m = np.stack((np.full(3, np.inf), np.full(3, -np.inf)))
    corners_m = np.array([nowhere_m if gate.trigger_m is None else gate.trigger_m for gate in gates]).reshape(-1, 2, 3)
    boxes = TriggerBoxes(np.ascontiguousarray(corners_m[:, 0]), np.ascontiguousarray(corners_m[:, 1]))
    ends_ms = np.arange(TICK_MS, motion.time_ms[-1] + BEYOND_MS + 1, TICK_MS)
    tick = _first_ticks(boxes, *poses_at(motion, ends_ms), STADIUM_CAR)
    return np.where(tick < 0, NOT_PASSED, TICK_MS * tick)


def poses_at(motion: GhostMotion, time_ms: IntArray) -> tuple[FloatArray, FloatArray]:
    """(N, 3) positions and (N, 3, 3) rotations of a ghost's car between its samples.

    A position is the cubic with the samples' velocities, a rotation turns evenly; over a respawn the car stays where it
    was, and behind the last sample it goes straight on.
    """
    last = len(motion.time_ms) - 1
    before = np.clip(np.searchsorted(motion.time_ms, time_ms, side="right") - 1, 0, max(last - 1, 0))
    after = np.minimum(before + 1, last)
    span_s = np.maximum(motion.time_ms[after] - motion.time_ms[before], 1)[:, None] / 1000.0
    u = np.clip((time_ms - motion.time_ms[before])[:, None] / 1000.0 / span_s, 0.0, 1.0)
    u[motion.run[before] != motion.run[after]] = 0.0
    position_m = (
        (1 + 2 * u) * (1 - u) ** 2 * motion.position_m[before]
        + u * (1 - u) ** 2 * span_s * motion.velocity_m_s[before]
        + u**2 * (3 - 2 * u) * motion.position_m[after]
        + u**2 * (u - 1) * span_s * motion.velocity_m_s[after]
    )
    beyond_s = np.maximum(time_ms - motion.time_ms[last], 0)[:, None] / 1000.0
    turned = motion.rotation[after] @ np.swapaxes(motion.rotation[before], 1, 2)
    rotation = _turns(u * rotation_vectors(turned)) @ motion.rotation[before]
    return position_m + beyond_s * motion.velocity_m_s[last], rotation


def _turns(vectors: FloatArray) -> FloatArray:
    """(N, 3, 3) rotations by rotation vectors (N, 3) (Rodrigues)."""
    angle = np.linalg.norm(vectors, axis=1)
    x, y, z = (vectors / np.maximum(angle, 1e-12)[:, None]).T
    zero = np.zeros(len(angle))
    cross = np.stack((zero, -z, y, z, zero, -x, -y, x, zero), axis=1).reshape(-1, 3, 3)
    sine, cosine = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    return np.asarray(np.eye(3) + sine * cross + (1.0 - cosine) * cross @ cross)


@compiled
def _first_ticks(boxes: TriggerBoxes, position_m: FloatArray, rotation: FloatArray, parameters: Any) -> IntArray:
    """(G,) number of the first tick after which a car touches each box, -1 for none."""
    first = np.full(boxes.low_m.shape[0], -1, dtype=np.int64)
    for box in range(boxes.low_m.shape[0]):
        for tick in range(position_m.shape[0]):
            if touches_box(boxes, box, position_m[tick], rotation[tick], parameters[0]):
                first[box] = tick
                break
    return first
