"""Actors, Q networks and value networks for torchrl's losses.

Each is the network in the setting `network`, by default a `StateNetwork`: two hidden layers, and convolutions for
images.

Shapes: B batch, S frames, H and W image size, F floats, A actions to choose among, D numbers per action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from gymnasium.spaces import Box
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.modules.models.batchrenorm import BatchRenorm1d

from trackmania_rl.agents.networks import convolutions, image_features, initialize_layer
from trackmania_rl.parts import make_part
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import AgentSettings

RENORM_MOMENTUM = 0.01
RENORM_WARM_UP_UPDATES = 10_000


@dataclass(frozen=True)
class Role:
    """A network's role in an agent, which calls it with floats (B, F), the image (if any), and the action."""

    name: Literal["actor", "critic", "value"]  # a critic is a Q network, for the action or for all actions
    n_outputs: int
    n_action_numbers: int = 0  # D for the action that a critic reads; 0 for none
    is_renormalized: bool = False  # whether layers should be normalized over the batch (CrossQ)
    is_on_policy: bool = False  # in PPO and A2C


class StateNetwork(nn.Module):
    """Perceptron on a state, and on the action if the role has one.

    Both hidden layers are `float_hidden_dim` wide; if `is_renormalized`, they are normalized over the batch (CrossQ,
    Bhatt et al. 2024, arXiv:1902.05605). If `is_on_policy`, they have tanh and orthogonal weights, and an actor begins
    with nearly equal probabilities (Andrychowicz et al. 2021, arXiv:2006.05990).
    """

    float_mean: Tensor
    float_std: Tensor

    def __init__(self, settings: AgentSettings, spaces: Spaces, role: Role) -> None:
        super().__init__()
        self.register_buffer("float_mean", torch.tensor(spaces.float_mean), persistent=False)
        self.register_buffer("float_std", torch.tensor(spaces.float_std), persistent=False)
        self.img_head: nn.Module | None = None
        n_features = spaces.n_floats + role.n_action_numbers
        width = settings.float_hidden_dim
        if spaces.has_image:
            self.img_head, n_of_image = convolutions(settings, *spaces.image_shape)
            n_features += n_of_image
        renormalized = {"momentum": RENORM_MOMENTUM, "num_features": width, "warmup_steps": RENORM_WARM_UP_UPDATES}
        self.mlp = MLP(
            in_features=n_features,
            out_features=role.n_outputs,
            num_cells=[width, width],
            activation_class=nn.Tanh if role.is_on_policy else nn.ReLU,
            norm_class=BatchRenorm1d if role.is_renormalized else None,
            norm_kwargs=renormalized if role.is_renormalized else None,
        )
        if role.is_on_policy:
            *hidden, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
            for layer in hidden:
                initialize_layer(layer, gain=math.sqrt(2))
            initialize_layer(last, gain=0.01 if role.name == "actor" else 1.0)

    def forward(self, floats: Tensor, *others: Tensor) -> Tensor:
        """Compute the outputs (B, n_outputs) from floats (B, F), not normalized, the image and the action, if read."""
        parts = [(floats - self.float_mean) / self.float_std]
        if self.img_head is not None:
            img, *others = others  # type: ignore[assignment]
            parts.append(image_features(self.img_head, img))
        return self.mlp(torch.cat((*parts, *others), dim=-1))  # type: ignore[no-any-return]


def state_network(settings: AgentSettings, spaces: Spaces, role: Role) -> nn.Module:
    """Make the network that the setting `network` names; torch's global generator has the run's seed.

    A user's network is called with settings, spaces and role, and may return a `StateNetwork` in some roles.

    Raises:
        SettingsError: if the part makes no network.
        UserError: if the image is too small for the convolutions.
    """
    if settings.network == AgentSettings.model_fields["network"].default:  # IQN's
        return StateNetwork(settings, spaces, role)
    takes = "settings, spaces, role"
    made = make_part(settings.network, "network", settings, spaces, role, takes=takes, kinds=(nn.Module,))
    return made  # type: ignore[no-any-return]


