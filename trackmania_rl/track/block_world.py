"""World made from a map's blocks: triangles to drive on, gates, grass, water, and unknown blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, STADIUM, Block, Challenge, Gate
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, build_surface_mesh
from trackmania_rl.track.piece_mesh import PieceMesh, mesh_of
from trackmania_rl.track.pieces import SHAPE_BITS, Piece, stadium_pieces
from trackmania_rl.track.placed_blocks import cells_of, forward_of, to_world

GRASS_HEIGHT_M: Final = 9.0
MOST_CELLS: Final = 256  # per direction in a map's grid; files have a byte for each
MOST_BLOCKS: Final = 50_000
MOST_TRIANGLES: Final = 400_000  # over ten times those in the largest maps
ON_GRASS_CELL: Final = 1  # highest block layer on or in the stadium's ground

DEFAULT_SPAWN_M: Final = (16.0, 1.5685, 11.2)  # as on a road checkpoint

FloatArray = npt.NDArray[np.float64]


class BlockWorldError(UserError):
    """A map's blocks make no world."""


@dataclass(frozen=True)
class GateBox:
    """Start, checkpoint or finish in the world."""

    block: Block
    kind: Gate
    trigger_m: FloatArray  # (2, 3) lowest and highest corners, box that a car must touch
    spawn_m: FloatArray  # (3,) for a car that faces as the block does


@dataclass(frozen=True)
class BlockWorld:
    """World made from a map's blocks; T triangles in world axes."""

    corners_m: FloatArray  # (T, 3, 3) counter-clockwise from the driven side
    surface: npt.NDArray[np.int64]  # (T,) `Surface` values
    block: npt.NDArray[np.int64]  # (T,) index into `blocks`
    blocks: tuple[Block, ...]  # in the file's order
    has_grass: npt.NDArray[np.bool_]  # (X, Z) True if the stadium's grass is in a cell column
    gates: tuple[GateBox, ...]  # in the file's order
    water: tuple[Block, ...]
    scenery: tuple[Block, ...]  # known, not driven on, not built
    replaced: tuple[Block, ...]  # fields and hills that others are dug into, not built
    unknown: tuple[Block, ...]  # not in the catalogue, not built
    filled: tuple[Block, ...] = ()  # not in the catalogue, replaced by a road along a line
    fillings: tuple[Piece, ...] = ()  # these roads, in world axes

    @property
    def forward(self) -> FloatArray:
        """(T, 3) each triangle's block direction, in which a pad pushes."""
        forwards = np.array([forward_of(block) for block in self.blocks]).reshape(-1, 3)
        return np.asarray(forwards[self.block])

    @property
    def known_share(self) -> float:
        """Share of blocks, scenery excluded, that are in the catalogue."""
        n_driven = len(self.blocks) - len(self.scenery)
        return 1.0 if n_driven == 0 else 1.0 - len(self.unknown + self.filled) / n_driven

    @property
    def knowledge(self) -> Counter[str]:
        """Known block counts, scenery excluded, by shape origin (`pieces.Knowledge`)."""
        pieces = map(stadium_pieces().find, self.blocks)
        return Counter(piece.knowledge for piece in pieces if piece is not None and not piece.is_scenery)

    @property
    def unknown_names(self) -> list[tuple[str, int]]:
        """Unknown block names and counts, the most frequent first."""
        return names_of(self.unknown)


