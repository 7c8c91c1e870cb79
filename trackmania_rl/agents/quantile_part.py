"""The part of the network after the features, with its derivative written out.

The layers are few and simple, so their derivatives are written down instead of recorded by autograd. That computes the
same (tests compare it with autograd through `IQN_Network.forward`) and saves what autograd cannot know:

- Both heads read the same rows, so their first layers are one matrix product with one weight (2U, D). It needs no copy:
  the network's parameters lie in memory in that order (`IQN_Network.parameters_side_by_side`).
- Dueling is linear: A - mean(A) is a product with a constant centering matrix, which goes into the last layer's weight.
- The loss looks at one action per state, so a prediction needs one row of those weights, not all.
- Where the factors of the taus multiply the hidden layers, they may as well multiply the last layer's weights: then no
  state is looked at once for each tau (`HiddenLayerQuantiles`).

Shapes as in `iqn`: B batch, N taus, A actions, D features, E cosines, U units of one head's hidden layer, R = B N.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from trackmania_rl.agents.feature_part import FeaturePart, leaky_relu_backward_
from trackmania_rl.agents.flat_parameters import as_one
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE
from trackmania_rl.agents.products import linear_leaky_relu, product

STATES_AT_ONCE = 64
"""A processor works through a batch with images in portions of so many states. Larger portions leave its caches (they
take half as long again), smaller ones spend their time on adding up gradients."""


def portions(n_states: int, device: torch.device, *, has_image: bool) -> list[slice]:
    """The parts of a batch that are worked on one after the other: the whole of it, but with images on a processor."""
    at_once = STATES_AT_ONCE if has_image and device.type == "cpu" else n_states
    return [slice(start, start + at_once) for start in range(0, n_states, at_once)]


class Workspace:
    """Memory that is used again at each update: tensors by name, of undefined contents when they are asked for.

    Args:
        device: where they lie.
        dtype: the precision of their numbers.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._device = device
        self._tensors: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this name; the same memory as last time if the shape is the same.

        In compiled code it is new: the compiler plans memory itself, and does without most of it.
        """
        is_compiling = torch.compiler.is_compiling()
        tensor = None if is_compiling else self._tensors.get(name)
        if tensor is None or tensor.shape != shape:
            tensor = torch.empty(shape, dtype=self.dtype, device=self._device)
            if not is_compiling:
                self._tensors[name] = tensor
        return tensor


class QuantilePart(ABC):
    """The returns at taus, from features; and gradients, from those of the returns.

    Args:
        network: in float32; its parameters must be flat (`flatten_parameters`); for `backward`, its gradients too
            (`flatten_gradients`). When weights changed, call `prepare`.
        workspace: for intermediate results; parts may share it, but between `forward` and `backward` no other may run.
            Its precision is that of the large products; what is small (the last layer, gradients as they are added
            up) stays in float32.
    """

    def __init__(self, network: IQN_Network, workspace: Workspace) -> None:
        self._network = network
        self._workspace = workspace
        self.features = FeaturePart(network, workspace.dtype)
        embedding, heads = network.iqn_fc[0], (network.A_head, network.V_head)
        self._frequencies = network.cosine_frequencies
        self._embedding_weights = _values(embedding)  # (D or 2U, E), (D or 2U,)
        self._hidden_weights = _side_by_side(*(_values(head[0]) for head in heads))  # (2U, D), (2U,)
        self.prepare()
        self._advantage, self._value = (_values(head[-1]) for head in heads)  # (A, U), (A,); (1, U), (1,)
        # The matrix that subtracts the mean over actions: returns = centering x advantages + value.
        n_actions = network.n_actions
        self._centering = torch.eye(n_actions, device=self._frequencies.device) - 1 / n_actions
        if all(parameter.grad is not None for parameter in network.parameters()):
            self._embedding_gradient = _gradients(embedding)
            self._hidden_gradient = _side_by_side(*(_gradients(head[0]) for head in heads))
            self._advantage_gradient, self._value_gradient = (_gradients(head[-1]) for head in heads)

    def prepare(self) -> None:
        """Bring the large layers' weights, as they are now, into the workspace's precision."""
        dtype = self._workspace.dtype
        self.features.prepare()
        self._embedding, self._hidden_layers = (
            (weight.to(dtype), bias.to(dtype)) for weight, bias in (self._embedding_weights, self._hidden_weights)
        )

    @abstractmethod
    def __call__(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """The returns (B, N, A) that `IQN_Network.forward` gives, without a gradient."""

    @abstractmethod
    def forward(self, features: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
        """The returns of one action per state.

        Args:
            features: (B, D), without gradient.
            floats: (B, F), for the value baseline.
            tau: (B, N) or (1, N), as `draw_taus` draws them for this kind of network.
            action: (B,).

        Returns:
            (B, N) float32.
        """

    @abstractmethod
    def backward(self, grad_returns: Tensor) -> Tensor:
        """Add to the gradients of this part's parameters those of the last `forward`.

        Args:
            grad_returns: (B, N), of the loss with respect to the returns.

        Returns:
            (B, D) the gradient with respect to the features.
        """

    def actions_left(self, floats: Tensor) -> Tensor:
        """See `IQN_Network.actions_left`."""
        return self._network.actions_left(floats)

    def _factors(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines (R, E) and factors (R, D or 2U) of taus (B, N), R = B N."""
        cosines = self._workspace.take("cosines", (tau.numel(), len(self._frequencies)))
        torch.cos(tau.reshape(-1, 1) * self._frequencies, out=cosines)
        return cosines, linear_leaky_relu(cosines, *self._embedding)

    def _last_layer(self, centering: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (n, 2U) and bias (n,) that make returns out of both heads' hidden layers, for n rows of centering."""
        (advantage_weight, advantage_bias), (value_weight, value_bias) = self._advantage, self._value
        centered = torch.mm(centering, advantage_weight)
        weight = torch.cat((centered, value_weight.expand_as(centered)), dim=1)
        return weight, torch.addmv(value_bias, centering, advantage_bias)

    def _backward_last_layer(self, grad_weight: Tensor, grad_bias: Tensor, centering: Tensor) -> None:
        """From the gradients of each state's own weight (B, 2U) and bias (B,), and (B, A)."""
        grad_advantage, grad_value = grad_weight.chunk(2, dim=1)
        self._advantage_gradient[0].addmm_(centering.t(), grad_advantage)
        self._advantage_gradient[1].addmv_(centering.t(), grad_bias)
        self._value_gradient[0].add_(grad_value.sum(dim=0))
        self._value_gradient[1].add_(grad_bias.sum())


class FeatureQuantiles(QuantilePart):
    """For networks whose factors multiply the features: each state passes the heads once for each tau.

    That is three quarters of the arithmetic of an update. Large results are written where those of the update before
    were, instead of into fresh memory, which an operating system hands out page by page, more slowly than a processor
    fills it.
    """

    @torch.no_grad()
    def __call__(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """See the base class."""
        weight, bias = self._last_layer(self._centering)
        hidden = self._hidden(self.features.forward(img, floats, recorded=False), tau)[-1]
        returns = torch.addmm(bias, hidden.float(), weight.t()).view(*tau.shape, -1)
        return returns.add_(self._network.baseline(floats)[:, None, None])

    @torch.no_grad()
    def forward(self, features: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
        """See the base class."""
        centering = self._centering[action]  # (B, A)
        weight, bias = self._last_layer(centering)  # of the state's own action: (B, 2U), (B,)
        layers = self._hidden(features, tau)
        self._recorded = features, centering, weight, *layers
        hidden = layers[-1].float().view(*tau.shape, -1)
        returns = torch.bmm(weight.unsqueeze(1), hidden.transpose(1, 2)).squeeze(1)
        return returns.add_((bias + self._network.baseline(floats)).unsqueeze(1))

    @torch.no_grad()
    def backward(self, grad_returns: Tensor) -> Tensor:
        """See the base class."""
        features, centering, weight, cosines, factors, rows, hidden = self._recorded
        per_state = (*grad_returns.shape, -1)
        grad_weight = torch.bmm(grad_returns.unsqueeze(1), hidden.float().view(per_state)).squeeze(1)
        self._backward_last_layer(grad_weight, grad_returns.sum(dim=1), centering)

        grad_hidden = self._workspace.take("grad_hidden", hidden.shape)
        torch.mul(grad_returns.unsqueeze(2), weight.unsqueeze(1), out=grad_hidden.view(per_state))
        leaky_relu_backward_(grad_hidden, hidden, LEAKY_RELU_SLOPE, True, grad_input=grad_hidden)
        _backward_layer(grad_hidden, rows, self._hidden_gradient)
        grad_rows = product(grad_hidden, self._hidden_layers[0])

        # rows = features x factors
        grad_features = torch.mul(grad_rows, factors, out=rows).view(per_state).sum(dim=1)
        grad_factors = grad_rows
        grad_factors.view(per_state).mul_(features.unsqueeze(1))
        leaky_relu_backward_(grad_factors, factors, LEAKY_RELU_SLOPE, True, grad_input=grad_factors)
        _backward_layer(grad_factors, cosines, self._embedding_gradient)
        return grad_features

    def _hidden(self, features: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All results up to the heads' first layers, from features (B, D) and taus (B, N).

        Returns:
            cosines (R, E), factors (R, D), rows (R, D), hidden (R, 2U).
        """
        cosines, factors = self._factors(tau)
        rows = self._workspace.take("rows", factors.shape)
        per_state = (*tau.shape, -1)
        torch.mul(factors.view(per_state), features.unsqueeze(1), out=rows.view(per_state))
        return cosines, factors, rows, linear_leaky_relu(rows, *self._hidden_layers)


class HiddenLayerQuantiles(QuantilePart):
    """For networks whose factors multiply the heads' hidden layers, with the same taus for all states.

    The returns of an action are sum_h weight_h x hidden_h x factor_h(tau). The factors go with the weights where those
    of all actions are wanted, and `shares` are weight x hidden where it is one action's.
    """

    @torch.no_grad()
    def __call__(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """See the base class."""
        assert len(tau) == 1, "all states have the same taus"
        weight, bias = self._last_layer(self._centering)  # (A, 2U), (A,)
        hidden = self._hidden(self.features.forward(img, floats, recorded=False))  # (B, 2U)
        factors = self._factors(tau)[1]  # (N, 2U)
        weights = (factors.unsqueeze(1) * weight).flatten(0, 1)  # (N A, 2U)
        returns = product(hidden.float(), weights.t()).view(len(hidden), tau.shape[1], -1)
        return returns + (bias + self._network.baseline(floats)[:, None, None])

    @torch.no_grad()
    def forward(self, features: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
        """See the base class."""
        assert len(tau) == 1, "all states have the same taus"
        centering = self._centering[action]  # (B, A)
        weight, bias = self._last_layer(centering)  # of the state's own action: (B, 2U), (B,)
        cosines, factors = self._factors(tau)  # (N, E), (N, 2U)
        hidden = self._hidden(features)  # (B, 2U)
        shares = weight * hidden
        self._recorded = features, centering, weight, cosines, factors, hidden, shares
        returns = torch.mm(shares, factors.float().t())
        return returns.add_((bias + self._network.baseline(floats)).unsqueeze(1))

    @torch.no_grad()
    def backward(self, grad_returns: Tensor) -> Tensor:
        """See the base class."""
        features, centering, weight, cosines, factors, hidden, shares = self._recorded
        grad_shares = torch.mm(grad_returns, factors.float())  # (B, 2U)
        self._backward_last_layer(grad_shares * hidden, grad_returns.sum(dim=1), centering)

        grad_hidden = (grad_shares * weight).to(hidden.dtype)
        leaky_relu_backward_(grad_hidden, hidden, LEAKY_RELU_SLOPE, True, grad_input=grad_hidden)
        _backward_layer(grad_hidden, features.to(hidden.dtype), self._hidden_gradient)

        grad_factors = torch.mm(grad_returns.t(), shares).to(factors.dtype)  # (N, 2U)
        leaky_relu_backward_(grad_factors, factors, LEAKY_RELU_SLOPE, True, grad_input=grad_factors)
        _backward_layer(grad_factors, cosines, self._embedding_gradient)
        return product(grad_hidden, self._hidden_layers[0])

    def _hidden(self, features: Tensor) -> Tensor:
        """The hidden layers of both heads (B, 2U)."""
        return linear_leaky_relu(features.to(self._workspace.dtype), *self._hidden_layers)


def quantile_part(network: IQN_Network, workspace: Workspace) -> QuantilePart:
    """The part that fits a network."""
    kind = HiddenLayerQuantiles if network.quantiles_multiply_hidden_layers else FeatureQuantiles
    return kind(network, workspace)


Layer = tuple[Tensor, Tensor]
"""Weight (outputs, inputs) and bias (outputs,) of a linear layer, or their gradients."""


def _backward_layer(grad_outputs: Tensor, inputs: Tensor, gradient: Layer) -> None:
    grad_weight, grad_bias = gradient
    grad_weight.add_(product(grad_outputs.t(), inputs))
    grad_bias.add_(grad_outputs.sum(dim=0))


def _side_by_side(first: Layer, second: Layer) -> Layer:
    return as_one(first[0], second[0]), as_one(first[1], second[1])


def _values(layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach(), layer.bias.detach()


def _gradients(layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.Linear)
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.grad, layer.bias.grad
