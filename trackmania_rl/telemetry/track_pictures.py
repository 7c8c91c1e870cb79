"""Tracks from above: their shapes for the page, and pictures of a race's line coloured by speed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import is_challenge_file, read_checkpoint_positions
from trackmania_rl.race.zones import ROAD_WIDTH_M, ZONE_SPACING_M
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.track.game_map import map_file
from trackmania_rl.track.line_building import arc_length, directions
from trackmania_rl.track.reference_line import load_reference_line

SHAPE_EVERY_M: Final = 2.0
"""Distance between two points of a shape."""
KM_H_PER_M_S = 3.6
LONG_SIDE_PX = 900
"""Longer side of the map itself, in pixels."""
DRAWN_ROAD_WIDTH_M = 20.0
MARGIN_PX = 36
HEADER_PX = 56
LEGEND_PX = 56
SHORTEST_SIDE_PX = 240
"""A straight track still gets a picture this high, and wide enough for its header and legend."""
SHORTEST_WIDTH_PX = 560
SPEED_STEP_KM_H = 50.0
"""The colour scale ends at a multiple of this."""
PIECE_POINTS = 32
"""The road is drawn in pieces of so many points of its line."""
SUBPIXEL_BITS = 4
"""Fractional bits of drawn coordinates."""

# Colours are RGB throughout: OpenCV draws numbers, it does not know which is red.
BACKGROUND = (18, 22, 28)
ROAD = (52, 58, 68)
CENTRE_LINE = (92, 100, 112)
TEXT = (226, 230, 236)
FAINT_TEXT = (150, 158, 170)
START = (64, 200, 110)
FINISH = (240, 240, 240)
ROAD_BORDER = (104, 114, 130)

Picture = npt.NDArray[np.uint8]
Points = npt.NDArray[np.floating]


def track_of(text: str) -> Track:
    """Return a track by its file, or a generated track by its name.

    Raises:
        UserError: if the file cannot be used.
    """
    recipe = TrackRecipe.from_name(text)
    if recipe is None:
        return load_track(Path(text))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{recipe.name}.toml"
        generate_track(recipe).write(file)
        return load_track(file)


def shape_of(name: str, settings: Settings, maps_folder: Path) -> dict[str, Any]:
    """Return a track from above.

    Args:
        name: of a map in the map cycle, or of a generated track.
        settings: of the run.
        maps_folder: folder of tracks and lines.

    Returns:
        `points`: [x, z, half width, has road (0 or 1), y] from start to finish, in metres; `gates`: [x, z, across x,
        across z, half width, distance] of start, checkpoints and finish, across a unit vector to the left; `length_m`;
        `zone_m`, distance of two virtual checkpoints; `n_laps`.

    Raises:
        UserError: if there is no such map, or its files cannot be used.
    """
    if TrackRecipe.from_name(name) is not None:
        return _of_track(track_of(name)) | {"name": name, "zone_m": ZONE_SPACING_M}
    entry = next((entry for entry in settings.game.map_cycle if entry.map_name == name and entry.has_files), None)
    if entry is None:
        raise UserError(f"{name}: the run's map_cycle has no such map with files of its own")
    if settings.game.game == "simulated":
        shape = _of_track(track_of(str(map_file(entry, maps_folder))))
    else:
        shape = _of_line(entry, maps_folder)
    return shape | {"name": name, "zone_m": ZONE_SPACING_M}


def _of_track(track: Track) -> dict[str, Any]:
    ribbon = track.ribbon
    spacing_m = float(ribbon.station_m[1] - ribbon.station_m[0])
    first, last = np.searchsorted(ribbon.station_m, (0.0, track.finish_station_m)).tolist()
    at = np.unique(np.append(np.arange(first, last, max(1, round(SHAPE_EVERY_M / spacing_m))), last))
    stations_m = np.array([0.0, *track.checkpoint_stations_m, track.finish_station_m])
    gates = np.minimum(np.searchsorted(ribbon.station_m, stations_m), len(ribbon.station_m) - 1)
    return {
        "points": _points(ribbon.center_m[at], ribbon.half_width_m[at], ribbon.has_road[at]),
        "gates": _gates(ribbon.center_m[gates], ribbon.left[gates], ribbon.half_width_m[gates], stations_m),
        "length_m": round(track.finish_station_m, 1),
        "n_laps": track.n_laps,
    }


def _of_line(entry: MapEntry, maps_folder: Path) -> dict[str, Any]:
    """Return the shape of a map of the real game: its line, and the checkpoints of its file."""
    line_m = load_reference_line(maps_folder / entry.reference_line)
    stations_m, half_width_m = arc_length(line_m), ROAD_WIDTH_M / 2
    at = np.unique(np.append(np.arange(0, len(line_m), max(1, round(SHAPE_EVERY_M / ZONE_SPACING_M))), len(line_m) - 1))
    challenge, passed = map_file(entry, maps_folder), set[int]()
    if is_challenge_file(challenge) and challenge.is_file():
        away_m = np.linalg.norm(read_checkpoint_positions(challenge)[:, None] - line_m[None], axis=2)
        passed = set(np.argmin(away_m, axis=1).tolist())
    gates = np.array(sorted({0, *passed, len(line_m) - 1}))
    forward = directions(line_m)[gates]
    left = np.stack((forward[:, 2], np.zeros(len(gates)), -forward[:, 0]), axis=1)
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    widths_m = np.full(len(line_m), half_width_m)
    return {
        "points": _points(line_m[at], widths_m[at], np.ones(len(at))),
        "gates": _gates(line_m[gates], left, widths_m[gates], stations_m[gates]),
        "length_m": round(float(stations_m[-1]), 1),
        "n_laps": 1,
    }


def _points(
    center_m: npt.NDArray[np.floating], half_width_m: npt.NDArray[np.floating], has_road: npt.NDArray[Any]
) -> list[list[float]]:
    columns = (center_m[:, 0], center_m[:, 2], half_width_m, has_road, center_m[:, 1])
    return np.stack(columns, axis=1).astype(np.float64).round(2).tolist()


def _gates(
    center_m: npt.NDArray[np.floating],
    left: npt.NDArray[np.floating],
    half_width_m: npt.NDArray[np.floating],
    stations_m: npt.NDArray[np.floating],
) -> list[list[float]]:
    columns = (center_m[:, 0], center_m[:, 2], left[:, 0], left[:, 2], half_width_m, stations_m)
    return np.stack(columns, axis=1).astype(np.float64).round(3).tolist()


@dataclass(frozen=True)
class _View:
    """World metres to pixels, seen from above: x to the right, z down."""

    origin_m: npt.NDArray[np.float64]
    offset_px: npt.NDArray[np.float64]
    px_per_m: float
    width_px: int
    height_px: int

    @classmethod
    def of(cls, ground_m: Points) -> _View:
        """Return the view of all points (N, 2), x and z."""
        low_m, high_m = ground_m.min(axis=0).astype(np.float64), ground_m.max(axis=0).astype(np.float64)
        px_per_m = LONG_SIDE_PX / max(float((high_m - low_m).max()), 1.0)
        size_px = (high_m - low_m) * px_per_m
        width_px = max(int(size_px[0]) + 2 * MARGIN_PX, SHORTEST_WIDTH_PX)
        map_height_px = max(int(size_px[1]) + 2 * MARGIN_PX, SHORTEST_SIDE_PX)
        offset_px = np.array([(width_px - size_px[0]) / 2, HEADER_PX + (map_height_px - size_px[1]) / 2])
        return cls(low_m, offset_px, px_per_m, width_px, HEADER_PX + map_height_px + LEGEND_PX)

    def pixels(self, ground_m: Points) -> npt.NDArray[np.int32]:
        """Return (N, 2) fixed-point pixels with `SUBPIXEL_BITS`."""
        pixels = (ground_m - self.origin_m) * self.px_per_m + self.offset_px
        return np.round(pixels * (1 << SUBPIXEL_BITS)).astype(np.int32)


def draw_racing_line(
    reference_line_m: Points, positions_m: Points, ms_per_action: int, title: str, subtitle: str
) -> Picture:
    """Draw a race from above, coloured by speed.

    Args:
        reference_line_m: (N, 3) line of the track, world axes.
        positions_m: (T, 3) the car at each decision, T >= 1.
        ms_per_action: game time between two decisions.
        title: first line of the header.
        subtitle: second line.

    Returns:
        (height, width, 3) uint8 RGB; the longer side has about `LONG_SIDE_PX` pixels.

    Raises:
        ValueError: if a shape is not as above.
    """
    for name, points in (("reference_line_m", reference_line_m), ("positions_m", positions_m)):
        if points.ndim != 2 or points.shape[1] != 3 or len(points) == 0:
            raise ValueError(f"{name} has shape {points.shape}; it must be (N, 3) with N >= 1")
    line_m, driven_m = reference_line_m[:, ::2], positions_m[:, ::2]
    view = _View.of(np.concatenate([line_m, driven_m]))
    picture = np.full((view.height_px, view.width_px, 3), BACKGROUND, dtype=np.uint8)
    _draw_track(picture, view, reference_line_m)
    speeds_km_h = _speeds_km_h(positions_m, ms_per_action)
    top_km_h = max(SPEED_STEP_KM_H, float(np.ceil(speeds_km_h.max() / SPEED_STEP_KM_H)) * SPEED_STEP_KM_H)
    _draw_driven(picture, view.pixels(driven_m), _colours(speeds_km_h / top_km_h))
    _write(picture, title, (MARGIN_PX, 26), 0.6, TEXT)
    _write(picture, subtitle, (MARGIN_PX, 46), 0.45, FAINT_TEXT)
    _draw_speed_scale(picture, top_km_h)
    _draw_distance_scale(picture, view.px_per_m)
    return picture


def _speeds_km_h(positions_m: Points, ms_per_action: int) -> npt.NDArray[np.float64]:
    """Return (max(T - 1, 1),) mean speeds between decisions."""
    if len(positions_m) == 1:
        return np.zeros(1)
    steps_m = np.linalg.norm(np.diff(positions_m.astype(np.float64), axis=0), axis=1)
    return steps_m / (ms_per_action / 1000) * KM_H_PER_M_S


def _colours(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return (N, 3) RGB of shares of the speed scale: blue is slow, red is fast."""
    # The dark ends of the map would vanish against the road.
    levels = np.round(25 + 205 * np.clip(shares, 0, 1)).astype(np.uint8)
    return cv2.applyColorMap(levels[:, None], cv2.COLORMAP_TURBO)[:, 0, ::-1].astype(np.uint8)


