"""Implicit quantile networks: the network, its loss, and the target it learns towards, in the order of the algorithm.

IQN (Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", arXiv:1806.06923)
learns, for each action, the whole distribution of the return instead of its mean. The network is asked for the return
at a quantile fraction tau in [0, 1]: tau = 0.5 is the median, tau = 0.9 a return that is exceeded one time in ten. The
value of an action is the mean over many taus. Throughout, *tau* is the fraction and *return* is the value there.

The return is the sum of rewards until a *mini-race* of fixed duration ends; the first float of the state says how much
of the mini-race has passed, so gamma may be 1.

Shapes, in all comments: B batch, N taus of the prediction, M taus of the target, A actions, F floats, D features,
E cosines, U units of one head's hidden layer, S frames of a state, H and W the image's height and width; R = B N rows,
one for each state and tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from trackmania_rl.agents.fourier_features import FourierFeatures, Wave
from trackmania_rl.agents.image_heads import convolutions
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE, float_layer, head, head_width
from trackmania_rl.agents.quantile_loss import SelfLossScaling, quantile_huber_loss
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings import AgentSettings


class ReturnsNetwork(Protocol):
    """What targets and loss need of a network: `IQN_Network` is one, and so is `QuantilePart`, which is faster."""

    def __call__(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """The returns (B, N, A) at taus (B, N)."""

    def actions_left(self, floats: Tensor) -> Tensor:
        """How many actions (B,) of the mini-race are still to come."""


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
    def from_batch(cls, batch: Any, device: torch.device) -> Transitions:
        """Take the tensors of these names, entries or attributes, out of a batch; copied from any other device."""
        take = batch.get if isinstance(batch, TensorDictBase) else partial(getattr, batch)
        return cls(*(_copied(take(name), device) for name in cls._fields))

    def portion(self, states: slice) -> Transitions:
        """The transitions in a slice of the batch."""
        return Transitions(*(tensor[states] for tensor in self))


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on `device`. From pageable memory a GPU's copy would wait for all that the GPU has still to compute."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# ------------------------------------------------------------------------------------------------------------ 1. taus


def draw_symmetric_taus(batch_size: int, n_taus: int, generator: torch.Generator) -> Tensor:
    """Random taus, stratified and mirrored: one in each of N/2 equal parts of [0, 0.5), and 1 - tau for each.

    Each is still uniform on [0, 1], but a mean over few of them is much quieter than over independent draws.

    Args:
        batch_size: B.
        n_taus: N, even.
        generator: source of randomness; the result lies on its device.

    Returns:
        (B, N) float32: the N/2 lower ones, then their mirror images.
    """
    n_pairs = n_taus // 2
    strata = torch.arange(n_pairs, device=generator.device)
    lower = (strata + torch.rand((batch_size, n_pairs), generator=generator, device=generator.device)) / n_taus
    return torch.cat((lower, 1 - lower), dim=1)


class Taus(NamedTuple):
    """The random numbers of one update; B is 1 where all transitions have the same."""

    target: Tensor  # (B, M)
    choice: Tensor | None  # (B, M), where the online network chooses the target's action (double DQN)
    prediction: Tensor  # (B, N)

    def portion(self, states: slice) -> Taus:
        """Those of a slice of the batch."""
        return Taus(*(tau if tau is None or len(tau) == 1 else tau[states] for tau in self))  # type: ignore[arg-type]


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


class IQN_Network(nn.Module):
    """The returns of all actions at given taus.

    Image and floats are read by `img_head` and `float_feature_extractor` into D features; `iqn_fc` turns each tau,
    given as E cosines, into D factors that multiply them (equation 4 of the paper); two dueling heads (Wang et al.
    2016, arXiv:1511.06581) make returns of them: Q = V + A - mean(A).

    With `quantile_factors_multiply = "hidden_layers"` the factors are 2U and multiply, later, the heads' hidden layers.
    Everything in front of the last layers is then computed once for a state, not once for each of its taus.

    With the full-size configuration the keys and shapes of `state_dict()` are those of Linesight's published network:
    6,578,333 parameters. What is constant (normalization, cosine frequencies) is in buffers outside of `state_dict()`.

    Args:
        settings: sizes, and the value baseline.
        float_mean: F means of the state's floats.
        float_std: F standard deviations.
        n_actions: A.
        image_height_px: H; 0 for no image, and then there is no `img_head`.
        image_width_px: W.
        mini_race_duration_actions: length of a mini-race.
        generator: source of the initial weights, on the CPU.
        frames_per_state: S, how many frames make one image.
        waves: floats to be seen at finer scales as well (`fourier_features`).

    Raises:
        ValueError: if the image is too small for the convolutions.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        float_mean: Sequence[float],
        float_std: Sequence[float],
        n_actions: int,
        image_height_px: int,
        image_width_px: int,
        mini_race_duration_actions: int,
        generator: torch.Generator,
        frames_per_state: int = 1,
        waves: Sequence[Wave] = (),
    ) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.expected_reward_per_action = settings.expected_reward_per_action
        self.output_layer_init_gain = settings.output_layer_init_gain
        self.mini_race_duration_actions = mini_race_duration_actions

        feature_dim = settings.float_hidden_dim
        self.img_head: nn.Sequential | None = None
        if image_height_px > 0:
            self.img_head, n_features = convolutions(settings, frames_per_state, image_height_px, image_width_px)
            feature_dim += n_features
        self.fourier_features = FourierFeatures(waves)
        self.float_feature_extractor = nn.Sequential(
            *float_layer(len(float_mean) + self.fourier_features.n_features, settings),
            *float_layer(settings.float_hidden_dim, settings),
        )
        self.A_head = head(feature_dim, n_actions, settings)
        self.V_head = head(feature_dim, 1, settings)
        self.quantiles_multiply_hidden_layers = settings.quantile_factors_multiply == "hidden_layers"
        n_factors = 2 * head_width(settings) if self.quantiles_multiply_hidden_layers else feature_dim
        self.iqn_fc = nn.Sequential(
            nn.Linear(settings.iqn_embedding_dimension, n_factors), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)
        )
        self.initialize(generator)

        self.float_mean: Tensor
        self.float_std: Tensor
        self.cosine_frequencies: Tensor
        frequencies = math.pi * torch.arange(1, settings.iqn_embedding_dimension + 1, dtype=torch.float32)
        self.register_buffer("float_mean", torch.tensor(float_mean, dtype=torch.float32), persistent=False)
        self.register_buffer("float_std", torch.tensor(float_std, dtype=torch.float32), persistent=False)
        self.register_buffer("cosine_frequencies", frequencies, persistent=False)

    def parameters_side_by_side(self) -> list[nn.Parameter]:
        """Parameters to lay one after another in memory: both heads' first layers can then be read as one."""
        names = ("A_head.0.weight", "V_head.0.weight", "A_head.0.bias", "V_head.0.bias")
        return [self.get_parameter(name) for name in names]

    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights again: orthogonal, with the gain that undoes what the activation takes.

        A layer with no more outputs than inputs then keeps the variance; a wider one lowers it by inputs / outputs.
        `iqn_fc` reads cosines, whose variance is one half, so its weights are larger by the square root of two.

        Args:
            generator: on the device of the parameters.
        """
        gain = nn.init.calculate_gain("leaky_relu", LEAKY_RELU_SLOPE)
        last = self.output_layer_init_gain
        gains = {self.iqn_fc[0]: math.sqrt(2) * gain, self.A_head[-1]: last, self.V_head[-1]: last}
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, gains.get(layer, gain), generator)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # every layer here has a bias
            if isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """The returns at the taus.

        Args:
            img: (B, S, H, W) uint8; not looked at without an image head.
            floats: (B, F) float32, as observed (they are normalized here).
            tau: (B, N) float32 in [0, 1]; or (1, N), the same for all states.

        Returns:
            (B, N, A) float32, the value baseline included.
        """
        factors = self.iqn_fc(self.cosines(tau.reshape(-1))).view(*tau.shape, -1)
        advantage_hidden, value_hidden = self._hidden(self.features(img, floats), factors)  # (B, N, U) each
        advantage = self.A_head[-1](advantage_hidden)  # (B, N, A)
        value = self.V_head[-1](value_hidden)  # (B, N, 1)
        returns = value + advantage - advantage.mean(dim=2, keepdim=True)  # equation 9 of the dueling paper
        return returns.float() + self.baseline(floats)[:, None, None]

    def _hidden(self, features: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden layers of advantage and value head at N taus, (B, N, U) each.

        Args:
            features: (B, D).
            factors: of the taus, (B, N, D or 2U); or (1, N, ...), the same for all states.
        """
        advantage_layer, value_layer = self.A_head[:-1], self.V_head[:-1]  # with their activations
        if self.quantiles_multiply_hidden_layers:
            advantage_factors, value_factors = factors.chunk(2, dim=-1)
            advantage_hidden = advantage_layer(features).unsqueeze(1) * advantage_factors
            return advantage_hidden, value_layer(features).unsqueeze(1) * value_factors
        rows = features.unsqueeze(1) * factors  # (B, N, D)
        return advantage_layer(rows), value_layer(rows)

    def features(self, img: Tensor, floats: Tensor) -> Tensor:
        """What the network sees in a state: (B, D). Arguments as in `forward`."""
        float_features = self.float_features(floats)
        if self.img_head is None:
            return float_features
        return torch.cat((self.image_features(img), float_features), dim=1)

    def image_features(self, img: Tensor) -> Tensor:
        """What the network sees in the image (B, S, H, W): (B, features of the image head)."""
        assert self.img_head is not None
        # Channels last is the order in which convolutions are fastest, on processors (a fifth) as on GPUs.
        normalized_img = img.float().sub_(128).div_(128).to(memory_format=torch.channels_last)
        return self.img_head(normalized_img)  # type: ignore[no-any-return]

    def float_features(self, floats: Tensor) -> Tensor:
        """What the network sees in the floats (B, F): (B, width of the float layers)."""
        return self.float_feature_extractor(self.float_inputs(floats))  # type: ignore[no-any-return]

    def float_inputs(self, floats: Tensor) -> Tensor:
        """What the float layers read: the floats (B, F) normalized, and their waves."""
        normalized = (floats - self.float_mean) / self.float_std
        return torch.cat((normalized, self.fourier_features(floats)), dim=1)

    def cosines(self, tau: Tensor) -> Tensor:
        """Taus (R,) as the cosines (R, E) that `iqn_fc` reads: cos(pi i tau) for i = 1..E.

        (The paper counts from 0, whose cosine is 1: the bias is that already.)
        """
        return torch.cos(tau.unsqueeze(1) * self.cosine_frequencies)

    def baseline(self, floats: Tensor) -> Tensor:
        """A fixed guess of the return (B,): the expected reward of an action x the actions left in the mini-race.

        The network then learns only what is better or worse than that, and starts near the truth.
        """
        return self.expected_reward_per_action * self.actions_left(floats)

    def actions_left(self, floats: Tensor) -> Tensor:
        """How many actions (B,) of the mini-race are still to come in the states with these floats (B, F)."""
        return self.mini_race_duration_actions - floats[:, ELAPSED_ACTIONS_FLOAT]


