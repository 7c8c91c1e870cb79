"""Where a collector stands: what a new process goes on from, be it in a later session or after a crash.

Each race tells its place among those of its collector on its way to the learner, which keeps the newest of these in its
checkpoints and hands it to the process that it starts. So there is nothing to lock, and no second file to agree with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackmania_rl.race.fragments import Fragment
from trackmania_rl.race.policy import BatchDecision, PolicyDecision


@dataclass(frozen=True, slots=True)
class RacePosition:
    """A race's place among those of its collector.

    Attributes:
        number: so many races its collector began before it, in the whole run.
        place: so many of the map cycle's races came before it since the cycle last began; repeats count.
        generator: whose track it is on, see `generator_key`; "" for a map of its own.
        generator_number: so many of the generator's races the collector began before it.
        streams: the states of the collector's random streams when the race was handed on, by name.
        game: which of the collector's games drives it.
        frames_total: actions of the whole run when it began, by which it explores.
        last_decision: what was decided last, which is not handed on yet; of a fragment at a turn's end.
    """

    number: int
    place: int
    generator: str = ""
    generator_number: int = 0
    streams: Mapping[str, str] = field(default_factory=dict)
    game: int = 0
    frames_total: int = 0
    last_decision: PolicyDecision | None = None


@dataclass(frozen=True, slots=True)
class RaceUnderWay:
    """A race that goes on between two turns, as it can be driven again: the simulated game knows no chance.

    Attributes:
        position: where it stands.
        decisions: all of them so far, n, of which the last one is not handed on yet.
        n_actions: actions handed on.
        n_transitions: transitions handed on.
    """

    position: RacePosition
    decisions: BatchDecision
    n_actions: int
    n_transitions: int

    @classmethod
    def after(
        cls, before: RaceUnderWay | None, position: RacePosition, fragment: Fragment, rollout: Mapping[str, Any]
    ) -> RaceUnderWay:
        """Return the race once one more fragment of it has come in, whose arrays are copied."""
        assert position.last_decision is not None
        new = slice(fragment.n_actions_before, None)
        columns = [rollout[name][new] for name in ("actions", "action_was_greedy", "q_values")]
        last = BatchDecision.of_one(position.last_decision)
        parts = [columns, [last.actions, last.is_greedy, last.q_values]]
        if before is not None:  # but for its last decision, which is in this fragment
            known = before.decisions
            parts.insert(0, [known.actions[:-1], known.is_greedy[:-1], known.q_values[:-1]])
        return cls(
            position=position,
            decisions=BatchDecision(*(np.concatenate(pieces) for pieces in zip(*parts, strict=True))),
            n_actions=fragment.race_row + len(rollout["actions"]),
            n_transitions=fragment.race_row + fragment.end_transition,
        )


@dataclass(frozen=True, slots=True)
class CollectorProgress:
    """What a collector goes on from: the races that have reached the learner are behind it.

    Attributes:
        n_races: the number of its next race.
        place: of its next race in the map cycle.
        of_generators: the number of the next race of each generator.
        streams: the states of its random streams; those that are missing begin anew.
        under_way: races that go on between two turns, by number.
    """

    n_races: int = 0
    place: int = 0
    of_generators: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)
    under_way: Mapping[int, RaceUnderWay] = field(default_factory=dict)

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
            under_way={number: under_way for number, under_way in self.under_way.items() if number != race.number},
        )

    def state_dict(self) -> dict[str, Any]:
        """All but the races under way, as plain values."""
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
