"""Motion of a ghost's car at each sample: axes, velocity and turning, from which the physics continues.

A ghost has position, attitude and speed ten times a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.replay import GhostSamples
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR

STENCIL: Final = 2  # samples before and after that derivatives use
JUMP_M_S: Final = 30.0  # a position that is this much faster than the speeds around it was set: a respawn

_CENTER_OF_MASS_M: Final = STADIUM_CAR["center_of_mass_m"][0]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GhostMotion:
    """Motion at S samples."""

    time_ms: npt.NDArray[np.int64]  # (S,) race time
    position_m: FloatArray  # (S, 3) the car's origin, world axes
    quaternion: FloatArray  # (S, 4) unit, w first, car to world
    rotation: FloatArray  # (S, 3, 3) the same; columns are the car's left, up and forward
    speed_m_s: FloatArray  # (S,)
    velocity_m_s: FloatArray  # (S, 3) of the centre of mass, world axes
    spin_rad_s: FloatArray  # (S, 3) angular velocity, world axes
    run: npt.NDArray[np.int64]  # (S,) number of the stretch without respawn that a sample belongs to


def motion_of(samples: GhostSamples) -> GhostMotion:
    """Derive a ghost's motion; derivatives do not reach over a respawn."""
    time_s = samples.time_ms / 1000.0
    rotation = samples.axes
    run = _runs(samples)
    origin_m_s = np.zeros_like(samples.position_m)
    spin_rad_s = np.zeros_like(samples.position_m)
    for at in range(len(time_s)):
        near = np.arange(max(at - STENCIL, 0), min(at + STENCIL + 1, len(time_s)))
        near = near[run[near] == run[at]]
        weights = _derivative_weights(time_s[near] - time_s[at])
        origin_m_s[at] = weights @ samples.position_m[near]
        spin_rad_s[at] = weights @ rotation_vectors(rotation[near] @ rotation[at].T)
    velocity_m_s = origin_m_s + np.cross(spin_rad_s, rotation @ _CENTER_OF_MASS_M)
    velocity_m_s += _half_substep_s(samples.speed_m_s, spin_rad_s)[:, None] * _changes(velocity_m_s, time_s, run)
    length_m_s = np.linalg.norm(velocity_m_s, axis=1)
    share = np.divide(samples.speed_m_s, length_m_s, out=np.zeros_like(length_m_s), where=length_m_s > 0.0)
    return GhostMotion(
        samples.time_ms,
        samples.position_m,
        samples.rotation,
        rotation,
        samples.speed_m_s,
        velocity_m_s * share[:, None],
        spin_rad_s,
        run,
    )


def _half_substep_s(speed_m_s: FloatArray, spin_rad_s: FloatArray) -> FloatArray:
    """Return (S,) the time by which positions lag behind velocities.

    In each substep the game moves the car with the velocity from before the substep (explicit Euler).
    """
    tick_s, length_m = TICK_MS / 1000.0, float(STADIUM_CAR["substep_length_m"][0])
    return 0.5 * tick_s / (np.floor(tick_s * (speed_m_s + np.linalg.norm(spin_rad_s, axis=1)) / length_m) + 1.0)


def _changes(velocity_m_s: FloatArray, time_s: FloatArray, run: npt.NDArray[np.int64]) -> FloatArray:
    """Return the accelerations between the neighbours of each sample, (S, 3)."""
    changes = np.zeros_like(velocity_m_s)
    for number in range(run[-1] + 1):
        of_run = run == number
        if of_run.sum() > 1:
            changes[of_run] = np.gradient(velocity_m_s[of_run], time_s[of_run], axis=0)
    return changes


def _runs(samples: GhostSamples) -> npt.NDArray[np.int64]:
    """Number the stretches between respawns."""
    step_s = np.diff(samples.time_ms) / 1000.0
    step_m = np.linalg.norm(np.diff(samples.position_m, axis=0), axis=1)
    faster_m_s = np.maximum(samples.speed_m_s[1:], samples.speed_m_s[:-1])
    is_jump = step_m > (faster_m_s + JUMP_M_S) * step_s
    return np.concatenate(([0], np.cumsum(is_jump))).astype(np.int64)


def _derivative_weights(offset_s: FloatArray) -> FloatArray:
    """Return weights (K,) that give the derivative at 0 of the polynomial through values at K offsets."""
    if len(offset_s) < 2:
        return np.zeros(len(offset_s))
    powers = np.vander(offset_s, increasing=True).T
    return np.linalg.solve(powers, np.eye(len(offset_s))[1])


def rotation_vectors(rotation: FloatArray) -> FloatArray:
    """Return axis times angle (K, 3) of turns (K, 3, 3), each less than half a turn."""
    axis = 0.5 * np.stack(
        (
            rotation[:, 2, 1] - rotation[:, 1, 2],
            rotation[:, 0, 2] - rotation[:, 2, 0],
            rotation[:, 1, 0] - rotation[:, 0, 1],
        ),
        axis=1,
    )
    sine = np.linalg.norm(axis, axis=1)
    angle = np.arctan2(sine, 0.5 * (np.trace(rotation, axis1=1, axis2=2) - 1.0))
    return axis * np.divide(angle, sine, out=np.ones_like(sine), where=sine > 1e-12)[:, None]
