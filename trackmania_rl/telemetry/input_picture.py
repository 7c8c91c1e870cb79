"""Inputs at each race time, and pictures of them: four arrow keys, or steering and pedals.

Accelerating is green, braking red, steering blue. Pictures are BGRA (not premultiplied), cached and read-only.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from trackmania_rl.protocol.input_script import Input, InputEvent
from trackmania_rl.protocol.messages import NO_KEYS, KeyState
from trackmania_rl.protocol.state_blob import InputSlot
from trackmania_rl.simulator.inputs import Controls, InputState

Sprite = npt.NDArray[np.uint8]
"""(H, W, 4) uint8, blue, green, red, alpha."""
Color = tuple[int, int, int, int]
Points = tuple[tuple[float, float], ...]

WIDTH_PER_HEIGHT: Final = 1.5
"""Three keys side by side, two above each other."""
GREEN: Final[Color] = (46, 204, 113, 255)
RED: Final[Color] = (240, 70, 60, 255)
BLUE: Final[Color] = (64, 160, 255, 255)

_OFF: Final[Color] = (20, 24, 32, 150)
_BORDER: Final[Color] = (255, 255, 255, 190)
_ARROW_OFF: Final[Color] = (255, 255, 255, 215)
_ARROW_ON: Final[Color] = (10, 12, 16, 255)
_FINER: Final = 4
"""Factor by which pictures are drawn larger, which smooths their edges."""
_STEER_STEPS: Final = 50
"""Drawn wheel positions on either side."""

# On a board 3 wide and 2 high: each key's upper left corner and arrow, tip first.
_KEYS: Final[tuple[tuple[str, tuple[int, int], Color], ...]] = (
    ("left", (0, 1), BLUE),
    ("right", (2, 1), BLUE),
    ("accelerate", (1, 0), GREEN),
    ("brake", (1, 1), RED),
)
_ARROWS: Final[dict[str, Points]] = {
    "left": ((0.26, 0.5), (0.66, 0.24), (0.66, 0.76)),
    "right": ((0.74, 0.5), (0.34, 0.24), (0.34, 0.76)),
    "accelerate": ((0.5, 0.26), (0.24, 0.66), (0.76, 0.66)),
    "brake": ((0.5, 0.74), (0.24, 0.34), (0.76, 0.34)),
}
_KEY_MARGIN: Final = 0.04
_WHEEL: Final[dict[str, Points]] = {
    "left": ((0.04, 1.0), (0.96, 0.06), (0.96, 1.94)),
    "right": ((2.96, 1.0), (2.04, 0.06), (2.04, 1.94)),
}
_PEDALS: Final = (("accelerate", (1.06, 0.06, 1.94, 0.94), GREEN), ("brake", (1.06, 1.06, 1.94, 1.94), RED))


class Held(NamedTuple):
    """Keys at a time, and controls: gas 0 or 1, brake 0 or 1, steer -1 (left) .. 1 (right)."""

    keys: KeyState
    controls: Controls


NOTHING_HELD = Held(NO_KEYS, (0.0, 0.0, 0.0))


class InputTimeline:
    """Inputs at each race time, from changes in time order.

    Attributes:
        is_analog: whether a wheel or pedals are used.
        ends_ms: the last change's race time; 0 without any.
    """

    def __init__(self, events: Sequence[InputEvent]) -> None:
        self.is_analog = any(event.input in (Input.STEER, Input.GAS) for event in events)
        self.ends_ms = events[-1].time_ms if events else 0
        inputs = InputState(np.zeros((len(InputSlot), 2), dtype=np.uint32))
        self._times_ms: list[int] = []
        self._held: list[Held] = []
        for time_ms, of_time in groupby(events, key=lambda event: event.time_ms):
            inputs.apply(list(of_time))
            self._times_ms.append(time_ms)
            self._held.append(Held(inputs.keys, inputs.controls))

    def at(self, time_ms: float) -> Held:
        """Return the inputs at a race time, changes at it included."""
        index = bisect_right(self._times_ms, time_ms) - 1
        return self._held[index] if index >= 0 else NOTHING_HELD

    def controls_at(self, times_ms: Iterable[float]) -> npt.NDArray[np.float64]:
        """Return (n, 3) gas, brake and steer at race times."""
        return np.array([self.at(time_ms).controls for time_ms in times_ms], dtype=np.float64).reshape(-1, 3)


def input_picture(held: Held, is_analog: bool, height_px: int) -> Sprite:
    """Draw keys, or if `is_analog` steering and pedals; the width is `WIDTH_PER_HEIGHT` times the height."""
    if not is_analog:
        return keys_picture(held.keys, height_px)
    gas, brake, steer = held.controls
    return _wheel_picture(round(steer * _STEER_STEPS), gas > 0, brake > 0, height_px)


@functools.lru_cache(maxsize=256)
def keys_picture(keys: KeyState, height_px: int) -> Sprite:
    """Draw four arrow keys, (height_px, WIDTH_PER_HEIGHT * height_px, 4)."""
    picture, unit_px = _board(height_px)
    draw = ImageDraw.Draw(picture)
    for name, (left, top), color in _KEYS:
        is_held = getattr(keys, name)
        box = [(side + _KEY_MARGIN) * unit_px for side in (left, top)]
        box += [(side + 1 - _KEY_MARGIN) * unit_px for side in (left, top)]
        border = max(1, round(0.04 * unit_px))
        draw.rounded_rectangle(box, 0.16 * unit_px, color if is_held else _OFF, _BORDER, border)
        arrow = [((left + x) * unit_px, (top + y) * unit_px) for x, y in _ARROWS[name]]
        draw.polygon(arrow, _ARROW_ON if is_held else _ARROW_OFF)
    return _sprite(picture, height_px)


@functools.lru_cache(maxsize=1024)
def arrows_picture(keys: KeyState, height_px: int) -> Sprite:
    """Draw the pressed keys' arrows in a row, (height_px, 3 * height_px, 4)."""
    picture = Image.new("RGBA", (3 * height_px * _FINER, height_px * _FINER))
    draw, unit_px = ImageDraw.Draw(picture), height_px * _FINER
    for name, _, color in _KEYS:
        column = {"accelerate": 1, "brake": 2}.get(name, 0)
        if getattr(keys, name):
            draw.polygon([((column + x) * unit_px, y * unit_px) for x, y in _ARROWS[name]], color)
    return _sprite(picture, height_px)


