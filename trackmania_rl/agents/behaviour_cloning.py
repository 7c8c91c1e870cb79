"""Behaviour cloning (Pomerleau 1988, "ALVINN"): the network learns the actions in the memory, and ignores rewards.

An `IQN_Network`'s values serve as logits, so drivers are kept, evaluated and exported as any other; they are
no returns. It is for data sets (setting `offline`): collectors' races would be imitated, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.iqn import IQNAgent, IQNLoss, Taus, Transitions

if TYPE_CHECKING:
    from tensordict import TensorDictBase

LOGIT: Final = 0.1
"""Value difference that makes an action e times as likely; initial networks differ by less than a hundredth."""


class ImitationLoss(IQNLoss):
    """Cross entropy between the actions taken and the softmax of the mean values; arguments as for `IQNLoss`."""

    figure = "accuracy"

    @override
    def compute_losses(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss (), the losses (B,) instead of errors, and the accuracy () instead of the mean Q."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            returns = self.online(batch.state_img, batch.state_float, taus.prediction)  # (B, N, A)
        values = returns.float().mean(dim=1)  # (B, A)
        losses = F.cross_entropy(values / LOGIT, batch.action, reduction="none")  # (B,)
        hits = values.argmax(dim=1) == batch.action
        return (batch.weight * losses).sum(), losses.detach(), hits.float().mean()


class CloningAgent(IQNAgent):
    """An `IQNAgent` with another loss; the target network is unused."""

    loss_class = ImitationLoss

    @override
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> None:
        return None  # the network's outputs are no returns

    @override
    def errors_of(self, batch: TensorDictBase) -> None:
        return None


class BehaviourCloning(IQN):
    """The part `agent` with that name; arguments as for `IQN`."""

    learner_class = CloningAgent
