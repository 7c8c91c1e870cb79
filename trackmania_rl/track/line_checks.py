"""Checks on a reference line before training: spacing, jumps, ways back, the map's gates.

A *problem* makes a line useless (a car cannot follow it, or races never count). A *warning* should be checked in the
picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, STADIUM, Block, Challenge, Gate
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import SHORTEST_LINE_M, SPACING_TOLERANCE_M
from trackmania_rl.track.game_map import REAL_CHECKPOINT_RADIUS_M
from trackmania_rl.track.line_building import arc_length, directions
from trackmania_rl.track.placed_blocks import forward_of
from trackmania_rl.track.reference_line import uneven_steps

GATE_HALF_WIDTH_M: Final = 17.0  # half a block; cars pass at the very edge
GATE_DEPTH_M: Final = 4.0
GATE_HEIGHT_M: Final = 16.0
RING_REACH_M: Final = 24.0
"""A passage's range below and above the block's floor: a road may be under a gate or over it. Rings reach further."""
START_REACH_M: Final = 20.0  # the car begins some 5 m before the start block's middle
NARROW_MARGIN_M: Final = 2.0
KINK_DEG: Final = 60.0
KINK_LENGTH_M: Final = 2.0
REPEATED_WITHIN_M: Final = 4.0
REPEATED_AFTER_M: Final = 60.0
TURNED_BACK_WITHIN_M: Final = 2.5
LEAST_REPEATED_M: Final = 20.0
SAMPLE_M: Final = 28.0
"""Way between two ghost samples, 100 ms, at the game's highest speed of 1,000 km/h."""
END_TO_GATE_M: Final = 12.0
"""A line may end this far before the finish plane: the game counts the car's nose, some 6 m before it."""

_MAX_COMPARED_POINTS: Final = 5000

FloatArray = npt.NDArray[np.float64]


class Verdict(Enum):
    """A check's result."""

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result, with numbers."""

    check: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class GatePassage:
    """One passage through a gate."""

    gate: Block
    station_m: float  # along the line
    point_m: tuple[float, float, float]  # (x, y, z)
    beside_m: float  # level distance from the block's middle, positive to the right of the block's direction
    above_m: float  # above the block's floor
    plane_distance_m: float  # line's nearest point


@dataclass(frozen=True)
class LineReport:
    """All findings about a line."""

    findings: tuple[Finding, ...]
    passages: tuple[GatePassage, ...]  # all gates', in the line's order; () without a map
    length_m: float
    lowest_m: float
    highest_m: float

    @property
    def problems(self) -> list[Finding]:
        """Findings that make the line useless."""
        return [finding for finding in self.findings if finding.verdict is Verdict.PROBLEM]

    @property
    def warnings(self) -> list[Finding]:
        """Findings to check in the picture."""
        return [finding for finding in self.findings if finding.verdict is Verdict.WARNING]


def check_line(
    line_m: FloatArray,
    challenge: Challenge | None = None,
    checkpoint_m: FloatArray | None = None,
    spacing_m: float = LINE_SPACING_M,
) -> LineReport:
    """Check a line.

    Args:
        line_m: (N, 3), N >= 2, metres.
        challenge: the map, for gate checks.
        checkpoint_m: (C, 3) places at a race's checkpoint times, in order.
        spacing_m: nominal, between points.
    """
    assert line_m.ndim == 2
    assert line_m.shape[1] == 3
    assert len(line_m) >= 2
    if not np.isfinite(line_m).all():
        n_bad = int((~np.isfinite(line_m).all(axis=1)).sum())
        return LineReport((Finding("numbers", Verdict.PROBLEM, f"{n_bad} points are not finite"),), (), 0.0, 0.0, 0.0)
    if challenge is not None and challenge.environment != STADIUM:  # other environments' gates have unknown sizes
        return _report(line_m, [_check_environment(challenge)], ())
    findings = [
        _check_length(line_m),
        _check_spacing(line_m, spacing_m),
        _check_kinks(line_m, spacing_m),
        _check_turning_back(line_m),
        _check_repetition(line_m, _known_laps(challenge)),
    ]
    passages: tuple[GatePassage, ...] = ()
    if challenge is not None:
        passages = gate_passages(line_m, challenge)
        findings += [
            _check_environment(challenge),
            _check_heights(line_m, challenge),
            _check_start(line_m, challenge),
            _check_checkpoints(passages, challenge),
            _check_order(line_m, passages, checkpoint_m),
            _check_distances(line_m, passages),
            _check_finish(line_m, challenge),
        ]
    return _report(line_m, findings, passages)


def gate_passages(line_m: FloatArray, challenge: Challenge) -> tuple[GatePassage, ...]:
    """Return a line's (N, 3) passages through the centre planes of a map's gates, in the line's order."""
    stations_m = arc_length(line_m)
    passages = [passage for gate in challenge.gates for passage in _passages_of(gate, line_m, stations_m)]
    return tuple(sorted(passages, key=lambda passage: passage.station_m))


