"""Client's map: path for the game, zones along the line, road, times to beat.

A simulated track's road is read from the map file, as is the reference line: a game behind a socket reports no
walls, and both transports must give the same observation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.gbx.challenge import MedalTimes, is_challenge_file, read_challenge, read_checkpoint_positions
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import GROUND_GROUPS
from trackmania_rl.race.road import POINT_EVERY_M, ROAD_QUALITIES, ZONES_AFTER_END, KnownRoad, VirtualCheckpoints
from trackmania_rl.settings import MapEntry, ObservationSettings, Settings
from trackmania_rl.simulator.tracks.surface_mesh import RoadProfile, measure_road
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track, read_track_settings
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Track
from trackmania_rl.track.line_building import resample
from trackmania_rl.track.reference_line import load_reference_line

log = logging.getLogger(__name__)
_compiled = compiler_for("game_map", [Path(__file__)])
FloatArray = npt.NDArray[np.float64]

ZONES_BEFORE_START: Final = 20
"""Zones straight on before the line's start, as `ZONES_AFTER_END` beyond the end."""
SMOOTHING_REACH_POINTS: Final = 5
"""A smoothed point is the mean of the points this many places before and behind it."""
REAL_CHECKPOINT_RADIUS_M: Final = 12.0
"""Distance at which a zone with a real checkpoint is left."""
SAME_CHECKPOINT_REACH_M: Final = 50.0
"""Zones this near along the line to a real checkpoint's zone belong to the same lap."""
NARROWEST_M: Final = 4.0
"""Lower bound for the reported half width on a way through blocks: a human's line passes close to borders."""


def line_begins_m(settings: ObservationSettings) -> float:
    """Return the reference line's first point as a distance along the virtual checkpoints."""
    return (ZONES_BEFORE_START - 0.5) * settings.distance_between_zone_centers_m


def zones_of_line(
    line: FloatArray, settings: ObservationSettings, real_checkpoints_m: FloatArray | None = None
) -> VirtualCheckpoints:
    """Make a map's zones.

    Args:
        line: (N, 3) reference line from `load_reference_line`.
        settings: zone distance and road width.
        real_checkpoints_m: (C, 3) the map's checkpoints, if known. Each belongs to the nearest zone within
            `REAL_CHECKPOINT_RADIUS_M`, once per lap.
    """
    spacing_m = settings.distance_between_zone_centers_m
    if spacing_m != LINE_SPACING_M:
        line = resample(line, spacing_m)
    centers = extend_and_smooth(line, ZONES_BEFORE_START, ZONES_AFTER_END)
    border = 0.5 * (centers[:-1] + centers[1:])
    segment = np.diff(border, axis=0)
    segment_m = np.linalg.norm(segment, axis=1)
    positions, radii = _tie_real_checkpoints(
        centers, np.empty((0, 3)) if real_checkpoints_m is None else real_checkpoints_m, spacing_m
    )
    return VirtualCheckpoints(
        centers_m=centers,
        border_m=border,
        border_distance_m=np.concatenate(([0.0], np.cumsum(segment_m))),
        border_direction=segment / segment_m[:, None],
        first_zone_idx=ZONES_BEFORE_START,
        last_zone_idx=ZONES_BEFORE_START + len(line) - 1,
        max_center_distance_m=math.hypot(spacing_m / 2, settings.road_width_m / 2),
        real_checkpoint_m=positions,
        real_checkpoint_radius_m=radii,
    )


def extend_and_smooth(line: FloatArray, n_points_before: int, n_points_after: int) -> FloatArray:
    """Extend a line (N, 3) straight at both ends by points, then smooth it.

    The extension repeats the line's first and last step. Smoothing replaces every point but the outermost
    `SMOOTHING_REACH_POINTS` by the mean of the two neighbours at that reach.
    """
    backwards = np.arange(n_points_before, 0, -1)[:, None] * (line[0] - line[1])
    forwards = np.arange(1, n_points_after + 1)[:, None] * (line[-1] - line[-2])
    extended = np.concatenate((line[0] + backwards, line, line[-1] + forwards))
    smoothed = extended.copy()
    reach = SMOOTHING_REACH_POINTS
    smoothed[reach:-reach] = 0.5 * (extended[: -2 * reach] + extended[2 * reach :])
    return smoothed


