"""Tracks from a seed and a difficulty: phrases of corners, straights and jumps, strung together where there is room.

A track is grown like a road book is written: one phrase after the other (a bend, a hairpin, a chicane, a jump ...) is
drawn at random and taken if its road stays clear of what is there already, passes over or under it with clear height,
and stays on the map; else another phrase is drawn. The finished road is laid out and measured once more; a track that
fails a check is thrown away and the next one is drawn from the same random stream. So the same seed and difficulty
always give the same track, and every track that comes out has passed all checks.

What a difficulty from 0 (wide asphalt, long bends, nearly flat) to 1 (narrow, tight and steep, dirt, grass, missing
walls, jumps) means stands in `Character.of_difficulty`; every figure moves evenly between its two ends.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.simulator.track_design import (
    CHECKPOINT,
    LINE_SPACING_M,
    CheckpointMark,
    LaidOutTrack,
    Piece,
    TrackDesign,
    lay_out,
    left,
    straight,
    trace,
)
from trackmania_rl.simulator.track_geometry import BRIDGE_CLEARANCE_M, find_clash, find_crossing, turn_radius_m
from trackmania_rl.simulator.track_writing import write_track

GENERATOR_VERSION: Final = 1
"""Counts up whenever the same seed and difficulty give another track than before."""
SHORTEST_TRACK_M, LONGEST_TRACK_M = 500.0, 1500.0
LARGEST_EXTENT_M = 700.0
"""A track's sides on the plan: the stadium measures some 1000 m."""
CHECKPOINT_EVERY_M = 150.0
"""A checkpoint stands at the end of the first phrase that ends at least this far behind the one before."""

TIGHTEST_CREST_PER_M = 0.015
"""Largest change of slope per metre on the road: crests and dips have a radius of 67 m at least."""

_TARGET_LENGTH_M = (550.0, 1150.0)
_TARGET_EXTENT_M = (350.0, LARGEST_EXTENT_M - 10.0)
_START_STRAIGHT_M = (55.0, 90.0)
_FINISH_STRAIGHT_M = (60.0, 95.0)
_RUN_OUT_M = 30.0
_CLEAR_GROUND_M = 10.0
"""Ground that stays free between the borders of two roads side by side."""
_CLEAR_HEIGHT_M = BRIDGE_CLEARANCE_M + 2.0
_PLAN_STEP_M = 2.0
_PULL_PER_M = 0.02
"""Share of the steepest slope by which a road tends back to its start's height, for each metre that it is away."""
_MOST_TRACKS_DRAWN = 60
_MOST_PHRASES_DRAWN = 12
_MOST_STEPS_BACK = 8
_LARGEST_SEED = 2**63 - 1

_LEAST_RADIUS_ON_SURFACE_M = {"dirt": 40.0, "grass": 90.0}
_LEAST_INNER_RADIUS_M = 4.0
"""The road's inner border turns at least this wide."""

FloatArray = npt.NDArray[np.float64]


class TrackGeneratorError(UserError, ValueError):
    """A seed or difficulty is out of range, or no track came out of them."""


@dataclass(frozen=True)
class TrackRecipe:
    """What a generated track is made from: the same recipe always gives the same files.

    Attributes:
        seed: 0 to 2**63 - 1.
        difficulty: 0 to 1; kept to three digits behind the point.

    Raises:
        TrackGeneratorError: if either is out of range.
    """

    seed: int
    difficulty: float

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise TrackGeneratorError(f"seed = {self.seed}: a track's seed is a whole number from 0 to 2**63 - 1")
        if not 0.0 <= self.difficulty <= 1.0:
            raise TrackGeneratorError(f"difficulty = {self.difficulty}: a track's difficulty is a number from 0 to 1")
        object.__setattr__(self, "difficulty", round(float(self.difficulty), 3))

    @property
    def name(self) -> str:
        """The track's name, from which `from_name` makes the recipe again."""
        return f"generated_{self.difficulty:.3f}_{self.seed}"

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """The recipe of a generated track's name; None for any other name."""
        match = re.fullmatch(r"generated_([01]\.\d{3})_(\d{1,19})", name, re.ASCII)
        if match is None:
            return None
        try:
            return cls(int(match[2]), float(match[1]))
        except TrackGeneratorError:
            return None


