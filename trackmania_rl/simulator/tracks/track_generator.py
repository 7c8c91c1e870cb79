"""Tracks from a seed and a difficulty: phrases (corners, straights and jumps), added where there is room.

A phrase (a bend, a jump ...) is drawn at random and taken if it stays on the map and clear of earlier road. If
the finished road fails a check, another track is drawn from the same random stream.
"""

import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_design import (
    BRIDGE_CLEARANCE_M,
    CHECKPOINT,
    LINE_SPACING_M,
    CheckpointMark,
    LaidOutTrack,
    Piece,
    TrackDesign,
    file_in_the_way,
    find_clash,
    find_crossing,
    lay_out,
    straight,
    trace,
    turn_radius_m,
    write_track,
)
from trackmania_rl.simulator.tracks.track_phrases import JUMP_SLOPE, LEAST_INNER_RADIUS_M, Character, draw_phrase

GENERATOR_VERSION: Final = 1  # raised whenever a recipe gives another track than before
SHORTEST_TRACK_M, LONGEST_TRACK_M = 500.0, 1500.0
LARGEST_EXTENT_M = 700.0  # sides on the plan; the stadium measures some 1000 m
CHECKPOINT_EVERY_M = 150.0
"""A checkpoint ends the first phrase that ends this far behind the one before."""

TIGHTEST_CREST_PER_M = 0.015
"""Largest slope change per metre: crests and dips have at least 67 m radius."""

_TARGET_LENGTH_M = (550.0, 1150.0)
_TARGET_EXTENT_M = (350.0, LARGEST_EXTENT_M - 10.0)
_START_STRAIGHT_M = (55.0, 90.0)
_FINISH_STRAIGHT_M = (60.0, 95.0)
_RUN_OUT_M = 30.0
_CLEAR_GROUND_M = 10.0  # between two roads' borders side by side
_CLEAR_HEIGHT_M = BRIDGE_CLEARANCE_M + 2.0
_PLAN_STEP_M = 2.0
_MOST_TRACKS_DRAWN = 60
_MOST_PHRASES_DRAWN = 12
_MOST_STEPS_BACK = 8
_LARGEST_SEED = 2**63 - 1

FloatArray = npt.NDArray[np.float64]


class TrackGeneratorError(UserError, ValueError):
    """A seed or difficulty is out of range, or gives no track."""


@dataclass(frozen=True)
class TrackRecipe:
    """Seed and difficulty for a generated track: the same recipe always gives the same files.

    Raises:
        TrackGeneratorError: if either is out of range.
    """

    seed: int  # 0 to 2**63 - 1
    difficulty: float  # 0 to 1; rounded to three decimals

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise TrackGeneratorError(f"seed = {self.seed}: a track's seed is a whole number from 0 to 2**63 - 1")
        if not 0.0 <= self.difficulty <= 1.0:
            raise TrackGeneratorError(f"difficulty = {self.difficulty}: a track's difficulty is a number from 0 to 1")
        object.__setattr__(self, "difficulty", round(float(self.difficulty), 3))

    @property
    def name(self) -> str:
        """Track name, which `from_name` converts back."""
        return f"generated_{self.difficulty:.3f}_{self.seed}"

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Return the recipe from a generated track's name; None for any other name."""
        match = re.fullmatch(r"generated_([01]\.\d{3})_(\d{1,19})", name, re.ASCII)
        if match is None:
            return None
        try:
            return cls(int(match[2]), float(match[1]))
        except TrackGeneratorError:
            return None


@dataclass(frozen=True)
class GeneratedTrack:
    """Design with recipe and layout."""

    recipe: TrackRecipe
    design: TrackDesign
    laid_out: LaidOutTrack

    @property
    def length_m(self) -> float:
        """Length from start to finish."""
        return LINE_SPACING_M * (len(self.laid_out.line_m) - 1)

    def write(self, track_file: Path) -> Path:
        """Write the track file, and the line beside it; return the line's file.

        Raises:
            OSError: if writing fails.
        """
        recipe = self.recipe
        origin = f"scripts/generate_track.py --seed {recipe.seed} --difficulty {recipe.difficulty:g}"
        return write_track(self.design, self.laid_out, track_file, origin)

    def file_in_the_way(self, track_file: Path) -> Path | None:
        """Return a file that `write` would overwrite with other content, or None."""
        with tempfile.TemporaryDirectory() as folder:
            new_file = Path(folder) / track_file.name
            return file_in_the_way((new_file, self.write(new_file)), track_file.parent)


def generate_track(recipe: TrackRecipe) -> GeneratedTrack:
    """Make a recipe's track, in some 50 ms.

    Raises:
        TrackGeneratorError: if none of `_MOST_TRACKS_DRAWN` tracks passed the checks; no such seed is known.
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
    """Check a finished track; return the problem, or None."""
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
    if inner_radius_m < LEAST_INNER_RADIUS_M - 1.0:
        return f"its inner border turns with a radius of {inner_radius_m:.1f} m"
    if find_crossing(line_m, half_width_m + _CLEAR_GROUND_M / 2.0 - 1.0, is_closed=False) is not None:
        return "its road comes too close to itself"
    slope = np.diff(line_m[:, 1])[has_road[1:]] / LINE_SPACING_M
    if np.abs(slope).max() > max(character.steepest, JUMP_SLOPE) + 0.02:
        return f"it has a slope of {np.abs(slope).max():.2f}"
    has_road_around = has_road[2:] & has_road[1:-1] & has_road[:-2]
    bend_per_m = np.diff(line_m[:, 1], 2)[has_road_around] / LINE_SPACING_M**2
    if np.abs(bend_per_m).max() > TIGHTEST_CREST_PER_M:
        return f"its slope changes by {np.abs(bend_per_m).max():.3f} per metre"
    return None


class _Road:
    """Pieces so far, and the ground they occupy, one point every 2 m on the plan."""

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
        """Height of the road's end above its start."""
        return float(self._end_m[1])

    def extended(self, phrase: list[Piece]) -> "_Road | None":
        """Return the road with one more phrase; None if there is no room."""
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
        """Return whether the points from `n_old` on are on the map and clear of all before them."""
        if np.ptp(self._points_m[:, [0, 2]], axis=0).max() > self._extent_m:
            return False
        clash, _ = find_clash(
            self._points_m, self._half_width_m, _PLAN_STEP_M, _CLEAR_GROUND_M, _CLEAR_HEIGHT_M, math.inf, n_old
        )
        return clash < 0


def _grow(rng: np.random.Generator, character: Character) -> tuple[Piece | CheckpointMark, ...] | None:
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
        road.pieces.pop()
    finish_m = float(rng.uniform(*_FINISH_STRAIGHT_M))
    if road.extended([straight(finish_m + _RUN_OUT_M)]) is None:
        return None
    return (*road.pieces, straight(finish_m))


def _with_one_more_phrase(rng: np.random.Generator, character: Character, road: _Road) -> _Road | None:
    for _ in range(_MOST_PHRASES_DRAWN):
        phrase = draw_phrase(rng, character, turned_deg=road.turned_deg, slope=road.slope, height_m=road.height_m)
        longer = road.extended(phrase)
        if longer is not None:
            if longer.length_m - longer.checkpoint_m >= CHECKPOINT_EVERY_M:
                longer.mark_checkpoint()
            return longer
    return None
