"""Games of a running training, for other processes: `LiveReader` reads their cars and races from the run's folder.

The simulated game runs many times faster than real time. `playback` plays a race that is over at its own pace.
"""

from trackmania_rl.telemetry.live.feed import LiveCar, LiveRace, LiveReader

__all__ = ["LiveCar", "LiveRace", "LiveReader"]
