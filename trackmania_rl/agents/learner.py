"""The learner: everything that training changes, and the one step that changes it. No queues, no files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trackmania_rl.agents.compilation import Compiler
from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.iqn import (
    IQN_Network,
    IQNLoss,
    Taus,
    Transitions,
    draw_taus,
    iqn_loss,
    target_returns,
)
from trackmania_rl.agents.loss_scale import LossScale
from trackmania_rl.agents.precision import arithmetic_dtype
from trackmania_rl.agents.quantile_loss import SelfLossScaling, quantile_huber_gradient
from trackmania_rl.agents.quantile_part import Workspace, portions, quantile_part
from trackmania_rl.agents.radam import FlatRAdam
from trackmania_rl.agents.recorded_step import RecordedStep
from trackmania_rl.settings import AgentSettings

CarryOut = Callable[[Callable[[], object]], object]
"""Calls the function that it is given."""

AVERAGE_SPANS_ONE_IN = 10
"""Early in a run averaged weights span about the last tenth of all publications."""
NORM_EPSILON = 1e-6
"""As in torch's `clip_grad_norm_`."""
LAST_LAYERS = ("A_head.2.", "V_head.2.")
"""Beginnings of the names of the parameters that make the heads' outputs."""


class UpdateMetrics(NamedTuple):
    """Figures of one update. They stay on the device: reading them (`.item()`) makes a GPU wait, so do it rarely."""

    loss: Tensor  # () sum over the batch
    grad_norm: Tensor  # () after its values were clipped, before its norm was
    mean_q: Tensor  # () mean predicted return of the actions taken
    td_error: Tensor  # (B,) |error of the mean|, the priorities of prioritized replay


