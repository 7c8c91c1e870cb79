"""Figures of learning: the means of recent updates, and the loss on what is never trained on."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.objectives import LossModule

from trackmania_rl.training.hooks.hook import Hook


class LearningFigures(Hook):
    """Sums the Trainer's mean losses of each race's updates on the device, and reads them only when somebody asks."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(0)
        self._n_updates = 0
        self._updates_before = 0

    def begin(self) -> None:
        """Count from the updates that the run has had already."""
        self._updates_before = self.run.agent.updates

    def post_optim_complete_log(self, _: int, mean_losses: TensorDictBase | None) -> None:
        """Add the figures of a race's updates: all of no dimension."""
        n_updates = self.run.agent.updates - self._updates_before
        self._updates_before = self.run.agent.updates
        if mean_losses is None:
            return
        named = {name: value for name, value in mean_losses.items() if value.ndim == 0}
        figures = torch.stack(list(named.values()))
        if tuple(named) != self._names:
            self._names, self._sums, self._n_updates = tuple(named), torch.zeros_like(figures), 0
        self._sums += n_updates * figures
        self._n_updates += n_updates

    def take_means(self) -> dict[str, float]:
        """Mean losses per transition, gradient norm, Q and the like since the last call; empty without an update."""
        if self._n_updates == 0:
            return {}
        means = dict(zip(self._names, (self._sums / self._n_updates).tolist(), strict=True))
        self._sums.zero_()
        self._n_updates = 0
        n_summed = transitions_in_loss(self.run.agent.loss_module, self.run.settings.replay.batch_size)
        return {name: mean / n_summed if name.startswith("loss") else mean for name, mean in means.items()}


class MeasureTestLoss(Hook):
    """Measures the loss on transitions that are never trained on.

    Attributes:
        test_loss: the last one, per transition; None before the first.
    """

    def __init__(self) -> None:
        self.test_loss: float | None = None

    def post_optim(self) -> None:
        """Measure, if this update is one of those."""
        is_due = self.run.agent.updates % self.run.settings.telemetry.test_loss_every_n_batches == 0
        buffer, loss_module = self.run.memory.buffer_test, self.run.agent.loss_module
        if not is_due or len(buffer) == 0:
            return
        batch = buffer.sample()
        loss_module.eval()
        with torch.no_grad():
            losses = loss_module(batch)
        loss_module.train()
        total = sum(value for name, value in losses.items() if name.startswith("loss"))
        self.test_loss = float(total) / transitions_in_loss(loss_module, len(batch))


def transitions_in_loss(loss_module: LossModule, batch_size: int) -> int:
    """Count the transitions whose losses are summed up in one figure: 1 where it is a mean."""
    return batch_size if loss_module.reduction == "sum" else 1
