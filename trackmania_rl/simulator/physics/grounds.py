"""The two kinds of world that a car can drive in, chosen when the physics is compiled: ribbons and meshes.

Functions for ribbons get the ribbon's cross-sections, as before there were meshes; those for meshes get the mesh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from trackmania_rl.simulator.physics.collision import collide
from trackmania_rl.simulator.physics.mesh_collision import collide_with_mesh
from trackmania_rl.simulator.physics.vehicle_state import CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh
from trackmania_rl.simulator.tracks.world import Ribbon

World = Ribbon | SurfaceMesh
"""What `vehicle.tick` drives in."""


def ground_of(world: World) -> Any:
    """What the physics asks for the ground: a ribbon's cross-sections, or a mesh."""
    return world if isinstance(world, SurfaceMesh) else world.sections


def collide_with(car: CarRecord, parameters: ParametersRecord, ground: Any) -> None:
    """One collision pass."""
    if isinstance(ground, SurfaceMesh):
        collide_with_mesh(car, parameters, ground)
    else:
        collide(car, parameters, ground)


def pads_forward(car: CarRecord, ground: Any) -> npt.NDArray[np.float64]:
    """(3,) the way in which the pad pushes that a car's wheel touches."""
    records = ground.triangles if isinstance(ground, SurfaceMesh) else ground
    return np.asarray(records[car.ribbon_index].forward)


def _is_mesh(ground: types.Type) -> bool:
    return isinstance(ground, types.NamedTuple) and ground.instance_class is SurfaceMesh


@overload(ground_of, strict=False)
def _compiled_ground_of(world: types.Type) -> Any:
    if _is_mesh(world):
        return lambda world: world
    return lambda world: world.sections


@overload(collide_with, strict=False)
def _compiled_collide_with(car: types.Type, parameters: types.Type, ground: types.Type) -> Any:
    if _is_mesh(ground):
        return lambda car, parameters, ground: collide_with_mesh(car, parameters, ground)
    return lambda car, parameters, ground: collide(car, parameters, ground)


@overload(pads_forward, strict=False)
def _compiled_pads_forward(car: types.Type, ground: types.Type) -> Any:
    if _is_mesh(ground):
        return lambda car, ground: ground.triangles[car.ribbon_index].forward
    return lambda car, ground: ground[car.ribbon_index].forward
