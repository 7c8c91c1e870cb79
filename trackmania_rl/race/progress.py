"""Fragments of a race, and the place of a race in its collector's map cycle.

A race may reach the learner in parts (`Fragment`), each with a `RacePosition`. Checkpoints hold the newest position of
each collector (`CollectorProgress`), from which a new collector process continues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trackmania_rl.race.race import Fragment, RaceFacts, RacePosition
from trackmania_rl.settings import Settings, shifts_of


def stream_state(rng: np.random.Generator) -> str:
    """Return a random stream's state as a text of some 200 characters."""
    return json.dumps(rng.bit_generator.state, separators=(",", ":"))


def set_stream_state(rng: np.random.Generator, state: str) -> None:
    """Set a random stream to a state of `stream_state`. Raise `ValueError` for another text."""
    try:
        rng.bit_generator.state = json.loads(state)
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"no state of a random stream: {state[:80]}") from error


@dataclass
class FragmentCutter:
    """Counts of a race in progress that is sent in fragments.

    A fragment begins with the rows needed by its first transition and ends with the next state of its last one.
    """

    n_steps: int  # most actions of a transition, or of the views of its state
    n_earlier_rows: int = 0  # in views
    n_decided: int = 0  # actions chosen so far
    n_actions: int = 0  # sent
    n_transitions: int = 0  # sent

    @classmethod
    def of_settings(cls, settings: Settings) -> FragmentCutter:
        """Return the counts at a race's beginning."""
        views = (shifts_of(view.shift) for view in settings.observation.views.values())
        shifts = [*settings.game.frame_shifts, *(shift for view in views for shift in view)]
        # The last row's action and reward come with the next fragment.
        return cls(max(settings.replay.n_steps, max(shifts) + 1), n_earlier_rows=-min(shifts))

    def begin_again(self) -> None:
        """Reset the counts after the race was lost and restarted."""
        self.n_decided = self.n_actions = self.n_transitions = 0

    @property
    def n_to_hand_on(self) -> int:
        """Number of actions that can be sent while the game waits for a decision.

        The waiting state is left out: a finish at that time is reported with the next action only.
        """
        return self.n_decided - 1 - self.n_actions

    def cut(self) -> tuple[range, Fragment]:
        """Return the states of the next rollout and its new part; `n_to_hand_on` must be above 0."""
        first = self._first_row_needed()
        last = self.n_decided - 1
        end_transition = max(self.n_transitions, last - self.n_steps + 1)
        fragment = Fragment(
            is_last=False,
            race_row=first,
            n_actions_before=self.n_actions - first,
            first_row=0,
            first_transition=self.n_transitions - first,
            end_transition=end_transition - first,
        )
        self.n_actions, self.n_transitions = last, end_transition
        return range(first, last + 1), fragment

    def end(self, n_actions: int) -> Fragment:
        """Return the new part of the whole race after its end."""
        return Fragment(
            is_last=True,
            race_row=0,
            n_actions_before=self.n_actions,
            first_row=self._first_row_needed(),
            first_transition=self.n_transitions,
            end_transition=n_actions,
        )

    def _first_row_needed(self) -> int:
        return max(0, self.n_transitions - self.n_earlier_rows)


@dataclass(frozen=True, slots=True)
class CollectorProgress:
    """Position from which a collector continues, after the races received by the learner."""

    n_races: int = 0
    place: int = 0
    of_generators: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)

    def after(self, race: RacePosition) -> CollectorProgress:
        """Return the progress after a race; races of several games may arrive out of order."""
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
        """Return the progress as plain values."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> CollectorProgress:
        """Load the result of `state_dict`.

        Raises:
            KeyError or ValueError: if it is malformed.
        """
        counts = {"n_races": state["n_races"], "place": state["place"], **state["of_generators"]}
        if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
            raise ValueError(f"a collector's progress has the counts {counts}")
        return cls(state["n_races"], state["place"], dict(state["of_generators"]), dict(state["streams"]))


class CollectorsProgress(dict[int, CollectorProgress]):
    """Progress of each collector by its number, for restarts of collectors and in checkpoints."""

    def add(self, facts: RaceFacts) -> None:
        """Note the position of a race or fragment. A demonstration has none."""
        if facts.position is not None:
            before = self.get(facts.collector, CollectorProgress())
            self[facts.collector] = before.after(facts.position)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain values."""
        return {"collectors": {collector: progress.state_dict() for collector, progress in self.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state.

        Raises:
            KeyError or ValueError: if it is malformed.
        """
        self.clear()
        for collector, state in state_dict["collectors"].items():
            self[int(collector)] = progress = CollectorProgress.of_state(state)
            for stream in progress.streams.values():
                set_stream_state(np.random.default_rng(), stream)
