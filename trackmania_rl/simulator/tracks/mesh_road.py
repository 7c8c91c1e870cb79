"""What the road is like along the way through a world of faces: how far it goes to both sides, and what ends it there.

Whoever looks along a line of cross-sections, as the range finder and the road ahead do, then sees what a car meets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, ground_under
from trackmania_rl.simulator.tracks.world import SURFACE_GRASS, Edge, Ground, Ribbon

STEP_M: Final = 0.5
MOST_M: Final = 16.0
"""So far is looked to each side: half of a block, which is half of the widest road without borders."""
LOOK_FROM_M: Final = 0.5
"""Above the road. A wall is what is nearer than the road from there."""
LOOK_DOWN_M: Final = 1.5
"""Where the road is lower than that, the way is in the air. Half of it is looked back through faces: less than borders
are thick."""
STEEPEST: Final = 0.7
"""Cosine between the road's normal and that of what still is road; what is steeper is a wall."""
FOLD_M: Final = 0.25
"""A place above the fold between two faces may be above neither: a border is one so much further as well."""

_ROAD: Final = -1
_WALL, _GRASS, _DROP = int(Edge.WALL), int(Edge.GRASS), int(Edge.DROP)


class RoadProfile(NamedTuple):
    """A road at each of P cross-sections: how far it goes to both sides, and what it is.

    Attributes:
        to_left_m: (P,) float64, from the middle of the cross-section to the border on its left.
        to_right_m: (P,) float64.
        surface: (P,) int64, TMNF material id.
        edge: (P,) int64, one of `Edge`, of the nearer border.
        has_road: (P,) bool, False where there is nothing below.
    """

    to_left_m: npt.NDArray[np.float64]
    to_right_m: npt.NDArray[np.float64]
    surface: npt.NDArray[np.int64]
    edge: npt.NDArray[np.int64]
    has_road: npt.NDArray[np.bool_]


def measure_road(ribbon: Ribbon, mesh: SurfaceMesh) -> RoadProfile:
    """Look to both sides of the way through a world.

    Args:
        ribbon: the way; only where its cross-sections are counts.
        mesh: the world.
    """
    n_sections = len(ribbon.station_m)
    measured = RoadProfile(
        to_left_m=np.full(n_sections, MOST_M),
        to_right_m=np.full(n_sections, MOST_M),
        surface=np.zeros(n_sections, dtype=np.int64),
        edge=np.full(n_sections, _DROP),
        has_road=np.zeros(n_sections, dtype=np.bool_),
    )
    _measure(mesh, ribbon, measured)
    return measured


@compiled
def _measure(mesh: SurfaceMesh, ribbon: Ribbon, measured: RoadProfile) -> None:
    """Write what is found; where there is no road, what is there stays."""
    for section in range(len(ribbon.station_m)):
        under = _look(mesh, ribbon, section, 0.0)
        if not under.exists:
            continue
        measured.has_road[section], measured.surface[section] = True, under.material
        left_m, on_left = _border(mesh, ribbon, section, 1.0, under.material)
        right_m, on_right = _border(mesh, ribbon, section, -1.0, under.material)
        measured.to_left_m[section], measured.to_right_m[section] = left_m, right_m
        measured.edge[section] = on_left if left_m < right_m else on_right


@compiled
def _border(mesh: SurfaceMesh, ribbon: Ribbon, section: int, side: float, material: int) -> tuple[float, int]:
    """How far the road goes to one side, 1 for left, and what is there."""
    reached_m, up = 0.0, ribbon.up[section]
    while reached_m < MOST_M:
        aside_m = reached_m + STEP_M
        seen = _look(mesh, ribbon, section, side * aside_m)
        beyond = _what_is_at(seen, up, material)
        if beyond == _WALL:
            return aside_m + seen.height_m, beyond
        if beyond != _ROAD:
            further = _look(mesh, ribbon, section, side * (aside_m + FOLD_M))
            if _what_is_at(further, up, material) != _ROAD:
                return reached_m, beyond
        reached_m = aside_m
    return MOST_M, _DROP


@compiled
def _what_is_at(ground: Ground, up: npt.NDArray[np.float64], material: int) -> int:
    """The road itself, or which of `Edge`."""
    if not ground.exists:
        return _DROP
    normal = ground.normal
    if normal[0] * up[0] + normal[1] * up[1] + normal[2] * up[2] < STEEPEST:
        return _WALL if ground.height_m >= 0.0 else _DROP  # who is behind a face does not see it
    return _GRASS if ground.material == SURFACE_GRASS and material != SURFACE_GRASS else _ROAD


@compiled
def _look(mesh: SurfaceMesh, ribbon: Ribbon, section: int, aside_m: float) -> Ground:
    """The ground beside the middle of a cross-section."""
    place_m = ribbon.center_m[section] + aside_m * ribbon.left[section] + LOOK_FROM_M * ribbon.up[section]
    return ground_under(mesh, place_m[0], place_m[1], place_m[2], LOOK_DOWN_M)