def _draw_track(picture: Picture, view: _View, reference_line_m: Points) -> None:
    pixels = view.pixels(reference_line_m[:, ::2])
    road_px = max(3, round(DRAWN_ROAD_WIDTH_M * view.px_per_m))
    # Piece by piece from the lowest to the highest, so that a bridge lies over the road below it. A piece's surface is
    # drawn beyond its ends, over the borders that its neighbours drew there.
    starts = range(0, max(len(pixels) - 1, 1), PIECE_POINTS)
    for start in sorted(starts, key=lambda start: float(reference_line_m[start, 1])):
        end = start + PIECE_POINTS + 1
        wider = pixels[max(0, start - PIECE_POINTS) : end + PIECE_POINTS]
        cv2.polylines(picture, [pixels[start:end]], False, ROAD_BORDER, road_px + 3, cv2.LINE_AA, SUBPIXEL_BITS)
        cv2.polylines(picture, [wider], False, ROAD, road_px, cv2.LINE_AA, SUBPIXEL_BITS)
        cv2.polylines(picture, [wider], False, CENTRE_LINE, 1, cv2.LINE_AA, SUBPIXEL_BITS)
    for end, neighbour, colour in ((0, 1, START), (-1, -2, FINISH)):
        if len(pixels) > 1:
            along = (pixels[neighbour] - pixels[end]).astype(np.float64)
            across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9)
            half = np.round(across * (road_px / 2 + 3) * (1 << SUBPIXEL_BITS)).astype(np.int32)
            _line(picture, pixels[end] - half, pixels[end] + half, colour, 3)


