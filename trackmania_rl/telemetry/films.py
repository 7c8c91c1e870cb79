"""Race films with an overlay, from a game that plays inputs, from the simulated game, or from a race's frames."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import psutil
from PIL import Image, ImageDraw, ImageFont

from trackmania_rl.protocol.input_script import InputEvent, parse_input_script, read_input_script
from trackmania_rl.protocol.messages import TICK_MS, KeyState, key_states
from trackmania_rl.protocol.state_blob import StateView
from trackmania_rl.settings import GameSettings
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.telemetry.input_picture import (
    WIDTH_PER_HEIGHT,
    InputTimeline,
    Sprite,
    arrows_picture,
    input_picture,
)
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.telemetry.video import VideoFile
from trackmania_rl.tmi_interaction.script_player import Filming, ScriptPlayer, ScriptResult
from trackmania_rl.track.map_sources import track_of

SIZE_PX: Final = (640, 360)
"""Width and height for simulated game films."""
FRAME_MS: Final = 40
"""Race time between two pictures in such a film."""
LEAST_HEIGHT_PX: Final = 360
"""Height to which observation frames are enlarged."""
GIF_WIDTH_PX: Final = 320
GIF_FRAME_MS: Final = 80
"""Shortest time between two pictures in a GIF, a multiple of the format's 10 ms."""
NICENESS: Final = 10
HOLD_S: Final = 1.0
"""Last picture's duration."""
_BASE_PX: Final = (640, 480)
"""Picture to which the sizes below refer."""
_MARGIN: Final = 12
_INPUTS_HEIGHT: Final = 88
_TIME_TEXT: Final = 32
_SPEED_TEXT: Final = 48
_SMALL_TEXT: Final = 18
_VALUE_ROW: Final = 13
_VALUES_WIDTH: Final = 128
_PADDING: Final = 6
_LEAST_TEXT_PX: Final = 9
_DIGIT_SHARE: Final = 0.72
"""Digit height, as a share of the font size."""
_PANEL_ALPHA: Final = 140
"""Opacity (0..255) for the black panels behind texts."""
_WHITE: Final = (255, 255, 255)
_BEST: Final = (113, 204, 46)
_OTHER: Final = (190, 190, 190)


@dataclass(frozen=True)
class FilmData:
    """Columns for a race's T actions, besides the inputs; unknown columns are None.

    Attributes:
        ms_per_action: an action's duration.
        q_values: (T, A) float32; (T, 1) for an analog action.
        action_keys: (A, 4) bool, each action's keys as in `KeyState`.
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
    def of_game(cls, game: GameSettings, q_values: npt.NDArray[np.float32] | None) -> FilmData:
        """Return a race's columns, from the Q values."""
        keys = np.array(key_states(game.inputs)) if game.actions == "keys" else None
        return cls(game.ms_per_action, q_values, keys)


