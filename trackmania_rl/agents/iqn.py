"""Implicit quantile networks: network, targets, loss and update, in this order. What is read here is what runs.

IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv:1806.06923)
learns, for each action, the whole distribution of the return instead of its mean. The network is asked for the return
at a quantile fraction tau in [0, 1]: tau = 0.5 is the median, tau = 0.9 a return that is exceeded one time in ten. The
value of an action is the mean over many taus. Throughout, *tau* is the fraction and *return* is the value there.

The return is the sum of rewards until a *mini-race* of fixed duration ends; the first float of the state says how much
of the mini-race has passed, so gamma may be 1.

Shapes, in all comments: B batch, N taus of the prediction, M taus of the target, A actions, F floats, D features,
E cosines, U units of one head's hidden layer, S frames of a state, H and W the image's height and width, P weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import LossModule

from trackmania_rl.agents.compilation import compiled
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.networks import LEAKY_RELU_SLOPE, FourierFeatures, convolutions, float_layer, head
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings import AgentSettings

ProcessLosses = Callable[[TensorDictBase], TensorDictBase]
"""Is given the losses, and returns those whose `loss...` entries are summed up."""

IMAGES_AT_ONCE = 64
"""A processor's convolutions go through a batch in microbatches of so many images, which stay in its caches."""
NORM_EPSILON = 1e-6
"""As in torch's `clip_grad_norm_`."""
GAIN_ON_BASELINE = 0.05
"""Gain of the heads' last layers when they are drawn, with a value baseline."""
CLIP_GRAD_VALUE = 1000.0
"""Bound of each gradient."""
SELF_LOSS_CLAMP_RATIO = 4.0
"""Running mean of the self loss divisor, divided by its lower bound."""
SELF_LOSS_RATE = 0.01
"""By which the running means of the targets' own losses move."""
SMALLEST_DIVISOR = 1e-6
"""Below this a divisor (the root of a target's own loss) counts as this: a terminal transition's is 0."""


class Transitions(NamedTuple):
    """A batch of mini-race transitions (`experience_replay` makes them) as a plain tuple, cheap to take apart."""

    state_img: Tensor  # (B, S, H, W) uint8; H = W = 0 without an image
    state_float: Tensor  # (B, F) float32
    action: Tensor  # (B,) int64
    reward: Tensor  # (B,) float32, discounted sum over the transition's n steps
    next_state_img: Tensor
    next_state_float: Tensor
    gamma_n: Tensor  # (B,) float32, gamma to the power n; 0 where mini-race or race end: the reward is all there is
    weight: Tensor  # (B,) float32, importance weights of prioritized replay; 1 without

    @classmethod
    def from_batch(cls, batch: TensorDictBase, device: torch.device) -> Transitions:
        """Take the tensors of these names out of a batch, copied to `device` from anywhere else."""
        return cls(*(_copied(batch.get(name), device) for name in cls._fields))


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to `device`. From pageable memory a GPU's copy would wait for all that the GPU has still to compute."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# ------------------------------------------------------------------------------------------------------------ 1. taus


def draw_symmetric_taus(batch_size: int, n_taus: int, generator: torch.Generator) -> Tensor:
    """Draw taus, stratified and mirrored: one in each of N/2 equal parts of [0, 0.5), and 1 - tau for each.

    Each is still uniform on [0, 1], but a mean over few of them is much quieter than over independent draws.

    Args:
        batch_size: B.
        n_taus: N, even.
        generator: source of randomness; the result lies on its device.

    Returns:
        (B, N) float32: the N/2 lower ones, then their mirror images.
    """
    n_pairs = n_taus // 2
    draws = torch.rand((batch_size, n_pairs), generator=generator, device=generator.device)
    lower = draws.add_(torch.arange(n_pairs, device=generator.device)).div_(n_taus)
    return torch.cat((lower, 1 - lower), dim=1)


def midpoints(n_taus: int, device: torch.device) -> Tensor:
    """Return the N midpoints (i + 1/2) / N as taus (1, N), the same for all states."""
    return ((torch.arange(n_taus, device=device) + 0.5) / n_taus).unsqueeze(0)


