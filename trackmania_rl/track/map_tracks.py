"""Tracks for the simulated game from real maps: a road along a reference line, as wide as the map's blocks.

The road's middle is the line. Known blocks give width, surface and bank; elsewhere a default road is laid. In tight
turns the road is narrower. Where the line is steeper than 60 degrees or upside down, it is rolled out to a level road
with the same length, and all that follows moves with it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Block, Challenge, Gate
from trackmania_rl.simulator.tracks.track_design import (
    LINE_SPACING_M,
    LaidOutTrack,
    Section,
    TrackDesign,
    moving_average,
    resample,
    turn_radius_m,
)
from trackmania_rl.track.pieces import CELL_M, road_kind
from trackmania_rl.track.placed_blocks import BlockGrid, Road, roads_of

ROAD_WIDTH_M: Final = 26.0
OPEN_WIDTH_M: Final = 32.0  # asphalt road, between its borders; open ground
SMOOTHING_M: Final = 10.0
"""Moving average over the line: recorded points are rounded, and a driven line wobbles."""
GRASS_BELOW_M: Final = 10.0
"""A line lower than this with no block below drives on the stadium's grass at 9 m."""
ON_ROAD_M: Final = 1.5  # a line further above the block's road flies over it, without the bank
GATE_REACH_M: Final = 24.0  # on the plan, for a line that passes a checkpoint
START_REACH_M: Final = 64.0  # from a line's first point to the map's start
LEAST_WIDTH_M: Final = 4.0
LEAST_LENGTH_M: Final = 30.0
WIDTH_OF_RADIUS: Final = 1.6
"""Largest road width in turn radii: less than the 2 at which the inner border would fold over."""
LEAST_UP: Final = 0.5  # road normal's vertical part, below which the line is rolled out: 60 degrees
NEARLY_LEVEL_UP: Final = 0.995
"""Road normal's vertical part at both ends of a rolled-out stretch: 6 degrees."""

_TAPER_REACH_M: Final = 13.0  # track files spread each width change over this much in both directions
_STEEPNESS_WINDOW_M: Final = 5.0
_ROLL_OUT_MARGIN_M: Final = 15.0
_BANK_STEP_DEG: Final = 2.0

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class MapTrackError(UserError):
    """No track can be made from a map and a line."""


@dataclass(frozen=True)
class MapTrack:
    """Track along a line through a map, ready for `track_design.write_track`."""

    design: TrackDesign
    laid_out: LaidOutTrack
    notes: tuple[str, ...]  # differences from the game, in words


@dataclass(frozen=True)
class _Ground:
    width_m: FloatArray
    bank: FloatArray  # rise per metre to the left
    surface: list[str]
    is_known: BoolArray


def track_of_map(challenge: Challenge, line_m: FloatArray, name: str) -> MapTrack:
    """Lay a road along a line (N, 3) in world axes, start to finish, about 0.5 m apart, through a map.

    Raises:
        MapTrackError: as `check_line`.
    """
    check_line(challenge, line_m)
    ground = _ground_under(challenge, line_m)
    gate_points, missed = _gate_points(challenge, line_m)
    road_m, rolled_out = roll_out(line_m)
    final_m = resample(_smoothed(road_m, SMOOTHING_M), LINE_SPACING_M)
    # Smoothing shortens bends a little, so points and distances on the two lines are converted by length shares.
    nearest_points = np.rint(np.linspace(0, len(line_m) - 1, len(final_m))).astype(int)
    to_new_m = LINE_SPACING_M * (len(final_m) - 1) / (len(line_m) - 1)
    design = TrackDesign(
        name=name,
        description=f"Along a line through {challenge.plain_name} by {challenge.author}.",
        pieces=(),
        width_m=ROAD_WIDTH_M,
        allow_crossing=True,
        times_ms=tuple(asdict(challenge.times).items()),
    )
    checkpoints_m = sorted({round(point * to_new_m, 1) for point in gate_points})
    laid_out = LaidOutTrack(
        final_m.astype(np.float32), tuple(checkpoints_m), _sections(ground, nearest_points, final_m)
    )
    notes = [f"{100.0 * ground.is_known.mean():.0f} % of the road is as wide and as made as the blocks under it"]
    if rolled_out:
        where = ", ".join(f"{begin * to_new_m:.0f} to {end * to_new_m:.0f} m" for begin, end in rolled_out)
        notes.append(f"loops and walls, rolled out to level road, which moves all that follows: {where}")
    notes += [f"{gate.name} at cell {gate.cell} is not passed by the line, so it is no checkpoint" for gate in missed]
    return MapTrack(design, laid_out, tuple(notes))


