"""Implicit quantile networks: network, targets, loss and update, in this order. The code here is what trains.

IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv:1806.06923)
learns each action's return distribution instead of the mean return. The network returns quantiles: at *tau* = 0.5 the
median, at 0.9 a return exceeded one time in ten. An action's value is the mean over many taus.

The return sums the rewards until a *mini-race* with fixed duration ends. The state's first float is the mini-race's
elapsed time, so gamma may be 1.

Shapes, in all comments: B batch, N prediction taus, M target taus, A actions, F floats, D features,
E cosines, U hidden units per head, S frames per state, H and W image height and width, P weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.agent import Agent, Layer, ProcessLosses, TransitionErrors
from trackmania_rl.agents.devices import arithmetic_dtype, compiled
from trackmania_rl.agents.networks import (
    LEAKY_RELU_SLOPE,
    FourierFeatures,
    QuantileNetwork,
    Sizes,
    convolutions,
    float_layer,
    head,
    image_features,
    weight_and_bias,
)
from trackmania_rl.agents.weights import (
    RAdam,
    clip_gradient,
    evaluation_mode,
    flatten_parameters,
    learning_parameters,
    move_weights,
    views_of,
)
from trackmania_rl.settings import AgentSettings

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

GAIN_ON_BASELINE = 0.05
"""Gain for the heads' last layers with a value baseline."""
SELF_LOSS_CLAMP_RATIO = 4.0
"""Running mean of the self-loss divisor, divided by the lower bound."""
SELF_LOSS_RATE = 0.01
"""Rate for the running means over the targets' self-losses."""
SMALLEST_DIVISOR = 1e-6
"""Lower bound for a loss divisor, the root of the target's self-loss; a terminal transition's self-loss is 0."""


class Transitions(NamedTuple):
    """A batch of mini-race transitions (`experience_replay`) as a tuple of tensors."""

    state_img: Tensor  # (B, S, H, W) uint8; H = W = 0 without an image
    state_float: Tensor  # (B, F) float32
    action: Tensor  # (B,) int64
    reward: Tensor  # (B,) float32, discounted sum over the transition's n steps
    next_state_img: Tensor
    next_state_float: Tensor
    gamma_n: Tensor  # (B,) float32, gamma to the power n; 0 where the mini-race or the race ends
    weight: Tensor  # (B,) float32, importance weights of prioritized replay; 1 without
    is_demonstration: Tensor | None = None  # (B,) bool, if the memory keeps demonstrations apart

    @classmethod
    def from_batch(cls, batch: TensorDictBase, device: torch.device) -> Transitions:
        """Take the tensors with these names from a batch, copied to `device` from any other."""
        tensors = {name: batch.get(name, None) for name in cls._fields}
        return cls(**{name: _on_device(tensor, device) for name, tensor in tensors.items() if tensor is not None})


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from pinned memory, as the copy from pageable memory would synchronize with the GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# ------------------------------------------------------------------------------------------------------------ 1. taus


def draw_symmetric_taus(batch_size: int, n_taus: int, generator: torch.Generator) -> Tensor:
    """Draw taus (B, N), one in each of N/2 equal parts of [0, 0.5), then 1 - tau for each; N is even.

    Each tau is uniform on [0, 1], and the mean over few of them has less variance than over independent draws.
    """
    n_pairs = n_taus // 2
    draws = torch.rand((batch_size, n_pairs), generator=generator, device=generator.device)
    lower = draws.add_(torch.arange(n_pairs, device=generator.device)).div_(n_taus)
    return torch.cat((lower, 1 - lower), dim=1)


def midpoints(n_taus: int, device: torch.device) -> Tensor:
    """Return the N midpoints (i + 1/2) / N as taus (1, N), the same for all states."""
    return ((torch.arange(n_taus, device=device) + 0.5) / n_taus).unsqueeze(0)


class Taus(NamedTuple):
    """The random numbers for one update; B is 1 where all transitions share them."""

    target: Tensor  # (B, M)
    prediction: Tensor  # (B, N)


def draw_taus(batch_size: int, settings: AgentSettings, generator: torch.Generator) -> Taus:
    """Draw the taus for updating with B transitions.

    All transitions share them where tau factors multiply hidden layers; the factors are then computed once.
    """
    n_rows = 1 if settings.quantile_factors_multiply == "hidden_layers" else batch_size
    return Taus(*(draw_symmetric_taus(n_rows, settings.iqn_n, generator) for _ in Taus._fields))


