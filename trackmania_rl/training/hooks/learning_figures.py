"""Figures of learning: means of recent updates, the test loss, parameters, and the spread of quantiles."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from trackmania_rl.agents.agent import Layer
from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook

MOST_SAMPLES: Final = 10_000
"""Most updates, or races, between two reports."""
MOST_NORMS: Final = 1000
"""Newest gradient norms kept for each parameter."""
QUANTILES: Final = ("median", "q3", "d9", "c98", "max")
STATES: Final = 32
TEST_LOSS_EVERY_N_BATCHES: Final = 50
"""States of a batch that are measured."""


class LearningFigures(Hook):
    """Means of the losses and quantiles of gradient norms and update times.

    Losses and norms stay on the device until a report, because reading one waits for a GPU. The clock is read once a
    race.
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
        """Keep the norm of an update's gradient, if the agent returns it."""
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
    """Share of the time spent on something since the last report."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._since_s = time.perf_counter()

    def add(self, spent_s: float) -> None:
        """Add time spent."""
        self._spent_s += spent_s

    def take(self) -> float:
        """Return the share, 0 to 1, and begin anew."""
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
        """Measure after every so many updates."""
        is_due = self.run.agent.updates % TEST_LOSS_EVERY_N_BATCHES == 0
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
        """Return the share of time that it took since the last call."""
        return {"train/learner_time/test_loss": self._time.take()}


def transitions_in_loss(loss_module: nn.Module, batch_size: int) -> int:
    """Count the transitions whose losses are summed up in one figure: 1 where it is a mean."""
    return batch_size if loss_module.reduction == "sum" else 1


class LayerFigures(Hook):
    """Norms of each parameter's gradient, sampled once a race, and of weights and moments at each report."""

    def __init__(self) -> None:
        self._gradient_norms: defaultdict[str, deque[torch.Tensor]] = defaultdict(lambda: deque(maxlen=MOST_NORMS))
        self._updates_before = 0

    def begin(self) -> None:
        """Count from the updates that the run has had already."""
        self._updates_before = self.run.agent.updates

    def post_optim_complete_log(self, _: int, __: TensorDictBase | None) -> None:
        """Note the norms of the gradients of a race's last update."""
        if self.run.agent.updates == self._updates_before:
            return
        self._updates_before = self.run.agent.updates
        for name, layer in self.run.agent.layers().items():
            if layer.gradient is not None:
                self._gradient_norms[name].append(torch.linalg.vector_norm(layer.gradient))

    def rare_figures(self) -> dict[str, float]:
        """Return `layer_figures`, and `weights/gradient_norm_{quantile}/{parameter}` since the last call."""
        figures = layer_figures(self.run.agent.layers(), self.run.settings.agent.adam_epsilon)
        for name, norms in self._gradient_norms.items():
            of_layer = quantile_figures("weights/gradient_norm", torch.stack(list(norms)), QUANTILES)
            figures |= {f"{figure}/{name.replace('.', '/')}": value for figure, value in of_layer.items()}
        self._gradient_norms.clear()
        return figures


class MeasureQuantileSpread(Hook):
    """Measures how far an action's returns are spread over their quantiles, in states of the last batch."""

    def __init__(self) -> None:
        self._batch: TensorDictBase | None = None

    def post_loss(self, batch: TensorDictBase) -> None:
        """Keep the newest batch."""
        self._batch = batch

    def rare_figures(self) -> dict[str, float]:
        """`train/quantile_spread/action_{index}` and their mean, in units of reward: standard deviations over taus.

        Of the network that evaluates, averaged over states; nothing of an agent that expects single values.
        """
        if self._batch is None:
            return {}
        states, n_taus = self._batch[:STATES], self.run.settings.agent.iqn_k
        taus = (torch.arange(n_taus) + 0.5) / n_taus
        returns = self.run.agent.returns_at(states["state_img"], states["state_float"], taus)  # (B, N, A)
        if returns is None or returns.shape[1] == 1:
            return {}
        spreads = returns.std(dim=1).mean(dim=0).tolist()
        figures = {f"train/quantile_spread/action_{index}": spread for index, spread in enumerate(spreads)}
        return figures | {"train/quantile_spread/mean": sum(spreads) / len(spreads)}


@torch.no_grad()
def layer_figures(layers: Mapping[str, Layer], adam_epsilon: float) -> dict[str, float]:
    """Measure how large weights and the optimizer's running means are: root mean squares, so that sizes compare.

    Args:
        layers: by name.
        adam_epsilon: the optimizer's epsilon.

    Returns:
        By `weights/{what}/{parameter}`: `weight_rms`; `moment_1_rms` and `moment_2_rms` of the running means of
        gradients and of their squares; `step_scale_rms` of 1 / (root of the mean square + epsilon), which multiplies
        the learning rate.
    """
    measured: dict[str, Tensor] = {}
    for name, layer in layers.items():
        of = name.replace(".", "/")
        measured[f"weights/weight_rms/{of}"] = _rms(layer.weight)
        if layer.first_moment is not None and layer.second_moment is not None:
            measured[f"weights/moment_1_rms/{of}"] = _rms(layer.first_moment)
            measured[f"weights/moment_2_rms/{of}"] = _rms(layer.second_moment)
            measured[f"weights/step_scale_rms/{of}"] = _rms(1 / (layer.second_moment.sqrt() + adam_epsilon))
    if not measured:
        return {}
    return dict(zip(measured, torch.stack(list(measured.values())).tolist(), strict=True))


def _rms(tensor: Tensor) -> Tensor:
    return tensor.float().square().mean().sqrt()
