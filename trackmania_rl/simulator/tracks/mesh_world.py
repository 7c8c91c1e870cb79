"""What a track has whose car drives on a mesh: the mesh, its gates, where cars begin, and what is seen of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.picture.block_scene import BlockScene
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh


@dataclass(frozen=True)
class MeshWorld:
    """A world of triangles as a race needs it.

    Attributes:
        mesh: what is driven on.
        gate_boxes_m: (B, 2, 3) lowest and highest corners of the boxes in which gates are passed.
        gate_of_box: (B,) int64, number of a box's gate within a lap, the lap's line last; a gate may have several.
        respawn_m: (G, 3) the car's origin where it is put back after each gate of a lap; after the line, which is the
            last, at the start, where races begin as well.
        respawn_rotation: (G, 3, 3) car to world there.
        scene: what is seen.
    """

    mesh: SurfaceMesh
    gate_boxes_m: npt.NDArray[np.float64]
    gate_of_box: npt.NDArray[np.int64]
    respawn_m: npt.NDArray[np.float64]
    respawn_rotation: npt.NDArray[np.float64]
    scene: BlockScene

    @property
    def gates_per_lap(self) -> int:
        """Checkpoints of a lap, and its line."""
        return int(self.gate_of_box.max()) + 1