def _tie_real_checkpoints(
    centers_m: FloatArray, checkpoints_m: FloatArray, spacing_m: float
) -> tuple[FloatArray, FloatArray]:
    """Return checkpoint position (Z, 3) and radius (Z,) by zone; a checkpoint may belong to one zone on each lap."""
    positions = np.zeros_like(centers_m)
    radii = np.full(len(centers_m), np.inf)
    same_passage_zones = math.ceil(SAME_CHECKPOINT_REACH_M / spacing_m)
    for checkpoint in checkpoints_m:
        distances_m = np.linalg.norm(centers_m - checkpoint, axis=1)
        while distances_m.min() < REAL_CHECKPOINT_RADIUS_M:
            nearest = int(distances_m.argmin())
            positions[nearest] = checkpoint
            radii[nearest] = REAL_CHECKPOINT_RADIUS_M
            distances_m[max(nearest - same_passage_zones, 0) : nearest + same_passage_zones] = np.inf
    return positions, radii


def load_known_road(track_file: Path, zones: VirtualCheckpoints) -> KnownRoad:
    """Read the road from a track file (`.toml`), or of a bare reference line (`.npy`).

    Raises:
        TrackFileError: if the file can't be used.
    """
    if is_challenge_file(track_file):
        raise TrackFileError(
            f"{track_file}: the observation tells of the road (road_ahead, or range_finder_m on the track), which is "
            "known of simulated tracks only; make one of this map: scripts/tools/maps.py track"
        )
    track = load_track(track_file)
    road = profile_of(track)
    ribbon = track.ribbon
    qualities = qualities_of(road, ribbon.left[:, 1], 0.0 if track.mesh_world is None else NARROWEST_M)
    every = max(round(POINT_EVERY_M / RIBBON_SPACING_M), 1)
    center_m = np.ascontiguousarray(ribbon.center_m[::every])
    left_m = ribbon.center_m + road.to_left_m[:, None] * ribbon.left
    right_m = ribbon.center_m - road.to_right_m[:, None] * ribbon.left
    # A piece is there if all cross-sections on it have road.
    has_gap = np.logical_or.reduceat(~road.has_road, np.arange(0, len(road.has_road), every))
    return KnownRoad(
        left_m=np.ascontiguousarray(left_m[::every, ::2]),
        right_m=np.ascontiguousarray(right_m[::every, ::2]),
        is_there=~has_gap & (np.arange(len(center_m)) < len(center_m) - 1),
        qualities=np.ascontiguousarray(qualities[::every]),
        point_of_zone=_nearest_in_order(zones.centers_m, center_m),
    )