class Taus(NamedTuple):
    """The random numbers of one update; B is 1 where all transitions have the same."""

    target: Tensor  # (B, M)
    choice: Tensor | None  # (B, M), where the online network chooses the target's action (double DQN)
    prediction: Tensor  # (B, N)


def draw_taus(batch_size: int, settings: AgentSettings, generator: torch.Generator) -> Taus:
    """Draw the taus of one update for B transitions.

    Where their factors multiply hidden layers, all transitions have the same taus, so that factors are computed once.
    """
    n = settings.iqn_n
    if settings.quantile_factors_multiply == "hidden_layers":
        batch_size = 1
    return Taus(
        target=draw_symmetric_taus(batch_size, n, generator),
        choice=draw_symmetric_taus(batch_size, n, generator) if settings.use_ddqn else None,
        prediction=draw_symmetric_taus(batch_size, n, generator),
    )


# --------------------------------------------------------------------------------------------------------- 2. network


@dataclass(frozen=True)
class Sizes:
    """What a network reads and answers.

    Attributes:
        float_mean: F means of the state's floats.
        float_std: F standard deviations.
        n_actions: A.
        image_shape: (S, H, W); H and W are 0 without an image.
        mini_race_duration_actions: length of a mini-race; None for no mini-races.
        waves: (float's index, wavelength in its unit) pairs: floats to be seen at finer scales too (`FourierFeatures`).
    """

    float_mean: Sequence[float]
    float_std: Sequence[float]
    n_actions: int
    image_shape: tuple[int, int, int]
    mini_race_duration_actions: int | None
    waves: Sequence[tuple[int, float]] = ()


class QuantileNetwork(nn.Module):
    """What every network shares that answers with returns at taus; subclasses write `forward`.

    A network of your own is made by `network = "module:Class"` in the configuration, which is called with the arguments
    below and a generator for its initial weights. Constants are buffers outside of `state_dict()`.

    Args:
        settings: of the agent.
        sizes: what it reads and answers.
    """

    float_mean: Tensor
    float_std: Tensor

    def __init__(self, settings: AgentSettings, sizes: Sizes) -> None:
        super().__init__()
        self.n_actions = sizes.n_actions
        self.expected_reward_per_action = settings.expected_reward_per_action
        self.mini_race_duration_actions = sizes.mini_race_duration_actions
        self.register_buffer("float_mean", torch.tensor(sizes.float_mean, dtype=torch.float32), persistent=False)
        self.register_buffer("float_std", torch.tensor(sizes.float_std, dtype=torch.float32), persistent=False)

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Compute the returns of all actions at the taus.

        Args:
            img: (B, S, H, W) uint8; not looked at without an image.
            floats: (B, F) float32, as observed (`normalized` normalizes them).
            tau: (B, N) float32 in [0, 1]; or (1, N), the same for all states.

        Returns:
            (B, N, A) float32, the value `baseline` included.
        """
        raise NotImplementedError

    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights again: orthogonal, with the gain that undoes what the activation takes.

        A layer with no more outputs than inputs then keeps the variance; a wider one lowers it by inputs / outputs.

        Args:
            generator: on the device of the parameters.
        """
        gain = nn.init.calculate_gain("leaky_relu", LEAKY_RELU_SLOPE)
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, gain * self.gain_of(name), generator)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # every layer here has a bias
            if isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()

    def gain_of(self, layer: str) -> float:
        """Say how much larger than others the weights of a layer, given by its name, are drawn."""
        return 1.0

    def normalized(self, floats: Tensor) -> Tensor:
        """Normalize floats (B, F)."""
        return (floats - self.float_mean) / self.float_std

    def baseline(self, floats: Tensor) -> Tensor:
        """Guess the return (B,): the expected reward of an action x the actions left in the mini-race.

        The network then learns only what is better or worse than that, and starts near the truth.
        """
        if self.mini_race_duration_actions is None:
            return floats.new_zeros(len(floats))
        return self.expected_reward_per_action * (self.mini_race_duration_actions - floats[:, ELAPSED_ACTIONS_FLOAT])