class ToBounds(nn.Module):
    """Squashes (B, D) to a space's bounds."""

    low: Tensor
    high: Tensor

    def __init__(self, space: Box) -> None:
        super().__init__()
        self.register_buffer("low", torch.from_numpy(space.low), persistent=False)
        self.register_buffer("high", torch.from_numpy(space.high), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Squash (B, D)."""
        return self.low + (self.high - self.low) * (numbers.tanh() + 1) / 2


def state_keys(spaces: Spaces) -> list[str]:
    """Name the batch entries that networks read."""
    return ["state_float", "state_img"] if spaces.has_image else ["state_float"]


def action_spec(space: Box) -> Bounded:
    """Return torchrl's description for actions (D,)."""
    return Bounded(low=torch.from_numpy(space.low), high=torch.from_numpy(space.high), shape=space.shape)


def gaussian_actor(settings: AgentSettings, spaces: Spaces, *, is_on_policy: bool = False) -> ProbabilisticActor:
    """Make an actor that draws actions (B, D) from a Gaussian, squashed to the bounds (Haarnoja et al. 2018)."""
    assert isinstance(spaces.action, Box)
    network = state_network(settings, spaces, Role("actor", 2 * spaces.action_shape[0], is_on_policy=is_on_policy))
    module = TensorDictSequential(
        TensorDictModule(network, in_keys=state_keys(spaces), out_keys=["numbers"]),
        TensorDictModule(NormalParamExtractor(), in_keys=["numbers"], out_keys=["loc", "scale"]),
    )
    bounds = {"low": torch.from_numpy(spaces.action.low), "high": torch.from_numpy(spaces.action.high)}
    return ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        spec=action_spec(spaces.action),
        distribution_class=TanhNormal,
        distribution_kwargs=bounds | {"tanh_loc": False},
        return_log_prob=True,
    )


def deterministic_actor(settings: AgentSettings, spaces: Spaces) -> TensorDictSequential:
    """Make a deterministic actor for actions (B, D)."""
    assert isinstance(spaces.action, Box)
    network = state_network(settings, spaces, Role("actor", spaces.action_shape[0]))
    return TensorDictSequential(
        TensorDictModule(network, in_keys=state_keys(spaces), out_keys=["numbers"]),
        TensorDictModule(ToBounds(spaces.action), in_keys=["numbers"], out_keys=["action"]),
    )


def categorical_actor(settings: AgentSettings, spaces: Spaces, *, is_on_policy: bool = False) -> ProbabilisticActor:
    """Make an actor that draws one of A actions, (B,) int64."""
    network = state_network(settings, spaces, Role("actor", spaces.n_values, is_on_policy=is_on_policy))
    module = TensorDictModule(network, in_keys=state_keys(spaces), out_keys=["logits"])
    return ProbabilisticActor(
        module, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )


def on_policy_actor(settings: AgentSettings, spaces: Spaces) -> ProbabilisticActor:
    """Make a Gaussian or a categorical actor for PPO or A2C."""
    make = gaussian_actor if isinstance(spaces.action, Box) else categorical_actor
    return make(settings, spaces, is_on_policy=True)


def greedy_actor(settings: AgentSettings, spaces: Spaces) -> QValueActor:
    """Make an actor that takes the action with the highest among A values."""
    network = state_network(settings, spaces, Role("critic", spaces.n_values))
    return QValueActor(network, in_keys=state_keys(spaces), action_space="categorical")


def value_of_action(settings: AgentSettings, spaces: Spaces, *, is_renormalized: bool = False) -> ValueOperator:
    """Make a Q network (B, 1) for a state and an action (B, D)."""
    network = state_network(settings, spaces, Role("critic", 1, spaces.action_shape[0], is_renormalized))
    return ValueOperator(network, in_keys=[*state_keys(spaces), "action"])


def values_of_actions(settings: AgentSettings, spaces: Spaces, out_key: str) -> TensorDictModule:
    """Make a Q network (B, A) for a state."""
    network = state_network(settings, spaces, Role("critic", spaces.n_values))
    return TensorDictModule(network, in_keys=state_keys(spaces), out_keys=[out_key])


def value_of_state(settings: AgentSettings, spaces: Spaces, *, is_on_policy: bool = False) -> ValueOperator:
    """Make a value network (B, 1)."""
    network = state_network(settings, spaces, Role("value", 1, is_on_policy=is_on_policy))
    return ValueOperator(network, in_keys=state_keys(spaces))
