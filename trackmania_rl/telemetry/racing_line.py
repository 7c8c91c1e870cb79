"""A picture of a race from above: the line that was driven over the track, coloured by speed."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

KM_H_PER_M_S = 3.6
LONG_SIDE_PX = 900
"""Longer side of the map itself, in pixels."""
ROAD_WIDTH_M = 20.0
"""How wide the road of a track is drawn whose width nobody knows."""
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


@dataclass(frozen=True)
class _View:
    """From world metres to pixels: seen from above, x to the right and z down (y is up, so this is not mirrored)."""

    origin_m: npt.NDArray[np.float64]
    offset_px: npt.NDArray[np.float64]
    px_per_m: float
    width_px: int
    height_px: int

    @classmethod
    def of(cls, ground_m: Points) -> _View:
        """The view in which all points fit; `ground_m` is (N, 2): x and z."""
        low_m, high_m = ground_m.min(axis=0).astype(np.float64), ground_m.max(axis=0).astype(np.float64)
        px_per_m = LONG_SIDE_PX / max(float((high_m - low_m).max()), 1.0)
        size_px = (high_m - low_m) * px_per_m
        width_px = max(int(size_px[0]) + 2 * MARGIN_PX, SHORTEST_WIDTH_PX)
        map_height_px = max(int(size_px[1]) + 2 * MARGIN_PX, SHORTEST_SIDE_PX)
        offset_px = np.array([(width_px - size_px[0]) / 2, HEADER_PX + (map_height_px - size_px[1]) / 2])
        return cls(low_m, offset_px, px_per_m, width_px, HEADER_PX + map_height_px + LEGEND_PX)

    def pixels(self, ground_m: Points) -> npt.NDArray[np.int32]:
        """(N, 2) pixel coordinates in fixed point with `SUBPIXEL_BITS`."""
        pixels = (ground_m - self.origin_m) * self.px_per_m + self.offset_px
        return np.round(pixels * (1 << SUBPIXEL_BITS)).astype(np.int32)


def draw_racing_line(
    reference_line_m: Points, positions_m: Points, ms_per_action: int, title: str, subtitle: str, road_width_m: float
) -> Picture:
    """Draws a race.

    Args:
        reference_line_m: (N, 3) the track's line, world axes, in metres.
        positions_m: (T, 3) the car at each decision, T >= 1.
        ms_per_action: game time between two of them; the speed follows from both.
        title: for example the map's name and the race's time.
        subtitle: for example how many frames the run had seen.
        road_width_m: how wide the road is drawn.

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
    _draw_track(picture, view, reference_line_m, road_width_m)
    speeds_km_h = _speeds_km_h(positions_m, ms_per_action)
    top_km_h = max(SPEED_STEP_KM_H, float(np.ceil(speeds_km_h.max() / SPEED_STEP_KM_H)) * SPEED_STEP_KM_H)
    _draw_driven(picture, view.pixels(driven_m), _colours(speeds_km_h / top_km_h))
    _write(picture, title, (MARGIN_PX, 26), 0.6, TEXT)
    _write(picture, subtitle, (MARGIN_PX, 46), 0.45, FAINT_TEXT)
    _draw_speed_scale(picture, top_km_h)
    _draw_distance_scale(picture, view.px_per_m)
    return picture


def _speeds_km_h(positions_m: Points, ms_per_action: int) -> npt.NDArray[np.float64]:
    """(max(T - 1, 1),) mean speed between each two decisions."""
    if len(positions_m) == 1:
        return np.zeros(1)
    steps_m = np.linalg.norm(np.diff(positions_m.astype(np.float64), axis=0), axis=1)
    return steps_m / (ms_per_action / 1000) * KM_H_PER_M_S


def _colours(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """(N, 3) RGB of speeds given as shares of the scale: blue is slow, red is fast."""
    # The dark ends of the map would vanish against the road.
    levels = np.round(25 + 205 * np.clip(shares, 0, 1)).astype(np.uint8)
    return cv2.applyColorMap(levels[:, None], cv2.COLORMAP_TURBO)[:, 0, ::-1].astype(np.uint8)


def _draw_track(picture: Picture, view: _View, reference_line_m: Points, road_width_m: float) -> None:
    pixels = view.pixels(reference_line_m[:, ::2])
    road_px = max(3, round(road_width_m * view.px_per_m))
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
    """A bar of 1, 2 or 5 times a power of ten metres, at most 160 pixels long."""
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
