"""Where each collector stands, so that the next one of its number goes on there."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensordict import TensorDictBase

from trackmania_rl.race.cycle_position import CollectorProgress
from trackmania_rl.seeds import set_stream_state
from trackmania_rl.training.hooks.hook import Hook


class FollowCollectors(Hook):
    """Keeps each collector's progress in the run, where those who start collectors find it, and in checkpoints."""

    takes_fragments = True

    def batch_process(self, _: TensorDictBase) -> None:
        """Note the place of the race, or fragment, that has come in; a demonstration has none."""
        race, progress = self.run.race, self.run.progress
        assert race is not None
        if race.position is not None:
            progress[race.collector] = progress.get(race.collector, CollectorProgress()).after(race.position)

    def state_dict(self) -> dict[str, Any]:
        """The progress of each collector."""
        return {"collectors": {number: progress.state_dict() for number, progress in self.run.progress.items()}}

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
            self.run.progress[int(number)] = progress
