"""Simulated game colours, chosen so that each kind of thing has a distinct gray.

A colour depends on paint, angle to the light and distance (haze). All combinations are mixed once, for look-up.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import inner
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.simulator.tracks.world_file import N_PAINTS


class Paint(IntEnum):
    """Rows in `Colors.paints`. Names with an `_ALTERNATE` alternate along the road, so speed is visible."""

    ASPHALT = 0
    ASPHALT_ALTERNATE = auto()
    CONCRETE = auto()
    CONCRETE_ALTERNATE = auto()
    DIRT = auto()
    DIRT_ALTERNATE = auto()
    GRASS = auto()
    GRASS_ALTERNATE = auto()
    ICE = auto()
    ICE_ALTERNATE = auto()
    TURBO = auto()
    TURBO_ALTERNATE = auto()
    FREE_WHEEL = auto()
    FREE_WHEEL_ALTERNATE = auto()
    DASH = auto()
    DIRT_PATCH = auto()
    ICE_PATCH = auto()
    TURBO_ARROW = auto()
    BORDER_LINE = auto()
    DROP_LINE = auto()
    DROP_LINE_ALTERNATE = auto()
    VERGE = auto()
    VERGE_ALTERNATE = auto()
    WALL = auto()
    WALL_ALTERNATE = auto()
    WALL_CAP = auto()
    UNDERSIDE = auto()
    GROUND = auto()
    GROUND_ALTERNATE = auto()
    CHECKPOINT = auto()
    CHECKPOINT_STRIPE = auto()
    PASSED_CHECKPOINT = auto()
    FINISH_LIGHT = auto()
    FINISH_DARK = auto()
    CAR_TOP = auto()
    CAR_SIDE = auto()
    CAR_REAR = auto()
    CAR_GLASS = auto()
    TIRE = auto()
    TIRE_TOP = auto()
    TAIL_LIGHT = auto()
    SHADOW = auto()
    WATER = auto()


assert len(Paint) == N_PAINTS

_RED_GREEN_BLUE: dict[Paint, tuple[int, int, int]] = {
    Paint.ASPHALT: (72, 74, 80),
    Paint.ASPHALT_ALTERNATE: (86, 88, 95),
    Paint.CONCRETE: (176, 172, 162),
    Paint.CONCRETE_ALTERNATE: (164, 160, 150),
    Paint.DIRT: (198, 148, 98),
    Paint.DIRT_ALTERNATE: (184, 136, 88),
    Paint.GRASS: (92, 158, 54),
    Paint.GRASS_ALTERNATE: (72, 132, 42),
    Paint.ICE: (206, 230, 244),
    Paint.ICE_ALTERNATE: (190, 218, 238),
    Paint.TURBO: (214, 60, 30),
    Paint.TURBO_ALTERNATE: (190, 50, 26),
    Paint.FREE_WHEEL: (110, 60, 150),
    Paint.FREE_WHEEL_ALTERNATE: (130, 74, 172),
    Paint.DASH: (170, 170, 165),
    Paint.DIRT_PATCH: (138, 94, 58),
    Paint.ICE_PATCH: (150, 190, 222),
    Paint.TURBO_ARROW: (255, 236, 60),
    Paint.BORDER_LINE: (240, 240, 236),
    Paint.DROP_LINE: (250, 220, 40),
    Paint.DROP_LINE_ALTERNATE: (24, 22, 20),
    Paint.VERGE: (78, 146, 62),
    Paint.VERGE_ALTERNATE: (88, 158, 70),
    Paint.WALL: (206, 204, 200),
    Paint.WALL_ALTERNATE: (160, 160, 164),
    Paint.WALL_CAP: (188, 36, 36),
    Paint.UNDERSIDE: (46, 46, 52),
    Paint.GROUND: (34, 62, 40),
    Paint.GROUND_ALTERNATE: (26, 50, 33),
    Paint.CHECKPOINT: (26, 52, 150),
    Paint.CHECKPOINT_STRIPE: (244, 244, 250),
    Paint.PASSED_CHECKPOINT: (150, 152, 160),
    Paint.FINISH_LIGHT: (250, 250, 250),
    Paint.FINISH_DARK: (14, 14, 16),
    Paint.CAR_TOP: (250, 160, 40),
    Paint.CAR_SIDE: (214, 120, 26),
    Paint.CAR_REAR: (178, 96, 22),
    Paint.CAR_GLASS: (36, 46, 60),
    Paint.TIRE: (20, 20, 22),
    Paint.TIRE_TOP: (44, 44, 48),
    Paint.TAIL_LIGHT: (255, 70, 60),
    Paint.SHADOW: (34, 35, 38),
    Paint.WATER: (52, 104, 168),
}

LIGHT_LEVELS = 9  # the middle one is the paint's brightness
LIGHT_STEP = 0.06  # relative, between neighbouring levels
HAZE_LEVELS = 32
HAZE_LEVELS_PER_M = (HAZE_LEVELS - 1) / 300.0
"""Haze is full at 300 m from the camera."""
_MOST_HAZE = 0.5
_HAZE_RED_GREEN_BLUE = (184, 194, 206)

SKY_LEVELS = 64
_SKY_AT_HORIZON = (206, 220, 234)
_SKY_ABOVE = (84, 146, 214)


def _as_pixels(red_green_blue: npt.NDArray[np.float64]) -> npt.NDArray[np.uint32]:
    """Convert (..., 3) floats 0..255 to (...) pixels, in memory blue, green, red, 255."""
    pixels = np.full((*red_green_blue.shape[:-1], 4), 255, dtype=np.uint8)
    pixels[..., :3] = np.rint(np.clip(red_green_blue[..., ::-1], 0.0, 255.0))
    return pixels.view(np.uint32)[..., 0]


def _mix_palette() -> npt.NDArray[np.uint32]:
    paints = np.array([_RED_GREEN_BLUE[paint] for paint in Paint], dtype=np.float64)
    light = 1.0 + LIGHT_STEP * (np.arange(LIGHT_LEVELS) - LIGHT_LEVELS // 2)
    haze = _MOST_HAZE * np.linspace(0.0, 1.0, HAZE_LEVELS)[:, None]
    lit = np.minimum(paints[:, None, None, :] * light[None, :, None, None], 255.0)
    return _as_pixels((1.0 - haze) * lit + haze * np.array(_HAZE_RED_GREEN_BLUE))


def _mix_sky() -> npt.NDArray[np.uint32]:
    height = np.linspace(0.0, 1.0, SKY_LEVELS)[:, None]
    return _as_pixels((1.0 - height) * np.array(_SKY_AT_HORIZON) + height * np.array(_SKY_ABOVE))


class Colors(NamedTuple):
    """Pixels for all paints, sky and ground."""

    paints: npt.NDArray[np.uint32]  # (paints, LIGHT_LEVELS, HAZE_LEVELS)
    sky: npt.NDArray[np.uint32]  # (SKY_LEVELS,)
    ground: npt.NDArray[np.uint32]  # (2, HAZE_LEVELS) two tile kinds


PLAIN_LIGHT = LIGHT_LEVELS // 2


def _with_ground(paints: npt.NDArray[np.uint32], sky: npt.NDArray[np.uint32]) -> Colors:
    ground = np.ascontiguousarray(paints[[Paint.GROUND, Paint.GROUND_ALTERNATE], PLAIN_LIGHT])
    return Colors(paints, sky, ground)


def _gray_of(pixels: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return pixels' gray levels 0..255 as OpenCV's COLOR_BGRA2GRAY: ITU-R BT.601 in units of 2^-15."""
    weights = np.array([3735, 19235, 9798, 0], dtype=np.uint32)
    levels = pixels[..., None].view(np.uint8) @ weights + (1 << 14) >> 15
    return levels.astype(np.uint32)