def with_overlay(
    shot: Shot, timeline: InputTimeline | None = None, columns: FilmData | None = None
) -> npt.NDArray[np.uint8]:
    """Return a copy of a picture with the time, and with speed, inputs and Q values if they are known."""
    image = Image.fromarray(shot.frame)  # its "red" is blue
    scale = min(image.width / _BASE_PX[0], image.height / _BASE_PX[1])
    canvas = _Canvas(image, ImageDraw.Draw(image), scale)
    inputs_px = max(2, canvas.px(_INPUTS_HEIGHT))
    margin_px = canvas.px(_MARGIN)
    top_px = image.height - margin_px - inputs_px
    _draw_time(canvas, shot.time_ms)
    if shot.speed_m_s is not None or shot.gear is not None:
        width_px = round(inputs_px * WIDTH_PER_HEIGHT)
        _draw_speed(canvas, (image.width - margin_px - width_px, top_px, width_px, inputs_px), shot)
    if timeline is not None:
        held = timeline.at(shot.time_ms)
        canvas.paste(input_picture(held, timeline.is_analog, inputs_px), margin_px, top_px)
    if columns is not None and columns.q_values is not None and len(columns.q_values):
        index = min(shot.time_ms // columns.ms_per_action, len(columns.q_values) - 1)
        _draw_values(canvas, columns.q_values[index], columns.action_keys)
    return np.asarray(image)


class _Canvas(NamedTuple):
    image: Image.Image
    draw: ImageDraw.ImageDraw
    scale: float

    def px(self, size: float) -> int:
        return round(size * self.scale)

    def font(self, size: float) -> Any:
        return _font(max(_LEAST_TEXT_PX, self.px(size)))

    def panel(self, left_px: int, top_px: int, width_px: int, height_px: int) -> None:
        """Darken a rectangle."""
        self.image.paste((0, 0, 0, 255), (left_px, top_px), Image.new("L", (width_px, height_px), _PANEL_ALPHA))

    def write(self, x_px: float, y_px: float, text: str, size: float, anchor: str) -> None:
        """Write from ("ls"), around ("ms") or up to ("rs") a point on the baseline."""
        self.draw.text((x_px, y_px), text, _WHITE, self.font(size), anchor)

    def paste(self, sprite: Sprite, left_px: int, top_px: int) -> None:
        picture = Image.fromarray(sprite)
        self.image.paste(picture, (left_px, top_px), picture)


@functools.lru_cache(maxsize=8)
def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size_px)


