"""Times to beat on a map: its author's time and medals, from the map's file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trackmania_rl.gbx.challenge import MedalTimes, is_challenge_file, read_challenge
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.tracks.track_file import read_track_settings
from trackmania_rl.track.game_map import map_file


def load_reference_times(entries: Iterable[MapEntry], maps_folder: Path) -> dict[str, MedalTimes]:
    """Read the times of each map that has any: in its `.Challenge.Gbx`, or in `[times]` of its track file.

    Args:
        entries: the map cycle; generators have no times.
        maps_folder: where relative paths begin.

    Returns:
        By the map cycle's name; maps without times, or whose file is not there, are left out.

    Raises:
        UserError: if a map's file is there, but can't be read.
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