@dataclass(frozen=True)
class Character:
    """What a difficulty means for a track. Ranges are (smallest, largest); slopes are metres of height per metre.

    Attributes:
        width_m: of the road.
        radius_m: of its bends.
        straight_m: between two phrases.
        steepest: slope.
        largest_kink: change of slope from one piece to the next, which is then rounded over 24 m and more.
        banking_deg: of a banked bend, at most.
        rough: probability that a phrase has another surface than asphalt, or another border than a wall.
        phrases: names and weights of the phrases.
    """

    width_m: float
    radius_m: tuple[float, float]
    straight_m: tuple[float, float]
    steepest: float
    largest_kink: float
    banking_deg: float
    rough: float
    phrases: dict[str, float]

    @classmethod
    def of_difficulty(cls, difficulty: float) -> Self:
        """Every figure moves evenly from its value at difficulty 0 to that at 1; radii and widths by equal ratios."""

        def even(at_0: float, at_1: float) -> float:
            return at_0 + difficulty * (at_1 - at_0)

        def ratio(at_0: float, at_1: float) -> float:
            return at_0 * (at_1 / at_0) ** difficulty

        return cls(
            width_m=round(2.0 * ratio(28.0, 15.0)) / 2.0,
            radius_m=(ratio(45.0, 12.0), ratio(110.0, 45.0)),
            straight_m=(even(30.0, 8.0), even(100.0, 50.0)),
            steepest=even(0.02, 0.13),
            largest_kink=even(0.03, 0.18),
            banking_deg=even(4.0, 12.0),
            rough=even(0.0, 0.45),
            phrases={
                "bend": 2.5,
                "sweeper": even(2.5, 0.8),
                "chicane": even(0.8, 1.5),
                "esses": even(0.4, 1.5),
                "hairpin": even(0.6, 2.2),
                "tightening": even(0.5, 1.4),
                "boost": max(even(-0.3, 0.8), 0.0),
                "jump": max(even(-1.5, 1.0), 0.0),
            },
        )


@dataclass(frozen=True)
class GeneratedTrack:
    """A design with its recipe, and the same in the world."""

    recipe: TrackRecipe
    design: TrackDesign
    laid_out: LaidOutTrack

    @property
    def length_m(self) -> float:
        """From start to finish."""
        return LINE_SPACING_M * (len(self.laid_out.line_m) - 1)

    def write(self, track_file: Path) -> Path:
        """Write the track file, and its line beside it; return the line's file.

        Raises:
            OSError: if the disk says no.
        """
        recipe = self.recipe
        origin = f"scripts/generate_track.py --seed {recipe.seed} --difficulty {recipe.difficulty:g}"
        return write_track(self.design, self.laid_out, track_file, origin)


def generate_track(recipe: TrackRecipe) -> GeneratedTrack:
    """Make the track of a recipe; some 50 ms.

    Raises:
        TrackGeneratorError: if none of `_MOST_TRACKS_DRAWN` tracks passed the checks, which no seed is known to do.
    """
    rng = np.random.default_rng((GENERATOR_VERSION, recipe.seed))
    character = Character.of_difficulty(recipe.difficulty)
    problem = ""
    for _ in range(_MOST_TRACKS_DRAWN):
        pieces = _grow(rng, character)
        if pieces is None:
            problem = "the road ran into a dead end"
            continue
        n_corners = sum(piece.turn_deg != 0.0 for piece in pieces if isinstance(piece, Piece))
        design = TrackDesign(
            name=recipe.name,
            description=f"Generated (version {GENERATOR_VERSION}): {n_corners} corners.",
            pieces=pieces,
            width_m=character.width_m,
        )
        laid_out = lay_out(design)
        found = find_problem(design, laid_out, character)
        if found is None:
            return GeneratedTrack(recipe, design, laid_out)
        problem = found
    raise TrackGeneratorError(
        f"seed {recipe.seed} at difficulty {recipe.difficulty:g} gave no usable track in {_MOST_TRACKS_DRAWN} tries "
        f"(the last one: {problem}); take another seed"
    )


