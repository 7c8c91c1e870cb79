"""The quantile Huber loss, its derivative, and a scaling of it.

Shapes, in all comments: B batch, N taus of the prediction, M taus of the target.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trackmania_rl.settings import AgentSettings

SMALLEST_DIVISOR = 1e-6
"""Below this a divisor (the root of a target's own loss) counts as this: a terminal transition's is 0."""


def quantile_huber_loss(targets: Tensor, predictions: Tensor, tau: Tensor, kappa: float) -> Tensor:
    """How far predicted quantiles are from those of the targets (IQN, arXiv:1806.06923, equation 3).

    Every target is compared with every prediction. A prediction below the target costs tau, one above it 1 - tau, times
    the error: least where a share tau of the targets lies below. Near zero (less than kappa) the error counts squared,
    for smoothness.

    Args:
        targets: (B, M).
        predictions: (B, N).
        tau: (B, N), at which the predictions are; (1, N) where all states have the same.
        kappa: where the Huber loss passes from square to linear, in units of reward.

    Returns:
        (B,): the sum over predictions of the mean over targets.
    """
    _check_shapes(targets, predictions, tau)
    targets, predictions = torch.broadcast_tensors(targets.unsqueeze(2), predictions.unsqueeze(1))  # (B, M, N)
    huber = F.huber_loss(predictions, targets, reduction="none", delta=kappa) / kappa
    share = (tau.unsqueeze(1) - (targets < predictions).float()).abs()  # tau below the target, 1 - tau above
    return (share * huber).mean(dim=1).sum(dim=1)


def quantile_huber_gradient(targets: Tensor, predictions: Tensor, tau: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """The loss of `quantile_huber_loss`, and its derivative.

    With c the error, clipped to plus or minus kappa, the Huber loss is c (error - c / 2) and its slope is c.

    Args:
        targets: (B, M).
        predictions: (B, N).
        tau: (B, N), at which the predictions are; (1, N) where all states have the same.
        kappa: where the Huber loss passes from square to linear.

    Returns:
        The losses (B,), and their gradients (B, N) with respect to the predictions.
    """
    _check_shapes(targets, predictions, tau)
    error = targets.unsqueeze(2) - predictions.unsqueeze(1)  # (B, M, N)
    share = (tau.unsqueeze(1) - (error < 0).float()).abs_()
    clipped = error.clamp(-kappa, kappa)
    slope = share.mul_(clipped).div_(kappa * targets.shape[1])
    losses = (slope * error.sub_(clipped, alpha=0.5)).sum(dim=(1, 2))
    return losses, slope.sum(dim=1).neg_()


def _check_shapes(targets: Tensor, predictions: Tensor, tau: Tensor) -> None:
    """Refuse shapes that broadcasting would let through."""
    assert targets.ndim == predictions.ndim == tau.ndim == 2
    assert len(targets) == len(predictions)
    assert tau.shape in (predictions.shape, (1, predictions.shape[1]))


class SelfLossScaling:
    """Weights of the loss, smaller for transitions with noisy targets.

    The quantile loss of a target's returns against themselves measures their spread: it is what even a perfect
    prediction would pay. A transition's loss is divided by its square root, so that states with an uncertain future do
    not drown the others. The divisor is clamped below at its running mean / `target_self_loss_clamp_ratio`, and the
    running mean of the clamped divisors multiplies, so that the scale of the loss stays. (A scheme of Linesight.)

    Attributes:
        mean, clamped_mean: () running means of the divisors before and after clamping. They are plain means at first,
            until `target_self_loss_average_rate` is the larger weight.
        batches: () how many batches went in.
    """

    def __init__(self, device: torch.device) -> None:
        self.mean = torch.zeros((), device=device)
        self.clamped_mean = torch.zeros((), device=device)
        self.batches = torch.zeros((), device=device)

    def loss_weights(self, targets: Tensor, tau: Tensor, settings: AgentSettings, *, learning: bool) -> Tensor:
        """The weights (B,) of the transitions' losses.

        Args:
            targets: (B, M).
            tau: (B, M), at which they are; (1, M) where all states have the same.
            settings: kappa, clamp ratio and rate.
            learning: whether the running means move.
        """
        divisors = quantile_huber_loss(targets, targets, tau, settings.iqn_kappa).sqrt()
        rate = (1 / (self.batches + 1)).clamp_min(settings.target_self_loss_average_rate)
        if not learning:
            rate = rate * (self.batches == 0)  # the first batch sets the means, also where it is only looked at
        batch_mean = divisors.mean()
        is_finite = torch.isfinite(batch_mean)  # one target that is not would stay in the means for ever
        mean = torch.where(is_finite, torch.lerp(self.mean, batch_mean, rate), self.mean)
        clamped = torch.maximum(divisors, mean / settings.target_self_loss_clamp_ratio).clamp_min(SMALLEST_DIVISOR)
        clamped_mean = torch.where(is_finite, torch.lerp(self.clamped_mean, clamped.mean(), rate), self.clamped_mean)
        if learning:
            self.mean.copy_(mean)  # in place: a recorded graph of a GPU reads and writes where it was recorded
            self.clamped_mean.copy_(clamped_mean)
            self.batches.add_(is_finite)
        return clamped_mean / clamped
