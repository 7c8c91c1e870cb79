"""Reference lines from driven races: a car's samples become points at equal distances, start to finish.

`path_of_ghost` cuts off the part after the finish. A respawn puts the car back to the last checkpoint's middle: the
samples since then are cut out.

A curve is laid through the samples: cubic Hermite pieces (de Boor, "A Practical Guide to Splines", chapter IV)
over chord length, with tangents from the parabola through each sample and two neighbours (Bessel's). It is
resampled at equal arc length, smoothed, and cut or extended to the finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Challenge, Gate
from trackmania_rl.gbx.replay import Ghost, GhostSamples
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.track.pieces import hermite
from trackmania_rl.track.placed_blocks import forward_of

RESPAWN_REACH_M: Final = 24.0
"""Largest distance between a checkpoint's passage and the respawn: gates are 32 m wide."""
JUMP_FACTOR: Final = 1.3
JUMP_SLACK_M: Final = 1.0
"""Between two samples a car moves at most JUMP_FACTOR times the higher speed's distance, plus JUMP_SLACK_M."""

FloatArray = npt.NDArray[np.float64]

SMOOTHING_M: Final = 2.0
"""Width of the moving average over a line. In a bend with radius R it moves the line inwards by SMOOTHING_M²/(24 R)."""
MAX_LENGTH_M: Final = 50_000.0  # per race; the longest maps have some 10 km a lap
BEYOND_FINISH_M: Final = 1.0  # behind the plane in the finish block's middle
GATE_REACH_M: Final = 60.0
"""A line that ends this near to the finish, or begins this near to the start, is extended to it."""
MAX_MEAN_OFFSET_M: Final = 32.0  # races further apart took different ways, which have no mean

_FINE_M: Final = 0.1
_LEAST_CHORD_M: Final = 0.5
_END_DIRECTION_M: Final = 3.0


class DrivenPathError(UserError):
    """A race has no samples, too few, or jumps without a respawn."""


@dataclass(frozen=True)
class DrivenPath:
    """One car's path; S samples."""

    name: str
    time_ms: FloatArray  # (S,)
    position_m: FloatArray  # (S, 3) world axes
    speed_m_s: FloatArray  # (S,)
    # (C, 3) at each checkpoint time, without the finish
    checkpoint_m: FloatArray
    notes: tuple[str, ...] = ()


def path_of_ghost(ghost: Ghost, name: str) -> DrivenPath:
    """Return a ghost's path, from the start to the race time; `name` is for errors.

    Raises:
        DrivenPathError: if it has no samples or too few, or the car jumps without a respawn.
    """
    samples = ghost.samples
    if samples is None or len(samples.time_ms) < 3:
        raise DrivenPathError(f"{name}: the race has no samples of where the car was; use another replay")
    checkpoint_m = np.array(
        [position_at(samples, time_ms) for time_ms in ghost.checkpoint_times_ms[:-1]], dtype=np.float64
    ).reshape(-1, 3)
    samples = _until_finish(samples, ghost.race_time_ms)
    kept, notes = _without_abandoned(samples, ghost, name)
    if len(kept) < 3:
        raise DrivenPathError(f"{name}: only {len(kept)} samples are left of the race; use another replay")
    return DrivenPath(
        name,
        samples.time_ms[kept].astype(np.float64),
        samples.position_m[kept],
        samples.speed_m_s[kept],
        checkpoint_m,
        notes,
    )


def position_at(samples: GhostSamples, time_ms: float) -> FloatArray:
    """Return the car's position (3,) at a race time, extrapolated after the end from the last two samples."""
    after = int(np.clip(np.searchsorted(samples.time_ms, time_ms), 1, len(samples.time_ms) - 1))
    share = (time_ms - samples.time_ms[after - 1]) / samples.period_ms
    before_m = samples.position_m[after - 1]
    after_m = samples.position_m[after]
    return np.asarray(before_m + min(share, 2.0) * (after_m - before_m))