def find_problem(design: TrackDesign, laid_out: LaidOutTrack, character: Character) -> str | None:
    """Measure a finished track against all that is promised; return what is wrong, or None."""
    line_m = laid_out.line_m.astype(np.float64)
    length_m = LINE_SPACING_M * (len(line_m) - 1)
    if not SHORTEST_TRACK_M <= length_m <= LONGEST_TRACK_M:
        return f"its length is {length_m:.0f} m"
    extent_m = np.ptp(line_m[:, [0, 2]], axis=0).max()
    if extent_m > LARGEST_EXTENT_M:
        return f"it measures {extent_m:.0f} m"
    station_m = LINE_SPACING_M * np.arange(len(line_m))
    half_width_m = np.full(len(line_m), design.width_m / 2.0)
    has_road = np.ones(len(line_m), dtype=np.bool_)
    for section in laid_out.sections:
        inside = (station_m >= section.from_m) & (station_m < section.to_m)
        width_m = section.style.get("width_m")
        if isinstance(width_m, float):
            half_width_m[inside] = width_m / 2.0
        has_road[inside] &= not section.style.get("gap", False)
    inner_radius_m = float((turn_radius_m(line_m) - half_width_m).min())
    if inner_radius_m < _LEAST_INNER_RADIUS_M - 1.0:
        return f"its inner border turns with a radius of {inner_radius_m:.1f} m"
    if find_crossing(line_m, half_width_m + _CLEAR_GROUND_M / 2.0 - 1.0, is_closed=False) is not None:
        return "its road comes too close to itself"
    slope = np.diff(line_m[:, 1])[has_road[1:]] / LINE_SPACING_M
    if np.abs(slope).max() > max(character.steepest, _JUMP_SLOPE) + 0.02:
        return f"it has a slope of {np.abs(slope).max():.2f}"
    has_road_around = has_road[2:] & has_road[1:-1] & has_road[:-2]
    bend_per_m = np.diff(line_m[:, 1], 2)[has_road_around] / LINE_SPACING_M**2
    if np.abs(bend_per_m).max() > TIGHTEST_CREST_PER_M:
        return f"its slope changes by {np.abs(bend_per_m).max():.3f} per metre"
    return None


# Growing a road.


class _Road:
    """The pieces taken so far, and the ground they occupy, one point every 2 m of the plan.

    Args:
        character: of the track.
        extent_m: longest side that it may have on the plan.
    """

    def __init__(self, character: Character, extent_m: float) -> None:
        self.pieces: list[Piece | CheckpointMark] = []
        self.length_m = 0.0
        self.turned_deg = 0.0
        self.slope = 0.0
        self.checkpoint_m = 0.0
        self._character = character
        self._extent_m = extent_m
        self._end_m = np.zeros(3)
        self._points_m = np.zeros((0, 3))
        self._half_width_m = np.zeros(0)

    @property
    def height_m(self) -> float:
        """Of the road's end above its start."""
        return float(self._end_m[1])

    def extended(self, phrase: list[Piece]) -> "_Road | None":
        """The road with one more phrase; None where there is no room for it."""
        _, points_m = trace(phrase, math.radians(self.turned_deg), _PLAN_STEP_M)
        points_m = points_m + self._end_m
        knots_m = np.cumsum([piece.length_m for piece in phrase])
        place_m = np.linspace(0.0, knots_m[-1] - 1e-6, len(points_m))
        widths_m = np.array([piece.width_m or self._character.width_m for piece in phrase])
        half_width_m = widths_m[np.searchsorted(knots_m, place_m, side="right")] / 2.0
        longer = _Road(self._character, self._extent_m)
        longer._end_m = points_m[-1]
        longer._points_m = np.concatenate([self._points_m, points_m[1:]])
        longer._half_width_m = np.concatenate([self._half_width_m, half_width_m[1:]])
        if not longer._is_clear(len(self._points_m)):
            return None
        longer.pieces = [*self.pieces, *phrase]
        longer.length_m = self.length_m + float(knots_m[-1])
        longer.turned_deg = self.turned_deg + sum(piece.turn_deg for piece in phrase)
        longer.slope = phrase[-1].climb_m / phrase[-1].length_m
        longer.checkpoint_m = self.checkpoint_m
        return longer

    def mark_checkpoint(self) -> None:
        """Set a checkpoint at the road's end."""
        self.pieces.append(CHECKPOINT)
        self.checkpoint_m = self.length_m

    def _is_clear(self, n_old: int) -> bool:
        """Whether the points from `n_old` on are on the map, and away from all before them."""
        if np.ptp(self._points_m[:, [0, 2]], axis=0).max() > self._extent_m:
            return False
        clash, _ = find_clash(
            self._points_m, self._half_width_m, _PLAN_STEP_M, _CLEAR_GROUND_M, _CLEAR_HEIGHT_M, math.inf, n_old
        )
        return clash < 0