# --------------------------------------------------------------------------------------------------------- 3. targets


def target_returns(
    online: ReturnsNetwork,
    target: ReturnsNetwork,
    batch: Transitions,
    settings: AgentSettings,
    taus: Taus,
) -> Tensor:
    """What the prediction shall become: reward + gamma^n x return of the next state's chosen action.

    Three ways to choose it: `max_of_each_quantile` takes the best action for each tau by itself (as published with
    Linesight's hyperparameters; it overestimates as long as actions differ by noise), `argmax_of_mean` one action for
    all taus, by the target network's own mean (as in the IQN paper, which draws further taus for the choice), and
    double DQN (van Hasselt et al. 2016, arXiv:1509.06461) one action by the online network's mean.

    An overestimate would feed on itself through the target network, so the next state's returns are held to what the
    rest of the mini-race can bring (`within_bounds`), where the bounds are known.

    Returns:
        (B, M) without gradient.
    """
    assert batch.reward.shape == batch.gamma_n.shape == batch.action.shape
    next_state = (batch.next_state_img, batch.next_state_float)
    with torch.no_grad():
        next_returns = target(*next_state, taus.target)  # (B, M, A)
        if settings.return_bounds_per_action is not None:
            actions_left = target.actions_left(batch.next_state_float)
            next_returns = within_bounds(next_returns, actions_left, settings.return_bounds_per_action)
        if settings.use_ddqn:
            assert taus.choice is not None, "taus are drawn for the same settings"
            chosen = of_action(next_returns, online(*next_state, taus.choice).mean(dim=1).argmax(dim=1))
        elif settings.target_action == "argmax_of_mean":
            chosen = of_action(next_returns, next_returns.mean(dim=1).argmax(dim=1))
        else:
            chosen = next_returns.amax(dim=2)
        return batch.reward.unsqueeze(1) + batch.gamma_n.unsqueeze(1) * chosen  # (B, M)


