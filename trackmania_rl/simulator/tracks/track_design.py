"""Tracks from straights and turns: laying them out as a line with a point every 0.5 m, and writing them to disk.

Axes are the game's: y up, x and z on the ground; heading 0 is along +z, a left turn raises it (towards +x). Turns ease
in and out: the curvature rises and falls linearly over ``easing_m`` (a clothoid), as a car's yaw rate follows its
steering late. Heights are straight ramps rounded by a moving average, but not across a gap.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M

MAX_LAP_MISMATCH_M = 1.0  # between one line's laps
BRIDGE_CLEARANCE_M = 5.0  # height between crossing roads

_TURN_CHORD_M = 4.0
_CROSSING_STEP_POINTS = 4

FloatArray = npt.NDArray[np.float64]


def turn_radius_m(line_m: FloatArray) -> FloatArray:
    """Return the line's turn radii in plan view, (N,) metres, inf on straights.

    It is measured over 4 m, so rounded points do not count as turns.
    """
    reach = round(_TURN_CHORD_M / (2.0 * RIBBON_SPACING_M))
    plan_m = line_m[:, [0, 2]]
    padded_m = np.pad(plan_m, ((reach, reach), (0, 0)), mode="reflect", reflect_type="odd")
    behind_m = plan_m - padded_m[: -2 * reach]
    ahead_m = padded_m[2 * reach :] - plan_m
    turned_rad = np.arctan2(
        ahead_m[:, 0] * behind_m[:, 1] - ahead_m[:, 1] * behind_m[:, 0], np.sum(ahead_m * behind_m, axis=1)
    )
    chord_m = (np.linalg.norm(behind_m, axis=1) + np.linalg.norm(ahead_m, axis=1)) / 2.0
    with np.errstate(divide="ignore"):
        return np.asarray(chord_m / np.abs(turned_rad))


def lap_mismatch_m(line_m: FloatArray, laps: int) -> float:
    """Return the largest distance (m) between the line's later laps and the first one; 0 for one lap."""
    if laps == 1:
        return 0.0
    along = np.arange(len(line_m), dtype=np.float64)
    lap_points = (len(line_m) - 1) / laps
    first_lap_m = np.stack([np.interp(along % lap_points, along, line_m[:, axis]) for axis in range(3)], axis=1)
    return float(np.max(np.linalg.norm(line_m - first_lap_m, axis=1)))


def find_crossing(line_m: FloatArray, half_width_m: FloatArray, *, is_closed: bool) -> tuple[float, float] | None:
    """Return the first place where the road runs into itself, as two distances along it (m), or None.

    Two places clash if their roads overlap on the plan and are less than `BRIDGE_CLEARANCE_M` apart in height. Places
    within half a circle with the road's width as diameter, along the road, are neighbours in one bend and never clash.

    Args:
        line_m: (N,3), one lap.
        half_width_m: (N,), half road width.
        is_closed: the last point is followed by the first.
    """
    spacing_m = RIBBON_SPACING_M * _CROSSING_STEP_POINTS
    line_m = np.ascontiguousarray(line_m[::_CROSSING_STEP_POINTS])
    half_width_m = np.ascontiguousarray(half_width_m[::_CROSSING_STEP_POINTS])
    lap_m = spacing_m * (len(line_m) - 1) if is_closed else math.inf
    first, second = find_clash(line_m, half_width_m, spacing_m, 0.0, BRIDGE_CLEARANCE_M, lap_m, 0)
    return None if first < 0 else (spacing_m * first, spacing_m * second)


