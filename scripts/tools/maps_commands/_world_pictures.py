"""Pictures of the world that a map's blocks make: from above, in perspective, and from behind a car."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from maps_commands._line_pictures import (
    DOTS_PER_INCH,
    GATE_COLOURS,
    HEIGHT_FROM_ABOVE_IN,
    MARGIN_M,
    WIDTH_IN,
    new_figure,
    show_around,
    write,
)
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Block, Gate
from trackmania_rl.gbx.replay import GhostSamples
from trackmania_rl.simulator.picture.block_scene import BlockScene
from trackmania_rl.simulator.picture.rasterizer import Camera, draw_mesh, new_canvas, new_mesh
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.block_world import GRASS_HEIGHT_M, BlockWorld
from trackmania_rl.track.pieces import footprint
from trackmania_rl.track.placed_blocks import to_world

FloatArray = npt.NDArray[np.float64]

PERSPECTIVE_PX: Final = (1400, 760)
OVERSAMPLING: Final = 2
PERSPECTIVE_IN: Final = 7.4
SKY_RGB: Final = (190, 208, 226)
GRASS_RGB: Final = ((96, 140, 74), (88, 131, 67))
"""Two greens, which change from cell to cell."""
HOLE_RGB: Final = (70, 110, 160)
WARNING_RGB: Final = (226, 74, 30)
SCENERY_RGB: Final = (196, 192, 184)
SURFACE_RGB: Final = {
    Surface.ASPHALT: (92, 94, 102),
    Surface.CONCRETE: (180, 176, 166),
    Surface.DIRT: (176, 128, 82),
    Surface.GRASS: (104, 160, 66),
    Surface.TURBO: (222, 170, 40),
    Surface.TURBO_ROULETTE: (222, 140, 40),
    Surface.FREE_WHEEL: (128, 82, 168),
}
SUN: Final = np.array((0.35, 0.85, 0.40)) / np.linalg.norm((0.35, 0.85, 0.40))
LOOKING_DOWN_RAD: Final = np.radians(32.0)
AWAY: Final = 1.6
"""Distance of the camera in sizes of what is seen."""
CENTRED_IN: Final = 5
"""Steps in which the camera is moved to have the world in the middle of its picture."""
UNKNOWN_LISTED: Final = 12
ROWS: Final = 6
COLUMNS: Final = 4
VIEW_PX: Final = (400, 300)
TITLE_IN: Final = 0.25


@dataclass(frozen=True)
class _Shapes:
    """Quadrilaterals to draw: corners (Q, 4, 3) in world axes and colours (Q, 3), 0 to 255."""

    corners_m: FloatArray
    rgb: FloatArray


def draw_world(file: Path, title: str, world: BlockWorld) -> None:
    """Write a PNG of a world.

    Args:
        file: the picture; its folder must exist.
        title: what is written above it.
        world: what is drawn.

    Raises:
        UserError: if the picture cannot be written.
    """
    low_m, high_m = _bounds(world)
    extent_m = high_m - low_m
    above_in = float(np.clip(0.95 * WIDTH_IN * extent_m[2] / extent_m[0] + 0.8, *HEIGHT_FROM_ABOVE_IN))
    figure = new_figure(above_in + PERSPECTIVE_IN)
    above, perspective = figure.subplots(2, 1, height_ratios=(above_in, PERSPECTIVE_IN))
    figure.suptitle(f"{title}: {100.0 * world.known_share:.0f} % of its road pieces are known", parse_math=False)
    _draw_world_from_above(above, world, low_m, high_m)
    perspective.imshow(perspective_of(world), interpolation="bilinear")
    perspective.set_axis_off()
    if world.unknown:
        perspective.set_title(_warning(world), fontsize=9, color="#b3330f", loc="left", parse_math=False, wrap=True)
    write(figure, file)


def perspective_of(world: BlockWorld) -> npt.NDArray[np.uint8]:
    """(H, W, 3) a view of a world from beside and above, all of it in the picture."""
    width_px, height_px = (OVERSAMPLING * size for size in PERSPECTIVE_PX)
    # Of two surfaces that are nearly in one plane, the first is seen: grass comes last.
    shapes = [_gates(world), _surface(world), _boxes(world.unknown, WARNING_RGB), _posts(world), _grass(world)]
    corners_m, rgb = np.concatenate([s.corners_m for s in shapes]), np.concatenate([s.rgb for s in shapes])
    mesh = new_mesh(4 * len(corners_m), max(len(corners_m), 1))
    mesh.points_m[:, : 4 * len(corners_m)] = corners_m.reshape(-1, 3).T
    mesh.corners[: len(corners_m)] = np.arange(4 * len(corners_m)).reshape(-1, 4)
    mesh.colors[: len(corners_m)] = np.clip(rgb, 0, 255).astype(np.uint32) @ np.array((1, 1 << 8, 1 << 16), np.uint32)
    mesh.counts[:] = 4 * len(corners_m), len(corners_m)
    canvas = new_canvas(width_px, height_px)
    camera, focal_px = _camera(world, width_px, height_px)
    canvas.pixels[:] = np.uint32(SKY_RGB[0] + (SKY_RGB[1] << 8) + (SKY_RGB[2] << 16))
    canvas.inverse_depth_1_m[:] = 0.0
    draw_mesh(canvas._replace(focal_px=focal_px), mesh, camera)
    split = np.stack([canvas.pixels >> np.uint32(shift) & np.uint32(0xFF) for shift in (0, 8, 16)], axis=-1)
    blocks = split.reshape(height_px // OVERSAMPLING, OVERSAMPLING, width_px // OVERSAMPLING, OVERSAMPLING, 3)
    return np.asarray(blocks.mean(axis=(1, 3)), dtype=np.uint8)


def _bounds(world: BlockWorld) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest corner of what is driven on and of what is not known."""
    points_m = [world.corners_m.reshape(-1, 3)]
    points_m += [box.reshape(-1, 3) for box in map(_cell_corners, (*world.unknown, *world.water))]
    all_m = np.concatenate(points_m)
    if len(all_m) == 0:
        all_m = np.array(((0.0, 0.0, 0.0), (1024.0, 16.0, 1024.0)))
    margin_m = np.array((MARGIN_M, 0.0, MARGIN_M))
    return all_m.min(axis=0) - margin_m, all_m.max(axis=0) + margin_m


