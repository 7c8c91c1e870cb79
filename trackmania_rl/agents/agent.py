"""What a learner needs of an agent, and the one that ships: IQN with everything that training changes. No queues."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import LossModule

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

LAST_LAYERS = ("A_head.2.", "V_head.2.")
"""Beginnings of the names of the parameters that make the heads' outputs."""
AVERAGE_SPANS_ONE_IN = 10
"""Early in a run averaged weights span about the last tenth of all publications."""

Network = TypeVar("Network", bound=nn.Module)


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


class Agent(Protocol):
    """What the learner's Trainer and hooks need.

    Attributes:
        updates: number of updates made.
    """

    updates: int

    @property
    def loss_module(self) -> LossModule:
        """From a batch to losses."""

    @property
    def exploration_network(self) -> nn.Module:
        """The network that explores."""

    @property
    def evaluation_network(self) -> nn.Module:
        """The network to drive with where only the result counts."""

    def follow(self, settings: AgentSettings, learning_rate: float) -> None:
        """Take over the settings of the next updates."""

    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDictBase:
        """Make one update with a batch, which gets `td_error` (B,) where the loss has one.

        Args:
            batch: B transitions.
            process_losses: is given the losses before the backward pass; see `ProcessLosses`.

        Returns:
            The losses (), and `grad_norm` (), without gradient.
        """

    def average_weights(self) -> None:
        """Take the weights into the evaluation network's average; called at each publication of weights."""

    def rehearse_update(self, batch: TensorDictBase, carry_out: CarryOut) -> None:
        """Make an update and take it back, so that what the first one compiles or records is ready."""

    def reset_partially(self) -> None:
        """Mix the network with a fresh one."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the weights of a trained network."""

    def layers(self) -> dict[str, Layer]:
        """Show what training keeps of each parameter that learns, by its name."""

    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        """Tell what it expects in B states, for pictures; draws no random numbers.

        Args:
            img: (B, S, H, W) uint8, on any device, like the others.
            floats: (B, F) float32.
            taus: (N,) in [0, 1].

        Returns:
            (B, N, A), the returns of all actions at these taus; (B, 1, A), their means, of an agent that knows no
            distributions; None if it does not value single actions.
        """

    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Tell how wrong it is about B transitions, for pictures; draws no random numbers. None if it cannot tell."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, apart from the settings; loads with `weights_only=True`.

        Its "online" and "averaged" are the states of the network that explores, and of its average.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken."""


class AveragedWeights(Generic[Network]):
    """The average of what a network's weights were.

    Args:
        network: on its device; it is copied.

    Attributes:
        network: the copy that holds the average.
        n_averaged: how many weights went in.
    """

    def __init__(self, network: Network) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.n_averaged = 0
        self._weights = flatten_parameters(self.network)

    def take(self, weights: Tensor, decay: float) -> None:
        """Take weights (P,) into the average.

        It spans about the last tenth of all that went in, until that is 1 / (1 - `decay`) of them: early on, while
        weights improve fast, it follows closely. (That beginning is polynomial-decay averaging, Shamir & Zhang 2013,
        arXiv:1212.1824.)
        """
        self.n_averaged += 1
        share_early_on = AVERAGE_SPANS_ONE_IN / (AVERAGE_SPANS_ONE_IN + self.n_averaged)
        self._weights.lerp_(weights.detach(), max(1 - decay, share_early_on))


class IQNAgent:
    """Online, target and averaged network, optimizer, and the random state they draw from.

    Args:
        network: becomes the online network; moved to `device`.
        settings: of the algorithm.
        device: where to compute.
        seed: of the taus drawn and of the fresh networks at resets.
        use_torch_compile: compile the update, where there is a compiler (half a minute at first, faster afterwards).

    Attributes: see `Agent`.
    """

    loss_class: ClassVar[type[IQNLoss]] = IQNLoss

    def __init__(
        self,
        network: QuantileNetwork,
        settings: AgentSettings,
        *,
        device: torch.device,
        seed: int,
        use_torch_compile: bool = False,
    ) -> None:
        self.updates = 0
        self.loss_module = self.loss_class(
            network, settings, device=device, seed=seed, dtype=arithmetic_dtype(device, settings)
        )
        self._averaged = AveragedWeights(self.loss_module.online)
        self.step = IQNUpdate(self.loss_module, use_torch_compile=use_torch_compile)

    @property
    def exploration_network(self) -> QuantileNetwork:
        """The online network."""
        return self.loss_module.online

    @property
    def evaluation_network(self) -> QuantileNetwork:
        """The averaged network, or the online one where weights are not averaged."""
        is_averaged = self.loss_module.settings.evaluation_weights_decay > 0
        return self._averaged.network if is_averaged else self.loss_module.online

    def follow(self, settings: AgentSettings, learning_rate: float) -> None:
        """Take over the settings of the next updates, sizes excepted."""
        self.loss_module.settings = settings
        self.step.follow(settings, learning_rate)

    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDict:
        """Make one update with a batch; see `IQNUpdate`."""
        losses = self.step(batch, process_losses)
        self.updates += 1
        return losses

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

    def average_weights(self) -> None:
        """Take the online weights into the exponential average; call at each publication of weights."""
        self._averaged.take(self.step.weights, self.loss_module.settings.evaluation_weights_decay)

    @torch.no_grad()
    def reset_partially(self) -> None:
        """Mix the online network with a fresh one, which restores its ability to learn late in a run.

        The shares of the fresh network are `overall_reset_mul_factor`, and `last_layer_reset_mul_factor` for the heads'
        last layers. (Shrink and perturb, Ash & Adams 2020, arXiv:1910.08475; resets, Nikishin et al. 2022,
        arXiv:2205.07802.)
        """
        loss, settings = self.loss_module, self.loss_module.settings
        seed = torch.randint(2**63 - 1, (), generator=loss.generator, device=loss.device).item()
        fresh = copy.deepcopy(loss.online).cpu()
        fresh.initialize(torch.Generator().manual_seed(int(seed)))
        for (name, parameter), fresh_parameter in zip(loss.online.named_parameters(), fresh.parameters(), strict=True):
            is_last = name.startswith(LAST_LAYERS)
            share = settings.last_layer_reset_mul_factor if is_last else settings.overall_reset_mul_factor
            parameter.lerp_(fresh_parameter.to(loss.device), share)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the weights of a trained network, for example Linesight's published ones.

        Args:
            weights: a `state_dict` of the network.

        Raises:
            RuntimeError: if names or shapes differ; torch's text lists them.
        """
        for network in (self.loss_module.online, self.loss_module.target, self._averaged.network):
            network.load_state_dict(weights)

    def layers(self) -> dict[str, Layer]:
        """Show what training keeps of each parameter; see `Agent`. All of them are views into single vectors."""
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

    @torch.no_grad()
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        """Return what the network that evaluates expects; see `Agent`."""
        network, device = self.evaluation_network, self.loss_module.device
        returns: Tensor = network(img.to(device), floats.to(device), taus.to(device).unsqueeze(0))
        return returns.float()

    @torch.no_grad()
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Compare predictions and targets as an update does, at evenly spread taus and without weights or scaling."""
        loss = self.loss_module
        tau = midpoints(loss.settings.iqn_n, loss.device)
        taus = Taus(target=tau, choice=tau if loss.settings.use_ddqn else None, prediction=tau)
        targets, predictions = loss.targets_and_predictions(Transitions.from_batch(batch, loss.device), taus)  # (B, N)
        losses = quantile_huber_loss(targets, predictions, tau, loss.settings.iqn_kappa)
        return TransitionErrors(losses.float(), predictions.float().mean(dim=1), targets.float().mean(dim=1))

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, apart from the settings; loads with `weights_only=True`."""
        loss, step = self.loss_module, self.step
        return {
            "online": loss.online.state_dict(),
            "target": loss.target.state_dict(),
            "averaged": self._averaged.network.state_dict(),
            "n_averaged": self._averaged.n_averaged,
            "step": step.state_dict(),
            "scaling": loss.scaling.state_dict(),
            "generator": loss.generator.get_state(),
            "device_type": loss.device.type,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken: the same batches then give the same bytes.

        On another type of device or in another precision it goes on from the same weights, but not to the byte: random
        states do not carry over from one type to another, and gradient scales belong to float16.

        Raises:
            KeyError: if an entry is missing.
            RuntimeError: if the networks' names or shapes differ; torch's text lists them.
        """
        loss, step = self.loss_module, self.step
        loss.online.load_state_dict(state["online"])
        loss.target.load_state_dict(state["target"])
        self._averaged.network.load_state_dict(state["averaged"])
        self._averaged.n_averaged = state["n_averaged"]
        step.load_state_dict(state["step"])
        loss.scaling.load_state_dict(state["scaling"])
        if state["device_type"] == loss.device.type:
            loss.generator.set_state(state["generator"].cpu())
        self.updates = state["updates"]