@compiled
def find_clash(
    points_m: FloatArray,
    half_width_m: FloatArray,
    spacing_m: float,
    clear_ground_m: float,
    clear_height_m: float,
    lap_m: float,
    n_old: int,
) -> tuple[int, int]:
    """Return the first two point numbers whose roads clash as in `find_crossing`; (-1, -1) if none do.

    Args:
        points_m: (N,3).
        half_width_m: (N,), half road width.
        spacing_m: between neighbouring points.
        clear_ground_m: least distance between two roads side by side.
        clear_height_m: roads this far apart in height never clash.
        lap_m: a closed lap's length; infinite for a road from A to B.
        n_old: first points known to have no clash.
    """
    n_points = points_m.shape[0]
    for first in range(n_points):
        x_m = points_m[first, 0]
        y_m = points_m[first, 1]
        z_m = points_m[first, 2]
        for second in range(max(first + 1, n_old), n_points):
            width_m = half_width_m[first] + half_width_m[second] + clear_ground_m
            dx_m = abs(points_m[second, 0] - x_m)
            dz_m = abs(points_m[second, 2] - z_m)
            if dx_m >= width_m or dz_m >= width_m:
                continue
            along_m = spacing_m * (second - first)
            if (
                math.hypot(dx_m, dz_m) < width_m
                and abs(points_m[second, 1] - y_m) < clear_height_m
                and min(along_m, lap_m - along_m) > math.pi / 2.0 * width_m
            ):
                return first, second
    return -1, -1


LINE_SPACING_M = 0.5
LOWEST_ROAD_M = 12.0
"""The stadium's ground is at about 9 m."""
MAP_MARGIN_M = 80.0
"""Distance between a design and the map's corner at x = z = 0."""

_FINE_STEP_M = 0.05
_CREST_ROUNDING_M = 24.0


@dataclass(frozen=True)
class Piece:
    """Straight or turn; turn_deg is 0 for a straight and positive to the left.

    ``width_m``, ``surface``, ``edge`` and ``banking_deg`` are None for the track's default.
    """

    length_m: float
    turn_deg: float = 0.0
    easing_m: float = 0.0
    climb_m: float = 0.0
    width_m: float | None = None
    surface: str | None = None
    edge: str | None = None
    banking_deg: float | None = None
    is_gap: bool = False

    @property
    def style(self) -> dict[str, object]:
        """Keys that this piece overrides in a track file's section."""
        style: dict[str, object] = {
            key: value
            for key in ("width_m", "surface", "edge", "banking_deg")
            if (value := getattr(self, key)) is not None
        }
        return style | {"gap": True} if self.is_gap else style


@dataclass(frozen=True)
class CheckpointMark:
    """Checkpoint between two pieces."""


CHECKPOINT = CheckpointMark()


@dataclass(frozen=True)
class TrackDesign:
    """Track pieces; for several laps, one closed lap's pieces."""

    name: str
    description: str
    pieces: tuple[Piece | CheckpointMark, ...]
    width_m: float = 20.0
    surface: str = "asphalt"
    edge: str = "wall"
    laps: int = 1
    heading_deg: float = 0.0
    allow_crossing: bool = False
    times_ms: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class Section:
    """Lap stretch with a separate road style, as in a track file's ``[[section]]``."""

    from_m: float
    to_m: float
    style: dict[str, object]


@dataclass(frozen=True)
class LaidOutTrack:
    """Design in the world: line (N,3) float32 with all laps; one lap's checkpoints and sections by distance."""

    line_m: npt.NDArray[np.float32]
    checkpoints_m: tuple[float, ...]
    sections: tuple[Section, ...]


def straight(length_m: float, **style: object) -> Piece:
    """Return a straight; ``style`` holds further Piece fields."""
    return Piece(length_m=length_m, **style)  # type: ignore[arg-type]


def left(angle_deg: float, *, radius_m: float, easing_m: float = 12.0, **style: object) -> Piece:
    """Return a left turn whose tightest radius is ``radius_m``; ``style`` holds Piece fields.

    Each easing turns by half an arc with the same length, so the turn is ``angle * radius + easing_m`` long.

    Raises:
        ValueError: the easings alone turn further than the angle.
    """
    arc_m = math.radians(angle_deg) * radius_m
    if arc_m < easing_m:
        raise ValueError(
            f"a turn of {angle_deg} degrees at radius {radius_m} m is {arc_m:.1f} m of arc, "
            f"less than its easing of {easing_m} m: choose a shorter easing"
        )
    return Piece(length_m=arc_m + easing_m, turn_deg=angle_deg, easing_m=easing_m, **style)  # type: ignore[arg-type]


