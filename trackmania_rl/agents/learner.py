"""The learner: everything that training changes, and the one step that changes it. No queues, no files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.iqn import (
    IQN_Network,
    IQNLoss,
    SelfLossScaling,
    TransitionBatch,
    draw_symmetric_quantiles,
    iqn_loss,
    quantile_huber_gradient,
    target_quantiles,
)
from trackmania_rl.agents.quantile_part import QuantilePart, Workspace, portions
from trackmania_rl.agents.radam import FlatRAdam
from trackmania_rl.settings import AgentSettings

LAST_LAYERS = ("A_head.2.", "V_head.2.")
"""Beginnings of the names of the parameters that make the heads' outputs."""


class UpdateMetrics(NamedTuple):
    """Figures of one update. They stay on the device: reading them (`.item()`) makes a GPU wait, so do it rarely."""

    loss: Tensor  # () sum over the batch
    grad_norm: Tensor  # () before the norm was clipped
    mean_q: Tensor  # () mean predicted return of the actions taken
    td_error: Tensor  # (B,) |error of the mean|, the priorities of prioritized replay


class IQNLearner:
    """Online network, target network, averaged network, optimizer, and the random state they draw from.

    All weights of a network are one vector (`flat_parameters`), so clipping, the optimizer, decay and the soft update
    are each one operation.

    Args:
        network: becomes the online network; moved to `device`.
        settings: of the algorithm; may be replaced while training (`self.settings = ...`), sizes excepted.
        device: where to compute.
        seed: of the quantiles drawn and of the fresh networks at resets.
        use_torch_compile: compile the forward passes (a minute at the first update, faster afterwards).

    Attributes:
        online: the network that learns.
        target: its slow copy, moved by `soft_update_target`.
        updates: number of updates made.
    """

    def __init__(
        self,
        network: IQN_Network,
        settings: AgentSettings,
        *,
        device: torch.device,
        seed: int,
        use_torch_compile: bool = False,
    ) -> None:
        self.settings = settings
        self.updates = 0
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._scaling = SelfLossScaling(device)

        self.online = network.to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self._averaged = copy.deepcopy(self.target)
        self._weights = flatten_parameters(self.online)
        self._gradient = flatten_gradients(self.online)
        self._target_weights = flatten_parameters(self.target)
        self._averaged_weights = flatten_parameters(self._averaged)
        self._optimizer = FlatRAdam(self._weights)
        workspace = Workspace(device)
        self._online_part, self._target_part = (
            QuantilePart(network, workspace) for network in (self.online, self.target)
        )

        # Processors compute in float32; float16 alone has so small a range that its gradients must be scaled.
        self._autocast_dtype = getattr(torch, settings.autocast_dtype)
        self._use_autocast = device.type == "cuda" and settings.autocast_dtype != "float32"
        needs_scaling = self._use_autocast and settings.autocast_dtype == "float16"
        self._grad_scaler = torch.amp.GradScaler(device.type, enabled=needs_scaling)
        if use_torch_compile:
            self.online.compile(dynamic=False)
            self.target.compile(dynamic=False)

    @property
    def evaluation_network(self) -> IQN_Network:
        """The network to drive with where only the result counts: averaged weights, or the online network."""
        return self._averaged if self.settings.evaluation_weights_decay > 0 else self.online

    def update(self, batch: TransitionBatch, learning_rate: float) -> UpdateMetrics:
        """Train the online network on one batch.

        Args:
            batch: B transitions on the learner's device.
            learning_rate: of this step.
        """
        loss = self._differentiate(batch)
        grad_norm = self._clip_gradient()
        self._optimizer.step(
            self._gradient,
            learning_rate,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            epsilon=self.settings.adam_epsilon,
            decay=learning_rate * self.settings.weight_decay_lr_ratio,
        )
        self.updates += 1
        return UpdateMetrics(loss.total, grad_norm, loss.mean_q, loss.td_error)

    @torch.no_grad()
    def evaluate(self, batch: TransitionBatch) -> Tensor:
        """The loss (), summed over the batch, without learning from it."""
        with self._autocast():
            return iqn_loss(
                self.online, self.target, batch, self.settings, self._scaling, self._generator, learning=False
            ).total

    def soft_update_target(self) -> None:
        """Move the target network by `soft_update_tau` towards the online one."""
        self._target_weights.lerp_(self._weights, self.settings.soft_update_tau)

    def update_evaluation_weights(self) -> None:
        """Take the online weights into the exponential average; call at each publication of weights."""
        share = 1 - self.settings.evaluation_weights_decay
        self._averaged_weights.lerp_(self._weights, share)

    @torch.no_grad()
    def reset_partially(self) -> None:
        """Mix the online network with a fresh one, which restores its ability to learn late in a run.

        The shares of the fresh network are `overall_reset_mul_factor`, and `last_layer_reset_mul_factor` for the heads'
        last layers. (Shrink and perturb, Ash & Adams 2020, arXiv:1910.08475; resets, Nikishin et al. 2022,
        arXiv:2205.07802.)
        """
        seed = torch.randint(2**63 - 1, (), generator=self._generator, device=self._device).item()
        fresh = copy.deepcopy(self.online).cpu()
        fresh.initialize(torch.Generator().manual_seed(int(seed)))
        for (name, parameter), fresh_parameter in zip(self.online.named_parameters(), fresh.parameters(), strict=True):
            is_last = name.startswith(LAST_LAYERS)
            share = self.settings.last_layer_reset_mul_factor if is_last else self.settings.overall_reset_mul_factor
            parameter.lerp_(fresh_parameter.to(self._device), share)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the weights of a trained network, for example Linesight's published ones.

        Args:
            weights: a `state_dict` of an `IQN_Network`.

        Raises:
            RuntimeError: if names or shapes differ; torch's text lists them.
        """
        for network in (self.online, self.target, self._averaged):
            network.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, apart from the settings; loads with `weights_only=True`."""
        return {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "averaged": self._averaged.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "grad_scaler": self._grad_scaler.state_dict(),
            "generator": self._generator.get_state(),
            "device_type": self._device.type,
            "self_loss_mean": self._scaling.mean,
            "self_loss_clamped_mean": self._scaling.clamped_mean,
            "self_loss_batches": self._scaling.batches,
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
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self._averaged.load_state_dict(state["averaged"])
        self._optimizer.load_state_dict(state["optimizer"])
        if state["grad_scaler"]:
            self._grad_scaler.load_state_dict(state["grad_scaler"])
        if state["device_type"] == self._device.type:
            self._generator.set_state(state["generator"].cpu())
        self._scaling.mean = state["self_loss_mean"].to(self._device)
        self._scaling.clamped_mean = state["self_loss_clamped_mean"].to(self._device)
        self._scaling.batches = state["self_loss_batches"]
        self.updates = state["updates"]

    def _differentiate(self, batch: TransitionBatch) -> IQNLoss:
        """The loss; its gradient is in `self._gradient` then.

        What `iqn_loss` and autograd do, but for the derivatives of the loss and of the network behind the features:
        they are written out, which saves a third of the time.
        """
        settings = self.settings
        targets, target_tau = target_quantiles(self._online_part, self._target_part, batch, settings, self._generator)
        tau = draw_symmetric_quantiles(len(batch.action), settings.iqn_n, self._generator)
        factors = batch.weight
        if settings.use_target_self_loss_scaling:
            factors = factors * self._scaling.factors(targets, target_tau, settings, learning=True)
        self._gradient.zero_()
        losses, mean_predictions = [], []
        for states in portions(len(tau), self._device):
            floats = batch.state_float[states]
            features = self.online.features(batch.state_img[states], floats)
            predictions = self._online_part.forward(features.detach(), floats, tau[states], batch.action[states])
            loss, gradient = quantile_huber_gradient(targets[states], predictions, tau[states], settings.iqn_kappa)
            features.backward(self._online_part.backward(gradient * factors[states, None]))
            losses.append(loss)
            mean_predictions.append(predictions.mean(dim=1))
        mean_prediction = torch.cat(mean_predictions)
        return IQNLoss(
            total=torch.dot(factors, torch.cat(losses)),
            td_error=(targets.mean(dim=1) - mean_prediction).abs_(),
            mean_q=mean_prediction.mean(),
        )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self._autocast_dtype, enabled=self._use_autocast)

    def _clip_gradient(self) -> Tensor:
        """Clip every entry to `clip_grad_value`, then the whole to `clip_grad_norm`; returns the norm in between.

        The same as torch's `clip_grad_value_` and `clip_grad_norm_`, at a quarter of their time for one tensor.
        """
        norm = torch.linalg.vector_norm(
            self._gradient.clamp_(-self.settings.clip_grad_value, self.settings.clip_grad_value)
        )
        self._gradient.mul_((self.settings.clip_grad_norm / (norm + 1e-6)).clamp_max(1))
        return norm