def roll_out(line_m: FloatArray) -> tuple[FloatArray, list[tuple[int, int]]]:
    """Replace a line's (N, 3) stretches that no ribbon can follow by level road with the same length.

    A line has no normals. The normal is carried along it without twist (parallel transport) and drawn back to the
    vertical wherever it points upwards; it separates a loop's top, which is level too, from a road.

    Returns:
        (N, 3) the line, moved behind each stretch, with the lowest point no lower than before; (first, last) points for
        each stretch.
    """
    step_m = np.diff(line_m, axis=0)
    length_m = np.linalg.norm(step_m, axis=1, keepdims=True)
    direction = step_m / np.maximum(length_m, 1e-9)  # (N - 1, 3)
    # Points rounded to 0.1 m make steps of 0.5 m look 10 degrees steep.
    smooth_m = np.diff(_smoothed(line_m, _STEEPNESS_WINDOW_M), axis=0)
    smooth_direction = smooth_m / np.maximum(np.linalg.norm(smooth_m, axis=1, keepdims=True), 1e-9)
    up = _normals(smooth_direction)[:, 1]
    margin = round(_ROLL_OUT_MARGIN_M / LINE_SPACING_M)
    stretches = [
        (begin, end)
        for begin, end in runs(_least_within(up, margin) < NEARLY_LEVEL_UP)
        if up[begin : end + 1].min() < LEAST_UP
    ]
    if not stretches:
        return line_m, []
    for begin, last in stretches:
        direction[begin : last + 1] = _turning(smooth_direction[begin], smooth_direction[last], last + 1 - begin)
    rolled_m = line_m[0] + np.concatenate((np.zeros((1, 3)), np.cumsum(direction * length_m, axis=0)))
    rolled_m[:, 1] += max(0.0, line_m[:, 1].min() - rolled_m[:, 1].min())
    return rolled_m, stretches


def _smoothed(line_m: FloatArray, width_m: float) -> FloatArray:
    window = 2 * round(width_m / (2.0 * LINE_SPACING_M)) + 1
    return np.stack([moving_average(line_m[:, axis], window) for axis in range(3)], axis=1)


def runs(is_inside: BoolArray) -> list[tuple[int, int]]:
    """Return (first, last) for each run of True in (N,)."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], is_inside, [False])).astype(int)))
    return [(int(begin), int(end) - 1) for begin, end in borders.reshape(-1, 2)]


def _least_within(values: FloatArray, reach: int) -> FloatArray:
    padded = np.pad(values, reach, mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).min(axis=1))


def check_line(challenge: Challenge, line_m: FloatArray) -> None:
    """Check that a line (N, 3), start to finish, belongs to a map.

    Raises:
        MapTrackError: if it is shorter than 30 m, is outside the map, or does not begin at the map's start.
    """
    assert line_m.shape == (len(line_m), 3)
    if len(line_m) < LEAST_LENGTH_M / LINE_SPACING_M:
        raise MapTrackError(
            f"the line has {len(line_m)} points; a track needs {LEAST_LENGTH_M:g} m, one every {LINE_SPACING_M} m"
        )
    size_m = np.array(challenge.size_cells)[[0, 2]] * CELL_M
    is_inside = ((line_m[:, [0, 2]] >= 0.0) & (line_m[:, [0, 2]] <= size_m)).all(axis=1)
    if is_inside.mean() < 0.5:
        raise MapTrackError(
            f"the line lies outside map {challenge.plain_name}, which is {size_m[0]:.0f} x {size_m[1]:.0f} m: is it a "
            "line of this map, in the game's own axes?"
        )
    starts = [gate for gate in challenge.gates if gate.gate in (Gate.START, Gate.START_AND_FINISH)]
    apart_m = min((float(np.linalg.norm(line_m[0] - gate.floor_center_m)) for gate in starts), default=0.0)
    if apart_m > START_REACH_M:
        raise MapTrackError(
            f"the line begins {apart_m:.0f} m from the start of map {challenge.plain_name}: is it a line of this map?"
        )


def _normals(direction: FloatArray) -> FloatArray:
    normals = np.empty_like(direction)
    up = np.array((0.0, 1.0, 0.0))
    for index, ahead in enumerate(direction):
        up = up - np.dot(up, ahead) * ahead
        if up[1] > 0.0:
            up[1] += 0.1
            up -= np.dot(up, ahead) * ahead
        up /= max(float(np.linalg.norm(up)), 1e-9)
        normals[index] = up
    return normals


def _turning(first: FloatArray, last: FloatArray, n_steps: int) -> FloatArray:
    """Return (n_steps, 3) unit directions from one to another, the shorter way round."""
    share = np.linspace(0.0, 1.0, n_steps)
    share = share**2 * (3.0 - 2.0 * share)
    heading = np.arctan2((first[0], last[0]), (first[2], last[2]))
    heading = heading[0] + share * ((heading[1] - heading[0] + np.pi) % (2.0 * np.pi) - np.pi)
    climb = (1.0 - share) * np.arcsin(first[1]) + share * np.arcsin(last[1])
    return np.stack((np.cos(climb) * np.sin(heading), np.sin(climb), np.cos(climb) * np.cos(heading)), axis=1)


def _ground_under(challenge: Challenge, line_m: FloatArray) -> _Ground:
    grid = BlockGrid(challenge.blocks)
    roads = dict[Block, list[Road]]()
    width_m = np.full(len(line_m), ROAD_WIDTH_M)
    bank = np.zeros(len(line_m))
    surface = list[str](["asphalt"] * len(line_m))
    is_known = np.zeros(len(line_m), dtype=np.bool_)
    directions = np.gradient(line_m, axis=0)
    fields = {block.cell[::2] for block in challenge.blocks if block.name in ("StadiumDirt", "StadiumDirtHill")}
    for index, here_m in enumerate(line_m):
        block = grid.under(here_m)
        if block is None:
            if here_m[1] < GRASS_BELOW_M:
                is_dirt = (int(here_m[0] // CELL_M), int(here_m[2] // CELL_M)) in fields
                width_m[index], is_known[index] = OPEN_WIDTH_M, True
                surface[index] = "dirt" if is_dirt else "grass"
            continue
        kind = road_kind(block)
        assert kind is not None, "the grid holds only road pieces"
        width_m[index], surface[index] = kind
        is_known[index] = True
        if "Turbo" in block.name:  # the pad covers the whole block
            surface[index] = "turbo"
        if block not in roads:
            roads[block] = roads_of(block)
        bank[index] = _bank_at(here_m, directions[index], roads[block])
    return _Ground(width_m, bank, surface, is_known)


def _bank_at(here_m: FloatArray, direction: FloatArray, roads: list[Road]) -> float:
    """Return the nearest road's rise per metre to the left of a direction; 0 above or beside roads."""
    nearest_m = np.inf
    bank = 0.0
    for road in roads:
        if np.dot(road.points_m[-1] - road.points_m[0], direction) <= 0.0:
            continue
        apart_m = np.hypot(road.points_m[:, 0] - here_m[0], road.points_m[:, 2] - here_m[2])
        at = int(apart_m.argmin())
        above_m = here_m[1] - road.points_m[at, 1] - abs(road.bank[at]) * apart_m[at]
        if apart_m[at] < nearest_m and above_m < ON_ROAD_M:
            nearest_m = float(apart_m[at])
            bank = float(road.bank[at])
    return bank


