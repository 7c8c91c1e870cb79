"""The interface between an agent and the learner: networks, updates, averaged weights, figures and state."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor, nn

from trackmania_rl.agents.weights import move_weights
from trackmania_rl.settings import AgentSettings

if TYPE_CHECKING:
    from tensordict import TensorDictBase

ProcessLosses = Callable[["TensorDictBase"], "TensorDictBase"]
"""Takes a batch's losses and returns those whose `loss...` entries are summed up."""

AVERAGE_SPANS_ONE_IN = 10
"""Early in a run averaged weights span about the last tenth of all publications."""


class Layer(NamedTuple):
    """A parameter's weight and latest gradient, in its shape; training uses their memory."""

    weight: Tensor
    gradient: Tensor | None  # from the last update, after clipping; None before the first


class TransitionErrors(NamedTuple):
    """Prediction errors for B transitions."""

    loss: Tensor  # (B,); for torchrl agents abs(target - prediction)
    predicted: Tensor | None  # (B,) mean predicted return for the action taken, if available
    target: Tensor | None  # (B,) mean target return


class Agent(ABC):
    """Base class of agents.

    Args:
        loss_module: maps a batch to a TensorDict with losses; `reduction` is "sum" or "mean".
        network: `exploration_network`, the network for exploration races, on the device.
        settings: agent settings.

    Attributes:
        averaged_network: network with the running average over `n_averaged` publications as weights.
        updates: updates made.
        is_on_policy: whether it learns from a `RolloutStore`.
        explores_by_epsilon: whether the actor explores by the epsilon schedules.
    """

    is_on_policy: ClassVar[bool] = False
    explores_by_epsilon = True

    def __init__(self, loss_module: nn.Module, network: nn.Module, settings: AgentSettings) -> None:
        self.loss_module = loss_module
        self.exploration_network = network
        self.settings = settings
        self.averaged_network = copy.deepcopy(network).requires_grad_(False).eval()
        self.n_averaged = 0
        self.updates = 0

    @property
    def evaluation_network(self) -> nn.Module:
        """The network for evaluation races: the averaged one, unless weights are not averaged."""
        return self.averaged_network if self.settings.evaluation_weights_decay > 0 else self.exploration_network

    def average_weights(self) -> None:
        """Add newly published weights to the average.

        The average spans about the last tenth of all publications, at most 1 / (1 - `evaluation_weights_decay`).
        (Polynomial-decay averaging, Shamir & Zhang 2013, arXiv:1212.1824.)
        """
        self.n_averaged += 1
        share_early_on = AVERAGE_SPANS_ONE_IN / (AVERAGE_SPANS_ONE_IN + self.n_averaged)
        share = max(1 - self.settings.evaluation_weights_decay, share_early_on)
        move_weights(self.averaged_network, self.exploration_network, share)

    def apply_settings(self, settings: AgentSettings, learning_rate: float) -> None:
        """Apply settings to the next updates, except sizes."""
        self.settings = settings

    @abstractmethod
    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDictBase:
        """Make one update with B transitions; return the losses () and `grad_norm` ().

        The batch gets `td_error` (B,), if the loss has one. `process_losses` changes losses before the backward pass.
        """

    def estimate_advantages(self, rollouts: TensorDictBase) -> TensorDictBase:
        """Return a `RolloutStore`'s transitions (n,) with the entries that on-policy agents' updates need."""
        raise NotImplementedError(f"{type(self).__name__} is off-policy")

    def compile_update(self, batch: TensorDictBase) -> None:
        """Compile ahead, in any thread, what updates with batches like this one call. The agent does not change."""
        return  # most agents compile nothing

    @abstractmethod
    def reset_partially(self) -> None:
        """Mix the network with a fresh one, which restores its ability to learn late in a run."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load a `state_dict` into the exploration network; critics keep their initial weights.

        Raises:
            RuntimeError: if names or shapes differ.
        """
        for network in (self.exploration_network, self.averaged_network):
            network.load_state_dict(weights)

    @abstractmethod
    def layers(self) -> dict[str, Layer]:
        """Return the tensors for each parameter that learns, by name."""

    @abstractmethod
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        """Return the returns (B, N, A) that the evaluation network expects in B states at taus (N,).

        An agent without distributions returns means (B, 1, A); without values for single actions, None. The inputs are
        on any device. Draws no random numbers.
        """

    @abstractmethod
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Return the errors for B transitions; None without targets. Draws no random numbers."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, apart from the settings; loads with `weights_only=True`."""
        return {
            "online": self.exploration_network.state_dict(),
            "averaged": self.averaged_network.state_dict(),
            "n_averaged": self.n_averaged,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. The same batches then give the same bytes, on the same device type and in one precision.

        Raises:
            KeyError: if an entry is missing.
            RuntimeError: if the networks' names or shapes differ.
        """
        self.exploration_network.load_state_dict(state["online"])
        self.averaged_network.load_state_dict(state["averaged"])
        self.n_averaged = state["n_averaged"]
        self.updates = state["updates"]