@_compiled
def _nearest_in_order(points_m: npt.NDArray[np.float64], along_m: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Find the nearest line point for each point (n, 3), given in the line's order.

    The index moves only while the next point is nearer, so crossings and laps do not mix.
    """
    nearest = np.empty(len(points_m), dtype=np.int64)
    place = 0
    for i in range(len(points_m)):
        here = _distance_squared(points_m[i], along_m[place])
        while place + 1 < len(along_m):
            ahead = _distance_squared(points_m[i], along_m[place + 1])
            if ahead > here:
                break
            place += 1
            here = ahead
        nearest[i] = place
    return nearest


@_compiled(inline="always")
def _distance_squared(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2


def profile_of(track: Track) -> RoadProfile:
    """Return a track's road width and kind: from the file, or measured in the block world."""
    ribbon = track.ribbon
    if track.mesh_world is not None:
        return measure_road(ribbon, track.mesh_world.mesh)
    return RoadProfile(ribbon.half_width_m, ribbon.half_width_m, ribbon.surface, ribbon.edge, ribbon.has_road)


def qualities_of(road: RoadProfile, banking: npt.NDArray[np.float64], narrowest_m: float) -> npt.NDArray[np.float32]:
    """Return a road's qualities at each cross-section: (P, N_QUALITIES) float32.

    Args:
        road: at P cross-sections.
        banking: (P,) rise to the left border per metre.
        narrowest_m: lower bound for the half width.
    """
    of_road = {
        "half_width_m": np.maximum(np.minimum(road.to_left_m, road.to_right_m), narrowest_m),
        "has_wall": road.edge == Edge.WALL,
        "has_grass_beside": road.edge == Edge.GRASS,
        "is_dirt": np.isin(road.surface, GROUND_GROUPS["dirt-like"]),
        "is_grass": np.isin(road.surface, GROUND_GROUPS["grass-like"]),
        "is_there": road.has_road,
        "banking": banking,
    }
    return np.stack([of_road[name] for name in ROAD_QUALITIES], axis=1).astype(np.float32)


@dataclass(frozen=True)
class GameMap:
    """Map, ready to be driven."""

    name: str
    path: str  # argument for the game's `map` command
    zones: VirtualCheckpoints
    road: KnownRoad | None = None


def map_file(entry: MapEntry, maps_folder: Path) -> Path:
    """Return a map's file in the maps folder; the game's separator is a backslash on any system."""
    return maps_folder / entry.map_path.replace("\\", "/")


def what_misses_checkpoints(entry: MapEntry, maps_folder: Path) -> str | None:
    """Return why nothing checks a real map's checkpoints, and the remedy; None if something does."""
    challenge = map_file(entry, maps_folder)
    if not is_challenge_file(challenge) or challenge.is_file():
        return None
    return (
        f"{challenge} is not there, so nothing checks that the car passes the map's own checkpoints; copy the map's "
        "file there"
    )


def named_maps(settings: Settings) -> list[MapEntry]:
    """Return each map in the map cycle once, without generators, which have no files yet."""
    entries = {entry.map_name: entry for entry in settings.game.map_cycle if entry.has_files}
    return list(entries.values())


def load_map_files(settings: Settings, entry: MapEntry, maps_folder: Path) -> npt.NDArray[np.float64]:
    """Return a map's reference line, (N, 3) in metres, and check the simulated game's track.

    Raises:
        UserError: if either is missing or damaged.
    """
    if settings.game.game == "simulated":
        load_track(maps_folder / entry.map_path)
    return load_reference_line(maps_folder / entry.reference_line)


def load_reference_lines(settings: Settings, maps_folder: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Return the reference line for each map in the map cycle by name, so a bad one is refused before any race.

    Raises:
        UserError: as `load_map_files`.
    """
    return {entry.map_name: load_map_files(settings, entry, maps_folder) for entry in named_maps(settings)}


def load_game_map(entry: MapEntry, maps_folder: Path, settings: ObservationSettings) -> GameMap:
    """Read a map's reference line, and the map's checkpoints if the `.Challenge.Gbx` is in the maps folder.

    Raises:
        ReferenceLineError: if there is no usable line.
        GbxError: if the map's file can't be read.
        TrackFileError: if the observation needs the road and the track file can't be read.
    """
    line = load_reference_line(maps_folder / entry.reference_line)
    challenge = map_file(entry, maps_folder)
    real_checkpoints_m = None
    if (lack := what_misses_checkpoints(entry, maps_folder)) is not None:
        log.warning("map %s: %s", entry.map_name, lack)
    elif is_challenge_file(challenge):
        real_checkpoints_m = read_checkpoint_positions(challenge)
    zones = zones_of_line(line, settings, real_checkpoints_m)
    needs_road = ObservationLayout(settings).needs_road
    road = load_known_road(map_file(entry, maps_folder), zones) if needs_road else None
    return GameMap(entry.map_name, entry.map_path, zones, road)


def load_reference_times(entries: Iterable[MapEntry], maps_folder: Path) -> dict[str, MedalTimes]:
    """Return reference times by map name, from each `.Challenge.Gbx` or track file's `[times]` that has any.

    Raises:
        UserError: if a map's file can't be read.
    """
    times: dict[str, MedalTimes] = {}
    for entry in entries:
        file = map_file(entry, maps_folder)
        if entry.map_name in times or not file.is_file():
            continue
        if is_challenge_file(file):
            of_map = read_challenge(file).times
        elif file.suffix == ".toml":
            of_map = MedalTimes(**read_track_settings(file).times.model_dump())
        else:
            continue
        if of_map != MedalTimes(None, None, None, None):
            times[entry.map_name] = of_map
    return times