def _draw_time(canvas: _Canvas, time_ms: int) -> None:
    font, padding_px, top_px = canvas.font(_TIME_TEXT), canvas.px(_PADDING), canvas.px(_MARGIN)
    # As wide as the widest digits, so the panel width is constant.
    width_px = round(font.getlength("0" * 7)) + 2 * padding_px
    height_px = round(_DIGIT_SHARE * font.size)
    canvas.panel((canvas.image.width - width_px) // 2, top_px, width_px, height_px + 2 * padding_px)
    text = format_time(time_ms)[:-1]  # the game's times have two decimals
    canvas.write(canvas.image.width / 2, top_px + padding_px + height_px, text, _TIME_TEXT, "ms")


def _draw_speed(canvas: _Canvas, box_px: tuple[int, int, int, int], shot: Shot) -> None:
    left_px, top_px, width_px, height_px = box_px
    padding_px = canvas.px(_PADDING)
    right_px, bottom_px = left_px + width_px - padding_px, top_px + height_px - 2 * padding_px
    canvas.panel(*box_px)
    if shot.speed_m_s is not None:
        baseline_px = top_px + padding_px + round(_DIGIT_SHARE * canvas.font(_SPEED_TEXT).size)
        canvas.write(right_px, baseline_px, f"{3.6 * shot.speed_m_s:.0f}", _SPEED_TEXT, "rs")
        canvas.write(right_px, bottom_px, "km/h", _SMALL_TEXT, "rs")
    if shot.gear is not None:
        canvas.write(left_px + padding_px, bottom_px, f"gear {shot.gear or 'R'}", _SMALL_TEXT, "ls")


def _draw_values(canvas: _Canvas, values: npt.NDArray[np.float32], action_keys: npt.NDArray[np.bool_] | None) -> None:
    padding_px, margin_px, width_px = canvas.px(_PADDING), canvas.px(_MARGIN), canvas.px(_VALUES_WIDTH)
    title_px, row_px = canvas.px(_SMALL_TEXT), max(3, canvas.px(_VALUE_ROW))
    best, n_rows = int(np.argmax(values)), len(values) if len(values) > 1 else 0
    canvas.panel(margin_px, margin_px, width_px, title_px + row_px * n_rows + 3 * padding_px)
    canvas.write(margin_px + padding_px, margin_px + title_px, f"Q {values[best]:.2f}", _SMALL_TEXT, "ls")
    label_px = 3 * row_px + padding_px if action_keys is not None else 0
    left_px, top_px = margin_px + padding_px + label_px, margin_px + title_px + 2 * padding_px
    shares = (values - values.min()) / max(float(np.ptp(values)), 1e-9)
    for number, share in enumerate(shares[:n_rows].tolist()):
        row = top_px + number * row_px
        if action_keys is not None:
            keys = KeyState(*map(bool, action_keys[number]))
            canvas.paste(arrows_picture(keys, row_px), margin_px + padding_px, row)
        bar_px = max(1, round(share * (width_px - 2 * padding_px - label_px)))
        colour = _BEST if number == best else _OTHER
        canvas.draw.rectangle((left_px, row + 1, left_px + bar_px - 1, row + row_px - 2), colour)


class Shot(NamedTuple):
    """Picture for a film, (H, W, 4) uint8 blue, green, red, alpha. Speed and gear are None if unknown."""

    frame: npt.NDArray[np.uint8]
    time_ms: int
    speed_m_s: float | None
    gear: int | None


Overlay = Callable[[Shot], npt.NDArray[np.uint8]]


class RaceVideo(VideoFile):
    """Race video; without an overlay, the bare picture."""

    def __init__(self, path: Path, frames_per_s: float, overlay: Overlay | None, n_threads: int = 0) -> None:
        super().__init__(path, frames_per_s, n_threads=n_threads)
        self._overlay = overlay
        self._last: Shot | None = None

    def show(self, shot: Shot) -> npt.NDArray[np.uint8]:
        """Add a picture; return it with the overlay. A `UserError` if the file cannot be written."""
        self._last = shot._replace(frame=shot.frame.copy())
        picture = self._last.frame if self._overlay is None else self._overlay(self._last)
        self.write(picture)
        return picture

    def hold(self, time_ms: int) -> None:
        """Repeat the last picture for `HOLD_S`, with another time."""
        if self._last is not None:
            for _ in range(round(HOLD_S * self._frames_per_s)):
                self.show(self._last._replace(time_ms=time_ms))


def film_script(
    player: ScriptPlayer,
    map_path: str,
    script: Path,
    video: Path,
    size_px: tuple[int, int],
    frames_per_s: int,
    columns: FilmData | None = None,
    has_overlay: bool = True,
    on_race_time_ms: Callable[[int], object] = lambda _: None,
    **how: Any,
) -> ScriptResult:
    """Play a script on a game and film it at one of `FRAMES_PER_S`; `how` goes to `ScriptPlayer.play`.

    `on_race_time_ms` is called with each picture's race time.

    Raises:
        UserError: if the map or the script cannot be used, or the video cannot be written.
        GameError: if the game is gone, does not answer, or answers wrongly.
    """
    timeline = InputTimeline(read_input_script(script))
    overlay = functools.partial(with_overlay, timeline=timeline, columns=columns) if has_overlay else None
    with RaceVideo(video, frames_per_s, overlay) as film:
        moment: tuple[int, float, int] = (0, 0.0, 0)

        def note(state: StateView) -> None:
            nonlocal moment
            moment = state.race_time_ms, float(np.linalg.norm(state.velocity_m_s)), state.gear

        def show(frame: npt.NDArray[np.uint8]) -> None:
            film.show(Shot(frame, *moment))
            on_race_time_ms(moment[0])

        filming = Filming(size_px, show, 1000 // frames_per_s)
        race = player.play(map_path, script, filming, on_state=note, **how)
        film.hold(race.race_time_ms)
    return race


def film_inputs(
    track: Track, events: list[InputEvent], until_ms: int, size_px: tuple[int, int] = SIZE_PX
) -> Iterator[Shot]:
    """Drive inputs on a simulated track; yield a picture every `FRAME_MS` until `until_ms` or the finish."""
    for race in driven_states(track, events, until_ms, FRAME_MS):
        car = race.car[0]
        race.take_checkpoint_event()  # so that the clock stops at the finish
        yield Shot(
            race.render(*size_px), race.race_time_ms, float(np.linalg.norm(car["velocity_m_s"])), int(car["gear"])
        )


def driven_states(track: Track, events: list[InputEvent], until_ms: int, every_ms: int) -> Iterator[SimulatedRace]:
    """Drive inputs; yield the race every `every_ms` from the start until the finish or `until_ms`."""
    race = SimulatedRace(track)
    race.play_script(events)
    while race.tick_time_ms < 0:
        race.advance(-race.tick_time_ms // TICK_MS)
    while True:
        yield race
        ends_ms = race.tick_time_ms + every_ms
        if race.is_finished or ends_ms > until_ms:
            return
        while race.tick_time_ms < ends_ms and not race.is_finished:
            race.advance((ends_ms - race.tick_time_ms) // TICK_MS)


def film_frames(columns: FilmData) -> Iterator[Shot]:
    """Yield a race's frames, enlarged to at least `LEAST_HEIGHT_PX`."""
    assert columns.frames is not None
    for number, frame in enumerate(columns.frames):
        factor = max(1, -(-LEAST_HEIGHT_PX // frame.shape[0]))
        larger = cv2.resize(frame, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
        yield Shot(
            cv2.cvtColor(larger, cv2.COLOR_GRAY2BGRA),
            number * columns.ms_per_action,
            None if columns.speed_m_s is None else float(columns.speed_m_s[number]),
            None if columns.gear is None else int(columns.gear[number]),
        )


def write_films(file: Path, shots: Iterator[Shot], ms_per_shot: int, overlay: Overlay, race_time_ms: int) -> None:
    """Write a film of shots, `ms_per_shot` apart, as .mp4 and as .gif. `race_time_ms` is shown at the end.

    Raises:
        UserError: if the video cannot be written.
        OSError: if the GIF cannot be written.
    """
    every = -(-GIF_FRAME_MS // ms_per_shot)
    small: list[Image.Image] = []
    with RaceVideo(file, 1000 / ms_per_shot, overlay, n_threads=1) as video:
        for number, shot in enumerate(shots):
            picture = video.show(shot)
            if number % every == 0:
                small.append(_gif_picture(picture))
        video.hold(race_time_ms)
    write_gif(file.with_suffix(".gif"), small, every * ms_per_shot)


def write_gif(file: Path, pictures: list[Image.Image], ms_per_picture: int) -> None:
    """Write an animated GIF that repeats."""
    part = file.with_name(f"{file.name}.part")
    pictures[0].save(part, format="GIF", save_all=True, append_images=pictures[1:], duration=ms_per_picture, loop=0)
    part.replace(file)


def _gif_picture(picture: npt.NDArray[Any]) -> Image.Image:
    height_px, width_px = picture.shape[:2]
    if width_px > GIF_WIDTH_PX:
        size = GIF_WIDTH_PX, round(height_px * GIF_WIDTH_PX / width_px)
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    return Image.fromarray(np.ascontiguousarray(picture[:, :, 2::-1])).quantize()


def film_evaluation(file: Path, track: str | None, inputs: str, columns: FilmData, race_time_ms: int) -> None:
    """Film a race, and lower the priority of this process for it.

    A race on a simulated track is driven again from the inputs. For any other race, the film shows the frames.

    Raises:
        UserError: if the track cannot be used, or the video cannot be written.
        OSError: if the GIF cannot be written.
    """
    process = psutil.Process()
    process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else NICENESS)
    events = parse_input_script(inputs)
    timeline = InputTimeline(events) if inputs else None
    overlay = functools.partial(with_overlay, timeline=timeline, columns=columns)
    if track is not None:
        write_films(file, film_inputs(track_of(track), events, race_time_ms), FRAME_MS, overlay, race_time_ms)
    else:
        write_films(file, film_frames(columns), columns.ms_per_action, overlay, race_time_ms)
