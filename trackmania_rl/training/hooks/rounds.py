"""Training counted in epochs, rounds and steps, as TMRL counts it, with statistics of each round."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase

from trackmania_rl.agents.agent import Agent
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.learning_figures import transitions_in_loss

log = logging.getLogger(__name__)

TABLE: Final = "rounds.csv"
"""The statistics' file in the run's folder."""

AgentScheduler = Callable[[Agent, int], object]
"""Called with the agent and the number of the epoch that begins, from 0."""


class _Result(NamedTuple):
    """What a round counts of a race."""

    kind: str
    race_finished: bool
    meters: float
    race_time_ms: int


class Rounds(Hook):
    """Writes a row of statistics after each round, and gives them to the loggers as `round/...`.

    A step is an update; `steps` make a round and `rounds` an epoch. It only counts: races are driven and updates made
    as without it. The setting `hooks = functools.partial(Rounds, steps=1000, rounds=50, epochs=10)` asks for it.

    A row holds epoch and round (from 0), frames and updates of the run, its training time, the means over the round's
    races, explored and evaluated by themselves (finished: their share; meters; seconds of those that were finished),
    and the means of what the loss and the optimizer return.

    Args:
        steps: updates of a round, at least 1.
        rounds: of an epoch, at least 1.
        epochs: after so many the training ends, with the race under way; None: it does not.
        agent_scheduler: called as each epoch begins; and when the run is taken up, with the epoch that it is in. What
            settings say, such as the learning rate, is set anew before each race's updates.

    Raises:
        ValueError: if there is nothing to count.
    """

    def __init__(
        self,
        steps: int = 1000,
        rounds: int = 50,
        epochs: int | None = None,
        agent_scheduler: AgentScheduler | None = None,
    ) -> None:
        if min(steps, rounds, 1 if epochs is None else epochs) < 1:
            raise ValueError(f"Rounds(steps={steps}, rounds={rounds}, epochs={epochs}): each is at least 1")
        self._steps = steps
        self._rounds = rounds
        self._epochs = epochs
        self._agent_scheduler = agent_scheduler
        self._rows: list[dict[str, str]] = []
        self._races: list[_Result] = []
        self._sums: dict[str, torch.Tensor] = {}
        self._n_updates = 0

    def begin(self) -> None:
        """Go on with the table; rounds after the run's last checkpoint are taken back, as they are driven again."""
        updates = self.run.agent.updates
        if self._table.is_file():
            with self._table.open(newline="", encoding="utf-8") as file:
                self._rows = [row for row in csv.DictReader(file) if int(row["updates"]) <= updates]
        self._begin_epoch(updates // (self._steps * self._rounds))

    def batch_process(self, _: TensorDictBase) -> None:
        """Count a race."""
        race = self.run.race
        assert race is not None
        stats, rollout = race.end_race_stats, race.rollout_results
        record = RaceRecord.of_rollout(stats["map_name"], stats["is_explo"], race.collector, rollout, stats)
        if record.counts:
            result = _Result(record.kind, record.race_finished, record.meters, record.race_time_ms)
            self._races.append(result)

    def optimizer(self, losses: TensorDictBase, *_: object) -> None:
        """Add an update's figures, on the device."""
        for name, value in losses.items():
            if value.ndim == 0:
                self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._n_updates += 1

    def post_optim_log(self, _: TensorDictBase) -> dict[str, float] | None:
        """End a round, if this update was its last; the training's own count comes before."""
        updates = self.run.agent.updates
        if updates % self._steps != 0:
            return None
        figures = self._take_figures()
        n_rounds = updates // self._steps
        epoch, number = divmod(n_rounds - 1, self._rounds)
        statistics = self.run.statistics
        counts = {"frames": self.trainer.collected_frames, "updates": updates}
        row = {"epoch": epoch, "round": number, **counts, "training_s": round(statistics.training_s, 1)}
        self._write(row | {name: f"{value:.6g}" for name, value in figures.items()})
        if n_rounds % self._rounds == 0:
            log.info("epoch %d is over, after %s updates", epoch, f"{updates:,}")
            self._begin_epoch(epoch + 1)
        return {f"round/{name}": value for name, value in figures.items()}

    def state_dict(self) -> dict[str, Any]:
        """What the round under way has had so far."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return {"races": [list(race) for race in self._races], "sums": sums, "n_updates": self._n_updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the round."""
        self._races = [_Result(*race) for race in state_dict["races"]]
        self._sums = {name: torch.tensor(total) for name, total in state_dict["sums"].items()}
        self._n_updates = state_dict["n_updates"]

    @property
    def _table(self) -> Path:
        return self.run.folder.path / TABLE

    def _begin_epoch(self, epoch: int) -> None:
        if self._epochs is not None and epoch >= self._epochs:
            self.trainer.request_stop(f"{self._epochs} epochs are over")
        elif self._agent_scheduler is not None:
            self._agent_scheduler(self.run.agent, epoch)

    def _take_figures(self) -> dict[str, float]:
        """Return the means of the round that ends, and begin with nothing again."""
        figures: dict[str, float] = {}
        for kind in ("explored", "evaluated"):
            races = [race for race in self._races if race.kind == kind]
            figures[f"{kind}_races"] = len(races)
            if races:
                figures[f"{kind}_finished"] = float(np.mean([race.race_finished for race in races]))
                figures[f"{kind}_meters"] = float(np.mean([race.meters for race in races]))
            if times_s := [race.race_time_ms / 1000 for race in races if race.race_finished]:
                figures[f"{kind}_time_s"] = float(np.mean(times_s))
        n_transitions = transitions_in_loss(self.run.agent.loss_module, self.run.settings.replay.batch_size)
        for name, total in self._sums.items():
            figures[name] = float(total) / self._n_updates / (n_transitions if name.startswith("loss") else 1)
        self._races, self._sums, self._n_updates = [], {}, 0
        return figures

    def _write(self, row: dict[str, Any]) -> None:
        """Write the table with one more row, whole, as a later row may have more columns; a disk that fails is told."""
        self._rows.append({name: str(value) for name, value in row.items()})
        columns = list(dict.fromkeys(name for each in self._rows for name in each))
        try:
            with self._table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self._rows)
        except OSError as error:
            log.error("%s cannot be written: %s", self._table, error.strerror)
