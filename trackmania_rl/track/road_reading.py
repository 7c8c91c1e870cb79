"""What a simulated track's road is like: its borders for the range finder, its qualities for the road ahead.

The client reads them from the map's file, as it does the reference line: a game behind a socket tells no walls, and
both transports must see the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.known_road import ROAD_QUALITIES, KnownRoad
from trackmania_rl.race.observation_kernel import GROUND_GROUPS
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Edge, Ribbon


def load_known_road(track_file: Path, zones: VirtualCheckpoints) -> KnownRoad:
    """Read the road of a track file, or of a bare reference line that is driven as one.

    Args:
        track_file: `.toml` or `.npy`.
        zones: of the map.

    Raises:
        TrackFileError: if the file can't be used.
    """
    ribbon = load_track(track_file).ribbon
    return KnownRoad.of_sections(
        center_m=ribbon.center_m,
        to_border_m=ribbon.half_width_m[:, None] * ribbon.left,
        qualities=qualities_of(ribbon),
        spacing_m=RIBBON_SPACING_M,
        zone_centers_m=zones.centers_m,
    )


def qualities_of(ribbon: Ribbon) -> npt.NDArray[np.float32]:
    """Tell what a road is like at each cross-section: (P, N_QUALITIES) float32."""
    of_road = {
        "half_width_m": ribbon.half_width_m,
        "has_wall": ribbon.edge == Edge.WALL,
        "has_grass_beside": ribbon.edge == Edge.GRASS,
        "is_dirt": np.isin(ribbon.surface, GROUND_GROUPS["dirt-like"]),
        "is_grass": np.isin(ribbon.surface, GROUND_GROUPS["grass-like"]),
        "is_there": ribbon.has_road,
        "banking": ribbon.left[:, 1],
    }
    return np.stack([of_road[name] for name in ROAD_QUALITIES], axis=1).astype(np.float32)
