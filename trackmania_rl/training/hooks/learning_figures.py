"""Figures of learning: the means of recent updates, and the loss on what is never trained on."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import torch
from tensordict import TensorDictBase
from torchrl.objectives import LossModule

from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook

MOST_SAMPLES: Final = 10_000
"""So many updates, or races, are looked back on at most."""


class LearningFigures(Hook):
    """Sums the Trainer's mean losses of each race's updates on the device, and reads them only when somebody asks.

    So with the norms of the gradients, which are kept where they lie: to read one would wait for a GPU. The clock is
    read once a race.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(0)
        self._n_updates = 0
        self._updates_before = 0
        self._grad_norms: deque[torch.Tensor] = deque(maxlen=MOST_SAMPLES)
        self._update_ms: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._updates_begin_s = 0.0
        self._time = TimeShare()

    def begin(self) -> None:
        """Count from the updates that the run has had already."""
        self._updates_before = self.run.agent.updates

    def pre_optim_steps(self) -> None:
        """Note when a race's updates begin."""
        self._updates_begin_s = time.perf_counter()

    def optimizer(self, losses: TensorDictBase, *_: object) -> None:
        """Keep the norm of an update's gradient, if the agent tells it."""
        grad_norm = losses.get("grad_norm", None)
        if grad_norm is not None:
            self._grad_norms.append(grad_norm)

    def post_optim_complete_log(self, _: int, mean_losses: TensorDictBase | None) -> None:
        """Add the figures of a race's updates: all of no dimension."""
        n_updates = self.run.agent.updates - self._updates_before
        self._updates_before = self.run.agent.updates
        if mean_losses is None or n_updates == 0:
            return
        spent_s = time.perf_counter() - self._updates_begin_s
        self._time.add(spent_s)
        self._update_ms.append(1000 * spent_s / n_updates)
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

    def interval_figures(self) -> dict[str, float]:
        """How gradients' norms and updates' durations are spread since the last call, and the share of time they took.

        An update's duration is the mean of a race's updates, with all that hooks do in between.
        """
        figures = {"train/learner_time/updates": self._time.take()}
        if self._grad_norms:
            norms = torch.stack(list(self._grad_norms))
            figures |= quantile_figures("train/grad_norm", norms, ("q1", "median", "q3", "d9", "c98", "max"))
        figures |= quantile_figures("train/update_ms", torch.tensor(self._update_ms), ("median", "d9", "max"))
        self._grad_norms.clear()
        self._update_ms.clear()
        return figures


class TimeShare:
    """The share of the time since it was last asked for that was spent on something."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._since_s = time.perf_counter()

    def add(self, spent_s: float) -> None:
        """Add time that was spent."""
        self._spent_s += spent_s

    def take(self) -> float:
        """The share, 0 to 1; begins anew."""
        now_s = time.perf_counter()
        share = self._spent_s / max(now_s - self._since_s, 1e-9)
        self._spent_s, self._since_s = 0.0, now_s
        return min(share, 1.0)


class MeasureTestLoss(Hook):
    """Measures the loss on transitions that are never trained on.

    Attributes:
        test_loss: the last one, per transition; None before the first.
    """

    def __init__(self) -> None:
        self.test_loss: float | None = None
        self._time = TimeShare()

    def post_optim(self) -> None:
        """Measure, if this update is one of those."""
        is_due = self.run.agent.updates % self.run.settings.telemetry.test_loss_every_n_batches == 0
        if not is_due:
            return
        began_s = time.perf_counter()
        batch = self.run.memory.sample_test(self.run.settings.replay.batch_size)
        if batch is None:
            return
        loss_module = self.run.agent.loss_module
        loss_module.eval()
        with torch.no_grad():
            losses = loss_module(batch)
        loss_module.train()
        total = sum(value for name, value in losses.items() if name.startswith("loss"))
        self.test_loss = float(total) / transitions_in_loss(loss_module, len(batch))
        self._time.add(time.perf_counter() - began_s)

    def interval_figures(self) -> dict[str, float]:
        """The share of time that it took since the last call."""
        return {"train/learner_time/test_loss": self._time.take()}


def transitions_in_loss(loss_module: LossModule, batch_size: int) -> int:
    """Count the transitions whose losses are summed up in one figure: 1 where it is a mean."""
    return batch_size if loss_module.reduction == "sum" else 1
