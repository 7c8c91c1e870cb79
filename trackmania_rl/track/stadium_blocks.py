"""A catalogue of the Stadium's road pieces: where a road enters and leaves a block, how high, how steep, how banked.

Footprints are pygbx's. Everything else was found by driving: samples of ghosts and a reference line, turned into the
axes of the blocks they pass (tests/track/test_stadium_blocks.py repeats that for every piece in `SEEN_DRIVEN`). The
other pieces follow from them by symmetry, from their footprints, and from the pieces that they join in real maps.

What is banked or steep is so by a quarter: 8 m over 32 m. A road piece may be driven either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.pygbx_parts import STADIUM_BLOCK_OFFSETS
from trackmania_rl.track.road_lanes import CELL_HEIGHT_M, CELL_M, ROAD_HEIGHT_M, Gradient, Lane, Port, Side

STEEP: Final = 0.25
"""Rise over run of every slope and bank in the catalogue."""
ROAD_WIDTH_M: Final = 26.0
"""Between the borders of an asphalt road. Cars were seen up to 11.5 m beside its middle, and are 2.3 m wide."""
OPEN_WIDTH_M: Final = 32.0
"""Platforms, circuits and fields fill their cells."""
ROAD_MAIN: Final = "StadiumRoadMain"

SurfaceName = Literal["asphalt", "concrete", "dirt", "grass"]
Cell = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RoadPiece:
    """What is known of a kind of block.

    Attributes:
        lanes: roads through it; none where the way through it is open (fields) or leaves the ground (loops).
        width_m: of its road.
        surface: of its road.
    """

    lanes: tuple[Lane, ...]
    width_m: float
    surface: SurfaceName


def footprint(name: str) -> tuple[Cell, ...]:
    """Cells (x, y, z) that a block fills, along its own axes."""
    return tuple((x, y, z) for x, y, z in STADIUM_BLOCK_OFFSETS.get(name, [[0, 0, 0]]))


def size_cells(name: str) -> tuple[int, int]:
    """(width, depth) of a block in cells, along its own x and z."""
    cells = footprint(name)
    return max(x for x, _, _ in cells) + 1, max(z for _, _, z in cells) + 1


def piece_of(block: Block) -> RoadPiece | None:
    """What the catalogue knows of a block; None for decoration and whatever else carries no road."""
    lanes = lanes_of(block)
    for beginning, width_m, surface in _SURFACES:
        if block.name.startswith(beginning) and not block.name.endswith("Clip"):
            return RoadPiece(lanes, width_m, surface)
    return None


def lanes_of(block: Block) -> tuple[Lane, ...]:
    """Roads through a block, in its own axes; none where it is not in the catalogue, or its road ends in it."""
    if block.name == ROAD_MAIN:
        return _ROAD_MAIN_LANES.get(block.flags & SHAPE_BITS, ())
    return LANES.get(block.name, ())


def _straight(begin_height_m: float = ROAD_HEIGHT_M, gradient: Gradient = (0.0, 0.0)) -> Lane:
    """One cell straight on, in a plane."""
    end_height_m = begin_height_m + CELL_M * gradient[1]
    return Lane(Port(Side.BACK, 0, begin_height_m, gradient), Port(Side.FRONT, 0, end_height_m, gradient))


def _bend(cells: int, height_m: float = ROAD_HEIGHT_M) -> Lane:
    """A quarter circle from the right side to the front."""
    return Lane(Port(Side.RIGHT, 0, height_m), Port(Side.FRONT, cells - 1, height_m))


def _banked_bend(cells: int) -> Lane:
    """The same, high on its outside: towards the back where it enters, towards the left where it leaves."""
    height_m = ROAD_HEIGHT_M + _BANK_M
    return Lane(
        Port(Side.RIGHT, 0, height_m, (0.0, -STEEP)),
        Port(Side.FRONT, cells - 1, height_m, (STEEP, 0.0)),
    )


def _tilted_bend(sides: tuple[Side, Side], cells: int) -> Lane:
    """A quarter circle about the corner between two sides, in the plane that rises to the left."""
    ports = []
    for side, other in (sides, sides[::-1]):
        place = cells - 1 if other in (Side.RIGHT, Side.BACK) else 0  # away from that corner
        x_m = {Side.RIGHT: 0.0, Side.LEFT: cells * CELL_M}.get(side, (place + 0.5) * CELL_M)
        ports.append(Port(side, place, ROAD_HEIGHT_M + STEEP * x_m, (STEEP, 0.0)))
    return Lane(*ports)


def _diagonal(depth: int, width: int, gradient: Gradient, *, is_mirror: bool) -> Lane:
    """From the cell at one end of the back to that at the other end of the front, in a plane."""
    back, front = (width - 1, 0) if is_mirror else (0, width - 1)
    back_height_m = ROAD_HEIGHT_M + gradient[0] * (back + 0.5) * CELL_M
    front_height_m = ROAD_HEIGHT_M + gradient[0] * (front + 0.5) * CELL_M + gradient[1] * depth * CELL_M
    return Lane(Port(Side.BACK, back, back_height_m, gradient), Port(Side.FRONT, front, front_height_m, gradient))


_BANK_M: Final = STEEP * CELL_M / 2.0
"""A banked road's middle is this much above its lower border."""
_LEVEL: Final = _straight()
_UP: Final = _straight(gradient=(0.0, STEEP))
_DOWN: Final = _straight(ROAD_HEIGHT_M + CELL_HEIGHT_M, (0.0, -STEEP))
_HIGH_ON_LEFT: Final = _straight(ROAD_HEIGHT_M + _BANK_M, (STEEP, 0.0))
_HIGH_ON_RIGHT: Final = _straight(ROAD_HEIGHT_M + _BANK_M, (-STEEP, 0.0))