def _report(line_m: FloatArray, findings: list[Finding], passages: tuple[GatePassage, ...]) -> LineReport:
    length_m = float(arc_length(line_m)[-1])
    heights_m = line_m[:, 1]
    return LineReport(tuple(findings), passages, length_m, float(heights_m.min()), float(heights_m.max()))


def _passages_of(gate: Block, line_m: FloatArray, stations_m: FloatArray) -> list[GatePassage]:
    normal = forward_of(gate)
    right = np.cross(normal, (0.0, 1.0, 0.0))
    relative_m = line_m - gate.floor_center_m
    before_m = relative_m @ normal  # (N,) signed distance from the plane
    found = []
    for k in np.flatnonzero((before_m[:-1] < 0.0) != (before_m[1:] < 0.0)):
        share = float(before_m[k] / (before_m[k] - before_m[k + 1]))
        here_m = relative_m[k] + share * (relative_m[k + 1] - relative_m[k])
        beside_m = float(here_m @ right)
        above_m = float(here_m[1])
        if abs(beside_m) <= GATE_HALF_WIDTH_M and _is_at_height(gate, above_m):
            x, y, z = (here_m + gate.floor_center_m).tolist()
            nearest_m = float(min(abs(before_m[k]), abs(before_m[k + 1])))
            station_m = float(stations_m[k] + share * (stations_m[k + 1] - stations_m[k]))
            found.append(GatePassage(gate, station_m, (x, y, z), beside_m, above_m, nearest_m))
    return found


def _is_at_height(gate: Block, above_m: float) -> bool:
    if "Ring" in gate.name:
        return abs(above_m) <= RING_REACH_M
    return -GATE_DEPTH_M <= above_m <= GATE_HEIGHT_M


def _check_length(line_m: FloatArray) -> Finding:
    length_m = float(arc_length(line_m)[-1])
    verdict = Verdict.FINE if length_m >= SHORTEST_LINE_M else Verdict.PROBLEM
    text = f"{length_m:.1f} m, heights {line_m[:, 1].min():.1f} to {line_m[:, 1].max():.1f} m"
    return Finding(
        "length", verdict, text if verdict is Verdict.FINE else f"{text}; at least {SHORTEST_LINE_M:g} m needed"
    )


def _check_spacing(line_m: FloatArray, spacing_m: float) -> Finding:
    steps_m = np.diff(arc_length(line_m))
    text = f"neighbours are {steps_m.min():.2f} to {steps_m.max():.2f} m apart"
    wrong, is_mendable = uneven_steps(line_m, spacing_m)
    if wrong is not None:
        verdict = Verdict.WARNING if is_mendable else Verdict.PROBLEM
        consequence = "resampled when loaded" if is_mendable else "refused when loaded"
        return Finding("spacing", verdict, f"{text}: {wrong}; {consequence}, maps.py line --resample makes it even")
    if np.abs(steps_m - spacing_m).max() > SPACING_TOLERANCE_M:
        return Finding(
            "spacing",
            Verdict.WARNING,
            f"{text}; the simulated game takes {spacing_m:g} ± {SPACING_TOLERANCE_M:g} m, but for single steps: "
            "maps.py line --resample makes it even",
        )
    return Finding("spacing", Verdict.FINE, text)


