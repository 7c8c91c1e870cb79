"""Road phrases, such as a bend with a straight, drawn by difficulty; `track_generator` joins them."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from trackmania_rl.simulator.tracks.track_design import Piece, left, straight

_PULL_PER_M = 0.02
"""Steepest-slope share by which a road tends back to the start's height, per metre of height."""
_LEAST_RADIUS_ON_SURFACE_M = {"dirt": 40.0, "grass": 90.0}
LEAST_INNER_RADIUS_M = 4.0


@dataclass(frozen=True)
class Character:
    """Figures for a difficulty. Ranges are (smallest, largest); slopes are height metres per metre."""

    width_m: float
    radius_m: tuple[float, float]
    straight_m: tuple[float, float]
    steepest: float
    largest_kink: float  # slope change between pieces, rounded over at least 24 m
    banking_deg: float
    rough: float  # probability of another surface than asphalt, or another border than a wall
    phrases: dict[str, float]

    @classmethod
    def of_difficulty(cls, difficulty: float) -> Self:
        """Interpolate each figure between the values at difficulty 0 and 1; radii and widths by equal ratios."""

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


def draw_phrase(
    rng: np.random.Generator, character: Character, *, turned_deg: float, slope: float, height_m: float
) -> list[Piece]:
    """Draw a phrase that continues a road with this slope, at this height above the start.

    The further the road has turned to one side, the likelier the phrase turns to the other: no spirals.
    """
    names = list(character.phrases)
    weights = np.array(list(character.phrases.values()))
    name = str(rng.choice(names, p=weights / weights.sum()))
    side = 1.0 if rng.random() < 1.0 / (1.0 + math.exp(turned_deg / 150.0)) else -1.0
    phrase = [replace(piece, turn_deg=side * piece.turn_deg) for piece in _PHRASES[name](rng, character)]
    return _with_heights(rng, character, _dressed(rng, character, phrase), slope, height_m)


# Each function draws a phrase with the first turn to the left.


def _turn(rng: np.random.Generator, character: Character, angle_deg: tuple[float, float], radius_m: float) -> Piece:
    """Draw a turn that eases in and out over about half its radius; tight turns have a narrower road."""
    angle = round(float(rng.uniform(*angle_deg)))
    radius_m = round(radius_m, 1)
    easing_m = round(min(max(0.4 * radius_m, 8.0), 30.0, 0.9 * math.radians(angle) * radius_m), 1)
    width_m = math.floor(2.0 * (radius_m - LEAST_INNER_RADIUS_M - 1.0))
    return left(
        angle,
        radius_m=radius_m,
        easing_m=easing_m,
        width_m=None if width_m >= character.width_m else float(width_m),
    )


def _radius_m(rng: np.random.Generator, character: Character, share: tuple[float, float] = (0.0, 1.0)) -> float:
    """Draw a radius from a share of the character's range, uniform in its logarithm."""
    tight_m, wide_m = character.radius_m
    return float(tight_m * (wide_m / tight_m) ** rng.uniform(*share))


def _straight(rng: np.random.Generator, character: Character) -> Piece:
    return straight(round(float(rng.uniform(*character.straight_m))))


def _bend(rng: np.random.Generator, character: Character) -> list[Piece]:
    return [_straight(rng, character), _turn(rng, character, (50.0, 140.0), _radius_m(rng, character))]


def _sweeper(rng: np.random.Generator, character: Character) -> list[Piece]:
    radius_m = 1.4 * _radius_m(rng, character, (0.7, 1.0))
    return [_straight(rng, character), _turn(rng, character, (40.0, 100.0), radius_m)]


def _hairpin(rng: np.random.Generator, character: Character) -> list[Piece]:
    run_up = straight(round(character.straight_m[1] * float(rng.uniform(0.7, 1.1))))
    return [run_up, _turn(rng, character, (150.0, 180.0), _radius_m(rng, character, (0.0, 0.3)))]


def _chicane(rng: np.random.Generator, character: Character) -> list[Piece]:
    there = _turn(rng, character, (35.0, 65.0), _radius_m(rng, character, (0.1, 0.6)))
    return [_straight(rng, character), there, replace(there, turn_deg=-there.turn_deg)]


def _esses(rng: np.random.Generator, character: Character) -> list[Piece]:
    pieces = [_straight(rng, character)]
    for number in range(int(rng.integers(3, 5))):
        turn = _turn(rng, character, (50.0, 90.0), _radius_m(rng, character, (0.2, 0.7)))
        pieces.append(turn if number % 2 == 0 else replace(turn, turn_deg=-turn.turn_deg))
    return pieces


def _tightening(rng: np.random.Generator, character: Character) -> list[Piece]:
    wide = _turn(rng, character, (40.0, 60.0), _radius_m(rng, character, (0.6, 1.0)))
    return [_straight(rng, character), wide, _turn(rng, character, (50.0, 90.0), _radius_m(rng, character, (0.0, 0.4)))]


def _boost(rng: np.random.Generator, character: Character) -> list[Piece]:
    bend = _turn(rng, character, (40.0, 90.0), _radius_m(rng, character, (0.6, 1.0)))
    return [_straight(rng, character), straight(12.0, surface="turbo"), straight(60.0), bend]


_JUMP_RAMP_M, _JUMP_CLIMB_M = 35.0, 4.0
JUMP_SLOPE = _JUMP_CLIMB_M / _JUMP_RAMP_M


def _jump(rng: np.random.Generator, character: Character) -> list[Piece]:
    """Draw a level run-up, a ramp, a gap and a falling wide landing, as on the shipped track "jump"."""
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
    is_rough = rng.random() < character.rough
    is_banked = rng.random() < 0.25
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
    if edge == "drop":  # only where no wall is needed
        return [replace(piece, edge=edge if piece.turn_deg == 0.0 else None) for piece in phrase]
    return [replace(piece, edge=edge) for piece in phrase]


def _tightest_radius_m(piece: Piece) -> float:
    if piece.turn_deg == 0.0:
        return math.inf
    return (piece.length_m - piece.easing_m) / math.radians(abs(piece.turn_deg))


def _with_heights(
    rng: np.random.Generator, character: Character, phrase: list[Piece], slope: float, height_m: float
) -> list[Piece]:
    if _is_jump(phrase):
        return phrase
    risen = []
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