def right(angle_deg: float, *, radius_m: float, easing_m: float = 12.0, **style: object) -> Piece:
    """Return the mirrored `left` turn."""
    piece = left(angle_deg, radius_m=radius_m, easing_m=easing_m, **style)
    return replace(piece, turn_deg=-piece.turn_deg)


def lay_out(design: TrackDesign) -> LaidOutTrack:
    """Place a design in the world.

    Distances in the result are arc lengths along the three-dimensional line. The line ends at the last 0.5 m multiple
    within the pieces.
    """
    pieces = [piece for piece in design.pieces if isinstance(piece, Piece)]
    plan_m, lap_points_m = trace(pieces, math.radians(design.heading_deg))
    lap_arc_m = arc_length_m(lap_points_m)

    def along_road_m(distance_on_plan_m: float) -> float:
        return float(np.interp(distance_on_plan_m, plan_m, lap_arc_m))

    fine_points_m = np.concatenate([lap_points_m] + [lap_points_m[1:]] * (design.laps - 1))
    line_m = resample(fine_points_m, LINE_SPACING_M)
    line_m += np.array([MAP_MARGIN_M, LOWEST_ROAD_M, MAP_MARGIN_M]) - line_m.min(axis=0)

    checkpoints_m: list[float] = []
    sections: list[Section] = []
    reached_m = 0.0
    for item in design.pieces:
        if isinstance(item, CheckpointMark):
            checkpoints_m.append(round(along_road_m(reached_m), 1))
            continue
        start_m = reached_m
        reached_m = reached_m + item.length_m
        if not item.style:
            continue
        section = Section(round(along_road_m(start_m), 1), round(along_road_m(reached_m), 1), item.style)
        if sections and sections[-1].to_m == section.from_m and sections[-1].style == section.style:
            section = replace(section, from_m=sections.pop().from_m)
        sections.append(section)
    return LaidOutTrack(line_m.astype(np.float32), tuple(checkpoints_m), tuple(sections))


def close_lap(
    pieces: Sequence[Piece | CheckpointMark], first_straight: int, second_straight: int
) -> tuple[Piece | CheckpointMark, ...]:
    """Change two straights' lengths (given by index) so that a lap ends where it begins.

    The turns must add up to 360 degrees and the climbs to 0, and the straights must not be parallel.

    Raises:
        ValueError: the lap cannot be closed, with the reason.
    """
    solid = [piece for piece in pieces if isinstance(piece, Piece)]
    turned_deg = sum(piece.turn_deg for piece in solid)
    climbed_m = sum(piece.climb_m for piece in solid)
    if abs(abs(turned_deg) - 360.0) > 1e-9 or abs(climbed_m) > 1e-9:
        raise ValueError(f"a lap must turn by 360 degrees and climb 0 m; this one: {turned_deg} and {climbed_m}")
    headings = []
    for index in (first_straight, second_straight):
        piece = pieces[index]
        if not isinstance(piece, Piece) or piece.turn_deg != 0.0:
            raise ValueError(f"piece {index} is not a straight: {piece}")
        heading = math.radians(sum(p.turn_deg for p in pieces[:index] if isinstance(p, Piece)))
        headings.append((math.sin(heading), math.cos(heading)))
    directions = np.array(headings).T
    if abs(np.linalg.det(directions)) < 0.1:
        raise ValueError(f"straights {first_straight} and {second_straight} are almost parallel")
    _, points_m = trace(solid, 0.0)
    missing_m = (points_m[0] - points_m[-1])[[0, 2]]
    closed = list(pieces)
    for index, extra_m in zip((first_straight, second_straight), np.linalg.solve(directions, missing_m), strict=True):
        piece = closed[index]
        assert isinstance(piece, Piece)
        if piece.length_m + extra_m <= 0.0:
            raise ValueError(f"closing the lap would make straight {index} {piece.length_m + extra_m:.1f} m long")
        closed[index] = replace(piece, length_m=piece.length_m + float(extra_m))
    return tuple(closed)


