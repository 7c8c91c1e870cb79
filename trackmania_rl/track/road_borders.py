"""The borders of a simulated track's road, for the range finder.

The client reads them from the map's file, as it does the reference line: a game behind a socket tells no walls, and
both transports must see the same.
"""

from __future__ import annotations

from pathlib import Path

from trackmania_rl.race.range_finder import RoadBorders
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M


def load_road_borders(track_file: Path, zones: VirtualCheckpoints) -> RoadBorders:
    """Read the borders of a track file, or of a bare reference line that is driven as one.

    Args:
        track_file: `.toml` or `.npy`.
        zones: of the map.

    Raises:
        TrackFileError: if the file can't be used.
    """
    ribbon = load_track(track_file).ribbon
    return RoadBorders.along_road(
        center_m=ribbon.center_m,
        to_border_m=ribbon.half_width_m[:, None] * ribbon.left,
        has_road=ribbon.has_road,
        spacing_m=RIBBON_SPACING_M,
        zone_centers_m=zones.centers_m,
    )
