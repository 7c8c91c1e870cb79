"""What a simulated track's road is like: its borders for the range finder, its qualities for the road ahead.

The client reads them from the map's file, as it does the reference line: a game behind a socket tells no walls, and
both transports must see the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import is_challenge_file
from trackmania_rl.race.observation_kernel import GROUND_GROUPS
from trackmania_rl.race.road import ROAD_QUALITIES, KnownRoad
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.simulator.tracks.surface_mesh import RoadProfile, measure_road
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Track

NARROWEST_M: Final = 4.0
"""A way through a map's blocks is told to be this wide to both sides at least: a human's line passes borders closely,
and is not the middle of a road of a metre."""


def load_known_road(track_file: Path, zones: VirtualCheckpoints) -> KnownRoad:
    """Read the road of a track file, or of a bare reference line that is driven as one.

    Args:
        track_file: `.toml` or `.npy`.
        zones: of the map.

    Raises:
        TrackFileError: if the file can't be used.
    """
    if is_challenge_file(track_file):
        raise TrackFileError(
            f"{track_file}: the observation tells of the road (road_ahead, or range_finder_m on the track), which is "
            "known of simulated tracks only; make one of this map: scripts/tools/maps.py track"
        )
    track = load_track(track_file)
    road, ribbon = profile_of(track), track.ribbon
    narrowest_m = 0.0 if track.mesh_world is None else NARROWEST_M
    return KnownRoad.of_sections(
        center_m=ribbon.center_m,
        to_left_m=road.to_left_m[:, None] * ribbon.left,
        to_right_m=-road.to_right_m[:, None] * ribbon.left,
        qualities=qualities_of(road, ribbon.left[:, 1], narrowest_m),
        spacing_m=RIBBON_SPACING_M,
        zone_centers_m=zones.centers_m,
    )


def profile_of(track: Track) -> RoadProfile:
    """Say how wide a track's road is, and what it is made of: as its file says, or as its world of blocks is."""
    ribbon = track.ribbon
    if track.mesh_world is not None:
        return measure_road(ribbon, track.mesh_world.mesh)
    return RoadProfile(ribbon.half_width_m, ribbon.half_width_m, ribbon.surface, ribbon.edge, ribbon.has_road)


def qualities_of(road: RoadProfile, banking: npt.NDArray[np.float64], narrowest_m: float) -> npt.NDArray[np.float32]:
    """Tell what a road is like at each cross-section: (P, N_QUALITIES) float32.

    Args:
        road: at P cross-sections.
        banking: (P,) how much higher its left border is than its middle, per metre.
        narrowest_m: half of its width is told to be this at least.
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