def within_bounds(returns: Tensor, actions_left: Tensor, reward_bounds: tuple[float, float]) -> Tensor:
    """Clip returns (B, M, A) to what the actions left (B,) can bring at worst and at best.

    A race may end before the mini-race does, and a discount shrinks what is far, so 0 is always within the bounds.
    """
    worst, best = min(reward_bounds[0], 0.0), max(reward_bounds[1], 0.0)
    left = actions_left[:, None, None]
    return returns.clamp(worst * left, best * left)


def of_action(returns: Tensor, action: Tensor) -> Tensor:
    """The returns (B, N) of one action (B,) per state, out of those (B, N, A) of all."""
    return returns.gather(2, action.view(-1, 1, 1).expand(-1, returns.shape[1], 1)).squeeze(2)


# ------------------------------------------------------------------------------------------------------------ 4. loss
# The quantile Huber loss itself is in `quantile_loss`.


class IQNLoss(NamedTuple):
    """What one batch costs, and figures that fall out on the way."""

    total: Tensor  # (), the sum over the batch: the published learning rates, epsilon and clipping go with a sum
    td_error: Tensor  # (B,) |mean of targets - mean of predictions|: the priority of prioritized replay; no gradient
    mean_q: Tensor  # () mean predicted return of the actions taken; no gradient