SHAPE_BITS: Final = 0x3F
"""Of a block's flags: which of its shapes StadiumRoadMain takes, after its neighbours."""
_CORNER: Final = _bend(1)
_BACK_CORNER: Final = Lane(Port(Side.RIGHT), Port(Side.BACK))
_CROSS_LANES: Final = (
    Lane(Port(Side.RIGHT), Port(Side.LEFT)),
    Lane(Port(Side.LEFT), Port(Side.FRONT)),
    Lane(Port(Side.LEFT), Port(Side.BACK)),
)
_ROAD_MAIN_LANES: Final[dict[int, tuple[Lane, ...]]] = {
    2: (_CORNER,),
    3: (_LEVEL,),
    4: (_LEVEL, _CORNER, _BACK_CORNER),  # a T, closed on its left
    5: (_LEVEL, _CORNER, _BACK_CORNER, *_CROSS_LANES),
}
"""0 stands alone and 1 is a dead end: no road leads through them."""

_TILTED_BENDS: Final = {
    "DownRight": (Side.RIGHT, Side.BACK),
    "DownLeft": (Side.RIGHT, Side.FRONT),
    "UpRight": (Side.LEFT, Side.BACK),
    "UpLeft": (Side.LEFT, Side.FRONT),
}
_ABOVE: Final = Port(Side.BACK, 0, ROAD_HEIGHT_M + CELL_HEIGHT_M)
"""The level end of a transition, as high as the banked end's upper border."""
_PLANES: Final = {"": (0.0, 0.0), "Slope": (0.0, STEEP), "Tilt": (STEEP, 0.0)}

