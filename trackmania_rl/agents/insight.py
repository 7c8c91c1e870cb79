"""What an agent expects and where it errs, for pictures: nothing in here draws random numbers or changes anything."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trackmania_rl.agents.iqn import (
    IQNLoss,
    QuantileNetwork,
    Taus,
    Transitions,
    of_action,
    quantile_huber_loss,
    target_returns,
)
from trackmania_rl.agents.mean_values import midpoints


class TransitionErrors(NamedTuple):
    """How far predictions are from their targets, for B transitions.

    Attributes:
        loss: (B,) what learning lowers; of an agent of torchrl abs(target - prediction).
        predicted: (B,) mean return predicted for the action taken; None where an agent does not tell.
        target: (B,) mean of the returns that it should have been; likewise.
    """

    loss: Tensor
    predicted: Tensor | None
    target: Tensor | None


@torch.no_grad()
def quantile_returns(network: QuantileNetwork, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor:
    """Return what a network expects of all actions at the same taus (N,) in all states: (B, N, A)."""
    device = network.float_mean.device
    returns = network(img.to(device), floats.to(device), taus.to(device).unsqueeze(0))
    assert isinstance(returns, Tensor)
    return returns.float()


@torch.no_grad()
def quantile_errors(loss: IQNLoss, batch: TensorDictBase) -> TransitionErrors:
    """Compare predictions and targets as an update does, at evenly spread taus and without weights or scaling."""
    transitions = Transitions.from_batch(batch, loss.device)
    tau = midpoints(loss.settings.iqn_n, loss.online)
    taus = Taus(target=tau, choice=tau if loss.settings.use_ddqn else None, prediction=tau)
    with torch.autocast(loss.device.type, dtype=loss.dtype, enabled=loss.dtype != torch.float32):
        targets = target_returns(loss.online, loss.target, transitions, loss.settings, taus)  # (B, N)
        state = (transitions.state_img, transitions.state_float)
        predictions = of_action(loss.online(*state, tau), transitions.action)  # (B, N)
    losses = quantile_huber_loss(targets, predictions, tau, loss.settings.iqn_kappa)
    return TransitionErrors(losses.float(), predictions.float().mean(dim=1), targets.float().mean(dim=1))