class IQN_Network(QuantileNetwork):
    """The returns of all actions at given taus.

    Image and floats are read by `img_head` and `float_feature_extractor` into D features; `iqn_fc` turns each tau,
    given as E cosines, into D factors that multiply them (equation 4 of the paper); two dueling heads (Wang et al.
    2016, arXiv:1511.06581) make returns of them: Q = V + A - mean(A).

    With `quantile_factors_multiply = "hidden_layers"` the factors are 2U and multiply, later, the heads' hidden layers.
    Everything in front of the last layers is then computed once for a state, not once for each of its taus.

    With the full-size configuration the keys and shapes of `state_dict()` are those of Linesight's published network:
    6,578,333 parameters.

    Args:
        settings: sizes, and the value baseline.
        sizes: what it reads and answers.
        generator: source of the initial weights, on the CPU.

    Raises:
        ValueError: if the image is too small for the convolutions.
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
        """Make what reads images of this shape (S, H, W), and say how many features it makes; for subclasses."""
        return convolutions(settings, *image_shape)

    def gain_of(self, layer: str) -> float:
        """Draw `iqn_fc` larger, as the variance of the cosines that it reads is one half.

        With a value baseline, the heads' last layers are drawn small: a fresh network is then nearly nothing but the
        baseline, and its noise is not taken for value.
        """
        if layer in ("A_head.2", "V_head.2"):
            gain = 1.0 if self.expected_reward_per_action == 0 else GAIN_ON_BASELINE
            return gain / nn.init.calculate_gain("leaky_relu", LEAKY_RELU_SLOPE)
        return math.sqrt(2) if layer == "iqn_fc.0" else 1.0

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Compute the returns of all actions at the taus; see `QuantileNetwork.forward`."""
        features = self.features(img, floats)  # (B, D)
        factors = self.factors(tau)  # (B or 1, N, D or 2U)
        weight, bias = self.last_layer()  # (A, 2U), (A,)
        if not self.quantiles_multiply_hidden_layers:
            returns = F.linear(self._hidden(features.unsqueeze(1) * factors).float(), weight)  # (B, N, A)
        else:
            returns = F.linear(self._hidden(features).float().unsqueeze(1) * factors, weight)  # (B, N, A)
        return returns + (bias + self.baseline(floats)[:, None, None])

    def last_layer(self) -> tuple[Tensor, Tensor]:
        """Make the weight (A, 2U) and bias (A,) that turn both heads' hidden layers into returns.

        Q = V + A - mean(A) (equation 9 of the dueling paper) is linear, so it goes into the weights.
        """
        of = self.get_parameter
        advantage_weight, advantage_bias = of("A_head.2.weight"), of("A_head.2.bias")
        centered = advantage_weight - advantage_weight.mean(dim=0)
        weight = torch.cat((centered, of("V_head.2.weight").expand_as(centered)), dim=1)
        return weight, advantage_bias - advantage_bias.mean() + of("V_head.2.bias")

    def _hidden(self, features: Tensor) -> Tensor:
        """Both heads' hidden layers (..., 2U) of features (..., D), the advantage head's first."""
        return torch.cat((self.A_head[:-1](features), self.V_head[:-1](features)), dim=-1)

    def factors(self, tau: Tensor) -> Tensor:
        """Compute what taus (B, N) multiply features or hidden layers with: (B, N, D or 2U).

        They are read as cosines: cos(pi i tau) for i = 1..E. (The paper counts from 0, whose cosine is 1: the bias is
        that already.)
        """
        return self.iqn_fc(torch.cos(tau.unsqueeze(2) * self.cosine_frequencies))  # type: ignore[no-any-return]

    def features(self, img: Tensor, floats: Tensor) -> Tensor:
        """Compute what the network sees in a state: (B, D). Arguments as in `forward`."""
        inputs = torch.cat((self.normalized(floats), self.fourier_features(floats)), dim=1)
        float_features: Tensor = self.float_feature_extractor(inputs)
        if self.img_head is None:
            return float_features
        return torch.cat((self.image_features(img), float_features), dim=1)

    def image_features(self, img: Tensor) -> Tensor:
        """Compute what the network sees in the image (B, S, H, W): (B, features of the image head)."""
        assert self.img_head is not None
        at_once = IMAGES_AT_ONCE if img.device.type == "cpu" else len(img)
        # Channels last is the order in which convolutions are fastest, on processors (a fifth) as on GPUs.
        normalized = img.float().sub(128).div(128).to(memory_format=torch.channels_last)
        return torch.cat([self.img_head(microbatch) for microbatch in normalized.split(at_once)])


