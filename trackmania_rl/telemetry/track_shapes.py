"""Tracks by file or name, and shapes from above for the live page."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import is_challenge_file, read_checkpoint_positions
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.track.game_map import map_file
from trackmania_rl.track.generated_maps import generated_track, is_generated_track
from trackmania_rl.track.line_building import arc_length, directions
from trackmania_rl.track.reference_line import load_reference_line

SHAPE_EVERY_M: Final = 2.0
"""Distance between two points in a shape."""


def track_of(text: str) -> Track:
    """Return a track by file, or a generated track by name. A `UserError` if the file cannot be used."""
    generated = generated_track(text)
    if generated is None:
        return load_track(Path(text))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{text}.toml"
        generated.write(file)
        return load_track(file)


def shape_of(name: str, settings: Settings, maps_folder: Path) -> dict[str, Any]:
    """Return a map in the map cycle or a generated track from above.

    Returns:
        `points`: [x, z, half width, has road (0 or 1), y] from start to finish, in metres; `gates`: [x, z, across x,
        across z, half width, distance] at start, checkpoints and finish, across a unit vector to the left; `length_m`;
        `zone_m`, distance between two virtual checkpoints; `n_laps`.

    Raises:
        UserError: if there is no such map, or the files cannot be used.
    """
    facts = {"name": name, "zone_m": settings.observation.distance_between_zone_centers_m}
    if is_generated_track(name):
        return _of_track(track_of(name)) | facts
    entry = next((entry for entry in settings.game.map_cycle if entry.map_name == name and entry.has_files), None)
    if entry is None:
        raise UserError(f"{name}: the run's map_cycle has no such map with files of its own")
    if settings.game.game == "simulated":
        shape = _of_track(track_of(str(map_file(entry, maps_folder))))
    else:
        shape = _of_line(entry, maps_folder, settings.observation.road_width_m / 2)
    return shape | facts


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


def _of_line(entry: MapEntry, maps_folder: Path, half_width_m: float) -> dict[str, Any]:
    line_m = load_reference_line(maps_folder / entry.reference_line)
    stations_m = arc_length(line_m)
    at = np.unique(np.append(np.arange(0, len(line_m), max(1, round(SHAPE_EVERY_M / LINE_SPACING_M))), len(line_m) - 1))
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