_SHAPES: Final[tuple[tuple[Lane, str], ...]] = (
    (
        _LEVEL,
        "RoadMainStartLine RoadMainFinishLine RoadMainStartFinishLine RoadMainCheckpoint RoadMainTurbo "
        "RoadMainTurboRoulette RoadMainFW RoadMainBirds RoadMainInBeam RoadMainXBeam RoadStretch "
        "HolePillar HolePillar2Front HolePillar2Line HolePillar3 Hole PlatformToRoad",
    ),
    (
        _UP,
        "RoadMainSlopeStraight RoadMainCheckpointUp RoadMainTurboUp RoadMainTurboRouletteUp RoadMainFWSlope "
        "RoadMainInBeamSlope RoadMainXBeamSlope RoadStretchSlope HolePillarSlope HoleSlope",
    ),
    (_DOWN, "RoadMainCheckpointDown RoadMainTurboDown RoadMainTurboRouletteDown"),
    (
        _HIGH_ON_LEFT,
        "RoadMainCheckpointRight RoadMainTurboRight RoadMainTurboRouletteRight RoadTiltStraight RoadTiltStraightBirds "
        "RoadMainFWTilt RoadMainInBeamTilt RoadMainXBeamTilt HolePillarTilt HoleTilt StretchTilt",
    ),
    (_HIGH_ON_RIGHT, "RoadMainCheckpointLeft RoadMainTurboLeft RoadMainTurboRouletteLeft"),
    (
        Lane(Port(Side.BACK), Port(Side.FRONT, 0, ROAD_HEIGHT_M + CELL_HEIGHT_M, (0.0, STEEP))),
        "RoadMainBiSlopeStart",
    ),
    (
        Lane(Port(Side.BACK, 0, ROAD_HEIGHT_M, (0.0, STEEP)), Port(Side.FRONT, 0, ROAD_HEIGHT_M + CELL_HEIGHT_M)),
        "RoadMainBiSlopeEnd",
    ),
    *((_bend(cells), f"RoadMainGTCurve{cells}") for cells in (2, 3, 4, 5)),
    (_banked_bend(1), "RoadTiltCorner"),
    *((_banked_bend(cells), f"RoadTiltGTCurve{cells}") for cells in (2, 3, 4)),
    *((_tilted_bend(sides, 1), f"RoadTiltCorner{which}") for which, sides in _TILTED_BENDS.items()),
    *((_tilted_bend(sides, 2), f"RoadTiltGTCurve2{which}") for which, sides in _TILTED_BENDS.items()),
    *(
        (_diagonal(depth, width, gradient, is_mirror=bool(mirror)), f"RoadMainGTDiag{depth}x{width}{plane}{mirror}")
        for depth, width in ((2, 2), (3, 2), (4, 3))
        for plane, gradient in _PLANES.items()
        for mirror in (("",) if plane == "Tilt" else ("", "Mirror"))  # tilted mirrors' footprints contradict each other
        if f"StadiumRoadMainGTDiag{depth}x{width}{plane}{mirror}" in STADIUM_BLOCK_OFFSETS
    ),
    (
        Lane(_ABOVE, Port(Side.FRONT, 0, ROAD_HEIGHT_M + _BANK_M, (STEEP, 0.0))),
        "RoadTiltTransition1Left RoadTiltTransition2Left",
    ),
    (
        Lane(_ABOVE, Port(Side.FRONT, 0, ROAD_HEIGHT_M + _BANK_M, (-STEEP, 0.0))),
        "RoadTiltTransition1Right RoadTiltTransition2Right",
    ),
    (
        Lane(replace(_ABOVE, place=1), Port(Side.RIGHT, 1, ROAD_HEIGHT_M + _BANK_M, (0.0, STEEP))),
        "RoadTiltTransition2CurveLeft",
    ),
    (
        Lane(_ABOVE, Port(Side.LEFT, 1, ROAD_HEIGHT_M + _BANK_M, (0.0, STEEP))),
        "RoadTiltTransition2CurveRight",
    ),
    (
        Lane(Port(Side.BACK), Port(Side.FRONT, 1, ROAD_HEIGHT_M + 3 * _BANK_M, (STEEP, 0.0))),
        "RoadTiltTransition2DiagLeft",
    ),
    (
        Lane(Port(Side.BACK, 1), Port(Side.FRONT, 0, ROAD_HEIGHT_M + 3 * _BANK_M, (-STEEP, 0.0))),
        "RoadTiltTransition2DiagRight",
    ),
)
LANES: Final[dict[str, tuple[Lane, ...]]] = {
    f"Stadium{name}": (lane,) for lane, names in _SHAPES for name in names.split()
}
"""Roads through blocks, by the block's name; `StadiumRoadMain` has its own table, by shape."""

_SEEN: Final = (
    "RoadMain RoadMainStartLine RoadMainFinishLine RoadMainCheckpoint RoadMainTurbo RoadStretch HolePillar "
    "HolePillar2Front HolePillar2Line PlatformToRoad HolePillarTilt RoadMainCheckpointUp RoadMainCheckpointDown "
    "RoadMainCheckpointLeft RoadMainCheckpointRight RoadMainBiSlopeStart RoadMainGTCurve2 RoadMainGTCurve3 "
    "RoadMainGTCurve4 RoadMainGTDiag2x2 RoadMainGTDiag3x2 RoadTiltStraight RoadTiltCornerDownRight "
    "RoadTiltCornerDownLeft RoadTiltCornerUpLeft RoadTiltGTCurve2 RoadTiltGTCurve2DownRight "
    "RoadTiltGTCurve2DownLeft RoadTiltGTCurve2UpRight RoadTiltTransition2Left RoadTiltTransition2DiagLeft "
    "RoadTiltTransition2DiagRight"
)
SEEN_DRIVEN: Final = frozenset(f"Stadium{name}" for name in _SEEN.split())
"""Pieces whose entry was compared with where real cars drove."""

_SURFACES: Final[tuple[tuple[str, float, SurfaceName], ...]] = (
    ("StadiumRoadDirtToRoadGrass", ROAD_WIDTH_M, "dirt"),
    ("StadiumRoadDirt", ROAD_WIDTH_M, "dirt"),
    ("StadiumRoad", ROAD_WIDTH_M, "asphalt"),
    ("StadiumHole", ROAD_WIDTH_M, "asphalt"),
    ("StadiumRamp", ROAD_WIDTH_M, "asphalt"),
    ("StadiumBump", ROAD_WIDTH_M, "asphalt"),
    ("StadiumStretch", ROAD_WIDTH_M, "asphalt"),
    ("StadiumLoop", ROAD_WIDTH_M, "asphalt"),
    ("StadiumPlatform", OPEN_WIDTH_M, "concrete"),
    ("StadiumCircuit", OPEN_WIDTH_M, "concrete"),
    ("StadiumGrass", OPEN_WIDTH_M, "grass"),
    ("StadiumDirtHill", OPEN_WIDTH_M, "dirt"),
    ("StadiumDirtBorder", OPEN_WIDTH_M, "dirt"),
)
"""(how a block's name begins, width, surface); the first that fits. Turbo pads are not here: they cover a part."""