def _camera(world: BlockWorld, width_px: int, height_px: int) -> tuple[Camera, float]:
    """A camera that sees all of a world from where x and z are small, and its focal length in pixels."""
    low_m, high_m = _bounds(world)
    extent_m = high_m - low_m
    middle_m = 0.5 * (low_m + high_m)
    aside = 1.0 if extent_m[0] >= extent_m[2] else -1.0  # across the longer side
    heading = np.array((0.55, 0.0, 0.835) if aside > 0.0 else (0.835, 0.0, 0.55))
    ahead = np.cos(LOOKING_DOWN_RAD) * heading - np.array((0.0, np.sin(LOOKING_DOWN_RAD), 0.0))
    right = np.cross(ahead, (0.0, 1.0, 0.0))
    right /= np.linalg.norm(right)
    axes = np.stack((right, np.cross(ahead, right), ahead))
    position_m = middle_m - AWAY * float(np.linalg.norm(extent_m)) * ahead
    corners_m = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * extent_m + low_m
    for _ in range(CENTRED_IN):  # the nearer half is larger, so the middle of the picture is not the world's
        seen_m = (corners_m - position_m) @ axes.T
        slopes = seen_m[:, :2] / seen_m[:, 2:]
        position_m = position_m + 0.5 * (slopes.min(axis=0) + slopes.max(axis=0)) * seen_m[:, 2].mean() @ axes[:2]
    slopes = np.abs(slopes).max(axis=0)
    return Camera(position_m, axes), float(min(0.5 * width_px / slopes[0], 0.5 * height_px / slopes[1]))


def _surface(world: BlockWorld) -> _Shapes:
    corners_m = world.corners_m[:, (0, 1, 2, 2)]
    rgb = np.zeros((len(corners_m), 3))
    for surface, colour in SURFACE_RGB.items():
        rgb[world.surface == int(surface)] = colour
    normals = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    return _Shapes(corners_m, rgb * (0.62 + 0.45 * np.abs(normals @ SUN))[:, None])


def _grass(world: BlockWorld) -> _Shapes:
    x, z = (axis.ravel() for axis in np.indices(world.has_grass.shape))
    corners_m = np.stack(
        [np.stack((x + dx, np.full(len(x), 0.0), z + dz), axis=1) for dx, dz in ((0, 0), (0, 1), (1, 1), (1, 0))],
        axis=1,
    ) * np.array(BLOCK_SIZE_M)
    corners_m[:, :, 1] = GRASS_HEIGHT_M
    rgb = np.array(GRASS_RGB, dtype=np.float64)[(x + z) % 2]
    is_hole = ~world.has_grass[x, z]
    corners_m[is_hole, :, 1] -= 2.0
    rgb[is_hole] = HOLE_RGB
    low_m, high_m = _bounds(world)
    middle_m = corners_m.mean(axis=1)
    is_near = ((middle_m[:, [0, 2]] > low_m[[0, 2]]) & (middle_m[:, [0, 2]] < high_m[[0, 2]])).all(axis=1)
    return _Shapes(corners_m[is_near], rgb[is_near])


