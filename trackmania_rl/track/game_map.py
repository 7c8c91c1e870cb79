"""A map as the client sees it: what the game is asked to load, and the zones along its reference line."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import is_challenge_file, read_checkpoint_positions
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.road import KnownRoad
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.settings import MapEntry, ObservationSettings, Settings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.track.reference_line import load_reference_line
from trackmania_rl.track.road_reading import load_known_road

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GameMap:
    """One map, ready to be driven.

    Attributes:
        name: its name in statistics.
        path: what the game's `map` command is given.
        zones: the virtual checkpoints.
        road: where the observation tells of it.
    """

    name: str
    path: str
    zones: VirtualCheckpoints
    road: KnownRoad | None = None


def map_file(entry: MapEntry, maps_folder: Path) -> Path:
    """Where a map's file lies in the maps folder; the game separates folders by backslashes on any system."""
    return maps_folder / entry.map_path.replace("\\", "/")


def what_misses_checkpoints(entry: MapEntry, maps_folder: Path) -> str | None:
    """Why nothing checks that the car passes a real map's own checkpoints, and what to do; None if something does."""
    challenge = map_file(entry, maps_folder)
    if not is_challenge_file(challenge) or challenge.is_file():
        return None
    return (
        f"{challenge} is not there, so nothing checks that the car passes the map's own checkpoints; copy the map's "
        "file there"
    )


def named_maps(settings: Settings) -> list[MapEntry]:
    """Return each map of the map cycle once, without generators, which have no files yet."""
    entries = {entry.map_name: entry for entry in settings.game.map_cycle if entry.has_files}
    return list(entries.values())


def load_map_files(settings: Settings, entry: MapEntry, maps_folder: Path) -> npt.NDArray[np.float64]:
    """Read the files of a map.

    Returns:
        (N, 3) points of the reference line, in metres.

    Raises:
        UserError: if the reference line, or the track of the simulated game, is missing or damaged.
    """
    if settings.game.game == "simulated":
        load_track(maps_folder / entry.map_path)
    return load_reference_line(maps_folder / entry.reference_line)


def load_reference_lines(settings: Settings, maps_folder: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Read every map of the map cycle, so that a bad one is refused before its races.

    Returns:
        `load_map_files` of each map, by map name.

    Raises:
        UserError: if a reference line, or a track of the simulated game, is missing or damaged.
    """
    return {entry.map_name: load_map_files(settings, entry, maps_folder) for entry in named_maps(settings)}


def load_game_map(entry: MapEntry, maps_folder: Path, settings: ObservationSettings) -> GameMap:
    """Read a map's reference line, and its own checkpoints where its `.Challenge.Gbx` lies in the maps folder.

    Args:
        entry: the line of the map cycle.
        maps_folder: where relative paths begin.
        settings: how zones are made of the line.

    Raises:
        ReferenceLineError: if there is no usable line.
        GbxError: if the map's file is there, but can't be read.
        TrackFileError: likewise of a track file, of which the road is needed.
    """
    line = load_reference_line(maps_folder / entry.reference_line)
    challenge = map_file(entry, maps_folder)
    real_checkpoints_m = None
    if (lack := what_misses_checkpoints(entry, maps_folder)) is not None:
        log.warning("map %s: %s", entry.map_name, lack)
    elif is_challenge_file(challenge):
        real_checkpoints_m = read_checkpoint_positions(challenge)
    zones = VirtualCheckpoints.from_reference_line(line, real_checkpoints_m)
    needs_road = ObservationLayout(settings).needs_road
    road = load_known_road(map_file(entry, maps_folder), zones) if needs_road else None
    return GameMap(entry.map_name, entry.map_path, zones, road)