def iqn_loss(
    online: ReturnsNetwork,
    target: ReturnsNetwork,
    batch: Transitions,
    settings: AgentSettings,
    scaling: SelfLossScaling,
    taus: Taus,
    *,
    learning: bool,
) -> IQNLoss:
    """One step of the algorithm up to the gradient: targets, predictions, loss, its scaling and weighting.

    This is the form to read. `IQNLearner.update` computes the same with the derivatives written out (`quantile_part`,
    `feature_part`), which is faster; tests compare the two. `IQNLearner.evaluate` calls this one.

    Args:
        online: the network that learns, called as `IQN_Network.forward`.
        target: its slow copy, which values the next states.
        batch: B transitions.
        settings: of the algorithm.
        scaling: running means of the targets' own loss.
        taus: random numbers, from `draw_taus`.
        learning: False to measure only: running means stay.
    """
    targets = target_returns(online, target, batch, settings, taus)
    tau = taus.prediction
    predictions = of_action(online(batch.state_img, batch.state_float, tau), batch.action)
    loss = quantile_huber_loss(targets, predictions, tau, settings.iqn_kappa)
    if settings.use_target_self_loss_scaling:
        loss = loss * scaling.loss_weights(targets, taus.target, settings, learning=learning)
    assert loss.shape == batch.weight.shape == batch.action.shape
    mean_prediction = predictions.detach().mean(dim=1)
    return IQNLoss(
        total=(batch.weight * loss).sum(),
        td_error=(targets.mean(dim=1) - mean_prediction).abs(),
        mean_q=mean_prediction.mean(),
    )
