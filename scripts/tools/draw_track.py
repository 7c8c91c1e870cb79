"""Draw a track: the road from above, coloured by surface, and its heights below.

``--drive`` draws the scripted driver's race over it: green while it accelerates, red while it brakes, white while it
rolls.

  python scripts/tools/draw_track.py maps/valley.toml --output valley.png
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command, png_file, whole_number, writing
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriveReport, drive
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Edge, Ribbon, Surface, Track

import cv2
import numpy as np
import numpy.typing as npt

BACKGROUND = (60, 90, 60)
INK = (255, 255, 255)
START_COLOUR, CHECKPOINT_COLOUR, FINISH_COLOUR = (90, 220, 90), (255, 170, 60), (60, 60, 235)
GAS_COLOUR, BRAKE_COLOUR = (120, 255, 120), (80, 80, 255)
SURFACE_COLOURS = {
    Surface.ASPHALT: (110, 110, 110),
    Surface.CONCRETE: (160, 160, 160),
    Surface.DIRT: (60, 100, 150),
    Surface.GRASS: (50, 150, 70),
    Surface.ICE: (235, 215, 180),
    Surface.TURBO: (40, 200, 240),
}
EDGE_COLOURS = {Edge.WALL: (230, 230, 230), Edge.GRASS: (80, 200, 80), Edge.DROP: (30, 30, 90)}
DRIVERS = {"careful": CAREFUL_DRIVER, "fast": FAST_DRIVER}
PROFILE_HEIGHT_PX = 220
MARGIN_PX = 40
LABEL_EVERY_M = 100.0

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Plan:
    """Projection from ground to picture: x to the right, z downwards, as in the game."""

    corner_m: npt.NDArray[np.float64]
    px_per_m: float

    def pixel(self, point_m: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
        """Return pixels (..., 2) for world positions (..., 3)."""
        return np.round((point_m[..., [0, 2]] - self.corner_m) * self.px_per_m + MARGIN_PX).astype(np.int32)


def draw_track(track: Track, width_px: int, race: DriveReport | None = None) -> Image:
    """Return a BGR picture (H, width_px, 3) for the track from start to finish, and for a race on it."""
    ribbon = track.ribbon
    first, last = np.searchsorted(ribbon.station_m, [-1e-6, track.finish_station_m])
    sections = np.arange(first, last + 1)
    borders_m = np.concatenate([_border(ribbon, sections, side) for side in (1.0, -1.0)])
    low_m, high_m = borders_m[:, [0, 2]].min(axis=0), borders_m[:, [0, 2]].max(axis=0)
    plan = Plan(low_m, (width_px - 2 * MARGIN_PX) / max(float(high_m[0] - low_m[0]), 0.5 * float(high_m[1] - low_m[1])))
    height_px = int((high_m[1] - low_m[1]) * plan.px_per_m) + 2 * MARGIN_PX
    picture = np.full((height_px, width_px, 3), BACKGROUND, dtype=np.uint8)
    _draw_road(picture, plan, ribbon, sections)
    _draw_marks(picture, plan, track)
    if race is not None:
        _draw_race(picture, plan, race)
    return np.concatenate([picture, _profile(track, sections, width_px)])


def _border(ribbon: Ribbon, sections: npt.NDArray[np.int64], side: float) -> npt.NDArray[np.float64]:
    """Return the left (side = 1) or right (-1) borders at cross-sections, (n, 3) metres."""
    return np.asarray(ribbon.center_m[sections] + side * ribbon.half_width_m[sections, None] * ribbon.left[sections])


def _draw_road(picture: Image, plan: Plan, ribbon: Ribbon, sections: npt.NDArray[np.int64]) -> None:
    """Fill the road from the start on, and line the borders; gaps stay empty."""
    left_px = plan.pixel(_border(ribbon, sections, 1.0))
    right_px = plan.pixel(_border(ribbon, sections, -1.0))
    for k, section in enumerate(sections[:-1]):
        if not ribbon.has_road[section]:
            continue
        corners = np.array([left_px[k], left_px[k + 1], right_px[k + 1], right_px[k]])
        cv2.fillConvexPoly(picture, corners, SURFACE_COLOURS[Surface(ribbon.surface[section])])
        edge_colour = EDGE_COLOURS[Edge(ribbon.edge[section])]
        for border_px in (left_px, right_px):
            cv2.line(picture, border_px[k].tolist(), border_px[k + 1].tolist(), edge_colour, 2)


def _draw_marks(picture: Image, plan: Plan, track: Track) -> None:
    """Draw start, checkpoints and finish, and an arrow with the lap distance every 100 m."""
    ribbon = track.ribbon
    for station_m in np.arange(LABEL_EVERY_M, track.finish_station_m / track.n_laps, LABEL_EVERY_M):
        k = int(np.searchsorted(ribbon.station_m, station_m))
        tail_px = plan.pixel(ribbon.center_m[k])
        tip_px = plan.pixel(ribbon.center_m[k] + 12.0 * ribbon.forward[k])
        cv2.arrowedLine(picture, tail_px.tolist(), tip_px.tolist(), INK, 2, tipLength=0.5)
        beside_px = plan.pixel(ribbon.center_m[k] + (ribbon.half_width_m[k] + 8.0) * ribbon.left[k])
        _write(picture, f"{station_m:.0f}", beside_px)
    lines = [(0.0, START_COLOUR), (track.finish_station_m, FINISH_COLOUR)]
    for station_m, colour in lines + [(mark_m, CHECKPOINT_COLOUR) for mark_m in track.checkpoint_stations_m]:
        section = np.array([np.searchsorted(ribbon.station_m, station_m - 1e-6)])
        ends_px = [plan.pixel(_border(ribbon, section, side))[0].tolist() for side in (1.0, -1.0)]
        cv2.line(picture, ends_px[0], ends_px[1], colour, 4)


def _draw_race(picture: Image, plan: Plan, race: DriveReport) -> None:
    path_px = plan.pixel(race.position_m)
    for before_px, after_px, keys in zip(path_px[:-1], path_px[1:], race.keys[:-1], strict=True):
        colour = BRAKE_COLOUR if keys[1] else GAS_COLOUR if keys[0] else INK
        cv2.line(picture, before_px.tolist(), after_px.tolist(), colour, 2, cv2.LINE_AA)


def _profile(track: Track, sections: npt.NDArray[np.int64], width_px: int) -> Image:
    ribbon = track.ribbon
    picture = np.full((PROFILE_HEIGHT_PX, width_px, 3), 30, dtype=np.uint8)
    heights_m = ribbon.center_m[sections, 1]
    low_m, high_m = float(heights_m.min()), max(float(heights_m.max()), float(heights_m.min()) + 5.0)
    floor_px = PROFILE_HEIGHT_PX - MARGIN_PX
    x_px = MARGIN_PX + (width_px - 2 * MARGIN_PX) * ribbon.station_m[sections] / track.finish_station_m
    y_px = floor_px - (floor_px - MARGIN_PX) * (0.1 + 0.9 * (heights_m - low_m) / (high_m - low_m))
    for k, section in enumerate(sections[:-1]):
        if ribbon.has_road[section]:
            colour = SURFACE_COLOURS[Surface(ribbon.surface[section])]
            cv2.rectangle(picture, (int(x_px[k]), int(y_px[k])), (int(x_px[k + 1]), floor_px), colour, -1)
    for station_m in track.checkpoint_stations_m:
        x = int(MARGIN_PX + (width_px - 2 * MARGIN_PX) * station_m / track.finish_station_m)
        cv2.line(picture, (x, MARGIN_PX), (x, floor_px), CHECKPOINT_COLOUR, 1)
    laps = f", {track.n_laps} laps" if track.n_laps > 1 else ""
    caption = f"{track.name}: {track.finish_station_m:.0f} m{laps}, heights {low_m:.1f} to {heights_m.max():.1f} m"
    _write(picture, caption, np.array([MARGIN_PX, MARGIN_PX // 2]))
    return picture


def _write(picture: Image, text: str, place_px: npt.NDArray[np.int32]) -> None:
    cv2.putText(picture, text, tuple(place_px.tolist()), cv2.FONT_HERSHEY_SIMPLEX, 0.45, INK, 1, cv2.LINE_AA)


def drive_and_draw(track: Track, driver: str | None, file: Path | None, width_px: int) -> bool:
    """Let a named scripted driver race, and draw the track into a file, if given; return whether it finished."""
    race = None if driver is None else drive(track, DRIVERS[driver])
    if race is not None:
        result = "stops at" if race.race_time_ms is None else "finishes in"
        reached = f"{race.reached_m:.0f} m" if race.race_time_ms is None else f"{race.race_time_ms / 1000:.2f} s"
        print(f"{track.name}: the {driver} scripted driver {result} {reached}, {race.wall_contact_ms} ms at walls")
    if file is not None:
        picture = draw_track(track, width_px, race)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(cv2.imencode(".png", picture)[1].tobytes())  # cv2.imwrite needs ASCII names
        print(f"wrote {file}")
    return race is None or race.race_time_ms is not None


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("track", type=Path, help="a .toml track file or a .npy reference line")
    add("--output", type=png_file, metavar="FILE.png", help="default: the track's name in this folder")
    add("--width-px", type=whole_number(200, 10_000), default=1000, help="of the picture (default %(default)s)")
    add("--drive", choices=DRIVERS, help="let the scripted driver race and draw its line")
    arguments = parser.parse_args()
    output = arguments.output or Path(f"{arguments.track.stem}.png")
    drive_and_draw(load_track(arguments.track), arguments.drive, output, arguments.width_px)


if __name__ == "__main__":
    sys.exit(main())