def _until_finish(samples: GhostSamples, race_time_ms: int | None) -> GhostSamples:
    """Return the samples up to the race time, with one at the race time itself."""
    if race_time_ms is None:
        return samples
    kept = samples.time_ms < race_time_ms
    if kept.sum() < 2 or race_time_ms - samples.time_ms[kept][-1] > 2 * samples.period_ms:
        return samples  # the samples end long before the race, so the end is unknown
    return GhostSamples(
        samples.period_ms,
        np.append(samples.time_ms[kept], race_time_ms),
        np.concatenate((samples.position_m[kept], position_at(samples, race_time_ms)[None])),
        np.concatenate((samples.rotation[kept], samples.rotation[kept][-1:])),
        np.append(samples.speed_m_s[kept], samples.speed_m_s[kept][-1]),
    )


def _without_abandoned(samples: GhostSamples, ghost: Ghost, name: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the path's sample indices, and notes on cut samples."""
    kept: list[int] = []
    notes: list[str] = []
    next_index = 0
    for jump in [*_jumps(samples, ghost, name), len(samples.time_ms) - 1]:
        kept += range(next_index, jump + 1)
        next_index = jump + 1
        if next_index < len(samples.time_ms):
            n_before = len(kept)
            kept, next_index = _joined(samples.position_m, kept, next_index, name)
            notes.append(
                f"{name}: respawn at {samples.time_ms[jump] / 1000:.1f} s, the {n_before - len(kept)} samples "
                "between it and its checkpoint are cut out"
            )
    return kept, tuple(notes)


def _jumps(samples: GhostSamples, ghost: Ghost, name: str) -> list[int]:
    """Return the sample indices after which the car was set back to a checkpoint.

    A slow car that respawns near the checkpoint makes no long step, so the respawn key counts too.
    """
    step_m = np.linalg.norm(np.diff(samples.position_m, axis=0), axis=1)  # (S - 1,)
    period_s = np.diff(samples.time_ms) / 1000.0
    faster_m_s = np.maximum(samples.speed_m_s[1:], samples.speed_m_s[:-1])
    is_jump = step_m > JUMP_FACTOR * faster_m_s * period_s + JUMP_SLACK_M
    jumps = set(np.flatnonzero(is_jump).tolist())
    begin_ms = ghost.inputs_begin_ms
    pressed_ms = [event.time_ms - begin_ms for event in ghost.events if event.name == "Respawn" and event.value]
    for time_ms in pressed_ms[: ghost.n_respawns]:
        at = int(np.searchsorted(samples.time_ms, time_ms, side="right")) - 1
        if 0 <= at < len(step_m) and not jumps & {at - 1, at, at + 1}:
            jumps.add(at)
    if len(jumps) > ghost.n_respawns:
        first = min(jumps)
        raise DrivenPathError(
            f"{name}: the car jumps {step_m[first]:.0f} m at {samples.time_ms[first] / 1000:.1f} s, more often than "
            f"the driver respawned ({ghost.n_respawns} times): the samples are damaged; use another replay"
        )
    return sorted(jumps)


def _joined(position_m: FloatArray, kept: list[int], respawn: int, name: str) -> tuple[list[int], int]:
    """Cut the samples between a checkpoint and the respawn at it, whose first sample is `respawn`.

    `kept` and the result are sample indices: the path up to the respawn; the path up to the checkpoint, and the index
    with which it continues.
    """
    distance_m = np.linalg.norm(position_m[kept] - position_m[respawn], axis=1)
    near = np.flatnonzero(distance_m <= RESPAWN_REACH_M)
    if len(near) == 0:
        raise DrivenPathError(
            f"{name}: the driver respawned where the car had not been before ({distance_m.min():.0f} m away at best), "
            "so what to cut out is unknown; use a race without respawns"
        )
    # The last passage: walk back from the latest near sample while it gets nearer.
    at = int(near[-1])
    while at > 0 and distance_m[at - 1] < distance_m[at]:
        at -= 1
    offset_m = float(distance_m[at])
    kept = kept[: at + 1]
    onward = respawn
    # The car respawns in the middle of the gate: shift the path there gradually, over as many metres as the shift.
    if _goes_on(position_m, kept, respawn):
        while len(kept) > 2 and np.linalg.norm(position_m[kept[-1]] - position_m[respawn]) < 2.0 * offset_m:
            kept = kept[:-1]
        while onward < len(position_m) - 2 and np.linalg.norm(position_m[onward] - position_m[respawn]) < offset_m:
            onward += 1
    return kept, onward


def _goes_on(position_m: FloatArray, kept: list[int], respawn: int) -> bool:
    if len(kept) < 2:
        return False
    came = position_m[kept[-1]] - position_m[kept[-2]]
    leaves_at = min(respawn + 10, len(position_m) - 1)
    return float(np.dot(came, position_m[leaves_at] - position_m[respawn])) > 0.0


class LineError(UserError):
    """A reference line cannot be made."""


@dataclass(frozen=True)
class BuiltLine:
    """New reference line with N points."""

    points_m: FloatArray  # (N, 3) world axes, start to finish, at equal distances, about the spacing
    # (N,) car speed, on the first path if there are several; None for a line not driven
    speed_m_s: FloatArray | None
    notes: tuple[str, ...] = ()


def build_line(
    paths: Sequence[DrivenPath],
    challenge: Challenge | None = None,
    spacing_m: float = LINE_SPACING_M,
    smoothing_m: float = SMOOTHING_M,
) -> BuiltLine:
    """Make a line from one race, or from the mean of several.

    Args:
        paths: one or more races on the same map; speeds are from the first one.
        challenge: the map, to cut or extend the line to the start and finish.
        spacing_m: distance between neighbouring points; > 0.
        smoothing_m: moving average width; 0 for none.

    Raises:
        LineError: if there is no path, one is too short or too long, or two paths took different ways.
    """
    if not paths:
        raise LineError("no race was given to make a line of; name at least one replay")
    lines = [line_of_path(path, spacing_m, smoothing_m) for path in paths]
    line = lines[0]
    if len(lines) > 1:
        mean_m = mean_line(line.points_m, [other.points_m for other in lines[1:]], [path.name for path in paths])
        mean_m = resample(_moving_average(mean_m, smoothing_m, spacing_m), spacing_m)
        assert line.speed_m_s is not None
        speed_m_s = np.interp(np.linspace(0, 1, len(mean_m)), np.linspace(0, 1, len(line.points_m)), line.speed_m_s)
        line = BuiltLine(mean_m, speed_m_s)
    notes = tuple(note for path in paths for note in path.notes)
    if len(lines) > 1:
        notes += (f"mean of {len(lines)} races",)
    line = replace(line, notes=notes)
    return line if challenge is None else _reach_finish(_reach_start(line, challenge, spacing_m), challenge, spacing_m)


def line_of_path(path: DrivenPath, spacing_m: float = LINE_SPACING_M, smoothing_m: float = SMOOTHING_M) -> BuiltLine:
    """Make a line from one race, first sample to last.

    Raises:
        LineError: if shorter than 20 m or longer than `MAX_LENGTH_M`.
    """
    is_kept = _moves_on(path.position_m)
    knots_m = path.position_m[is_kept]
    speed_m_s = path.speed_m_s[is_kept]
    length_m = float(np.linalg.norm(np.diff(knots_m, axis=0), axis=1).sum())
    if not 20.0 <= length_m <= MAX_LENGTH_M:
        raise LineError(f"{path.name}: {length_m:.0f} m were driven; a line has 20 m to {MAX_LENGTH_M / 1000:.0f} km")
    fine_m, knot_at = curve_through(knots_m)
    stations_m = arc_length(fine_m)
    points_m = resample(_moving_average(resample(fine_m, spacing_m), smoothing_m, spacing_m), spacing_m)
    share = np.linspace(0.0, 1.0, len(points_m))
    return BuiltLine(points_m, np.interp(share, stations_m[knot_at] / stations_m[-1], speed_m_s))


def curve_through(knots_m: FloatArray) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Lay a smooth curve through points (K, 3), K >= 3, no two neighbours at the same place.

    Returns:
        (F, 3) curve points at most `_FINE_M` of chord apart, and (K,) the knots' indices among them.
    """
    chord_m = np.linalg.norm(np.diff(knots_m, axis=0), axis=1)  # (K - 1,)
    slope = np.diff(knots_m, axis=0) / chord_m[:, None]  # (K - 1, 3)
    tangent = np.empty_like(knots_m)
    share = (chord_m[:-1] / (chord_m[:-1] + chord_m[1:]))[:, None]  # (K - 2, 1)
    tangent[1:-1] = (1.0 - share) * slope[:-1] + share * slope[1:]
    tangent[0] = 2.0 * slope[0] - tangent[1]
    tangent[-1] = 2.0 * slope[-1] - tangent[-2]
    n_parts = np.ceil(chord_m / _FINE_M).astype(np.int64)
    knot_at = np.concatenate(([0], np.cumsum(n_parts)))
    piece = np.repeat(np.arange(len(chord_m)), n_parts)  # (F - 1,)
    u = ((np.arange(knot_at[-1]) - knot_at[piece]) / n_parts[piece])[:, None]
    chord = chord_m[piece][:, None]
    ends_m = (knots_m[piece], knots_m[piece + 1])
    slopes = (tangent[piece], tangent[piece + 1])
    curve = hermite(u, chord, ends_m, slopes)
    assert curve.shape == (knot_at[-1], 3)
    return np.concatenate((curve, knots_m[-1:])), knot_at


def arc_length(points_m: FloatArray) -> FloatArray:
    """Return the metres (N,) along a polyline (N, 3) from the first point to each."""
    return np.concatenate(([0.0], np.cumsum(np.linalg.norm(np.diff(points_m, axis=0), axis=1))))


def resample(points_m: FloatArray, spacing_m: float) -> FloatArray:
    """Return points (M, 3) at equal distances along a polyline (N, 3), as near to `spacing_m` as the length allows.

    The end points stay. Raises LineError if shorter than one spacing.
    """
    stations_m = arc_length(points_m)
    n_steps = round(float(stations_m[-1]) / spacing_m)
    if n_steps < 1:
        raise LineError(f"a line of {stations_m[-1]:.2f} m cannot be cut into steps of {spacing_m:g} m")
    wanted_m = np.linspace(0.0, stations_m[-1], n_steps + 1)
    return np.stack([np.interp(wanted_m, stations_m, points_m[:, axis]) for axis in range(3)], axis=1)


def mean_line(base_m: FloatArray, others_m: Sequence[FloatArray], names: Sequence[str]) -> FloatArray:
    """Return the middle between several lines, point by point along the first.

    It is the mean (two lines) or median (more) passage through the plane across each point of `base_m`.

    Args:
        base_m: (N, 3) one line, at equal distances.
        others_m: further lines with the same spacing.
        names: all lines' names, for errors.

    Raises:
        LineError: if one passes more than `MAX_MEAN_OFFSET_M` from the first one.
    """
    direction = directions(base_m)
    stacked = [base_m]
    for other_m, name in zip(others_m, names[1:], strict=True):
        passing_m = _pass_points(base_m, direction, other_m)
        offset_m = np.linalg.norm(passing_m - base_m, axis=1)
        worst = int(offset_m.argmax())
        if offset_m[worst] > MAX_MEAN_OFFSET_M:
            raise LineError(
                f"{name} and {names[0]} are {offset_m[worst]:.0f} m apart at {arc_length(base_m)[worst]:.0f} m: they "
                "took different ways, which have no mean; choose one of them"
            )
        stacked.append(passing_m)
    together = np.stack(stacked)  # (lines, N, 3)
    assert together.shape == (len(names), *base_m.shape)
    return np.asarray(np.median(together, axis=0))


def directions(points_m: FloatArray) -> FloatArray:
    """Return unit vectors (N, 3) along a polyline (N, 3), N >= 2, no two neighbours at the same place."""
    difference = np.gradient(points_m, axis=0)
    length = np.linalg.norm(difference, axis=1, keepdims=True)
    return np.asarray(difference / np.maximum(length, 1e-12))


def _moves_on(position_m: FloatArray) -> npt.NDArray[np.bool_]:
    """Return (S,) which samples are at least `_LEAST_CHORD_M` behind the one kept before."""
    is_kept = np.zeros(len(position_m), dtype=np.bool_)
    last = -1
    for index, here in enumerate(position_m):
        if last < 0 or np.linalg.norm(here - position_m[last]) >= _LEAST_CHORD_M:
            is_kept[index], last = True, index
    if last != len(position_m) - 1 and is_kept.sum() > 2:  # the end replaces the sample before it
        is_kept[last], is_kept[-1] = False, True
    return is_kept


def _moving_average(points_m: FloatArray, width_m: float, spacing_m: float) -> FloatArray:
    """Average points over `width_m`; both ends are continued by point reflection."""
    reach = min(round(width_m / (2.0 * spacing_m)), len(points_m) - 1)
    if reach < 1:
        return points_m
    before = 2.0 * points_m[0] - points_m[reach:0:-1]
    behind = 2.0 * points_m[-1] - points_m[-2 : -reach - 2 : -1]
    sums = np.cumsum(np.concatenate((np.zeros((1, 3)), before, points_m, behind)), axis=0)
    window = 2 * reach + 1
    return np.asarray((sums[window:] - sums[:-window]) / window)


def _pass_points(base_m: FloatArray, direction: FloatArray, other_m: FloatArray) -> FloatArray:
    """Return a line's passages (N, 3) through the planes across each point of another line."""
    reach = 80  # points ahead: 40 m, more than lines drift apart between points
    passing_m = np.empty_like(base_m)
    at = 0
    for index, here in enumerate(base_m):
        ahead = other_m[at : at + reach]
        at += int(np.linalg.norm(ahead - here, axis=1).argmin())
        nearest = other_m[at]
        passing_m[index] = nearest - np.dot(nearest - here, direction[index]) * direction[index]
    return passing_m


def _reach_start(line: BuiltLine, challenge: Challenge, spacing_m: float) -> BuiltLine:
    """Extend a line that begins behind the start straight back to it."""
    missing_m = _distance_to_gate(line.points_m[::-1], challenge, (Gate.START, Gate.START_AND_FINISH))
    if missing_m is None or missing_m <= spacing_m:
        return line
    points_m, n_added = _extended(line.points_m[::-1], missing_m, spacing_m)
    speed_m_s = None if line.speed_m_s is None else np.pad(line.speed_m_s, (n_added, 0), mode="edge")
    return BuiltLine(points_m[::-1], speed_m_s, (*line.notes, f"extended by {missing_m:.1f} m back to the start line"))


def _reach_finish(line: BuiltLine, challenge: Challenge, spacing_m: float) -> BuiltLine:
    """Cut or extend a line so that it ends just behind the finish plane."""
    beyond_m = _distance_to_gate(line.points_m, challenge, (Gate.FINISH, Gate.START_AND_FINISH))
    if beyond_m is None:
        return line
    change_m = beyond_m + BEYOND_FINISH_M
    n_points = round(abs(change_m) / spacing_m)
    if n_points == 0:
        return line
    if change_m < 0.0:
        note = f"cut by {-change_m:.1f} m at the finish"
        speed_m_s = None if line.speed_m_s is None else line.speed_m_s[:-n_points]
        return BuiltLine(line.points_m[:-n_points], speed_m_s, (*line.notes, note))
    points_m, n_added = _extended(line.points_m, change_m, spacing_m)
    speed_m_s = None if line.speed_m_s is None else np.pad(line.speed_m_s, (0, n_added), mode="edge")
    return BuiltLine(points_m, speed_m_s, (*line.notes, f"extended by {change_m:.1f} m to the finish"))


def _distance_to_gate(points_m: FloatArray, challenge: Challenge, kinds: tuple[Gate, ...]) -> float | None:
    """Return the metres straight on from a line's last point to the nearest gate's plane, negative behind it.

    None if no such gate is within `GATE_REACH_M`, or the extension misses it.
    """
    end = points_m[-1]
    towards = _end_direction(points_m)
    nearest_m: float | None = None
    for gate in challenge.gates:
        normal = forward_of(gate)
        across = float(np.dot(towards, normal))
        if gate.gate not in kinds or abs(across) < 0.5:
            continue
        distance_m = float(np.dot(gate.floor_center_m - end, normal)) / across
        beside_m = np.linalg.norm((end + distance_m * towards - gate.floor_center_m)[[0, 2]])
        is_through = abs(distance_m) <= GATE_REACH_M and beside_m <= 0.75 * BLOCK_SIZE_M[0]
        if is_through and (nearest_m is None or abs(distance_m) < abs(nearest_m)):
            nearest_m = distance_m
    return nearest_m


def _end_direction(points_m: FloatArray) -> FloatArray:
    n_back = min(round(_END_DIRECTION_M / LINE_SPACING_M), len(points_m) - 1)
    difference = points_m[-1] - points_m[-1 - n_back]
    return np.asarray(difference / np.linalg.norm(difference))


def _extended(points_m: FloatArray, length_m: float, spacing_m: float) -> tuple[FloatArray, int]:
    n_added = max(1, round(length_m / spacing_m))
    steps_m = spacing_m * np.arange(1, n_added + 1)[:, None]
    return np.concatenate((points_m, points_m[-1] + steps_m * _end_direction(points_m))), n_added
