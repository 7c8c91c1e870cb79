"""Where each collector stands, so that the next one of its number goes on there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDictBase

from trackmania_rl.race.cycle_position import CollectorProgress, RacePosition, RaceUnderWay
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.seeds import set_stream_state
from trackmania_rl.training.hooks.hook import Hook

POSITION: Final = ("number", "place", "generator", "generator_number", "game", "frames_total")
COUNTS: Final = ("n_actions", "n_transitions")
DECISIONS: Final = ("actions", "is_greedy", "q_values")
"""What is kept of a race under way: of its position, of itself, and of its decisions."""


class FollowCollectors(Hook):
    """Keeps each collector's progress in the run, where those who start collectors find it, and in checkpoints."""

    takes_fragments = True

    def batch_process(self, _: TensorDictBase) -> None:
        """Note the place of the race, or fragment, that has come in; a demonstration has none."""
        race, progress = self.run.race, self.run.progress
        assert race is not None
        if race.position is None:
            return
        before = progress.get(race.collector, CollectorProgress())
        after, number = before.after(race.position), race.position.number
        if race.is_under_way and race.fragment is not None and race.position.last_decision is not None:
            under_way = RaceUnderWay.after(
                before.under_way.get(number), race.position, race.fragment, race.rollout_results
            )
            after = replace(after, under_way={**after.under_way, number: under_way})
        progress[race.collector] = after

    def state_dict(self) -> dict[str, Any]:
        """The progress of each collector."""
        return {
            "collectors": {
                number: {
                    **progress.state_dict(),
                    "under_way": {number: _state_of(race) for number, race in progress.under_way.items()},
                }
                for number, progress in self.run.progress.items()
            }
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over.

        Raises:
            KeyError or ValueError: if it is something else.
        """
        self.run.progress.clear()
        for number, state in state_dict["collectors"].items():
            progress = CollectorProgress.of_state(state)
            for stream in progress.streams.values():
                set_stream_state(np.random.default_rng(), stream)
            under_way = {int(number): _race_of(race) for number, race in state["under_way"].items()}
            self.run.progress[int(number)] = replace(progress, under_way=under_way)


def _state_of(race: RaceUnderWay) -> dict[str, Any]:
    """A race under way as plain values and tensors."""
    position, decisions = race.position, race.decisions
    return {
        **{name: getattr(position, name) for name in POSITION},
        **{name: getattr(race, name) for name in COUNTS},
        **{name: torch.from_numpy(np.ascontiguousarray(getattr(decisions, name))) for name in DECISIONS},
    }


def _race_of(state: Mapping[str, Any]) -> RaceUnderWay:
    """What `_state_of` gave."""
    return RaceUnderWay(
        position=RacePosition(**{name: state[name] for name in POSITION}),
        decisions=BatchDecision(**{name: state[name].numpy() for name in DECISIONS}),
        **{name: state[name] for name in COUNTS},
    )