def _draw_driven(picture: Picture, pixels: npt.NDArray[np.int32], colours: npt.NDArray[np.uint8]) -> None:
    for start, end, colour in zip(pixels, pixels[1:], colours, strict=False):
        _line(picture, start, end, tuple(colour.tolist()), 2)
    last = tuple(pixels[-1].tolist())
    cv2.circle(picture, last, 5 << SUBPIXEL_BITS, TEXT, cv2.FILLED, cv2.LINE_AA, SUBPIXEL_BITS)
    cv2.circle(picture, last, 3 << SUBPIXEL_BITS, BACKGROUND, cv2.FILLED, cv2.LINE_AA, SUBPIXEL_BITS)


def _line(
    picture: Picture,
    start: npt.NDArray[np.int32],
    end: npt.NDArray[np.int32],
    colour: tuple[int, ...],
    thickness_px: int,
) -> None:
    cv2.line(picture, tuple(start.tolist()), tuple(end.tolist()), colour, thickness_px, cv2.LINE_AA, SUBPIXEL_BITS)


def _draw_speed_scale(picture: Picture, top_km_h: float) -> None:
    height_px = picture.shape[0]
    left_px, top_px, width_px = MARGIN_PX, height_px - LEGEND_PX + 12, 240
    bar = _colours(np.linspace(0, 1, width_px))
    picture[top_px : top_px + 10, left_px : left_px + width_px] = bar
    for share in (0.0, 0.5, 1.0):
        label = f"{share * top_km_h:.0f}" + (" km/h" if share == 1.0 else "")
        _write(picture, label, (left_px + round(share * width_px) - 8, top_px + 28), 0.42, FAINT_TEXT)


def _draw_distance_scale(picture: Picture, px_per_m: float) -> None:
    """Draw a bar of 1, 2 or 5 times a power of ten metres, at most 160 pixels long."""
    height_px, width_px = picture.shape[:2]
    candidates_m = np.array([factor * 10.0**power for power in range(5) for factor in (1, 2, 5)])
    fitting_m = candidates_m[candidates_m * px_per_m <= 160]
    length_m = float(fitting_m[-1]) if len(fitting_m) else 1.0
    right_px, y_px = width_px - MARGIN_PX, height_px - LEGEND_PX + 16
    left_px = right_px - round(length_m * px_per_m)
    cv2.line(picture, (left_px, y_px), (right_px, y_px), FAINT_TEXT, 1)
    for x_px in (left_px, right_px):
        cv2.line(picture, (x_px, y_px - 4), (x_px, y_px + 4), FAINT_TEXT, 1)
    _write(picture, f"{length_m:.0f} m", (left_px, y_px + 24), 0.42, FAINT_TEXT)


def _write(picture: Picture, text: str, corner_px: tuple[int, int], scale: float, colour: tuple[int, ...]) -> None:
    ascii_text = text.encode("ascii", "replace").decode()  # all that the built-in font has
    cv2.putText(picture, ascii_text, corner_px, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, 1, cv2.LINE_AA)