@functools.lru_cache(maxsize=2048)
def _wheel_picture(steer: int, gas: bool, brake: bool, height_px: int) -> Sprite:
    picture, unit_px = _board(height_px)
    draw, border = ImageDraw.Draw(picture), max(1, round(0.04 * unit_px))
    for is_held, (_, box, color) in zip((gas, brake), _PEDALS, strict=True):
        sides = [side * unit_px for side in box]
        draw.rounded_rectangle(sides, 0.16 * unit_px, color if is_held else _OFF, _BORDER, border)
    for name, points in _WHEEL.items():
        corners = [(x * unit_px, y * unit_px) for x, y in points]
        draw.polygon(corners, _OFF)
        (tip_px, middle_px), (base_px, top_px), (_, bottom_px) = corners
        turned = max(0.0, -steer if name == "left" else steer) / _STEER_STEPS
        if turned:  # the triangle's part from the base to where the wheel is
            end_px, half_px = base_px + turned * (tip_px - base_px), (1 - turned) * (bottom_px - top_px) / 2
            filled = [(base_px, top_px), (end_px, middle_px - half_px), (end_px, middle_px + half_px)]
            draw.polygon([*filled, (base_px, bottom_px)], BLUE)
        draw.line([*corners, corners[0]], _BORDER, border, joint="curve")
    return _sprite(picture, height_px)


def _board(height_px: int) -> tuple[Image.Image, float]:
    size = round(WIDTH_PER_HEIGHT * height_px) * _FINER, height_px * _FINER
    return Image.new("RGBA", size), height_px * _FINER / 2


def _sprite(picture: Image.Image, height_px: int) -> Sprite:
    smaller = picture.resize((picture.width // _FINER, height_px), Image.Resampling.BOX)
    sprite = np.ascontiguousarray(np.asarray(smaller)[:, :, (2, 1, 0, 3)])
    sprite.flags.writeable = False
    return sprite