def names_of(blocks: Iterable[Block]) -> list[tuple[str, int]]:
    """Return block names and counts, the most frequent first."""
    counts = Counter(block.name for block in blocks)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def world_of(challenge: Challenge) -> BlockWorld:
    """Build a map's world.

    Raises:
        BlockWorldError: if the map is from another environment, a block is outside every map's grid, or there are too
            many blocks or triangles.
    """
    _check(challenge)
    pieces = stadium_pieces()
    size_x, _, size_z = challenge.size_cells
    has_grass = np.ones((size_x, size_z), dtype=np.bool_)
    dug = _dug_cells(challenge)
    meshes: dict[tuple[str, int], PieceMesh] = {}
    corners_m = [np.zeros((0, 3, 3))]
    surface = [np.zeros(0, dtype=np.int64)]
    owner = [np.zeros(0, dtype=np.int64)]
    gates, water, scenery, replaced, unknown = list[GateBox](), *(list[Block]() for _ in range(4))
    n_triangles = 0
    for index, block in enumerate(challenge.blocks):
        piece = pieces.find(block)
        if block.gate is not None:
            gates.append(_gate_box(block, block.gate, piece))
        if piece is None:
            unknown.append(block)
            continue
        if piece.is_scenery:
            scenery.append(block)
            continue
        if piece.is_water:
            water.append(block)
        cells = cells_of(block)
        if piece.replaces_ground and block.cell[1] <= ON_GRASS_CELL:
            for x, _, z in cells:
                if 0 <= x < size_x and 0 <= z < size_z:
                    has_grass[x, z] = False
        if piece.is_ground and any((x, y + above, z) in dug for x, y, z in cells for above in (0, 1)):
            replaced.append(block)
            continue
        kind = block.name, block.flags & SHAPE_BITS
        mesh = meshes.setdefault(kind, mesh_of(piece, block)) if kind not in meshes else meshes[kind]
        n_triangles += len(mesh.surface)
        if n_triangles > MOST_TRIANGLES:
            raise BlockWorldError(
                f"map {challenge.plain_name}: its blocks make more than {MOST_TRIANGLES} triangles: make a rehearsal "
                "along a line (maps.py track)"
            )
        corners_m.append(to_world(mesh.corners_m, block))
        surface.append(mesh.surface)
        owner.append(np.full(len(mesh.surface), index, dtype=np.int64))
    return BlockWorld(
        np.concatenate(corners_m),
        np.concatenate(surface),
        np.concatenate(owner),
        challenge.blocks,
        has_grass,
        tuple(gates),
        tuple(water),
        tuple(scenery),
        tuple(replaced),
        tuple(unknown),
    )


def _dug_cells(challenge: Challenge) -> set[tuple[int, int, int]]:
    """Return the cells with blocks that are dug into fields and hills."""
    pieces = stadium_pieces()
    dug = set[tuple[int, int, int]]()
    for block in challenge.blocks:
        piece = pieces.find(block)
        if piece is not None and piece.replaces_ground and not piece.is_ground:
            dug.update(cells_of(block))
    return dug


def mesh_of_world(world: BlockWorld) -> SurfaceMesh:
    """Sort a world's triangles into cells, for the physics."""
    return build_surface_mesh(world.corners_m, world.surface, world.forward, world.has_grass, GRASS_HEIGHT_M)


def _check(challenge: Challenge) -> None:
    name = challenge.plain_name
    if challenge.environment != STADIUM:
        raise BlockWorldError(
            f"map {name}: its environment is {challenge.environment}; only the blocks of {STADIUM} are known"
        )
    if not all(1 <= cells <= MOST_CELLS for cells in challenge.size_cells):
        raise BlockWorldError(f"map {name}: its grid of {challenge.size_cells} cells is none; the file is damaged")
    if len(challenge.blocks) > MOST_BLOCKS:
        raise BlockWorldError(
            f"map {name}: it has {len(challenge.blocks)} blocks, and a world at most {MOST_BLOCKS}: make a rehearsal "
            "along a line (maps.py track)"
        )
    for block in challenge.blocks:
        if not all(0 <= place < MOST_CELLS for place in block.cell):
            raise BlockWorldError(f"map {name}: {block.name} stands at cell {block.cell}, outside of every map's grid")


def _gate_box(block: Block, kind: Gate, piece: Piece | None) -> GateBox:
    """Return a gate; one that is not in the catalogue is passed anywhere in the block's cells."""
    trigger_m = None if piece is None else piece.trigger_m
    spawn_m = None if piece is None else piece.spawn_m
    if trigger_m is None:
        ends_m = np.array([(0.0, 0.0, 0.0), BLOCK_SIZE_M])
        placed_m = np.array(cells_of(block))[:, None] * BLOCK_SIZE_M + ends_m
    else:
        placed_m = to_world(trigger_m, block)[None]
    box_m = np.stack((placed_m.min(axis=(0, 1)), placed_m.max(axis=(0, 1))))
    return GateBox(block, kind, box_m, to_world(np.array(DEFAULT_SPAWN_M) if spawn_m is None else spawn_m, block))
