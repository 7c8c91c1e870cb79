"""A running training's games, for other processes. The simulated game runs many times faster than real time."""

from trackmania_rl.telemetry.live.feed import LiveCar, LiveRace, LiveReader

__all__ = ["LiveCar", "LiveRace", "LiveReader"]