def _posts(world: BlockWorld) -> _Shapes:
    """Scenery is a post in the middle of its cell: its shape is not known."""
    low_m, high_m = np.array((-1.5, 0.0, -1.5)), np.array((1.5, 8.0, 1.5))
    parts = [_box(_middle(block) + low_m, _middle(block) + high_m) for block in world.scenery]
    corners_m = np.concatenate([np.zeros((0, 4, 3)), *parts])
    return _Shapes(corners_m, np.tile(_shaded(SCENERY_RGB), (len(parts), 1)))


def _boxes(blocks: tuple[Block, ...], colour: tuple[int, int, int]) -> _Shapes:
    parts = [
        _box(cell.min(axis=(0, 1)) + 1.0, cell.max(axis=(0, 1)) - 1.0)
        for block in blocks
        for cell in _cell_corners(block)[:, None]
    ]
    return _Shapes(np.concatenate([np.zeros((0, 4, 3)), *parts]), np.tile(_shaded(colour), (len(parts), 1)))


def _gates(world: BlockWorld) -> _Shapes:
    """An arch over each trigger: two posts and a beam."""
    parts, colours = [np.zeros((0, 4, 3))], [np.zeros((0, 3))]
    for gate in world.gates:
        if gate.trigger_m is None:
            continue
        low_m, high_m = gate.trigger_m
        across = 0 if high_m[0] - low_m[0] > high_m[2] - low_m[2] else 2
        width_m = np.zeros(3)
        width_m[across] = 1.5
        colour = GATE_COLOURS[gate.kind]
        rgb = _shaded((int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)))
        beam_low_m = np.array((low_m[0], high_m[1] - 2.0, low_m[2]))
        left_m, right_m = high_m.copy(), low_m.copy()
        left_m[across], right_m[across] = low_m[across] + 1.5, high_m[across] - 1.5
        for begin_m, end_m in ((low_m, left_m), (right_m, high_m), (beam_low_m, high_m)):
            parts.append(_box(begin_m - 0.3, end_m + 0.3))
            colours.append(rgb)
    return _Shapes(np.concatenate(parts), np.concatenate(colours))


def _shaded(colour: tuple[int, int, int]) -> FloatArray:
    """(6, 3) a box's sides in the light."""
    return np.array(colour) * np.array((0.75, 0.85, 0.6, 1.05, 0.8, 0.9))[:, None]


def _box(low_m: FloatArray, high_m: FloatArray) -> FloatArray:
    """(6, 4, 3) sides of a box."""
    sides = []
    for axis in range(3):
        others = [other for other in range(3) if other != axis]
        for end_m in (low_m, high_m):
            corners_m = np.tile(np.asarray(low_m, dtype=np.float64), (4, 1))
            corners_m[:, axis] = end_m[axis]
            corners_m[[1, 2], others[0]] = high_m[others[0]]
            corners_m[[2, 3], others[1]] = high_m[others[1]]
            sides.append(corners_m)
    return np.array(sides)


def _cell_corners(block: Block) -> FloatArray:
    """(C, 2, 3) opposite corners of each cell that a block fills, world axes."""
    cells = np.array(footprint(block.name), dtype=np.float64)
    return to_world(np.stack((cells, cells + 1.0), axis=1) * BLOCK_SIZE_M, block)


def _middle(block: Block) -> FloatArray:
    """(3,) the middle of the lowest floor of a block."""
    corners_m = _cell_corners(block).reshape(-1, 3)
    low_m, high_m = corners_m.min(axis=0), corners_m.max(axis=0)
    return np.array((0.5 * (low_m[0] + high_m[0]), low_m[1], 0.5 * (low_m[2] + high_m[2])))