def _grow(rng: np.random.Generator, character: Character) -> tuple[Piece | CheckpointMark, ...] | None:
    """Draw phrases until the track is long enough; None where the road finds no way on."""
    target_m = float(rng.uniform(*_TARGET_LENGTH_M))
    blank = _Road(character, float(rng.uniform(*_TARGET_EXTENT_M)))
    start = blank.extended([straight(float(rng.uniform(*_START_STRAIGHT_M)))])
    assert start is not None
    roads = [start]
    steps_back = 0
    while roads[-1].length_m < target_m:
        longer = _with_one_more_phrase(rng, character, roads[-1])
        if longer is not None:
            roads.append(longer)
            continue
        steps_back += 1
        if steps_back > _MOST_STEPS_BACK or len(roads) < 3:
            return None
        del roads[-2:]
    road = roads[-1]
    if isinstance(road.pieces[-1], CheckpointMark):
        road.pieces.pop()  # the finish is near
    finish_m = float(rng.uniform(*_FINISH_STRAIGHT_M))
    if road.extended([straight(finish_m + _RUN_OUT_M)]) is None:
        return None
    return (*road.pieces, straight(finish_m))


def _with_one_more_phrase(rng: np.random.Generator, character: Character, road: _Road) -> _Road | None:
    """Draw phrases until there is room for one; the road then has a checkpoint if the last one is far enough."""
    names, weights = list(character.phrases), np.array(list(character.phrases.values()))
    for _ in range(_MOST_PHRASES_DRAWN):
        name = str(rng.choice(names, p=weights / weights.sum()))
        # The further the road has turned to one side, the likelier it turns back: no spirals.
        side = 1.0 if rng.random() < 1.0 / (1.0 + math.exp(road.turned_deg / 150.0)) else -1.0
        phrase = _PHRASES[name](rng, character)
        phrase = [replace(piece, turn_deg=side * piece.turn_deg) for piece in phrase]
        phrase = _with_heights(rng, character, _dressed(rng, character, phrase), road)
        longer = road.extended(phrase)
        if longer is not None:
            if longer.length_m - longer.checkpoint_m >= CHECKPOINT_EVERY_M:
                longer.mark_checkpoint()
            return longer
    return None


# Phrases: pieces that belong together, drawn as if their first turn were to the left.


def _turn(rng: np.random.Generator, character: Character, angle_deg: tuple[float, float], radius_m: float) -> Piece:
    """A turn that eases in and out over about half its radius; the road is narrower where it turns tightly."""
    angle = round(float(rng.uniform(*angle_deg)))
    radius_m = round(radius_m, 1)
    easing_m = round(min(max(0.4 * radius_m, 8.0), 30.0, 0.9 * math.radians(angle) * radius_m), 1)
    width_m = math.floor(2.0 * (radius_m - _LEAST_INNER_RADIUS_M - 1.0))
    return left(
        angle,
        radius_m=radius_m,
        easing_m=easing_m,
        width_m=None if width_m >= character.width_m else float(width_m),
    )


def _radius_m(rng: np.random.Generator, character: Character, share: tuple[float, float] = (0.0, 1.0)) -> float:
    """A radius of the character's range, or of a part of it, each ratio as likely as another."""
    tight_m, wide_m = character.radius_m
    return float(tight_m * (wide_m / tight_m) ** rng.uniform(*share))


def _straight(rng: np.random.Generator, character: Character) -> Piece:
    return straight(round(float(rng.uniform(*character.straight_m))))


def _bend(rng: np.random.Generator, character: Character) -> list[Piece]:
    """The plain corner."""
    return [_straight(rng, character), _turn(rng, character, (50.0, 140.0), _radius_m(rng, character))]


def _sweeper(rng: np.random.Generator, character: Character) -> list[Piece]:
    """A long bend, taken at speed."""
    radius_m = 1.4 * _radius_m(rng, character, (0.7, 1.0))
    return [_straight(rng, character), _turn(rng, character, (40.0, 100.0), radius_m)]


def _hairpin(rng: np.random.Generator, character: Character) -> list[Piece]:
    """A straight long enough to gather speed, and back."""
    run_up = straight(round(character.straight_m[1] * float(rng.uniform(0.7, 1.1))))
    return [run_up, _turn(rng, character, (150.0, 180.0), _radius_m(rng, character, (0.0, 0.3)))]


def _chicane(rng: np.random.Generator, character: Character) -> list[Piece]:
    """To one side and back at once."""
    there = _turn(rng, character, (35.0, 65.0), _radius_m(rng, character, (0.1, 0.6)))
    return [_straight(rng, character), there, replace(there, turn_deg=-there.turn_deg)]


def _esses(rng: np.random.Generator, character: Character) -> list[Piece]:
    """Three or four bends, to and fro."""
    pieces = [_straight(rng, character)]
    for number in range(int(rng.integers(3, 5))):
        turn = _turn(rng, character, (50.0, 90.0), _radius_m(rng, character, (0.2, 0.7)))
        pieces.append(turn if number % 2 == 0 else replace(turn, turn_deg=-turn.turn_deg))
    return pieces