# --------------------------------------------------------------------------------------------------------- 3. targets


def target_returns(
    online: QuantileNetwork, target: QuantileNetwork, batch: Transitions, settings: AgentSettings, taus: Taus
) -> Tensor:
    """Compute what the prediction shall become: reward + gamma^n x return of the next state's chosen action.

    Three ways to choose it: `max_of_each_quantile` takes the best action for each tau by itself (as published with
    Linesight's hyperparameters; it overestimates as long as actions differ by noise), `argmax_of_mean` one action for
    all taus, by the target network's own mean (as in the IQN paper, which draws further taus for the choice), and
    double DQN (van Hasselt et al. 2016, arXiv:1509.06461) one action by the online network's mean.

    Returns:
        (B, M) without gradient.
    """
    assert batch.reward.shape == batch.gamma_n.shape == batch.action.shape
    next_state = (batch.next_state_img, batch.next_state_float)
    with torch.no_grad():
        next_returns = target(*next_state, taus.target)  # (B, M, A)
        if settings.use_ddqn:
            assert taus.choice is not None, "taus are drawn for the same settings"
            chosen = of_action(next_returns, online(*next_state, taus.choice).mean(dim=1).argmax(dim=1))
        elif settings.target_action == "argmax_of_mean":
            chosen = of_action(next_returns, next_returns.mean(dim=1).argmax(dim=1))
        else:
            chosen = next_returns.amax(dim=2)
        return batch.reward.unsqueeze(1) + batch.gamma_n.unsqueeze(1) * chosen  # (B, M)


def of_action(returns: Tensor, action: Tensor) -> Tensor:
    """Pick the returns (B, N) of one action (B,) per state out of those (B, N, A) of all."""
    return returns.gather(2, action.view(-1, 1, 1).expand(-1, returns.shape[1], 1)).squeeze(2)


# ------------------------------------------------------------------------------------------------------------ 4. loss