# --------------------------------------------------------------------------------------------------------- 2. network


class IQN_Network(QuantileNetwork):
    """Network that returns all actions' returns at given taus.

    `img_head` and `float_feature_extractor` turn image and floats into D features. `iqn_fc` turns each tau, as E
    cosines, into D factors that multiply them (equation 4 of the paper). Two dueling heads (Wang et al. 2016,
    arXiv:1511.06581) turn the products into returns: Q = V + A - mean(A).

    With `quantile_factors_multiply = "hidden_layers"` there are 2U factors, which multiply the heads' hidden layers.
    All before the last layers is then computed once per state, not per tau.

    At full size the keys and shapes in `state_dict()` equal Linesight's published network: 6,578,333 parameters.
    """

    cosine_frequencies: Tensor

    def __init__(self, settings: AgentSettings, sizes: Sizes, generator: torch.Generator) -> None:
        super().__init__(settings, sizes)
        self.quantiles_multiply_hidden_layers = settings.quantile_factors_multiply == "hidden_layers"
        feature_dim = settings.float_hidden_dim
        self.img_head: nn.Module | None = None
        if sizes.image_shape[1] > 0:
            self.img_head, n_features = self.make_image_head(settings, sizes.image_shape)
            feature_dim += n_features
        self.fourier_features = FourierFeatures(sizes.waves)
        self.float_feature_extractor = nn.Sequential(
            *float_layer(len(sizes.float_mean) + self.fourier_features.n_features, settings),
            *float_layer(settings.float_hidden_dim, settings),
        )
        self.A_head = head(feature_dim, sizes.n_actions, settings)
        self.V_head = head(feature_dim, 1, settings)
        n_factors = settings.dense_hidden_dimension if self.quantiles_multiply_hidden_layers else feature_dim
        self.iqn_fc = nn.Sequential(
            nn.Linear(settings.iqn_embedding_dimension, n_factors), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)
        )
        self.initialize(generator)
        frequencies = math.pi * torch.arange(1, settings.iqn_embedding_dimension + 1, dtype=torch.float32)
        self.register_buffer("cosine_frequencies", frequencies, persistent=False)

    def make_image_head(self, settings: AgentSettings, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Make the head for images (S, H, W) from -1 to 1; return the head and the feature count. For subclasses."""
        return convolutions(settings, *image_shape)

    @property
    @override
    def last_layers(self) -> list[nn.Module]:
        return [self.A_head[-1], self.V_head[-1]]

    @override
    def gain_of(self, layer: nn.Module) -> float:
        # The cosines that `iqn_fc` reads have variance one half. Small last layers keep a fresh network's
        # noise below the baseline.
        if layer in self.last_layers:
            gain = 1.0 if self.expected_reward_per_action == 0 else GAIN_ON_BASELINE
            return gain / nn.init.calculate_gain("leaky_relu", LEAKY_RELU_SLOPE)
        return math.sqrt(2) if layer is self.iqn_fc[0] else 1.0

    @override
    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        features = self.features(img, floats)  # (B, D)
        factors = self.factors(tau)  # (B or 1, N, D or 2U)
        if self.quantiles_multiply_hidden_layers:
            hidden = self._hidden(features).float().unsqueeze(1) * factors  # (B, N, 2U)
        else:
            hidden = self._hidden(features.unsqueeze(1) * factors).float()
        weight, bias = self.last_layers_as_one()  # (A, 2U), (A,)
        return F.linear(hidden, weight) + (bias + self.baseline(floats)[:, None, None])

    def features(self, img: Tensor, floats: Tensor) -> Tensor:
        """Compute the features (B, D) from image and floats; arguments as in `forward`."""
        inputs = torch.cat((self.normalized(floats), self.fourier_features(floats)), dim=1)
        float_features: Tensor = self.float_feature_extractor(inputs)
        if self.img_head is None:
            return float_features
        return torch.cat((image_features(self.img_head, img), float_features), dim=1)

    def factors(self, tau: Tensor) -> Tensor:
        """Compute the factors (B, N, D or 2U) for taus (B, N) from cos(pi i tau), i = 1..E.

        (The paper counts from 0, whose cosine is 1, like the bias.)
        """
        return self.iqn_fc(torch.cos(tau.unsqueeze(2) * self.cosine_frequencies))  # type: ignore[no-any-return]

    def _hidden(self, features: Tensor) -> Tensor:
        """Compute both heads' hidden layers (..., 2U) from features (..., D), the advantage head's first."""
        return torch.cat((self.A_head[:-1](features), self.V_head[:-1](features)), dim=-1)

    def last_layers_as_one(self) -> tuple[Tensor, Tensor]:
        """Return the weight (A, 2U) and bias (A,) that turn both heads' hidden layers into returns.

        Q = V + A - mean(A) (equation 9 of the dueling paper) is linear, so the weights include it.
        """
        (of_advantage, advantage_bias), (of_value, value_bias) = map(weight_and_bias, self.last_layers)
        centered = of_advantage - of_advantage.mean(dim=0)
        weight = torch.cat((centered, of_value.expand(len(centered), -1)), dim=1)
        return weight, advantage_bias - advantage_bias.mean() + value_bias


# --------------------------------------------------------------------------------------------------------- 3. targets


def target_returns(
    online: QuantileNetwork, target: QuantileNetwork, batch: Transitions, settings: AgentSettings, tau: Tensor
) -> Tensor:
    """Compute the targets (B, M) at taus (B, M): reward + gamma^n x return for the next state's chosen action.

    The action is chosen in one of three ways. `max_of_each_quantile`: the best action for each tau separately
    (Linesight's published way; it overestimates while actions differ by noise). `argmax_of_mean`: one action for all
    taus, by the target network's mean (the IQN paper's way). Double DQN (van Hasselt et al. 2016, arXiv:1509.06461):
    one action by the online network's mean.
    """
    assert batch.reward.shape == batch.gamma_n.shape == batch.action.shape
    next_state = (batch.next_state_img, batch.next_state_float)
    with torch.no_grad():
        next_returns = target(*next_state, tau)  # (B, M, A)
        if settings.use_ddqn:
            chosen = of_action(next_returns, online(*next_state, tau).mean(dim=1).argmax(dim=1))
        elif settings.target_action == "argmax_of_mean":
            chosen = of_action(next_returns, next_returns.mean(dim=1).argmax(dim=1))
        else:
            chosen = next_returns.amax(dim=2)
        return batch.reward.unsqueeze(1) + batch.gamma_n.unsqueeze(1) * chosen  # (B, M)


def of_action(returns: Tensor, action: Tensor) -> Tensor:
    """Select the returns (B, N) for one action (B,) per state from all (B, N, A)."""
    return returns.gather(2, action.view(-1, 1, 1).expand(-1, returns.shape[1], 1)).squeeze(2)


# ------------------------------------------------------------------------------------------------------------ 4. loss


def quantile_huber_loss(targets: Tensor, predictions: Tensor, tau: Tensor, kappa: float) -> Tensor:
    """Compute the quantile Huber loss (B,), the sum over predictions of the mean over targets (equation 3 of IQN).

    The error costs tau where the prediction is below the target, and 1 - tau above it: the cost is least where a share
    tau of the targets is below. Errors below kappa count squared.

    Args:
        targets: (B, M), each of which is compared with every prediction.
        predictions: (B, N).
        tau: (B, N), for the predictions; (1, N) where all states share them.
        kappa: where the Huber loss passes from square to linear, in reward units.
    """
    assert tau.shape in (predictions.shape, (1, predictions.shape[1]))
    error = targets.unsqueeze(2) - predictions.unsqueeze(1)  # (B, M, N)
    clipped = error.clamp(-kappa, kappa)
    huber = clipped * (error - clipped / 2) / kappa  # error^2 / (2 kappa), or |error| - kappa / 2 beyond kappa
    share = (tau.unsqueeze(1) - (error.detach() < 0).float()).abs()  # tau below the target, 1 - tau above
    return (share * huber).mean(dim=1).sum(dim=1)


def margin_loss(returns: Tensor, action: Tensor, margin: float) -> Tensor:
    """Compute the large-margin loss (B,) of DQfD (Hester et al. 2018, arXiv:1704.03732) on mean returns.

    max over actions a of (Q(a) + margin if a is another action) - Q(action): 0 once the action taken (B,) is better
    than all others by the margin. Returns are (B, N, A).
    """
    values = returns.float().mean(dim=1)  # (B, A)
    of_taken = values.gather(1, action.unsqueeze(1))  # (B, 1)
    raised = (values + margin).scatter(1, action.unsqueeze(1), of_taken)
    return raised.amax(dim=1) - of_taken.squeeze(1)


class SelfLossScaling(nn.Module):
    """Loss weights (Linesight's scheme), smaller for transitions with noisy targets.

    The quantile loss of a target's returns against themselves is a perfect prediction's loss. Dividing a transition's
    loss by the self-loss's square root keeps states with an uncertain future from dominating. The divisor is clamped
    below at the running mean / `SELF_LOSS_CLAMP_RATIO`, and the running mean of the clamped divisors multiplies,
    which keeps the loss scale.
    """

    mean: Tensor  # () running mean of the divisors; a plain mean at first
    clamped_mean: Tensor  # () likewise, after clamping
    batches: Tensor  # () batches in the means

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "clamped_mean", "batches"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, targets: Tensor, tau: Tensor, settings: AgentSettings) -> Tensor:
        """Compute the loss weights (B,) from targets (B, M) and their taus (B or 1, M).

        The running means move in training mode only.
        """
        divisors = quantile_huber_loss(targets, targets, tau, settings.iqn_kappa).sqrt()
        rate = (1 / (self.batches + 1)).clamp_min(SELF_LOSS_RATE)
        if not self.training:
            rate = rate * (self.batches == 0)  # only the first batch sets the means
        batch_mean = divisors.mean()
        is_finite = torch.isfinite(batch_mean)  # a non-finite target would stay in the means
        mean = torch.where(is_finite, torch.lerp(self.mean, batch_mean, rate), self.mean)
        clamped = torch.maximum(divisors, mean / SELF_LOSS_CLAMP_RATIO).clamp_min(SMALLEST_DIVISOR)
        clamped_mean = torch.where(is_finite, torch.lerp(self.clamped_mean, clamped.mean(), rate), self.clamped_mean)
        if self.training:
            self.mean.copy_(mean)
            self.clamped_mean.copy_(clamped_mean)
            self.batches.add_(is_finite)
        return clamped_mean / clamped


class IQNLoss(nn.Module):
    """Loss on a transition batch, as torchrl's losses: a TensorDict in, a TensorDict with losses out."""

    online: QuantileNetwork  # learns
    target: QuantileNetwork  # slow copy, which values the next states
    reduction = "sum"  # over the batch
    figure = "mean_q"

    def __init__(self, network: QuantileNetwork, settings: AgentSettings, device: torch.device, seed: int) -> None:
        super().__init__()
        self.settings = settings
        self.device = device
        self.dtype = arithmetic_dtype(device, settings, network)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.online = network
        self.target = copy.deepcopy(network).requires_grad_(False).eval()
        self.scaling = SelfLossScaling()
        self.to(device)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss for B transitions with `Transitions` entries.

        Returns:
            `loss` (): the sum over the batch, for which the published learning rates, epsilon and clipping are meant;
            `mean_q` (): the mean predicted return for the actions taken. The batch gets `td_error` (B,), abs(mean of
            targets - mean of predictions), for prioritized replay.
        """
        batch = Transitions.from_batch(tensordict, self.device)
        taus = draw_taus(len(batch.action), self.settings, self.generator)
        loss, td_error, mean_q = self.compute_losses(batch, taus)
        tensordict.set("td_error", td_error)
        return _tensordict({"loss": loss, self.figure: mean_q})

    def compute_losses(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss (), the TD errors (B,) and the mean Q ()."""
        targets, returns = self.targets_and_returns(batch, taus)  # (B, M), (B, N, A)
        predictions = of_action(returns, batch.action)  # (B, N)
        losses = quantile_huber_loss(targets, predictions, taus.prediction, self.settings.iqn_kappa)  # (B,)
        weights = batch.weight * self.scaling(targets, taus.target, self.settings)
        assert losses.shape == weights.shape == batch.action.shape
        losses = weights * losses
        if self.settings.demonstrations_margin > 0 and batch.is_demonstration is not None:
            margins = margin_loss(returns, batch.action, self.settings.demonstrations_margin)
            losses = losses + margins * batch.is_demonstration
        mean_prediction = predictions.detach().mean(dim=1)
        return losses.sum(), (targets.mean(dim=1) - mean_prediction).abs(), mean_prediction.mean()

    def targets_and_returns(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor]:
        """Compute the targets (B, M) and all actions' predicted returns (B, N, A)."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            targets = target_returns(self.online, self.target, batch, self.settings, taus.target)
            returns = self.online(batch.state_img, batch.state_float, taus.prediction)
        return targets, returns

    def differentiate(
        self, batch: Transitions, taus: Taus, scale: Tensor, process_losses: ProcessLosses | None = None
    ) -> tuple[dict[str, Tensor], Tensor, tuple[Tensor, ...]]:
        """Compute the losses (), the TD errors (B,), and the gradients of the summed losses times `scale`."""
        loss, td_error, figure = self.compute_losses(batch, taus)
        losses = {"loss": loss, self.figure: figure}
        if process_losses is not None:
            losses = dict(process_losses(_tensordict(losses)).items())
        total = torch.stack([value for name, value in losses.items() if name.startswith("loss")]).sum()
        gradients = torch.autograd.grad(total * scale, learning_parameters(self.online), materialize_grads=True)
        return {name: value.detach() for name, value in losses.items()}, td_error, gradients


def _tensordict(entries: dict[str, Tensor]) -> TensorDict:
    from tensordict import TensorDict  # takes two seconds, which collectors do not need

    return TensorDict(entries)


# ---------------------------------------------------------------------------------------------------------- 5. update


class IQNAgent(Agent):
    """The agent that ships: trains a network moved to a device.

    The seed is for the taus and the fresh networks at resets. `use_torch_compile` compiles the functions that
    `update` calls, which takes half a minute.
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
        loss = self.loss_class(network, settings, device, seed)
        super().__init__(loss, loss.online, settings)
        self.weights = nn.Parameter(flatten_parameters(learning_parameters(loss.online)))  # (P,), those that learn
        self._differentiate = self.loss_class.differentiate
        self._clip_gradient = clip_gradient
        if use_torch_compile:
            mode = "reduce-overhead" if device.type == "cuda" else None
            self._differentiate = compiled(self.loss_class.differentiate, mode)
            self._clip_gradient = compiled(clip_gradient)
        self.optimizer = RAdam(self.weights)
        # float16 would round small gradients to 0.
        self.scaler = torch.amp.GradScaler(device.type, enabled=loss.dtype == torch.float16)
        self._unscaled = torch.ones((), device=device)
        self._transitions_due = 0

    @override
    def update(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDict:
        """Make one update: loss, backward, clipping, optimizer step, target network.

        `process_losses` runs within the backward pass, which is not compiled then.
        """
        loss = self.loss_module
        settings = self.settings
        transitions = Transitions.from_batch(batch, loss.device)
        taus = draw_taus(len(transitions.action), settings, loss.generator)
        differentiate = self._differentiate if process_losses is None else self.loss_class.differentiate
        scale = self.scaler.scale(self._unscaled)
        losses, td_error, gradients = differentiate(loss, transitions, taus, scale, process_losses)
        # Copies, because the next update overwrites a recorded graph's results.
        self.weights.grad = gradient = torch.cat([of_parameter.reshape(-1) for of_parameter in gradients])  # (P,)
        batch.set("td_error", td_error.clone())
        losses = {name: value.clone() for name, value in losses.items()}
        self.scaler.unscale_(self.optimizer)
        norm = self._clip_gradient(gradient, settings.clip_grad_value, settings.clip_grad_norm)
        self.scaler.step(self.optimizer)  # no step if the scaled gradient overflows
        self.scaler.update()
        interval = settings.number_memories_trained_on_between_target_network_updates
        n_moves, self._transitions_due = divmod(self._transitions_due + len(transitions.action), interval)
        if n_moves > 0:
            move_weights(loss.target, loss.online, 1 - (1 - settings.soft_update_tau) ** n_moves)
        if self.scaler.is_enabled():  # an overflow is no error, unless the scale is 1 already
            norm = norm.masked_fill(~torch.isfinite(norm) & (scale > 1), 0.0)
        self.updates += 1
        return _tensordict({**losses, "grad_norm": norm})

    @override
    def compile_update(self, batch: TensorDictBase) -> None:
        if self.loss_module.device.type == "cpu":  # CUDA graphs belong to the thread that records them
            copy.deepcopy(self).update(batch)

    @override
    def apply_settings(self, settings: AgentSettings, learning_rate: float) -> None:
        self.settings = self.loss_module.settings = settings
        self.optimizer.learning_rate = learning_rate
        self.optimizer.betas = settings.adam_beta1, settings.adam_beta2
        self.optimizer.epsilon = settings.adam_epsilon
        self.optimizer.decay = settings.weight_decay_lr_ratio

    @override
    @torch.no_grad()
    def reset_partially(self) -> None:
        """Mix the online network with a fresh one.

        (Shrink and perturb, Ash & Adams 2020, arXiv:1910.08475; resets, Nikishin et al. 2022, arXiv:2205.07802.)
        """
        loss = self.loss_module
        seed = torch.randint(2**63 - 1, (), generator=loss.generator, device=loss.device).item()
        fresh = copy.deepcopy(loss.online).cpu()
        fresh.initialize(torch.Generator().manual_seed(int(seed)))
        of_last_layers = {parameter for layer in loss.online.last_layers for parameter in layer.parameters()}
        learning = zip(learning_parameters(loss.online), learning_parameters(fresh), strict=True)
        for parameter, fresh_parameter in learning:
            is_last = parameter in of_last_layers
            share = self.settings.last_layer_reset_mul_factor if is_last else self.settings.overall_reset_mul_factor
            parameter.lerp_(fresh_parameter.to(loss.device), share)

    @override
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self.loss_module.target.load_state_dict(weights)

    @override
    def layers(self) -> dict[str, Layer]:
        parameters = {name: one for name, one in self.loss_module.online.named_parameters() if one.requires_grad}
        gradient = self.weights.grad
        gradients = [None] * len(parameters) if gradient is None else views_of(gradient, list(parameters.values()))
        return {
            name: Layer(parameter.detach(), of_parameter)
            for (name, parameter), of_parameter in zip(parameters.items(), gradients, strict=True)
        }

    @override
    @torch.no_grad()
    def returns_at(self, img: Tensor, floats: Tensor, taus: Tensor) -> Tensor | None:
        network = self.evaluation_network
        device = self.loss_module.device
        with evaluation_mode(network):
            returns: Tensor = network(img.to(device), floats.to(device), taus.to(device).unsqueeze(0))
        return returns.float()

    @override
    @torch.no_grad()
    def errors_of(self, batch: TensorDictBase) -> TransitionErrors | None:
        """Compare predictions and targets at evenly spread taus, without weights or scaling."""
        loss = self.loss_module
        tau = midpoints(self.settings.iqn_n, loss.device)
        transitions = Transitions.from_batch(batch, loss.device)
        with evaluation_mode(loss):
            targets, returns = loss.targets_and_returns(transitions, Taus(tau, tau))
        predictions = of_action(returns, transitions.action)
        losses = quantile_huber_loss(targets, predictions, tau, self.settings.iqn_kappa)
        return TransitionErrors(losses.float(), predictions.float().mean(dim=1), targets.float().mean(dim=1))

    @override
    def state_dict(self) -> dict[str, Any]:
        loss = self.loss_module
        return super().state_dict() | {
            "target": loss.target.state_dict(),
            "step": {
                "optimizer": dict(self.optimizer.state[self.weights]),
                "scaler": self.scaler.state_dict(),
                "transitions_due": self._transitions_due,
            },
            "scaling": loss.scaling.state_dict(),
            "generator": loss.generator.get_state(),
            "device_type": loss.device.type,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        loss = self.loss_module
        step = state["step"]
        loss.target.load_state_dict(state["target"])
        for name, tensor in self.optimizer.state[self.weights].items():
            tensor.copy_(step["optimizer"][name])
        self.optimizer.n_steps = int(step["optimizer"]["step"])
        if step["scaler"] and self.scaler.is_enabled():  # empty where the loss is not scaled
            self.scaler.load_state_dict(step["scaler"])
        self._transitions_due = step["transitions_due"]
        loss.scaling.load_state_dict(state["scaling"])
        if state["device_type"] == loss.device.type:  # another device type has another random state form
            loss.generator.set_state(state["generator"])
