"""What a running training's games do, for whoever looks: `LiveReader` reads what collectors tell in the run's folder.

Reading, in a process of one's own::

    reader = LiveReader(Path("save/simulated"))
    while True:
        cars = reader.cars()                    # every game's car, ten times a second
        reader.watch(cars[0].collector, cars[0].game)
        race = reader.race()                    # that game's newest race, or the run's newest evaluated one

The simulated game is many times faster than real time, so its cars jump; what can be followed is a race that is over,
at its own pace: `RacePlayback` gives the car and the picture at each of its times. Collectors tell nothing while nobody
looks; what it costs them then is one look at a number for each pass through the network.
"""

from trackmania_rl.telemetry.live.playback import RacePlayback
from trackmania_rl.telemetry.live.reader import LiveReader
from trackmania_rl.telemetry.live.shown import LiveCar, LiveRace

__all__ = ["LiveCar", "LiveRace", "LiveReader", "RacePlayback"]