def quantile_huber_loss(targets: Tensor, predictions: Tensor, tau: Tensor, kappa: float) -> Tensor:
    """Measure how far predicted quantiles are from those of the targets (equation 3 of the IQN paper).

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
    assert targets.ndim == predictions.ndim == tau.ndim == 2
    assert len(targets) == len(predictions)
    assert tau.shape in (predictions.shape, (1, predictions.shape[1]))
    error = targets.unsqueeze(2) - predictions.unsqueeze(1)  # (B, M, N)
    clipped = error.clamp(-kappa, kappa)
    huber = clipped * (error - clipped / 2) / kappa  # error^2 / (2 kappa), or |error| - kappa / 2 beyond kappa
    share = (tau.unsqueeze(1) - (error.detach() < 0).float()).abs()  # tau below the target, 1 - tau above
    return (share * huber).mean(dim=1).sum(dim=1)


class SelfLossScaling(nn.Module):
    """Weights of the loss, smaller for transitions with noisy targets.

    The quantile loss of a target's returns against themselves measures their spread: it is what even a perfect
    prediction would pay. A transition's loss is divided by its square root, so that states with an uncertain future do
    not drown the others. The divisor is clamped below at its running mean / `SELF_LOSS_CLAMP_RATIO`, and the
    running mean of the clamped divisors multiplies, so that the scale of the loss stays. (A scheme of Linesight.)

    Attributes:
        mean, clamped_mean: () running means of the divisors before and after clamping. They are plain means at first,
            until `SELF_LOSS_RATE` is the larger weight.
        batches: () how many batches went in.
    """

    mean: Tensor
    clamped_mean: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "clamped_mean", "batches"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, targets: Tensor, tau: Tensor, settings: AgentSettings) -> Tensor:
        """Compute the weights (B,) of the transitions' losses; the running means move in training mode only.

        Args:
            targets: (B, M).
            tau: (B, M), at which they are; (1, M) where all states have the same.
            settings: kappa and clamp ratio.
        """
        divisors = quantile_huber_loss(targets, targets, tau, settings.iqn_kappa).sqrt()
        rate = (1 / (self.batches + 1)).clamp_min(SELF_LOSS_RATE)
        if not self.training:
            rate = rate * (self.batches == 0)  # the first batch sets the means, also where it is only looked at
        batch_mean = divisors.mean()
        is_finite = torch.isfinite(batch_mean)  # one target that is not would stay in the means for ever
        mean = torch.where(is_finite, torch.lerp(self.mean, batch_mean, rate), self.mean)
        clamped = torch.maximum(divisors, mean / SELF_LOSS_CLAMP_RATIO).clamp_min(SMALLEST_DIVISOR)
        clamped_mean = torch.where(is_finite, torch.lerp(self.clamped_mean, clamped.mean(), rate), self.clamped_mean)
        if self.training:
            self.mean.copy_(mean)
            self.clamped_mean.copy_(clamped_mean)
            self.batches.add_(is_finite)
        return clamped_mean / clamped


class IQNLoss(LossModule):
    """The loss of a batch of transitions, as torchrl's trainers take it: a TensorDict in, a TensorDict of losses out.

    Args:
        network: becomes the online network; moved to `device`.
        settings: of the algorithm; may be replaced while training (`loss.settings = ...`), sizes excepted.
        device: where to compute.
        seed: of the taus.
        dtype: precision of the large products (`run_network.arithmetic_dtype`).

    Attributes:
        online: the network that learns.
        target: its slow copy, which values the next states; `IQNUpdate` moves it.
        scaling: running means of the targets' own loss.
        generator: source of the taus.
        reduction: what torchrl's losses call it: the loss is the sum over the batch.
    """

    online: QuantileNetwork
    target: QuantileNetwork
    reduction = "sum"
    figure = "mean_q"

    def __init__(
        self,
        network: QuantileNetwork,
        settings: AgentSettings,
        *,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.device = device
        self.dtype = dtype
        self.generator = torch.Generator(device).manual_seed(seed)
        self.online = network
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.scaling = SelfLossScaling()
        self.to(device)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss of B transitions with the entries of `Transitions`.

        Returns:
            `loss` (): the sum over the batch, with which the published learning rates, epsilon and clipping go;
            `mean_q` (): the mean predicted return of the actions taken, without gradient. The batch gets `td_error`
            (B,), abs(mean of targets - mean of predictions): the priority of prioritized replay.
        """
        batch = Transitions.from_batch(tensordict, self.device)
        taus = draw_taus(len(batch.action), self.settings, self.generator)
        loss, td_error, mean_q = self.compute_losses(batch, taus)
        tensordict.set("td_error", td_error)
        return TensorDict({"loss": loss, self.figure: mean_q})

    def compute_losses(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor, Tensor]:
        """Compute targets, predictions, loss, its scaling and weighting; returns what `forward` does: (), (B,), ()."""
        targets, predictions = self.targets_and_predictions(batch, taus)  # (B, M), (B, N)
        losses = quantile_huber_loss(targets, predictions, taus.prediction, self.settings.iqn_kappa)  # (B,)
        weights = batch.weight * self.scaling(targets, taus.target, self.settings)
        assert losses.shape == weights.shape == batch.action.shape
        mean_prediction = predictions.detach().mean(dim=1)
        return (weights * losses).sum(), (targets.mean(dim=1) - mean_prediction).abs(), mean_prediction.mean()

    def targets_and_predictions(self, batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor]:
        """Compute the returns (B, M) that the predictions (B, N) should become, and these predictions."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            targets = target_returns(self.online, self.target, batch, self.settings, taus)
            predictions = of_action(self.online(batch.state_img, batch.state_float, taus.prediction), batch.action)
        return targets, predictions

    def differentiate(
        self, batch: Transitions, taus: Taus, scale: Tensor, process_losses: ProcessLosses | None = None
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute the losses (), the TD errors (B,), and the gradient (P,) of the sum of the losses times `scale`."""
        loss, td_error, figure = self.compute_losses(batch, taus)
        losses = {"loss": loss, self.figure: figure}
        if process_losses is not None:
            losses = dict(process_losses(TensorDict(losses)).items())
        total = torch.stack([value for name, value in losses.items() if name.startswith("loss")]).sum()
        gradients = torch.autograd.grad(total * scale, list(self.online.parameters()), materialize_grads=True)
        gradient = torch.cat([of_parameter.reshape(-1) for of_parameter in gradients])
        return {name: value.detach() for name, value in losses.items()}, td_error, gradient


