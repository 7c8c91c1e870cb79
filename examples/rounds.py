"""A hook of your own: figures of rounds and epochs, as TMRL counts them.

    python scripts/train.py --set run_name=rounds --set 'hooks=("examples.rounds:Rounds",)'

A step is an update, `steps` make a round and `rounds` an epoch. To change them in a configuration:
`hooks = functools.partial(Rounds, steps=500, rounds=20, epochs=10)`.
"""

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from trackmania_rl.agents.agent import Agent
from trackmania_rl.race.race import Race
from trackmania_rl.training.hooks.hook import Hook


class Rounds(Hook):
    """Log `round/...` after each round: means over its races and updates.

    Args:
        steps: updates per round.
        rounds: per epoch.
        epochs: number after which the training ends; None for no end.
        agent_scheduler: called with the agent and the number of the beginning epoch, also in a resumed run.
    """

    def __init__(
        self,
        steps: int = 1000,
        rounds: int = 50,
        epochs: int | None = None,
        agent_scheduler: Callable[[Agent, int], object] = lambda agent, epoch: None,
    ) -> None:
        self._steps, self._rounds, self._epochs = steps, rounds, epochs
        self._agent_scheduler = agent_scheduler
        self._sums: dict[str, list[Any]] = {}  # sum and number

    def begin(self) -> None:
        """Begin the current epoch."""
        self._begin_epoch(self.run.agent.updates // (self._steps * self._rounds))

    def on_race(self, race: Race) -> None:
        """Add a race."""
        facts = race.facts
        if facts.counts:  # no demonstration
            self._add(f"{facts.kind}_finished", float(facts.race_finished))
            self._add(f"{facts.kind}_meters", facts.meters)
            if facts.race_finished:
                self._add(f"{facts.kind}_time_s", facts.race_time_ms / 1000)

    def on_update(self, batch: TensorDictBase, losses: TensorDictBase) -> None:
        """Add an update's loss, gradient norm and the like, on the device; end a round with its last update."""
        for name, value in losses.items():
            if value.ndim == 0:
                self._add(name, value.detach())
        n_rounds, n_more = divmod(self.run.agent.updates, self._steps)
        if n_more == 0:
            means = {f"round/{name}": float(total) / number for name, (total, number) in self._sums.items()}
            self.run.figures.log_figures(means)
            self._sums = {}
            if n_rounds % self._rounds == 0:
                self._begin_epoch(n_rounds // self._rounds)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the current round."""
        return {"sums": {name: [float(total), number] for name, (total, number) in self._sums.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the sums."""
        self._sums = state_dict["sums"]

    def _begin_epoch(self, epoch: int) -> None:
        if self._epochs is not None and epoch >= self._epochs:
            self.run.request_stop(f"{self._epochs} epochs are over")
        else:
            self._agent_scheduler(self.run.agent, epoch)

    def _add(self, name: str, value: Any) -> None:
        total, number = self._sums.get(name, (0.0, 0))
        self._sums[name] = [total + value, number + 1]
