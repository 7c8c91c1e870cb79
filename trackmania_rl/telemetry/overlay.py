"""What a race's video tells besides its picture: time, speed, gear, inputs and Q values, at the picture's borders.

The camera is bolted to the car, which therefore always is in the middle of the lower half; nothing is drawn there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import KeyState, key_states
from trackmania_rl.settings import GameSettings
from trackmania_rl.telemetry.input_picture import WIDTH_PER_HEIGHT, Sprite, arrows_picture, input_picture
from trackmania_rl.telemetry.input_timeline import InputTimeline
from trackmania_rl.telemetry.terminal_view import format_time

_BASE_PX: Final = (640, 480)
"""All sizes below are of a picture of so many pixels; others have them larger or smaller."""
_MARGIN: Final = 12
_INPUTS_HEIGHT: Final = 88
_TIME_TEXT: Final = 32
_SPEED_TEXT: Final = 48
_SMALL_TEXT: Final = 18
_VALUE_ROW: Final = 13
_VALUES_WIDTH: Final = 128
_PADDING: Final = 6
_LEAST_TEXT_PX: Final = 9
_PANEL_SHARE: Final = 0.45
"""How much of the picture is left behind a panel."""
_WHITE: Final = (255, 255, 255)
_BEST: Final = (113, 204, 46)
_OTHER: Final = (190, 190, 190)
_KM_H_PER_M_S: Final = 3.6
_OF_NUMBERS: Final = frozenset("0123456789:.")


@dataclass(frozen=True)
class RaceColumns:
    """What is known of each of a race's T actions beyond its inputs; parts that are not known are None.

    Attributes:
        ms_per_action: how long an action lasts.
        q_values: (T, A) float32, the values of all actions; (T, 1) of an analog one.
        action_keys: (A, 4) bool, the keys of each action, as `KeyState` has them.
        speed_m_s: (T,) float32.
        gear: (T,) int64.
        frames: (T, H, W) uint8, gray.
    """

    ms_per_action: int
    q_values: npt.NDArray[np.float32] | None = None
    action_keys: npt.NDArray[np.bool_] | None = None
    speed_m_s: npt.NDArray[np.float32] | None = None
    gear: npt.NDArray[np.int64] | None = None
    frames: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of_game(cls, game: GameSettings, q_values: npt.NDArray[np.float32] | None) -> RaceColumns:
        """Make those that a race of a game was decided by."""
        keys = np.array(key_states(game.inputs)) if game.actions == "keys" else None
        return cls(game.ms_per_action, q_values, keys)

    def save(self, file: Path) -> None:
        """Write an .npz file; an `OSError` if the disk fails."""
        np.savez(file, **{name: value for name, value in vars(self).items() if value is not None})

    @classmethod
    def load(cls, file: Path) -> RaceColumns:
        """Read what `save` wrote.

        Raises:
            UserError: if it is another file, or none.
        """
        try:
            with np.load(file, allow_pickle=False) as columns:
                named = {name: columns[name] for name in columns.files}
            return cls(int(named.pop("ms_per_action")), **named)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise UserError(f"{file}: no columns of a race: {error}") from error


class RaceOverlay:
    """Draws what is known of a race into its pictures.

    Args:
        timeline: the race's inputs; None where they are not known.
        columns: may have Q values; None where none are known.
    """

    def __init__(self, timeline: InputTimeline | None = None, columns: RaceColumns | None = None) -> None:
        self._timeline = timeline
        self._columns = columns

    def draw(self, picture: Sprite, time_ms: int, speed_m_s: float | None, gear: int | None) -> None:
        """Draw into a picture.

        Args:
            picture: (H, W, 4) uint8, blue, green, red, alpha; changed.
            time_ms: race time.
            speed_m_s: the car's speed, None if it is not known.
            gear: 0 is reverse; None if it is not known.
        """
        height_px, width_px = picture.shape[:2]
        scale = min(width_px / _BASE_PX[0], height_px / _BASE_PX[1])
        _draw_time(picture, time_ms, scale)
        _draw_speed(picture, speed_m_s, gear, scale)
        if self._timeline is not None:
            sprite = input_picture(
                self._timeline.at(time_ms), self._timeline.is_analog, max(2, round(_INPUTS_HEIGHT * scale))
            )
            margin_px = round(_MARGIN * scale)
            paste(picture, sprite, margin_px, height_px - margin_px - sprite.shape[0])
        if self._columns is not None and self._columns.q_values is not None and len(self._columns.q_values):
            index = min(time_ms // self._columns.ms_per_action, len(self._columns.q_values) - 1)
            _draw_values(picture, self._columns.q_values[index], self._columns.action_keys, scale)


def paste(picture: Sprite, sprite: Sprite, left_px: int, top_px: int) -> None:
    """Lay a picture over another one; what reaches beyond it is cut off.

    Args:
        picture: (H, W, 4) uint8; its first three channels are changed.
        sprite: (h, w, 4) uint8, the last one alpha.
        left_px: column of the sprite's left border, 0 or more.
        top_px: row of its upper border, 0 or more.
    """
    place = picture[top_px : top_px + sprite.shape[0], left_px : left_px + sprite.shape[1], :3]
    above = sprite[: place.shape[0], : place.shape[1]].astype(np.uint16)
    alpha = above[:, :, 3:]
    place[:] = (above[:, :, :3] * alpha + place * (255 - alpha) + 127) // 255


def _draw_time(picture: Sprite, time_ms: int, scale: float) -> None:
    text = _text(format_time(time_ms)[:-1], _text_px(_TIME_TEXT, scale), _WHITE)  # the game's times have two decimals
    # As wide as the widest digits: a panel that changes its width with them would tremble.
    width_px = _text("0" * 7, _text_px(_TIME_TEXT, scale), _WHITE).shape[1] + 2 * round(_PADDING * scale)
    height_px = text.shape[0] + 2 * round(_PADDING * scale)
    left_px, top_px = (picture.shape[1] - width_px) // 2, round(_MARGIN * scale)
    _darken(picture, left_px, top_px, width_px, height_px)
    paste(picture, text, left_px + (width_px - text.shape[1]) // 2, top_px + round(_PADDING * scale))


def _draw_speed(picture: Sprite, speed_m_s: float | None, gear: int | None, scale: float) -> None:
    """Draw speed and gear in a panel as large as the inputs', on the other side."""
    if speed_m_s is None and gear is None:
        return
    margin_px, padding_px = round(_MARGIN * scale), round(_PADDING * scale)
    height_px = round(_INPUTS_HEIGHT * scale)
    width_px = round(height_px * WIDTH_PER_HEIGHT)
    left_px, top_px = picture.shape[1] - margin_px - width_px, picture.shape[0] - margin_px - height_px
    _darken(picture, left_px, top_px, width_px, height_px)
    small_px = _text_px(_SMALL_TEXT, scale)
    if speed_m_s is not None:
        speed = _text(f"{speed_m_s * _KM_H_PER_M_S:.0f}", _text_px(_SPEED_TEXT, scale), _WHITE)
        paste(picture, speed, left_px + width_px - padding_px - speed.shape[1], top_px + padding_px)
        unit = _text("km/h", small_px, _WHITE)
        bottom_px = top_px + height_px - padding_px - unit.shape[0]
        paste(picture, unit, left_px + width_px - padding_px - unit.shape[1], bottom_px)
    if gear is not None:
        shown = _text(f"gear {gear or 'R'}", small_px, _WHITE)
        paste(picture, shown, left_px + padding_px, top_px + height_px - padding_px - shown.shape[0])