# ---------------------------------------------------------------------------------------------------------- 5. update


class RAdam(torch.optim.Optimizer):
    """RAdam (Liu et al. 2020, arXiv:1908.03265) with decoupled weight decay, for one vector of weights.

    The same step as `torch.optim.RAdam` makes. The scalars are computed once per step: torch's own step, compiled,
    computes them again for every sixteen weights, which takes a tenth of a default update.

    Args:
        weights: (P,), with `grad`.
        move: `move_weights`, compiled or not.
    """

    def __init__(self, weights: Tensor, move: Callable[..., None]) -> None:
        super().__init__([weights], {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})
        self._weights = weights
        self.state[weights] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }
        # Tensors, since other Python numbers would compile the function again.
        self._factor, self._offset, self._kept_share = (torch.zeros((), device=weights.device) for _ in range(3))
        self._move = move

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights by -mean / (factor x root of the mean square + offset).

        With rectification this is Adam's step. In the first steps, where the mean square is not reliable, it is a step
        along the mean alone.
        """
        group, state, gradient = self.param_groups[0], self.state[self._weights], self._weights.grad
        assert gradient is not None
        state["step"] += 1
        n_steps, learning_rate, (beta1, beta2) = int(state["step"]), group["lr"], group["betas"]
        step_size = learning_rate / (1 - beta1**n_steps)
        rectified_size = step_size * rectification(n_steps, beta2)
        factor, offset = 0.0, math.inf  # no step at all
        if rectified_size > 0:
            factor, offset = 1 / rectified_size, group["eps"] / rectified_size
        elif step_size > 0:
            offset = 1 / step_size
        self._factor.fill_(factor)
        self._offset.fill_(offset)
        self._kept_share.fill_(1 - learning_rate * group["weight_decay"])
        scalars = (self._factor, self._offset, self._kept_share)
        self._move(self._weights, gradient, state["exp_avg"], state["exp_avg_sq"], (beta1, beta2), scalars)


def move_weights(
    weights: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_square: Tensor,
    betas: tuple[float, float],
    scalars: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Take the gradient (P,) into the running means (P,), and move the weights (P,) by them."""
    factor, offset, kept_share = scalars
    mean.lerp_(gradient, 1 - betas[0])
    mean_square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    weights.mul_(kept_share).addcdiv_(mean, mean_square.sqrt() * factor + offset, value=-1)


def rectification(n_steps: int, beta2: float) -> float:
    """Return RAdam's rectification of the step size times Adam's bias correction; 0 in the first steps.

    The length of the running mean (rho in the paper) must exceed 5 for its variance to be finite.
    """
    largest_length = 2 / (1 - beta2) - 1
    bias_correction = 1 - beta2**n_steps
    length = largest_length - 2 * n_steps * beta2**n_steps / bias_correction
    if length <= 5:
        return 0.0
    variance_ratio = ((length - 4) * (length - 2) * largest_length) / (
        (largest_length - 4) * (largest_length - 2) * length
    )
    return math.sqrt(variance_ratio * bias_correction)


def clip_gradient(gradient: Tensor, most_value: float, most_norm: float) -> Tensor:
    """Clip every entry of (P,) to `most_value`, then the whole to `most_norm`; return the norm () in between.

    The same as torch's `clip_grad_value_` and `clip_grad_norm_`. (Linesight clips the norm first.) Infinite entries are
    clipped like any other. A gradient with a NaN becomes 0, as a NaN in the weights would stay. In both cases the
    returned norm is not finite.
    """
    total = gradient.sum()  # NaN or infinite if an entry is
    norm = torch.linalg.vector_norm(gradient.clamp_(-most_value, most_value))
    gradient.mul_((most_norm / (norm + NORM_EPSILON)).clamp_max(1))
    gradient.masked_fill_(torch.isnan(norm), 0.0)
    return torch.where(torch.isfinite(total), norm, total)


