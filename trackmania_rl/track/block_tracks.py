"""Tracks made from a map's blocks, for the simulated game: loops, walls, pads and gates.

The world is written to a file beside the track's (`simulator.tracks.world_file`). Progress counts along a line through
the map, usually a driven one.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Challenge, Gate
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, ground_under
from trackmania_rl.simulator.tracks.track_design import (
    file_in_the_way,
    times_lines,
    toml_value,
    turn_radius_m,
    write_track,
)
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Surface, Track
from trackmania_rl.simulator.tracks.world_file import MeshWorld
from trackmania_rl.track.block_picture import scene_of
from trackmania_rl.track.block_world import (
    GRASS_HEIGHT_M,
    BlockWorld,
    BlockWorldError,
    GateBox,
    mesh_of_world,
    names_of,
    world_of,
)
from trackmania_rl.track.map_tracks import ROAD_WIDTH_M, WIDTH_OF_RADIUS, check_line, runs, track_of_map
from trackmania_rl.track.piece_mesh import mesh_of
from trackmania_rl.track.pieces import CrossSection, PathSweep, Piece, road_kind
from trackmania_rl.track.placed_blocks import cells_of, forward_of

GROUND_WITHIN_M: Final = 3.0  # a line further above the ground flies
SMOOTHED_POINTS: Final = 9  # line points over which ground normals are averaged

FloatArray = npt.NDArray[np.float64]
Ground = Literal["blocks", "line"]


class BlockTrackError(UserError):
    """A map's blocks make no track."""