def _tightening(rng: np.random.Generator, character: Character) -> list[Piece]:
    """A bend that closes: the second half is tighter than the first."""
    wide = _turn(rng, character, (40.0, 60.0), _radius_m(rng, character, (0.6, 1.0)))
    return [_straight(rng, character), wide, _turn(rng, character, (50.0, 90.0), _radius_m(rng, character, (0.0, 0.4)))]


def _boost(rng: np.random.Generator, character: Character) -> list[Piece]:
    """A turbo strip on a straight, and a wide bend behind it."""
    bend = _turn(rng, character, (40.0, 90.0), _radius_m(rng, character, (0.6, 1.0)))
    return [_straight(rng, character), straight(12.0, surface="turbo"), straight(60.0), bend]


_JUMP_RAMP_M, _JUMP_CLIMB_M = 35.0, 4.0
_JUMP_SLOPE = _JUMP_CLIMB_M / _JUMP_RAMP_M


def _jump(rng: np.random.Generator, character: Character) -> list[Piece]:
    """A level run-up, a ramp, a gap and a wide landing that falls: the shipped track "jump" is built like this."""
    landing_width_m = character.width_m + 4.0
    return [
        straight(round(float(rng.uniform(70.0, 90.0)))),
        straight(_JUMP_RAMP_M, climb_m=_JUMP_CLIMB_M, edge="drop"),
        straight(round(float(rng.uniform(10.0, 15.0))), climb_m=-1.0, is_gap=True),
        straight(90.0, climb_m=-3.0, width_m=landing_width_m),
        straight(30.0),
    ]


_PHRASES = {
    "bend": _bend,
    "sweeper": _sweeper,
    "chicane": _chicane,
    "esses": _esses,
    "hairpin": _hairpin,
    "tightening": _tightening,
    "boost": _boost,
    "jump": _jump,
}


def _is_jump(phrase: list[Piece]) -> bool:
    return any(piece.is_gap for piece in phrase)


def _dressed(rng: np.random.Generator, character: Character, phrase: list[Piece]) -> list[Piece]:
    """Bank some turns; now and then give the phrase another surface, or other borders than walls."""
    is_rough, is_banked = rng.random() < character.rough, rng.random() < 0.25
    surface = str(rng.choice(["dirt", "dirt", "grass", "concrete"]))
    edge = str(rng.choice(["grass", "grass", "drop"]))
    wants_surface = rng.random() < 0.6
    banking_deg = round(float(rng.uniform(0.4, 1.0)) * character.banking_deg)
    if _is_jump(phrase):
        return phrase
    if is_banked:
        phrase = [
            replace(piece, banking_deg=math.copysign(banking_deg, piece.turn_deg))
            if abs(piece.turn_deg) >= 60.0
            else piece
            for piece in phrase
        ]
    if not is_rough:
        return phrase
    tightest_m = min((_tightest_radius_m(piece) for piece in phrase), default=math.inf)
    if wants_surface and tightest_m >= _LEAST_RADIUS_ON_SURFACE_M.get(surface, 0.0):
        return [replace(piece, surface=piece.surface or surface) for piece in phrase]
    if edge == "drop":  # only where nobody needs the wall
        return [replace(piece, edge=edge if piece.turn_deg == 0.0 else None) for piece in phrase]
    return [replace(piece, edge=edge) for piece in phrase]


def _tightest_radius_m(piece: Piece) -> float:
    if piece.turn_deg == 0.0:
        return math.inf
    return (piece.length_m - piece.easing_m) / math.radians(abs(piece.turn_deg))


def _with_heights(rng: np.random.Generator, character: Character, phrase: list[Piece], road: _Road) -> list[Piece]:
    """Let every piece climb or fall: each slope departs from the one before by a bounded kink, and high roads fall."""
    if _is_jump(phrase):
        return phrase
    risen = []
    slope, height_m = road.slope, road.height_m
    for piece in phrase:
        kink = float(rng.uniform(-1.0, 1.0)) * character.largest_kink
        pull = -_PULL_PER_M * height_m * character.steepest
        limit = character.steepest
        slope = min(
            max(0.5 * slope + kink + pull, slope - character.largest_kink, -limit),
            slope + character.largest_kink,
            limit,
        )
        climb_m = round(slope * piece.length_m, 2)
        height_m += climb_m
        risen.append(replace(piece, climb_m=climb_m))
    return risen
