"""Tracks of your own: two bends between straights, drawn anew for every four races.

A configuration names them:

    map_cycle = (
        {"map_name": "bends", "generator": "examples.bends:Bends", "is_explo": True, "fill_buffer": True, "repeat": 4},
        {"map_name": "bends", "generator": "examples.bends:Bends", "is_explo": False, "fill_buffer": True},
    )
"""

import numpy as np

from trackmania_rl.simulator.tracks.track_design import TrackDesign, left, right, straight
from trackmania_rl.track.map_sources import MapSource


class Bends(MapSource):
    """A right and a left turn of the same angle and radius."""

    races_per_track = 4

    def draw(self, rng: np.random.Generator) -> TrackDesign:
        """Draw the angle in degrees and the radius in metres; both are in the name."""
        angle_deg = int(rng.integers(30, 120))
        radius_m = int(rng.integers(25, 80))
        bends = (right(angle_deg, radius_m=radius_m), straight(60), left(angle_deg, radius_m=radius_m))
        return TrackDesign(
            name=f"bends_{angle_deg}_{radius_m}",
            description="Two bends.",
            pieces=(straight(80), *bends, straight(80)),
        )
