"""What a learner needs of an agent, and the one that ships: IQN with everything that training changes. No queues."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import LossModule
from typing_extensions import override

from trackmania_rl.agents.flat_parameters import flatten_parameters, views_of
from trackmania_rl.agents.iqn import (
    IQNLoss,
    IQNUpdate,
    ProcessLosses,
    QuantileNetwork,
    Taus,
    Transitions,
    midpoints,
    quantile_huber_loss,
)
from trackmania_rl.agents.run_network import arithmetic_dtype
from trackmania_rl.settings import AgentSettings

CarryOut = Callable[[Callable[[], object]], object]
"""Calls the function that it is given."""

FRESH_SHARE = 0.01
FRESH_SHARE_OF_LAST_LAYERS = 0.8
"""Shares of the fresh network at a reset."""
LAST_LAYERS = ("A_head.2.", "V_head.2.")
"""Beginnings of the names of the parameters that make the heads' outputs."""
AVERAGE_SPANS_ONE_IN = 10
"""Early in a run averaged weights span about the last tenth of all publications."""


class Layer(NamedTuple):
    """A parameter's tensors, all of its shape: those that training works on, so look and do not touch.

    Attributes:
        weight: its values.
        gradient: of the last update, after clipping; None before the first.
        first_moment: the optimizer's running mean of gradients; None where there is none yet.
        second_moment: likewise, of their squares.
    """

    weight: Tensor
    gradient: Tensor | None
    first_moment: Tensor | None
    second_moment: Tensor | None


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