def fill_gaps(world: BlockWorld, line_m: FloatArray) -> BlockWorld:
    """Lay a road along a line (N, 3) wherever it leads through unknown blocks, as wide as the block names say."""
    block_at = {cell: block for block in world.unknown for cell in cells_of(block)}
    on_line = [block_at.get((x, y, z)) for x, y, z in (line_m // BLOCK_SIZE_M).astype(int).tolist()]
    parts = [(world.corners_m, world.surface, world.block)]
    fillings = list[Piece]()
    for block in dict.fromkeys(filter(None, on_line)):
        width_m, surface = road_kind(block) or (ROAD_WIDTH_M, "asphalt")
        for first, last in runs(np.array([other == block for other in on_line])):
            way_m = line_m[max(first - 1, 0) : last + 2]
            half_m = 0.5 * min(width_m, WIDTH_OF_RADIUS * float(turn_radius_m(way_m).min()))
            section = CrossSection(np.array(((-half_m, 0.0), (half_m, 0.0))), Surface[surface.upper()])
            fillings.append(Piece(sweeps=(PathSweep(section, way_m),)))
            mesh = mesh_of(fillings[-1], block)
            parts.append((mesh.corners_m, mesh.surface, np.full(len(mesh.surface), world.blocks.index(block))))
    corners_m, surfaces, owner = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    filled = tuple(block for block in world.unknown if block in on_line)
    return replace(
        world,
        corners_m=corners_m,
        surface=surfaces,
        block=owner,
        unknown=tuple(block for block in world.unknown if block not in on_line),
        filled=filled,
        fillings=tuple(fillings),
    )


def arrays_of_map(challenge: Challenge, world: BlockWorld, line_m: FloatArray) -> MeshWorld:
    """Make a map's world along a line (N, 3), in metres, start to finish, about 0.5 m apart; omit unknown blocks.

    Raises:
        BlockTrackError: if there is no start or finish.
        MapTrackError: if the line is not on this map.
    """
    check_line(challenge, line_m)
    name = challenge.plain_name
    mesh = mesh_of_world(world)
    start = _start(world, name)
    checkpoints = [gate for gate in world.gates if gate.kind is Gate.CHECKPOINT]
    ends = [gate for gate in world.gates if gate.kind in (Gate.FINISH, Gate.START_AND_FINISH)]
    if not ends:
        raise BlockTrackError(f"map {name}: it has no finish")
    boxes_m = [gate.trigger_m for gate in (*checkpoints, *ends)]
    gate_of_box = [*range(len(checkpoints)), *(len(checkpoints) for _ in ends)]
    scene = scene_of(world, sorted(checkpoints, key=lambda gate: _place_on_line(gate, line_m)))
    spawns = [_spawn(gate) for gate in (*checkpoints, start)]
    return MeshWorld(
        corners_m=world.corners_m,
        surface=world.surface,
        forward=world.forward,
        has_grass=world.has_grass,
        grass_height_m=np.array((GRASS_HEIGHT_M,)),
        gate_boxes_m=np.stack(boxes_m),
        gate_of_box=np.array(gate_of_box, dtype=np.int64),
        respawn_m=np.stack([spawn_m for spawn_m, _ in spawns]),
        respawn_rotation=np.stack([rotation for _, rotation in spawns]),
        way_up=normals_along(mesh, line_m),
        scene_points_m=scene.points_m.T,
        scene_corners=scene.corners.astype(np.int64),
        scene_paint=scene.paint,
        scene_gate=scene.gate,
        scene_first_point=scene.first_point,
        scene_first_quad=scene.first_quad,
    )


def normals_along(mesh: SurfaceMesh, line_m: FloatArray) -> FloatArray:
    """Return ground normals (N, 3), unit vectors, under a line, interpolated where it flies."""
    up = np.full(line_m.shape, np.nan)
    for index, (x, y, z) in enumerate(line_m.tolist()):
        ground = ground_under(mesh, x, y, z, GROUND_WITHIN_M)
        if ground.exists:
            up[index] = ground.normal
    is_known = np.flatnonzero(~np.isnan(up[:, 0]))
    if len(is_known) == 0:
        return np.tile((0.0, 1.0, 0.0), (len(line_m), 1))
    points = np.arange(len(line_m))
    up = np.stack([np.interp(points, is_known, up[is_known, axis]) for axis in range(3)], axis=1)
    kernel = np.full(SMOOTHED_POINTS, 1.0 / SMOOTHED_POINTS)
    padded = np.pad(up, ((SMOOTHED_POINTS // 2, SMOOTHED_POINTS // 2), (0, 0)), mode="edge")
    up = np.stack([np.convolve(padded[:, axis], kernel, mode="valid") for axis in range(3)], axis=1)
    length = np.linalg.norm(up, axis=1, keepdims=True)
    return np.where(length > 0.1, up / np.maximum(length, 0.1), (0.0, 1.0, 0.0))


def write_block_track(
    challenge: Challenge, arrays: MeshWorld, line_m: FloatArray, track_file: Path
) -> tuple[Path, ...]:
    """Write a track's world, line (N, 3) and track file (.toml in an existing folder), in this order; return all three.

    Raises:
        OSError: if writing fails.
    """
    line_file = track_file.with_name(f"{track_file.stem}_0.5m.npy")
    world_file = track_file.with_name(f"{track_file.stem}_world.safetensors")
    content = io.BytesIO()
    np.lib.format.write_array(content, line_m.astype(np.float32), allow_pickle=False)
    write_durably(line_file, content.getvalue())
    write_durably(world_file, arrays.content())
    lines = (
        f"# Written by scripts/tools/maps.py, from {challenge.plain_name!r}. Format: docs/track_files.rst",
        f"name = {toml_value(track_file.stem)}",
        f"description = {toml_value(f'The blocks of {challenge.plain_name} by {challenge.author}.')}",
        f"line = {toml_value(line_file.name)}",
        f"world = {toml_value(world_file.name)}",
        f"laps = {challenge.n_laps}",
        *times_lines(asdict(challenge.times)),
    )
    write_durably(track_file, "".join(f"{line}\n" for line in lines))
    return track_file, line_file, world_file


@dataclass(frozen=True)
class WrittenTrack:
    """A written track."""

    track: Track
    notes: tuple[str, ...]  # differences from the game
    files: tuple[Path, ...]  # track, line, and others


def write_map_track(
    challenge: Challenge, line_m: FloatArray, output: Path, *, overwrite: bool = False, ground: Ground | None = None
) -> WrittenTrack:
    """Make a track from a map and write the files.

    Args:
        challenge: the map.
        line_m: (N, 3), through the map.
        output: the track file (.toml).
        overwrite: replace existing files.
        ground: the map's blocks, or a road along the line; None for blocks, or a line on maps that make no world.

    Raises:
        UserError: if no track can be made, or files exist.
        OSError: if writing fails.
    """
    write_to, notes = _writer(challenge, line_m, f"{output.stem}_road", ground)
    with tempfile.TemporaryDirectory() as folder:
        tried = write_to(Path(folder) / output.name)
        track = load_track(tried[0])  # raises for tracks that the game refuses
        file = None if overwrite else file_in_the_way(tried, output.parent, may_be_same=False)
        if file is not None:
            raise UserError(f"{file} is there already; give another name, or --force to overwrite it")
    output.parent.mkdir(parents=True, exist_ok=True)
    return WrittenTrack(track, notes, write_to(output))


def _writer(
    challenge: Challenge, line_m: FloatArray, road_name: str, ground: Ground | None
) -> tuple[Callable[[Path], tuple[Path, ...]], tuple[str, ...]]:
    """Return a function that writes a track's files, given the first one's path, and notes."""
    notes: tuple[str, ...] = ()
    if ground != "line":
        try:
            world = fill_gaps(world_of(challenge), line_m)
            arrays = arrays_of_map(challenge, world, line_m)
        except (BlockTrackError, BlockWorldError) as error:
            if ground == "blocks":
                raise
            notes = (f"a road along the line, as {error}",)
        else:
            notes = (f"{100.0 * world.known_share:.0f} % of the map's blocks; {len(arrays.surface):,} triangles",)
            for blocks, what in ((world.filled, "a road along the line replaces"), (world.unknown, "nothing replaces")):
                if blocks:
                    names = ", ".join(f"{count} {name}" for name, count in names_of(blocks))
                    notes += (f"{what} blocks that are not in the catalogue: {names}",)
            return lambda file: write_block_track(challenge, arrays, line_m, file), notes
    origin = f"scripts/tools/maps.py track, from {challenge.plain_name!r}"
    made = track_of_map(challenge, line_m, road_name)
    return lambda file: (file, write_track(made.design, made.laid_out, file, origin)), (*notes, *made.notes)


def _start(world: BlockWorld, name: str) -> GateBox:
    for gate in world.gates:
        if gate.kind in (Gate.START, Gate.START_AND_FINISH):
            return gate
    raise BlockTrackError(f"map {name}: it has no start")


def _spawn(gate: GateBox) -> tuple[FloatArray, FloatArray]:
    """Return a gate's spawn (3,) and rotation (3, 3), car to world: level, along the block."""
    ahead = forward_of(gate.block)
    up = np.array((0.0, 1.0, 0.0))
    return gate.spawn_m, np.stack((np.cross(up, ahead), up, ahead), axis=1)


def _place_on_line(gate: GateBox, line_m: FloatArray) -> int:
    return int(np.linalg.norm(line_m - gate.trigger_m.mean(axis=0), axis=1).argmin())