COLORS = _with_ground(_mix_palette(), _mix_sky())  # in memory blue, green, red, 255
GRAYS = _with_ground(_gray_of(COLORS.paints), _gray_of(COLORS.sky))  # 0..255


@inner
def haze_at(depth_m: float) -> int:
    """Return the haze level at a distance from the camera."""
    return min(max(int(depth_m * HAZE_LEVELS_PER_M), 0), HAZE_LEVELS - 1)


@inner
def color_at(palette: Colors, paint: int, light: int, depth_m: float) -> np.uint32:
    """Return a paint's pixel at a brightness level and a distance from the camera."""
    return palette.paints[paint, light, haze_at(depth_m)]


_PAINT_OF_SURFACE: dict[Surface, Paint] = {
    Surface.CONCRETE: Paint.CONCRETE,
    Surface.PAVEMENT: Paint.CONCRETE,
    Surface.GRASS: Paint.GRASS,
    Surface.ICE: Paint.ICE,
    Surface.METAL: Paint.CONCRETE,
    Surface.SAND: Paint.DIRT,
    Surface.DIRT: Paint.DIRT,
    Surface.TURBO: Paint.TURBO,
    Surface.ASPHALT: Paint.ASPHALT,
    Surface.TURBO_ROULETTE: Paint.TURBO,
    Surface.TURBO2: Paint.TURBO,
    Surface.FREE_WHEEL: Paint.FREE_WHEEL,
}


def paints_of_surfaces(surface: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the paints (P,) for TMNF material ids (P,); raise ValueError for an unknown material."""
    paints = np.full(max(Surface) + 1, -1, dtype=np.int64)
    for material, paint in _PAINT_OF_SURFACE.items():
        paints[material] = paint
    unknown = sorted(set(np.unique(surface).tolist()) - set(map(int, _PAINT_OF_SURFACE)))
    if unknown:
        names = ", ".join(f"{material.value} {material.name.lower()}" for material in Surface)
        raise ValueError(f"the ribbon has the surface {unknown[0]}, which has no colour: known are {names}")
    return paints[surface]