def _check_kinks(line_m: FloatArray, spacing_m: float) -> Finding:
    reach = max(1, round(KINK_LENGTH_M / spacing_m))
    if len(line_m) <= 2 * reach:
        return Finding("bends", Verdict.FINE, "too short to have any")
    before = line_m[reach:-reach] - line_m[: -2 * reach]
    behind = line_m[2 * reach :] - line_m[reach:-reach]
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(behind, axis=1)
    cosine = np.clip((before * behind).sum(axis=1) / np.maximum(lengths, 1e-12), -1.0, 1.0)
    sharpest = int(cosine.argmin())
    turn_deg = float(np.degrees(np.arccos(cosine[sharpest])))
    at_m = arc_length(line_m)[sharpest + reach]
    where = f"turns at most {turn_deg:.0f} degrees within {2 * KINK_LENGTH_M:g} m, at {at_m:.0f} m"
    return Finding("bends", Verdict.WARNING if turn_deg > KINK_DEG else Verdict.FINE, where)


def _check_turning_back(line_m: FloatArray) -> Finding:
    pairs = _near_pairs(line_m, TURNED_BACK_WITHIN_M, 4.0, REPEATED_AFTER_M, same_direction=False)
    if pairs is None:
        return Finding("turning back", Verdict.FINE, "nowhere")
    return Finding("turning back", Verdict.PROBLEM, f"the line goes back over itself near {pairs[0]:.0f} m")


def _known_laps(challenge: Challenge | None) -> int | None:
    """Return a map's laps; None if unknown: a map within a replay does not hold a circuit's laps."""
    if challenge is None or (challenge.n_laps == 1 and _gates_of(challenge, (Gate.START_AND_FINISH,))):
        return None
    return challenge.n_laps


def _check_repetition(line_m: FloatArray, n_laps: int | None) -> Finding:
    """Detect repeated passes over the same road in the same direction (a wrong turn, or laps)."""
    pairs = _near_pairs(line_m, REPEATED_WITHIN_M, REPEATED_AFTER_M, np.inf, same_direction=True)
    if pairs is None or pairs[2] < LEAST_REPEATED_M:
        return Finding("repetition", Verdict.FINE, "no stretch is driven twice")
    first_m, second_m, repeated_m = pairs
    text = f"{repeated_m:.0f} m are driven again in the same direction, {first_m:.0f} m at {second_m:.0f} m"
    if n_laps is None:
        return Finding("repetition", Verdict.WARNING, f"{text}; right for laps, else a stretch was driven twice")
    if n_laps > 1:
        return Finding("repetition", Verdict.FINE, f"{text}; the map has {n_laps} laps")
    return Finding("repetition", Verdict.PROBLEM, f"{text}, but the map has one lap: a stretch was driven twice")