class Agent(ABC):
    """What the learner's Trainer and hooks need: networks, updates, and an average of the weights.

    Args:
        loss_module: from a batch to losses.
        network: the network that explores, on its device.
        settings: of the agent.

    Attributes:
        loss_module, exploration_network, settings: as given.
        averaged_network: the average of the weights that `average_weights` took.
        n_averaged: how many weights went in.
        updates: number of updates made.
    """

    def __init__(self, loss_module: LossModule, network: nn.Module, settings: AgentSettings) -> None:
        self.loss_module = loss_module
        self.exploration_network = network
        self.settings = settings
        self.averaged_network = copy.deepcopy(network).requires_grad_(False)
        self._averaged_weights = flatten_parameters(self.averaged_network)
        self.n_averaged = 0
        self.updates = 0

    @property
    def evaluation_network(self) -> nn.Module:
        """The network of evaluation races: the averaged one, or that which explores where weights are not averaged."""
        return self.averaged_network if self.settings.evaluation_weights_decay > 0 else self.exploration_network

    def average_weights(self) -> None:
        """Take the weights into the average; called at each publication of weights.

        It spans about the last tenth of all that went in, until that is 1 / (1 - `evaluation_weights_decay`) of them:
        early on, while weights improve fast, it follows closely. (That beginning is polynomial-decay averaging, Shamir
        & Zhang 2013, arXiv:1212.1824.)
        """
        self.n_averaged += 1
        share_early_on = AVERAGE_SPANS_ONE_IN / (AVERAGE_SPANS_ONE_IN + self.n_averaged)
        share = max(1 - self.settings.evaluation_weights_decay, share_early_on)
        self._averaged_weights.lerp_(flatten_parameters(self.exploration_network), share)

    def follow(self, settings: AgentSettings, learning_rate: float) -> None:
        """Take over the settings of the next updates, sizes excepted."""
        self.settings = settings

    @abstractmethod
    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDictBase:
        """Make one update with a batch, which gets `td_error` (B,) where the loss has one.

        Args:
            batch: B transitions.
            process_losses: is given the losses before the backward pass; see `ProcessLosses`.

        Returns:
            The losses (), and `grad_norm` (), without gradient.
        """

    def rehearse_update(self, batch: TensorDictBase, carry_out: CarryOut = lambda work: work()) -> None:
        """Make an update and take it back, so that what the first one compiles or records is ready.

        Args:
            batch: what the loss will be given, with any content.
            carry_out: is given the update as a function to call, and may interrupt it.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Error detected in")  # torch's, of an interrupted backward pass
                carry_out(lambda: self.update(batch))
        finally:  # also if it was interrupted: a checkpoint is written after that
            self.load_state_dict(before)

    @abstractmethod
    def reset_partially(self) -> None:
        """Mix the network with a fresh one, which restores its ability to learn late in a run."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the weights of a trained network, for example Linesight's published ones.

        Args:
            weights: a `state_dict` of the network that explores; critics begin anew.

        Raises:
            RuntimeError: if names or shapes differ; torch's text lists them.
        """
        for network in (self.exploration_network, self.averaged_network):
            network.load_state_dict(weights)

    @abstractmethod
    def layers(self) -> dict[str, Layer]:
        """Return what training keeps of each parameter that learns, by its name."""

    @abstractmethod
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        """Return what the network of evaluation races expects in B states; draws no random numbers.

        Args:
            img: (B, S, H, W) uint8, on any device, like the others.
            floats: (B, F) float32.
            taus: (N,) in [0, 1].

        Returns:
            (B, N, A), the returns of all actions at these taus; (B, 1, A), their means, of an agent that knows no
            distributions; None if it does not value single actions.
        """

    @abstractmethod
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Return the errors of B transitions; draws no random numbers. None if there are no targets."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, apart from the settings; loads with `weights_only=True`."""
        return {
            "online": self.exploration_network.state_dict(),
            "averaged": self.averaged_network.state_dict(),
            "n_averaged": self.n_averaged,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state: the same batches then give the same bytes, on the same type of device and in one precision.

        Raises:
            KeyError: if an entry is missing.
            RuntimeError: if the networks' names or shapes differ; torch's text lists them.
        """
        self.exploration_network.load_state_dict(state["online"])
        self.averaged_network.load_state_dict(state["averaged"])
        self.n_averaged = state["n_averaged"]
        self.updates = state["updates"]


class IQNAgent(Agent):
    """Online, target and averaged network, optimizer, and the random state they draw from.

    Args:
        network: becomes the online network; moved to `device`.
        settings: of the algorithm.
        device: where to compute.
        seed: of the taus drawn and of the fresh networks at resets.
        use_torch_compile: compile the update, where there is a compiler (half a minute at first, faster afterwards).

    Attributes:
        step: makes the updates.
    """

    loss_class: ClassVar[type[IQNLoss]] = IQNLoss
    loss_module: IQNLoss

    def __init__(
        self,
        network: QuantileNetwork,
        settings: AgentSettings,
        *,
        device: torch.device,
        seed: int,
        use_torch_compile: bool = False,
    ) -> None:
        dtype = arithmetic_dtype(device, settings)
        loss = self.loss_class(network, settings, device=device, seed=seed, dtype=dtype)
        super().__init__(loss, loss.online, settings)
        self.step = IQNUpdate(loss, use_torch_compile=use_torch_compile)

    @override
    def follow(self, settings: AgentSettings, learning_rate: float) -> None:
        self.settings = self.loss_module.settings = settings
        self.step.follow(settings, learning_rate)

    @override
    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDict:
        losses = self.step(batch, process_losses)
        self.updates += 1
        return losses

    @override
    @torch.no_grad()
    def reset_partially(self) -> None:
        """Mix the online network with a fresh one.

        The shares of the fresh network are `FRESH_SHARE`, and `FRESH_SHARE_OF_LAST_LAYERS` for the heads'
        last layers. (Shrink and perturb, Ash & Adams 2020, arXiv:1910.08475; resets, Nikishin et al. 2022,
        arXiv:2205.07802.)
        """
        loss = self.loss_module
        seed = torch.randint(2**63 - 1, (), generator=loss.generator, device=loss.device).item()
        fresh = copy.deepcopy(loss.online).cpu()
        fresh.initialize(torch.Generator().manual_seed(int(seed)))
        for (name, parameter), fresh_parameter in zip(loss.online.named_parameters(), fresh.parameters(), strict=True):
            is_last = name.startswith(LAST_LAYERS)
            share = FRESH_SHARE_OF_LAST_LAYERS if is_last else FRESH_SHARE
            parameter.lerp_(fresh_parameter.to(loss.device), share)

    @override
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self.loss_module.target.load_state_dict(weights)

    @override
    def layers(self) -> dict[str, Layer]:
        online, step = self.loss_module.online, self.step
        state, parameters = step.optimizer.state[step.weights], list(online.parameters())
        means, mean_squares = (views_of(state[name], parameters) for name in ("exp_avg", "exp_avg_sq"))
        gradients = [None] * len(parameters) if step.weights.grad is None else views_of(step.weights.grad, parameters)
        return {
            name: Layer(parameter.detach(), *of_parameter)
            for (name, parameter), *of_parameter in zip(
                online.named_parameters(), gradients, means, mean_squares, strict=True
            )
        }

    @override
    @torch.no_grad()
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        network, device = self.evaluation_network, self.loss_module.device
        returns: Tensor = network(img.to(device), floats.to(device), taus.to(device).unsqueeze(0))
        return returns.float()

    @override
    @torch.no_grad()
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Compare predictions and targets as an update does, at evenly spread taus and without weights or scaling."""
        loss = self.loss_module
        tau = midpoints(loss.settings.iqn_n, loss.device)
        taus = Taus(target=tau, choice=tau if loss.settings.use_ddqn else None, prediction=tau)
        targets, predictions = loss.targets_and_predictions(Transitions.from_batch(batch, loss.device), taus)  # (B, N)
        losses = quantile_huber_loss(targets, predictions, tau, loss.settings.iqn_kappa)
        return TransitionErrors(losses.float(), predictions.float().mean(dim=1), targets.float().mean(dim=1))

    @override
    def state_dict(self) -> dict[str, Any]:
        loss = self.loss_module
        return super().state_dict() | {
            "target": loss.target.state_dict(),
            "step": self.step.state_dict(),
            "scaling": loss.scaling.state_dict(),
            "generator": loss.generator.get_state(),
            "device_type": loss.device.type,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        loss = self.loss_module
        loss.target.load_state_dict(state["target"])
        self.step.load_state_dict(state["step"])
        loss.scaling.load_state_dict(state["scaling"])
        if state["device_type"] == loss.device.type:  # random states do not carry over to another type
            loss.generator.set_state(state["generator"].cpu())