class IQNUpdate:
    """Updates of the online network, and of the target network that follows it.

    All weights of a network are one vector (`flat_parameters`), so that each step over them is one operation.

    Args:
        loss: whose networks learn.
        use_torch_compile: compile the functions that the update calls.

    Attributes:
        weights: (P,), those of the online network; its `grad` is the last gradient, clipped.
        target_weights: (P,), those of the target network.
        optimizer: moves the weights.
        scaler: of the loss in float16, whose smallest number is too large for many gradients.
    """

    def __init__(self, loss: IQNLoss, *, use_torch_compile: bool = False) -> None:
        self._loss = loss
        self.weights = nn.Parameter(flatten_parameters(loss.online))
        self.target_weights = flatten_parameters(loss.target)
        self._differentiate, self._clip_gradient, move = loss.differentiate, clip_gradient, move_weights
        if use_torch_compile:
            mode = "reduce-overhead" if loss.device.type == "cuda" else None
            self._differentiate = compiled(loss.differentiate, mode)
            self._clip_gradient, move = compiled(clip_gradient), compiled(move_weights)
        self.optimizer = RAdam(self.weights, move)
        self.scaler = torch.amp.GradScaler(loss.device.type, enabled=loss.dtype == torch.float16)
        self._unscaled = torch.ones((), device=loss.device)
        self._transitions_due = 0

    def __call__(self, batch: TensorDictBase, process_losses: ProcessLosses | None = None) -> TensorDict:
        """Make one update with a batch: loss, backward, clipping, optimizer step, target network.

        Args:
            batch: as for `IQNLoss.forward`; gets `td_error` (B,).
            process_losses: returns the losses whose `loss...` entries are summed up, such as scaled ones. It runs
                within the backward pass, which is not compiled then.

        Returns:
            The losses, and `grad_norm` (), from before the gradient was clipped.
        """
        loss, settings = self._loss, self._loss.settings
        transitions = Transitions.from_batch(batch, loss.device)
        taus = draw_taus(len(transitions.action), settings, loss.generator)
        differentiate = self._differentiate if process_losses is None else loss.differentiate
        scale = self.scaler.scale(self._unscaled)
        losses, td_error, gradient = differentiate(transitions, taus, scale, process_losses)
        batch.set("td_error", td_error)
        self.weights.grad = gradient
        self.scaler.unscale_(self.optimizer)
        norm = self._clip_gradient(gradient, CLIP_GRAD_VALUE, settings.clip_grad_norm)
        self.scaler.step(self.optimizer)  # no step if the scaled gradient overflows
        self.scaler.update()
        self._transitions_due += len(transitions.action)
        n_moves, self._transitions_due = divmod(
            self._transitions_due, settings.number_memories_trained_on_between_target_network_updates
        )
        if n_moves > 0:
            self.target_weights.lerp_(self.weights.detach(), 1 - (1 - settings.soft_update_tau) ** n_moves)
        if self.scaler.is_enabled():  # an overflow is no error, unless the scale is 1 already
            norm = norm.masked_fill(~torch.isfinite(norm) & (scale > 1), 0.0)
        return TensorDict({**losses, "grad_norm": norm})

    def follow(self, settings: AgentSettings, learning_rate: float) -> None:
        """Apply the optimizer's settings from the next update on.

        Weights lose the share `learning_rate * weight_decay_lr_ratio` at each step (decoupled weight decay, Loshchilov
        & Hutter 2019, arXiv:1711.05101).
        """
        self.optimizer.param_groups[0].update(
            lr=learning_rate,
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay_lr_ratio,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's running means, the scale of the loss, and the transitions since the target moved."""
        return {
            "optimizer": dict(self.optimizer.state[self.weights]),
            "scaler": self.scaler.state_dict(),
            "transitions_due": self._transitions_due,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Checkpoints of earlier versions have no `transitions_due`.

        Raises:
            KeyError: if an entry is missing.
            RuntimeError: if it is of another number of weights.
        """
        for name, tensor in self.optimizer.state[self.weights].items():
            tensor.copy_(state["optimizer"][name])
        if state["scaler"] and self.scaler.is_enabled():  # empty where the loss is not scaled
            self.scaler.load_state_dict(state["scaler"])
        self._transitions_due = state.get("transitions_due", 0)