def trace(pieces: Sequence[Piece], heading_rad: float, step_m: float = _FINE_STEP_M) -> tuple[FloatArray, FloatArray]:
    """Return pieces as points: distances (F,) on the plan and positions (F,3) from the origin on.

    The points are equally spaced, at most ``step_m`` apart, and the last one is the pieces' end.
    """
    knots_m = np.concatenate([[0.0], np.cumsum([piece.length_m for piece in pieces])])
    steps = math.ceil(knots_m[-1] / step_m)
    plan_m = np.linspace(0.0, knots_m[-1], steps + 1)
    headings_rad = heading_rad + _turned_rad(pieces, knots_m, plan_m)
    middle_rad = (headings_rad[1:] + headings_rad[:-1]) / 2.0
    x_m = np.concatenate([[0.0], np.cumsum(plan_m[1] * np.sin(middle_rad))])
    z_m = np.concatenate([[0.0], np.cumsum(plan_m[1] * np.cos(middle_rad))])
    return plan_m, np.stack([x_m, _heights_m(pieces, knots_m, plan_m, step_m), z_m], axis=1)


def arc_length_m(points_m: FloatArray) -> FloatArray:
    """Return the distance along a polyline (N,3) from its first point to each, (N,) metres."""
    steps_m = np.linalg.norm(np.diff(points_m, axis=0), axis=1)
    return np.concatenate([[0.0], np.cumsum(steps_m)])


def resample(points_m: FloatArray, spacing_m: float) -> FloatArray:
    """Return points (M,3) every ``spacing_m`` along a polyline (N,3) from its first point on; the rest is cut."""
    along_m = arc_length_m(points_m)
    wanted_m = spacing_m * np.arange(int(along_m[-1] / spacing_m + 1e-9) + 1)
    return np.stack([np.interp(wanted_m, along_m, points_m[:, axis]) for axis in range(3)], axis=1)


