"""Bumps of grass and dirt, from a texture that repeats over the whole world.

The game's texture is not public. This one resembles it as far as ghosts show: smooth, and dark for the most part.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.rigid_body import push_at, to_car, to_world
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.world import Surface

CELLS: Final = 128  # cells of the texture on each side
BRIGHTEST: Final = 255
DARK_SHARE: Final = 0.7  # share of the texture that is 0
_BLUR_CELLS: Final = 5
_BLURS: Final = 3
"""Averaging over 5 cells three times is nearly a Gaussian with a standard deviation of 2.4 cells."""
_SEED: Final = 1

_GRASS, _DIRT = int(Surface.GRASS), int(Surface.DIRT)


def make_texture(seed: int = _SEED) -> npt.NDArray[np.uint8]:
    """Return a (128, 128) texture of bumps by cell in x and z, 0 to 255.

    It is smooth noise of integers, so that every machine makes the same; one standard deviation is 255.
    """
    x, z = np.meshgrid(np.arange(CELLS, dtype=np.uint64), np.arange(CELLS, dtype=np.uint64), indexing="ij")
    bits = (x * np.uint64(73856093) ^ z * np.uint64(19349663) ^ np.uint64(seed * 83492791)) & np.uint64(0xFFFFFFFF)
    for _ in range(2):  # two rounds of xor-shift and multiply
        bits = ((bits ^ (bits >> np.uint64(16))) * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    noise = (bits & np.uint64(0xFF)).astype(np.int64)
    reach = _BLUR_CELLS // 2
    for _ in range(_BLURS):
        for axis in (0, 1):
            noise = sum((np.roll(noise, shift, axis) for shift in range(-reach, reach + 1)), np.zeros_like(noise))
    from_mean = noise * CELLS**2 - noise.sum()
    deviation = math.isqrt(int(((from_mean // CELLS**2) ** 2).sum()) // CELLS**2) * CELLS**2
    dark = np.sort(from_mean.ravel())[int(DARK_SHARE * CELLS**2)]
    texture = np.clip(from_mean * BRIGHTEST // deviation, 0, BRIGHTEST)
    texture[from_mean < dark] = 0
    return texture.astype(np.uint8)


_TEXTURE: Final = make_texture()


@compiled
def add_bumps(car: CarRecord, parameters: ParametersRecord) -> None:
    """Push each wheel on grass or dirt upwards, at its point of rest; call this before the substep's forces."""
    begun = False
    for wheel in range(WHEELS):
        if not car.wheel_has_ground_contact[wheel]:
            continue
        material = car.wheel_material[wheel]
        if material != _GRASS and material != _DIRT:
            break  # so does the game: a wheel on the road ends it for those after it
        if not begun:
            begun = True
            velocity, spin = car.velocity_m_s, car.angular_velocity_rad_s
            motion, local_spin = car.motion_m_s, car.spin_rad_s
            motion[0], motion[1], motion[2] = to_car(car, velocity[0], velocity[1], velocity[2])
            local_spin[0], local_spin[1], local_spin[2] = to_car(car, spin[0], spin[1], spin[2])
        point, center = parameters.wheel_points_m[wheel], parameters.center_of_mass_m
        x, _, z = to_world(car, point[0], point[1], point[2])
        cell_x = int(abs(car.position_m[0] + x) / parameters.bump_cell_m) % CELLS
        cell_z = int(abs(car.position_m[2] + z) / parameters.bump_cell_m) % CELLS
        limit_m_s = parameters.bump_limit_grass_m_s if material == _GRASS else parameters.bump_limit_dirt_m_s
        height = _TEXTURE[cell_x, cell_z] / BRIGHTEST
        bump_m_s = min(limit_m_s, height * max(car.motion_m_s[2], 0.0) * parameters.bump_speed_share)
        if bump_m_s > 0.0:
            arm = (point[0] - center[0], point[1] - center[1], point[2] - center[2])
            push_at(car, parameters, arm, (0.0, 1.0, 0.0), parameters.landing_loss * bump_m_s)
    if begun:
        motion, local_spin = car.motion_m_s, car.spin_rad_s
        x, y, z = to_world(car, motion[0], motion[1], motion[2])
        car.velocity_m_s[0], car.velocity_m_s[1], car.velocity_m_s[2] = x, y, z
        x, y, z = to_world(car, local_spin[0], local_spin[1], local_spin[2])
        spin = car.angular_velocity_rad_s
        spin[0], spin[1], spin[2] = x, y, z
