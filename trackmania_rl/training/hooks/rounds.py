"""Statistics of a training in epochs, rounds and steps, as in TMRL."""

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
from trackmania_rl.training.hooks.figures import transitions_in_loss
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)

TABLE: Final = "rounds.csv"
"""File in the run's folder."""

AgentScheduler = Callable[[Agent, int], object]
"""Called with the agent and the number of the epoch that begins, from 0."""


class _Result(NamedTuple):
    kind: str
    race_finished: bool
    meters: float
    race_time_ms: int


class Rounds(Hook):
    """Writes a row of statistics after each round into rounds.csv, and logs them as `round/...`.

    A step is an update, `steps` make a round and `rounds` an epoch. The training itself is unchanged. Example:
    `hooks = functools.partial(Rounds, steps=1000, rounds=50, epochs=10)`.

    A row holds epoch and round (from 0), the run's frames, updates and training time, means over the round's explored
    and evaluated races (share of finished ones, meters, seconds of finished ones), and means of the update's figures.

    Args:
        steps: updates of a round, at least 1.
        rounds: of an epoch, at least 1.
        epochs: number after which the training ends; None for no end.
        agent_scheduler: called at the beginning of each epoch, and of each session with the current epoch. Schedules of
            settings, such as the learning rate, are applied again before each race's updates.

    Raises:
        ValueError: if a number is below 1.
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
        """Read the table, without rounds after the run's last checkpoint."""
        updates = self.run.agent.updates
        if self._table.is_file():
            with self._table.open(newline="", encoding="utf-8") as file:
                self._rows = [row for row in csv.DictReader(file) if int(row["updates"]) <= updates]
        self._begin_epoch(updates // (self._steps * self._rounds))

    def batch_process(self, _: TensorDictBase) -> None:
        """Count a race."""
        record = self.run.record
        if record.counts:
            self._races.append(_Result(record.kind, record.race_finished, record.meters, record.race_time_ms))

    def optimizer(self, losses: TensorDictBase, *_: object) -> None:
        """Add an update's figures, on the device."""
        for name, value in losses.items():
            if value.ndim == 0:
                self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._n_updates += 1

    def post_optim_log(self, _: TensorDictBase) -> dict[str, float] | None:
        """End a round, if this update was its last."""
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
        """Return the races and sums of the round under way."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return {"races": [list(race) for race in self._races], "sums": sums, "n_updates": self._n_updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load them."""
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
        """Return the means of the round, and reset them."""
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
        """Write the whole table, because a row may have new columns. Log I/O errors."""
        self._rows.append({name: str(value) for name, value in row.items()})
        columns = list(dict.fromkeys(name for each in self._rows for name in each))
        try:
            with self._table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self._rows)
        except OSError as error:
            log.error("%s cannot be written: %s", self._table, error.strerror)
