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
from trackmania_rl.simulator.physics.mesh_collision import NearMesh, collide_with_mesh, near_mesh
from trackmania_rl.simulator.physics.vehicle_state import CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh
from trackmania_rl.simulator.tracks.world import Ribbon, Track

World = Ribbon | SurfaceMesh
"""What `vehicle.tick` drives in."""


def world_of(track: Track) -> World:
    """What cars drive on: a track's mesh, if it has one, or its ribbon."""
    return track.ribbon if track.mesh_world is None else track.mesh_world.mesh


def size_of(world: World) -> int:
    """How many cross-sections or faces there are, one of which a car notes."""
    return len(world.faces) if isinstance(world, SurfaceMesh) else len(world.station_m)


def ground_of(world: World) -> Any:
    """What the physics asks for the ground within a tick: a ribbon's cross-sections, or a mesh and what is near."""
    return near_mesh(world) if isinstance(world, SurfaceMesh) else world.sections


def collide_with(car: CarRecord, parameters: ParametersRecord, ground: Any) -> None:
    """One collision pass."""
    if isinstance(ground, NearMesh):
        collide_with_mesh(car, parameters, ground)
    else:
        collide(car, parameters, ground)


def pads_forward(car: CarRecord, ground: Any) -> npt.NDArray[np.float64]:
    """(3,) the way in which the pad pushes that a car's wheel touches."""
    records = ground.mesh.faces if isinstance(ground, NearMesh) else ground
    return np.asarray(records[car.ribbon_index].forward)


def _is_a(kind: type, ground: types.Type) -> bool:
    return isinstance(ground, types.NamedTuple) and ground.instance_class is kind


@overload(ground_of, strict=False)
def _compiled_ground_of(world: types.Type) -> Any:
    if _is_a(SurfaceMesh, world):
        return lambda world: near_mesh(world)
    return lambda world: world.sections


@overload(collide_with, strict=False)
def _compiled_collide_with(car: types.Type, parameters: types.Type, ground: types.Type) -> Any:
    if _is_a(NearMesh, ground):
        return lambda car, parameters, ground: collide_with_mesh(car, parameters, ground)
    return lambda car, parameters, ground: collide(car, parameters, ground)


@overload(pads_forward, strict=False)
def _compiled_pads_forward(car: types.Type, ground: types.Type) -> Any:
    if _is_a(NearMesh, ground):
        return lambda car, ground: ground.mesh.faces[car.ribbon_index].forward
    return lambda car, ground: ground[car.ribbon_index].forward
