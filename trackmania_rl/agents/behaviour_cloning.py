"""Behaviour cloning: the network learns to choose what was chosen in the states of the memory, and nothing of rewards.

(Pomerleau 1988, "ALVINN".) The values of an `IQN_Network` serve as logits, so that the driver is kept, evaluated and
exported as any other; they are no returns. It is for data sets (setting `offline`): what drives badly is imitated as
well, so leave collectors out.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor
from typing_extensions import override

from trackmania_rl.agents.agent import IQNAgent
from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.iqn import IQNLoss, Taus, Transitions

LOGIT: Final = 0.1
"""The difference between two values that makes one action e times as likely as the other. Networks begin with values
that differ by less than a hundredth of it."""


class ImitationLoss(IQNLoss):
    """Cross entropy between the actions taken and the softmax of the mean values; arguments as of `IQNLoss`."""

    figure = "accuracy"

    def compute_losses(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss (), in place of errors the losses (B,), and in place of the mean Q the share of hits."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            returns = self.online(batch.state_img, batch.state_float, taus.prediction)  # (B, N, A)
        values = returns.float().mean(dim=1)  # (B, A)
        losses = F.cross_entropy(values / LOGIT, batch.action, reduction="none")  # (B,)
        hits = values.argmax(dim=1) == batch.action
        return (batch.weight * losses).sum(), losses.detach(), hits.float().mean()


class CloningAgent(IQNAgent):
    """An `IQNAgent` with another loss. Its target network follows, and nothing asks for it."""

    loss_class = ImitationLoss

    @override
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> None:
        return None  # the network's outputs are no returns

    @override
    def errors_of(self, batch: TensorDictBase) -> None:
        return None


class BehaviourCloning(IQN):
    """The part `agent` of that name; arguments as of `IQN`."""

    learner_class = CloningAgent