def _draw_world_from_above(axes: Axes, world: BlockWorld, low_m: FloatArray, high_m: FloatArray) -> None:
    """Draw the surface, the highest last, as the game's stadium lies: x to the right, z downwards."""
    axes.set_facecolor("#7fa565")
    shapes = _surface(world)
    order = np.argsort(world.corners_m[:, :, 1].mean(axis=1), kind="stable")
    colours = np.clip(shapes.rgb[order] / 255.0, 0.0, 1.0)
    axes.add_collection(
        PolyCollection(
            list(world.corners_m[order][:, :, [0, 2]]), facecolors=colours, edgecolors=colours, linewidths=0.2
        )
    )
    _add_cells(axes, world.scenery, facecolor="none", edgecolor="#e4e2da", linewidth=0.4, zorder=2)
    _add_cells(axes, world.water, facecolor="#466ea0", edgecolor="#466ea0", linewidth=0.4, alpha=0.8, zorder=2)
    _add_cells(axes, world.unknown, facecolor="#e24a1e", edgecolor="#8c2406", alpha=0.75, hatch="//", zorder=3)
    for gate in world.gates:
        if gate.trigger_m is None:
            continue
        (x0, _, z0), (x1, _, z1) = gate.trigger_m
        axes.add_patch(
            Rectangle((x0 - 1.0, z0 - 1.0), x1 - x0 + 2.0, z1 - z0 + 2.0, color=GATE_COLOURS[gate.kind], zorder=4)
        )
    show_around(axes, np.array((low_m, high_m))[:, [0, 2]], margin_m=0.0)
    axes.legend(handles=_legend(world), loc="best", fontsize=8)


def _add_cells(axes: Axes, blocks: tuple[Block, ...], **style: Any) -> None:
    squares = []
    for block in blocks:
        for corners_m in _cell_corners(block):
            x, z = corners_m[:, 0].min(), corners_m[:, 2].min()
            squares.append(Rectangle((x, z), BLOCK_SIZE_M[0], BLOCK_SIZE_M[2]))
    if squares:
        axes.add_collection(PatchCollection(squares, **style))


def _legend(world: BlockWorld) -> list[Patch | Line2D]:
    names = {surface: surface.name.lower().replace("_", " ") for surface in SURFACE_RGB}
    present = [surface for surface in SURFACE_RGB if (world.surface == int(surface)).any()]
    handles: list[Patch | Line2D] = [
        Patch(color=_hex(SURFACE_RGB[surface]), label=names[surface]) for surface in present
    ]
    if world.water:
        handles.append(Patch(color="#466ea0", label="water"))
    if world.scenery:
        handles.append(Patch(facecolor="none", edgecolor="#9a988f", label="scenery, not driven against"))
    if world.unknown:
        handles.append(Patch(facecolor="#e24a1e", hatch="//", label="not in the catalogue: nothing is there"))
    kinds = {gate.kind for gate in world.gates}
    handles += [
        Line2D([], [], color=GATE_COLOURS[kind], linewidth=4.0, label=kind.value) for kind in Gate if kind in kinds
    ]
    return handles


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _warning(world: BlockWorld) -> str:
    names = world.unknown_names
    listed = ", ".join(f"{count} {name.removeprefix('Stadium')}" for name, count in names[:UNKNOWN_LISTED])
    more = f" and {len(names) - UNKNOWN_LISTED} other kinds" if len(names) > UNKNOWN_LISTED else ""
    return f"not in the catalogue (red): {listed}{more}"


def draw_views(file: Path, title: str, scene: BlockScene, samples: GhostSamples) -> None:
    """Write a PNG of views from behind a ghost's car, at equal times from its first sample to its last.

    Args:
        file: the picture; its folder must exist.
        title: what is written above it.
        scene: the world.
        samples: where the car is.

    Raises:
        UserError: if the picture cannot be written.
    """
    renderer = Renderer(scene)
    width_in, height_in = (size / DOTS_PER_INCH for size in VIEW_PX)
    size_in = COLUMNS * width_in, ROWS * (height_in + TITLE_IN) + TITLE_IN
    figure = new_figure(size_in[1], size_in[0])
    figure.suptitle(title, parse_math=False)
    rotation = samples.axes
    times_ms = np.linspace(samples.time_ms[0], samples.time_ms[-1], ROWS * COLUMNS)
    for axes, time_ms in zip(figure.subplots(ROWS, COLUMNS).ravel(), times_ms, strict=True):
        sample = int(np.argmin(np.abs(samples.time_ms - time_ms)))
        view = renderer.render(samples.position_m[sample], rotation[sample], 0, *VIEW_PX)
        axes.imshow(view[..., 2::-1])
        axes.set_axis_off()
        axes.set_title(f"{samples.time_ms[sample] / 1000.0:.1f} s", fontsize=8, pad=2.0)
    write(figure, file)