def _gate_points(challenge: Challenge, line_m: FloatArray) -> tuple[list[int], list[Block]]:
    """Return line points at the map's checkpoints, in driving order, and the checkpoints that it misses.

    On a map with several laps each passage counts, also through the start line in between; else the nearest one.
    """
    points = []
    missed = []
    kinds = [Gate.CHECKPOINT] + ([Gate.START_AND_FINISH] if challenge.n_laps > 1 else [])
    for gate in challenge.gates:
        if gate.gate not in kinds:
            continue
        apart_m = np.linalg.norm((line_m - gate.floor_center_m)[:, [0, 2]], axis=1)
        above_m = line_m[:, 1] - gate.floor_center_m[1]
        is_near = (apart_m <= GATE_REACH_M) & (above_m > -8.0) & (above_m < (40.0 if "Ring" in gate.name else 16.0))
        near = np.flatnonzero(is_near)
        if len(near) == 0:
            missed.append(gate)
            continue
        passages = np.split(near, np.flatnonzero(np.diff(near) > 1) + 1)
        nearest = sorted((int(passage[apart_m[passage].argmin()]) for passage in passages), key=apart_m.__getitem__)
        points += nearest if challenge.n_laps > 1 else nearest[:1]
    ends = round(GATE_REACH_M / LINE_SPACING_M) if challenge.n_laps > 1 else 2
    return sorted(point for point in points if ends <= point < len(line_m) - ends), missed


def _sections(ground: _Ground, nearest_points: npt.NDArray[np.int_], line_m: FloatArray) -> tuple[Section, ...]:
    widest_m = _least_within(WIDTH_OF_RADIUS * turn_radius_m(line_m), round(_TAPER_REACH_M / LINE_SPACING_M))
    width_m = np.maximum(np.floor(np.minimum(ground.width_m[nearest_points], widest_m)), LEAST_WIDTH_M)
    banking_deg = -np.degrees(np.arctan(ground.bank[nearest_points]))  # a track file's bank lowers the left border
    banking_deg = _BANK_STEP_DEG * np.rint(banking_deg / _BANK_STEP_DEG)
    sections: list[Section] = []
    begin = 0
    last_style = dict[str, object]()
    for index in range(len(line_m) + 1):
        style = dict[str, object]()
        if index < len(line_m):
            if width_m[index] != ROAD_WIDTH_M:
                style["width_m"] = float(width_m[index])
            if banking_deg[index] != 0.0:
                style["banking_deg"] = float(banking_deg[index])
            if ground.surface[nearest_points[index]] != "asphalt":
                style["surface"] = ground.surface[nearest_points[index]]
        if index < len(line_m) and style == last_style:
            continue
        if last_style:
            sections.append(Section(begin * LINE_SPACING_M, index * LINE_SPACING_M, last_style))
        begin, last_style = index, style
    return tuple(sections)
