"""Where a collector stands: what a new process goes on from, be it in a later session or after a crash.

Each race tells its place among those of its collector on its way to the learner, which keeps the newest of these in its
checkpoints and hands it to the process that it starts. So there is nothing to lock, and no second file to agree with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RacePosition:
    """A race's place among those of its collector.

    Attributes:
        number: so many races its collector began before it, in the whole run.
        place: so many of the map cycle's races came before it since the cycle last began; repeats count.
        generator: whose track it is on, see `generator_key`; "" for a map of its own.
        generator_number: so many of the generator's races the collector began before it.
        streams: the states of the collector's random streams when the race was handed on, by name.
    """

    number: int
    place: int
    generator: str = ""
    generator_number: int = 0
    streams: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CollectorProgress:
    """What a collector goes on from: the races that have reached the learner are behind it.

    Attributes:
        n_races: the number of its next race.
        place: of its next race in the map cycle.
        of_generators: the number of the next race of each generator.
        streams: the states of its random streams; those that are missing begin anew.
    """

    n_races: int = 0
    place: int = 0
    of_generators: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)

    def after(self, race: RacePosition) -> CollectorProgress:
        """Return the progress once a race has come in; races of several games may come in another order."""
        is_newest = race.number >= self.n_races
        of_generators = dict(self.of_generators)
        if race.generator:
            of_generators[race.generator] = max(of_generators.get(race.generator, 0), race.generator_number + 1)
        return CollectorProgress(
            n_races=race.number + 1 if is_newest else self.n_races,
            place=race.place + 1 if is_newest else self.place,
            of_generators=of_generators,
            streams=race.streams,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "n_races": self.n_races,
            "place": self.place,
            "of_generators": dict(self.of_generators),
            "streams": dict(self.streams),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> CollectorProgress:
        """Return what `state_dict` gave.

        Raises:
            KeyError or ValueError: if it is something else.
        """
        counts = {"n_races": state["n_races"], "place": state["place"], **state["of_generators"]}
        if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
            raise ValueError(f"a collector's progress has the counts {counts}")
        return cls(state["n_races"], state["place"], dict(state["of_generators"]), dict(state["streams"]))