def _near_pairs(
    line_m: FloatArray, within_m: float, after_m: float, before_m: float, same_direction: bool
) -> tuple[float, float, float] | None:
    """Find points near each other that are `after_m` to `before_m` apart along the line.

    Returns:
        Stations of the first such pair, and the line's metres with such a partner before them; or None.
    """
    every = max(1, round(1.0 / LINE_SPACING_M), -(-len(line_m) // _MAX_COMPARED_POINTS))
    stations_m = arc_length(line_m)[::every]
    points_m = line_m[::every]
    direction = directions(line_m)[::every]
    first: tuple[int, int] | None = None
    n_repeated = 0
    for index in range(1, len(points_m)):
        apart_m = stations_m[index] - stations_m[:index]
        candidates = np.flatnonzero((apart_m > after_m) & (apart_m < before_m))
        if len(candidates) == 0:
            continue
        distance_m = np.linalg.norm(points_m[candidates] - points_m[index], axis=1)
        agreement = direction[candidates] @ direction[index]
        is_pair = (distance_m < within_m) & ((agreement > 0.7) if same_direction else (agreement < -0.7))
        if is_pair.any():
            n_repeated += 1
            first = first or (int(candidates[is_pair.argmax()]), index)
    if first is None:
        return None
    step_m = float(stations_m[-1]) / max(1, len(points_m) - 1)
    return float(stations_m[first[0]]), float(stations_m[first[1]]), n_repeated * step_m


def _check_environment(challenge: Challenge) -> Finding:
    if challenge.environment == STADIUM:
        return Finding("environment", Verdict.FINE, STADIUM)
    return Finding(
        "environment",
        Verdict.PROBLEM,
        f"{challenge.environment or 'unknown'}: another car and other blocks; TrackMania Nations Forever and the "
        f"simulated game have {STADIUM} only",
    )


def _check_heights(line_m: FloatArray, challenge: Challenge) -> Finding:
    sky_m = challenge.size_cells[1] * BLOCK_SIZE_M[1]
    lowest_m = float(line_m[:, 1].min())
    highest_m = float(line_m[:, 1].max())
    is_inside = lowest_m > -BLOCK_SIZE_M[1] and highest_m < sky_m + 4 * BLOCK_SIZE_M[1]
    text = f"{lowest_m:.1f} to {highest_m:.1f} m; the map's blocks reach from 0 to {sky_m:.0f} m"
    return Finding("heights", Verdict.FINE if is_inside else Verdict.WARNING, text)


def _check_start(line_m: FloatArray, challenge: Challenge) -> Finding:
    starts = _gates_of(challenge, (Gate.START, Gate.START_AND_FINISH))
    if not starts:
        return Finding("start", Verdict.WARNING, "the map has no start block that is known here")
    distance_m = min(float(np.linalg.norm(line_m[0] - gate.floor_center_m)) for gate in starts)
    verdict = Verdict.FINE if distance_m <= START_REACH_M else Verdict.PROBLEM
    return Finding("start", verdict, f"the line begins {distance_m:.1f} m from the middle of the start block")


def _check_checkpoints(passages: Sequence[GatePassage], challenge: Challenge) -> Finding:
    checkpoints = _gates_of(challenge, (Gate.CHECKPOINT,))
    passed = {passage.gate for passage in passages}
    missed = [gate for gate in checkpoints if gate not in passed]
    if missed:
        places = ", ".join("({:.0f}, {:.0f}, {:.0f})".format(*gate.floor_center_m) for gate in missed)
        return Finding(
            "checkpoints",
            Verdict.PROBLEM,
            f"{len(missed)} of {len(checkpoints)} are not passed: those at {places}; is it a race on this very map?",
        )
    return Finding("checkpoints", Verdict.FINE, f"all {len(checkpoints)} are passed")


def _check_order(line_m: FloatArray, passages: Sequence[GatePassage], checkpoint_m: FloatArray | None) -> Finding:
    """Check that the start is first and the finish last, and compare with a race's checkpoint times."""
    kinds = [passage.gate.gate for passage in passages]
    if Gate.START in kinds[1:] or Gate.FINISH in kinds[:-1]:
        order = ", ".join(kind.value for kind in kinds if kind is not None)
        return Finding("order", Verdict.WARNING, f"start and finish are not the outermost: {order}")
    stations_m = [passage.station_m for passage in passages if passage.gate.gate is Gate.CHECKPOINT]
    if checkpoint_m is None or len(checkpoint_m) == 0:
        return Finding("order", Verdict.FINE, "at " + (", ".join(f"{m:.0f}" for m in stations_m) or "no") + " m")
    along_m = _stations_in_order(line_m, checkpoint_m)
    timed = (Gate.CHECKPOINT, Gate.START_AND_FINISH)  # the lap line has a time in each lap
    timed_m = [passage.station_m for passage in passages if passage.gate.gate in timed]
    gaps_m = [min((abs(m - station) for station in timed_m), default=np.inf) for m in along_m]
    if len(gaps_m) > 0 and max(gaps_m) > BLOCK_SIZE_M[0]:
        worst = int(np.argmax(gaps_m))
        return Finding(
            "order",
            Verdict.WARNING,
            f"checkpoint time {worst + 1} of the race falls at {along_m[worst]:.0f} m, where no checkpoint is passed",
        )
    places = ", ".join(f"{m:.0f}" for m in stations_m)
    text = f"at {places} m; the race's own times fall within {max(gaps_m):.1f} m of them"
    return Finding("order", Verdict.FINE, text)


def _stations_in_order(line_m: FloatArray, places_m: FloatArray) -> list[float]:
    stations_m = arc_length(line_m)
    begin = 0
    found = []
    for place_m in places_m:
        distance_m = np.linalg.norm(line_m[begin:] - place_m, axis=1)
        near = np.flatnonzero(distance_m <= distance_m.min() + 1.0)
        begin += int(near[0])
        found.append(float(stations_m[begin]))
    return found


def _check_distances(line_m: FloatArray, passages: Sequence[GatePassage]) -> Finding:
    checkpoints = [passage for passage in passages if passage.gate.gate is Gate.CHECKPOINT]
    if not checkpoints:
        return Finding("distances", Verdict.FINE, "no checkpoints")
    nearest_m = [float(np.linalg.norm(line_m - passage.gate.floor_center_m, axis=1).min()) for passage in checkpoints]
    worst = int(np.argmax(nearest_m))
    text = f"at most {nearest_m[worst]:.1f} m from the middle of a checkpoint (at {checkpoints[worst].station_m:.0f} m)"
    if nearest_m[worst] > REAL_CHECKPOINT_RADIUS_M:
        reason = (
            f"further than {REAL_CHECKPOINT_RADIUS_M:g} m: training does not see whether the car passes that checkpoint"
        )
        return Finding("distances", Verdict.WARNING, f"{text}; {reason}")
    if nearest_m[worst] > REAL_CHECKPOINT_RADIUS_M - NARROW_MARGIN_M:
        reason = f"a car that passes beyond {REAL_CHECKPOINT_RADIUS_M:g} m of it does not advance in training"
        return Finding("distances", Verdict.WARNING, f"{text}; {reason}")
    return Finding("distances", Verdict.FINE, text)


def _check_finish(line_m: FloatArray, challenge: Challenge) -> Finding:
    finishes = _gates_of(challenge, (Gate.FINISH, Gate.START_AND_FINISH))
    if not finishes:
        return Finding("finish", Verdict.WARNING, "the map has no finish block that is known here")
    found: list[tuple[float, float, float]] = []  # distance from the plane and from its middle, way to the plane
    for gate in finishes:
        offset_m = line_m[-1] - gate.floor_center_m
        normal = forward_of(gate)
        if _is_at_height(gate, float(offset_m[1])):
            plane_m = float(offset_m @ normal)
            beside_m = float(offset_m @ np.cross(normal, (0.0, 1.0, 0.0)))
            advance = float(directions(line_m)[-1] @ normal)
            to_plane_m = -plane_m / advance if plane_m * advance < 0.0 else np.inf
            found.append((abs(plane_m), abs(beside_m), to_plane_m))
    reached = [of_gate for of_gate in found if of_gate[1] <= GATE_HALF_WIDTH_M]
    plane_m, beside_m, to_plane_m = min(reached, default=(np.inf, np.inf, np.inf))
    if plane_m > END_TO_GATE_M and to_plane_m <= SAMPLE_M:
        return Finding(
            "finish",
            Verdict.WARNING,
            f"the line ends {plane_m:.0f} m before the finish, as one of a ghost's whole samples does; training "
            "extends it straight on",
        )
    if plane_m > END_TO_GATE_M:
        away_m = min(float(np.linalg.norm(line_m[-1] - gate.floor_center_m)) for gate in finishes)
        return Finding("finish", Verdict.PROBLEM, f"not reached: the line ends {away_m:.0f} m from the finish block")
    text = f"the line ends {plane_m:.1f} m from the finish's plane, {beside_m:.1f} m aside"
    return Finding("finish", Verdict.FINE, text)


def _gates_of(challenge: Challenge, kinds: tuple[Gate, ...]) -> list[Block]:
    return [gate for gate in challenge.gates if gate.gate in kinds]