def _draw_values(
    picture: Sprite, values: npt.NDArray[np.float32], action_keys: npt.NDArray[np.bool_] | None, scale: float
) -> None:
    """Draw the highest value, and below it a bar for each action: as long as it is high among them."""
    padding_px, margin_px = round(_PADDING * scale), round(_MARGIN * scale)
    row_px, width_px = max(3, round(_VALUE_ROW * scale)), round(_VALUES_WIDTH * scale)
    best = int(np.argmax(values))
    title = _text(f"Q {values[best]:.2f}", _text_px(_SMALL_TEXT, scale), _WHITE)
    n_rows = len(values) if len(values) > 1 else 0
    height_px = title.shape[0] + row_px * n_rows + 3 * padding_px
    _darken(picture, margin_px, margin_px, width_px, height_px)
    paste(picture, title, margin_px + padding_px, margin_px + padding_px)
    top_px = margin_px + title.shape[0] + 2 * padding_px
    label_px = 3 * row_px + padding_px if action_keys is not None else 0
    left_px = margin_px + padding_px + label_px
    longest_px = width_px - 2 * padding_px - label_px
    lowest, highest = float(values.min()), float(values.max())
    for number, value in enumerate(values[:n_rows].tolist()):
        row = top_px + number * row_px
        if action_keys is not None:
            keys = KeyState(*map(bool, action_keys[number]))
            paste(picture, arrows_picture(keys, row_px), margin_px + padding_px, row)
        share = (value - lowest) / (highest - lowest) if highest > lowest else 0.0
        bar_px = max(1, round(share * longest_px))
        color = _BEST if number == best else _OTHER
        picture[row + 1 : row + row_px - 1, left_px : left_px + bar_px, :3] = color


def _darken(picture: Sprite, left_px: int, top_px: int, width_px: int, height_px: int) -> None:
    """Make a panel on which text can be read."""
    place = picture[max(0, top_px) : top_px + height_px, max(0, left_px) : left_px + width_px, :3]
    place[:] = (place * _PANEL_SHARE).astype(np.uint8)


def _text_px(size: float, scale: float) -> int:
    return max(_LEAST_TEXT_PX, round(size * scale))


@functools.lru_cache(maxsize=8)
def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size_px)


@functools.lru_cache(maxsize=512)
def _text(text: str, size_px: int, color: tuple[int, int, int]) -> Sprite:
    """Draw a line of text, as wide as it needs; numbers are as high as a digit, and all other texts as each other."""
    font = _font(size_px)
    left, _, right, _ = (round(side) for side in font.getbbox(text))
    _, top, _, bottom = (round(side) for side in font.getbbox("0" if set(text) <= _OF_NUMBERS else "0gk/"))
    mask = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font)
    alpha = np.asarray(mask)
    return np.dstack((np.full((*alpha.shape, 3), color, np.uint8), alpha))