class _PortionFunctions(NamedTuple):
    """What is done with the portions of a batch, as it is or compiled."""

    targets: Callable[[Transitions, Taus], Tensor]
    gradient: Callable[[Transitions, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    loss_weights: Callable[..., Tensor]


class IQNLearner:
    """Online network, target network, averaged network, optimizer, and the random state they draw from.

    What `update` computes, with autograd and torch's own functions (a test makes both and compares them):

        taus = draw_taus(B, settings, generator)
        loss = iqn_loss(online, target, batch, settings, scaling, taus, learning=True)
        loss.total.backward()
        clip_grad_value_(online.parameters(), settings.clip_grad_value)
        clip_grad_norm_(online.parameters(), settings.clip_grad_norm)
        RAdam's step against the gradient, then weights *= 1 - learning_rate * weight_decay_lr_ratio

    and from time to time, in `soft_update_target`, target += soft_update_tau * (online - target).

    All weights of a network are one vector (`flat_parameters`), so clipping, the optimizer, decay and the soft update
    are each one operation.

    Args:
        network: becomes the online network; moved to `device`.
        settings: of the algorithm; may be replaced while training (`self.settings = ...`), sizes excepted.
        device: where to compute.
        seed: of the taus drawn and of the fresh networks at resets.
        use_torch_compile: compile the update, where there is a compiler (half a minute at first, faster afterwards),
            and on a GPU record it (`recorded_step`).

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
        self._dtype = arithmetic_dtype(device, settings)
        self._loss_scale = LossScale(device, enabled=self._dtype == torch.float16)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._scaling = SelfLossScaling(device)

        self.online = network.to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self._averaged = copy.deepcopy(self.target)
        self._n_averaged = 0
        self._weights = flatten_parameters(self.online)
        self._gradient = flatten_gradients(self.online)
        self._target_weights = flatten_parameters(self.target)
        self._averaged_weights = flatten_parameters(self._averaged)
        self._optimizer = FlatRAdam(self._weights)
        workspace = Workspace(device, self._dtype)
        self._online_part, self._target_part = (
            quantile_part(network, workspace) for network in (self.online, self.target)
        )

        self._portion_functions = plain = _PortionFunctions(
            self._targets_of, self._differentiate_portion, self._scaling.loss_weights
        )
        self._differentiate_whole_batch: Callable[[Transitions, Taus], IQNLoss] = lambda batch, taus: (
            self._differentiate(batch, taus, plain)
        )
        self._maybe_compiled_move_weights = self._move_weights
        self._whole_batch_step: Callable[[Transitions, Taus], UpdateMetrics] = self._step
        if use_torch_compile:
            compiler = Compiler()
            self._portion_functions = _PortionFunctions(
                compiler.compiled(plain.targets),
                compiler.compiled(plain.gradient),
                compiler.compiled(plain.loss_weights),
            )
            self._differentiate_whole_batch = compiler.compiled(self._differentiate_whole_batch)
            self._maybe_compiled_move_weights = compiler.compiled(self._move_weights)
            if device.type == "cuda":
                self._whole_batch_step = RecordedStep(self._step, settings=lambda: self.settings)

    @property
    def evaluation_network(self) -> IQN_Network:
        """The network to drive with where only the result counts: averaged weights, or the online network."""
        return self._averaged if self.settings.evaluation_weights_decay > 0 else self.online

    def update(self, batch: Any, learning_rate: float) -> UpdateMetrics:
        """Train the online network on one batch.

        Args:
            batch: B transitions with the attributes of `Transitions`; they are copied to the learner's device where
                the replay memory is kept elsewhere.
            learning_rate: of this step.
        """
        batch = Transitions.from_batch(batch, self._device)
        taus = draw_taus(len(batch.action), self.settings, self._generator)
        self._optimizer.begin_step(
            learning_rate,
            betas=self._betas,
            epsilon=self.settings.adam_epsilon,
            decay=learning_rate * self.settings.weight_decay_lr_ratio,
        )
        step = self._whole_batch_step if self._is_one_piece(batch) else self._step
        metrics = step(batch, taus)
        self.updates += 1
        return metrics

    def rehearse_update(self, batch: Any, carry_out: CarryOut = lambda work: work()) -> None:
        """Make an update and take it back, so that what the first one compiles or records is ready.

        Args:
            batch: what `update` will be given, with any content.
            carry_out: is given the update as a function to call, and may interrupt it.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            carry_out(lambda: self.update(batch, learning_rate=0.0))
        finally:  # also if it was interrupted: a checkpoint is written after that
            self.load_state_dict(before)

    @torch.no_grad()
    def evaluate(self, batch: Any) -> Tensor:
        """The loss (), summed over the batch as in `update`, without learning from it."""
        batch = Transitions.from_batch(batch, self._device)
        taus = draw_taus(len(batch.action), self.settings, self._generator)
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype != torch.float32):
            return iqn_loss(self.online, self.target, batch, self.settings, self._scaling, taus, learning=False).total

    def soft_update_target(self, n_updates: int = 1) -> None:
        """Move the target network by `soft_update_tau` towards the online one, `n_updates` times over."""
        self._target_weights.lerp_(self._weights, 1 - (1 - self.settings.soft_update_tau) ** n_updates)

    def update_evaluation_weights(self) -> None:
        """Take the online weights into the exponential average; call at each publication of weights.

        It spans about the last tenth of all publications, until that is 1 / (1 - `evaluation_weights_decay`) of them:
        early on, while the weights improve fast, it follows closely. (That beginning is polynomial-decay averaging,
        Shamir & Zhang 2013, arXiv:1212.1824.)
        """
        self._n_averaged += 1
        share_early_on = AVERAGE_SPANS_ONE_IN / (AVERAGE_SPANS_ONE_IN + self._n_averaged)
        share = max(1 - self.settings.evaluation_weights_decay, share_early_on)
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
            "n_averaged": self._n_averaged,
            "optimizer": self._optimizer.state_dict(),
            "loss_scale": self._loss_scale.state_dict(),
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
        self._n_averaged = state.get("n_averaged", state["updates"])  # earlier checkpoints lack it: a long average
        self._optimizer.load_state_dict(state["optimizer"])
        self._loss_scale.load_state_dict(state["loss_scale"])
        if state["device_type"] == self._device.type:
            self._generator.set_state(state["generator"].cpu())
        self._scaling.mean.copy_(state["self_loss_mean"])
        self._scaling.clamped_mean.copy_(state["self_loss_clamped_mean"])
        self._scaling.batches.copy_(state["self_loss_batches"])
        self.updates = state["updates"]

    @property
    def _betas(self) -> tuple[float, float]:
        return self.settings.adam_beta1, self.settings.adam_beta2

    def _is_one_piece(self, batch: Transitions) -> bool:
        """Whether the batch is worked on in one go."""
        return len(self._portions(batch)) == 1

    def _portions(self, batch: Transitions) -> list[slice]:
        """The parts of a batch that are worked on one after the other."""
        return portions(len(batch.action), self._device, has_image=self.online.img_head is not None)

    def _step(self, batch: Transitions, taus: Taus) -> UpdateMetrics:
        """Everything between the random numbers of an update and its figures: nothing but operations on tensors."""
        for part in (self._online_part, self._target_part):
            part.prepare()
        self._gradient.zero_()
        if self._is_one_piece(batch):
            loss = self._differentiate_whole_batch(batch, taus)
        else:
            loss = self._differentiate(batch, taus, self._portion_functions)
        grad_norm = self._maybe_compiled_move_weights()
        return UpdateMetrics(loss.total, grad_norm, loss.mean_q, loss.td_error)

    def _differentiate(self, batch: Transitions, taus: Taus, functions: _PortionFunctions) -> IQNLoss:
        """The loss; its gradient is added to `self._gradient`.

        What `iqn_loss` and autograd do, but in portions, and with the derivatives of the loss and of the network
        written out (`quantile_part`, `feature_part`).
        """
        portions_of_batch = self._portions(batch)
        targets = torch.cat([functions.targets(batch.portion(p), taus.portion(p)) for p in portions_of_batch])
        loss_weights = batch.weight
        if self.settings.use_target_self_loss_scaling:
            scaling = functions.loss_weights(targets, taus.target, self.settings, learning=True)
            loss_weights = loss_weights * scaling
        losses, mean_predictions = zip(
            *(
                functions.gradient(batch.portion(p), taus.portion(p).prediction, targets[p], loss_weights[p])
                for p in portions_of_batch
            ),
            strict=True,
        )
        mean_prediction = torch.cat(mean_predictions)
        return IQNLoss(
            total=torch.dot(loss_weights, torch.cat(losses)),
            td_error=(targets.mean(dim=1) - mean_prediction).abs_(),
            mean_q=mean_prediction.mean(),
        )

    def _targets_of(self, portion: Transitions, taus: Taus) -> Tensor:
        """What to learn (B, M)."""
        return target_returns(self._online_part, self._target_part, portion, self.settings, taus)

    def _differentiate_portion(
        self, portion: Transitions, tau: Tensor, targets: Tensor, loss_weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the gradient of a portion's loss to `self._gradient`.

        Args:
            portion: B transitions.
            tau: (B, N), or (1, N), of the predictions.
            targets: (B, M).
            loss_weights: (B,), of the transitions' losses.

        Returns:
            Losses (B,), not yet multiplied by their weights, and mean predictions (B,).
        """
        online = self._online_part
        features = online.features.forward(portion.state_img, portion.state_float, recorded=True)
        predictions = online.forward(features, portion.state_float, tau, portion.action)
        losses, gradient = quantile_huber_gradient(targets, predictions, tau, self.settings.iqn_kappa)
        scaled_weights = loss_weights * self._loss_scale.factor
        online.features.backward(online.backward(gradient * scaled_weights.unsqueeze(1)))
        return losses, predictions.mean(dim=1)

    def _move_weights(self) -> Tensor:
        """Clip the gradient and step against it; returns the gradient's norm () before that was clipped."""
        self._loss_scale.unscale_(self._gradient)
        norm = self._clip_gradient()
        self._optimizer.finish_step(self._gradient, betas=self._betas)
        return norm

    def _clip_gradient(self) -> Tensor:
        """Clip every entry to `clip_grad_value`, then the whole to `clip_grad_norm`; returns the norm in between.

        The same as torch's `clip_grad_value_` and `clip_grad_norm_`, at a quarter of their time for one tensor.
        (Linesight clips the norm first.) Infinite entries are clipped like any other. A gradient with a NaN counts as
        0: once in the weights, it would stay for ever.
        """
        norm = torch.linalg.vector_norm(
            self._gradient.clamp_(-self.settings.clip_grad_value, self.settings.clip_grad_value)
        )
        self._gradient.mul_((self.settings.clip_grad_norm / (norm + NORM_EPSILON)).clamp_max(1))
        self._gradient.masked_fill_(torch.isnan(norm), 0.0)
        return norm