def moving_average(values: FloatArray, window_points: int) -> FloatArray:
    """Smooth (N,) twice with an odd-sized window (in points); end values and end slopes stay.

    The ends are continued by point reflection, which keeps a straight ramp straight.
    """
    half = min(window_points // 2, len(values) - 1)
    kernel = np.full(2 * half + 1, 1.0 / (2 * half + 1))
    for _ in range(2):
        values = np.convolve(np.pad(values, half, mode="reflect", reflect_type="odd"), kernel, mode="valid")
    return values


def running_average(values: FloatArray, window_points: int) -> FloatArray:
    """Smooth like `moving_average`, but by running sums: the time does not depend on the window; last digits differ."""
    half = min(window_points // 2, len(values) - 1)
    for _ in range(2):
        before = 2.0 * values[0] - values[half:0:-1]
        behind = 2.0 * values[-1] - values[-2 : -half - 2 : -1]
        sums = np.cumsum(np.concatenate([[0.0], before, values, behind]))
        values = (sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1)
    return values


def _turned_rad(pieces: Sequence[Piece], knots_m: FloatArray, plan_m: FloatArray) -> FloatArray:
    """Return the heading's change at each plan distance: the curvature's trapezoids, integrated."""
    turned_rad = np.zeros_like(plan_m)
    for piece, start_m in zip(pieces, knots_m[:-1], strict=True):
        if piece.turn_deg == 0.0:
            continue
        ease_m = piece.easing_m
        length_m = piece.length_m
        first, last = np.searchsorted(plan_m, [start_m, start_m + length_m])
        # Inside the piece; the last point represents all later ones, which have turned as much.
        into_m = np.clip(np.append(plan_m[first:last], math.inf) - start_m, 0.0, length_m)
        ramp_up_m = np.minimum(into_m, ease_m)
        ramp_down_m = np.maximum(into_m - (length_m - ease_m), 0.0)
        # Arc length weighted by the curvature share.
        weighted_m = into_m - ramp_up_m - ramp_down_m
        if ease_m > 0.0:
            weighted_m = weighted_m + ramp_up_m**2 / (2.0 * ease_m) + ramp_down_m - ramp_down_m**2 / (2.0 * ease_m)
        gained_rad = math.radians(piece.turn_deg) * weighted_m / (length_m - ease_m)
        turned_rad[first:last] += gained_rad[:-1]
        turned_rad[last:] += gained_rad[-1]
    return turned_rad


def _heights_m(pieces: Sequence[Piece], knots_m: FloatArray, plan_m: FloatArray, step_m: float) -> FloatArray:
    ramp_knots_m = np.concatenate([[0.0], np.cumsum([piece.climb_m for piece in pieces])])
    heights_m = np.interp(plan_m, knots_m, ramp_knots_m)
    borders_m = [0.0]
    for piece, start_m in zip(pieces, knots_m[:-1], strict=True):
        if piece.is_gap:
            borders_m += [start_m, start_m + piece.length_m]
    borders_m.append(knots_m[-1])
    window_points = 2 * round(_CREST_ROUNDING_M / (2.0 * step_m)) + 1
    for road_from_m, road_to_m in zip(borders_m[::2], borders_m[1::2], strict=True):
        road = slice(*np.searchsorted(plan_m, [road_from_m, road_to_m + 1e-9]))
        heights_m[road] = running_average(heights_m[road], window_points)
    return heights_m


SHIPPED_ORIGIN = "scripts/tools/build_shipped_tracks.py: change the road book there"


def line_name(design: TrackDesign) -> str:
    """Return the file name of the design's reference line."""
    return f"{design.name}_0.5m.npy"


def track_file_text(design: TrackDesign, laid_out: LaidOutTrack, origin: str = SHIPPED_ORIGIN) -> str:
    """Return the .toml text of a track; `origin` names the writer in the first line."""
    lines = [
        f"# Written by {origin}. Format: docs/track_files.rst",
        f"name = {toml_value(design.name)}",
        f"description = {toml_value(design.description)}",
        f"line = {toml_value(line_name(design))}",
        f"laps = {design.laps}",
        f"width_m = {design.width_m}",
        f'surface = "{design.surface}"',
        f'edge = "{design.edge}"',
    ]
    if design.allow_crossing:
        lines.append("allow_crossing = true")
    lines.append(f"checkpoints_m = {list(laid_out.checkpoints_m)}")
    for section in laid_out.sections:
        lines += ["", "[[section]]", f"from_m = {section.from_m}", f"to_m = {section.to_m}"]
        lines += [f"{key} = {toml_value(value)}" for key, value in section.style.items()]
    lines += times_lines(dict(design.times_ms))
    return "\n".join(lines) + "\n"


def times_lines(times_ms: Mapping[str, int | None]) -> list[str]:
    """Return the lines for a track file's table with times to beat; none without a time."""
    known = [f"{name} = {time_ms}" for name, time_ms in times_ms.items() if time_ms is not None]
    return ["", "[times]", *known] if known else []


def write_track(design: TrackDesign, laid_out: LaidOutTrack, track_file: Path, origin: str = SHIPPED_ORIGIN) -> Path:
    """Write a track file, and its line beside it; return the line's file.

    Both are written atomically, the line first. `origin` names the writer.

    Raises:
        OSError: if writing fails.
    """
    line_file = track_file.with_name(line_name(design))
    temporary = track_file.with_name(f".{track_file.stem}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array(file, laid_out.line_m, allow_pickle=False)
        temporary.replace(line_file)
        temporary.write_text(track_file_text(design, laid_out, origin), encoding="utf-8")
        temporary.replace(track_file)
    finally:
        temporary.unlink(missing_ok=True)
    return line_file


def file_in_the_way(new_files: Iterable[Path], folder: Path, *, may_be_same: bool = True) -> Path | None:
    """Return a file in a folder that new files would overwrite, or None. Ignore identical ones if `may_be_same`."""
    for new in new_files:
        present = folder / new.name
        if present.exists() and not (may_be_same and present.read_bytes() == new.read_bytes()):
            return present
    return None


def toml_value(value: object) -> str:
    """Return a value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    # TOML's strings are JSON's, but without surrogates, and with DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
