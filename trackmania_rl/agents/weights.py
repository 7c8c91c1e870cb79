"""Network weights: copies, averages, bytes; learning weights as one vector, with clipping and optimizer.

The weights are the parameters and the buffers in `state_dict()`: running statistics drive as much as parameters do.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path
from typing_extensions import override

NORM_EPSILON = 1e-6
"""As in torch's `clip_grad_norm_`."""
DIGEST_BYTES: Final = 16
_PLACES: Final[WeakKeyDictionary[nn.Module, list[tuple[dict[str, Any], str]]]] = WeakKeyDictionary()
"""Dictionary and name for each weight tensor in a network, because a search takes longer than an average."""


def weights_of(network: nn.Module) -> list[Tensor]:
    """List the parameters and buffers in a network's `state_dict()`, each once, those with the widest numbers first."""
    if network not in _PLACES:
        places: dict[Tensor, tuple[dict[str, Any], str]] = {}
        for path, tensor in network.state_dict(keep_vars=True).items():
            module, _, name = path.rpartition(".")
            owner = network.get_submodule(module)
            for tensors in (owner._parameters, owner._buffers):
                if name in tensors:
                    places.setdefault(tensor, (tensors, name))
        _PLACES[network] = [places[tensor] for tensor in sorted(places, key=Tensor.element_size, reverse=True)]
    return [tensors[name] for tensors, name in _PLACES[network]]


def learning_parameters(network: nn.Module) -> list[nn.Parameter]:
    """List the parameters that learn."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


@torch.no_grad()
def move_weights(network: nn.Module, towards: nn.Module, share: float) -> None:
    """Move a network's weights a share of the way to another network's weights; copy integers."""
    means: list[Tensor] = []
    newest: list[Tensor] = []
    for mean, new in zip(weights_of(network), weights_of(towards), strict=True):
        if new.is_floating_point():
            means.append(mean)
            newest.append(new)
        else:
            mean.copy_(new)
    torch._foreach_lerp_(means, newest, share)


def packed(network: nn.Module) -> Tensor:
    """Return a copy of the weights as bytes, a uint8 vector."""
    return torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in weights_of(network)])


@torch.no_grad()
def unpack(vector: Tensor, network: nn.Module) -> None:
    """Copy bytes from `packed` into a network.

    Raises:
        ValueError: if the vector has another length.
    """
    for tensor, view in _views_of_bytes(vector, network):
        tensor.copy_(view)


def digest_of(weights: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of bytes from `packed`."""
    return hashlib.blake2b(weights, digest_size=DIGEST_BYTES).digest()


def hex_digest(vector: Tensor) -> str:
    """Return the digest of a vector from `packed`, as text."""
    return digest_of(vector.cpu().numpy().data).hex()


def move_into(vector: Tensor, network: nn.Module) -> None:
    """Let a network's weights use a byte vector's memory."""
    for tensor, view in _views_of_bytes(vector, network):
        tensor.data = view


def _views_of_bytes(vector: Tensor, network: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight tensor, and a view on the bytes. The widest are first, so each is aligned."""
    tensors = weights_of(network)
    sizes = [tensor.nbytes for tensor in tensors]
    if sum(sizes) != len(vector):
        raise ValueError(f"{len(vector):,} bytes are no weights of a network of {sum(sizes):,}")
    for tensor, piece in zip(tensors, vector.split(sizes), strict=True):
        yield tensor, piece.view(tensor.dtype).view(tensor.shape)


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Move parameters into one vector (P,) without gradient; an operation on it replaces one per parameter.

    `module.to(...)` undoes it.

    Args:
        parameters: with one dtype, on one device.
    """
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, views_of(vector, parameters), strict=True):
        parameter.data = view
    return vector


def views_of(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Split a vector (P,) in parameter order into views with the parameters' shapes."""
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode within the context: buffers do not change."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def clip_gradient(gradient: Tensor, most_value: float, most_norm: float) -> Tensor:
    """Clip every entry of (P,) to `most_value`, then the norm to `most_norm`; return the norm () before clipping.

    The same as torch's `clip_grad_value_` and `clip_grad_norm_`. (Linesight clips the norm first.) A gradient with a
    NaN becomes 0. With a NaN or an infinity the returned norm is not finite.
    """
    total = gradient.sum()  # NaN or infinite if an entry is
    norm = torch.linalg.vector_norm(gradient.clamp_(-most_value, most_value))
    gradient.mul_((most_norm / (norm + NORM_EPSILON)).clamp_max(1))
    gradient.masked_fill_(torch.isnan(norm), 0.0)
    return torch.where(torch.isfinite(total), norm, total)


class RAdam(torch.optim.AdamW):
    """RAdam (Liu et al. 2020, arXiv:1908.03265) with decoupled weight decay, for one weight vector.

    RAdam is Adam with a step size that depends on the step count, so this is torch's fused Adam, which takes a
    third of `torch.optim.RAdam`'s time and makes the same steps.

    `learning_rate`, `betas`, `epsilon` and `decay` apply to the next steps. A step shrinks the weights (P,) by the
    share `learning_rate * decay`.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__([weights], fused=True)
        self.state[weights] = {
            "step": torch.zeros((), device=weights.device),
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }
        self.learning_rate = 0.0
        self.betas: tuple[float, float] = self.defaults["betas"]
        self.epsilon = 1e-8
        self.decay = 0.0
        self.n_steps = 0  # with those left out by `GradScaler`, which only the GPU knows

    @override
    def __getstate__(self) -> dict[str, Any]:
        return vars(self)  # torch's leaves out what a subclass adds

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.n_steps += 1
        beta2 = self.betas[1]
        factor = rectification(self.n_steps, beta2)
        epsilon = self.epsilon / math.sqrt(1 - beta2**self.n_steps)
        if factor == 0:  # moves along the mean: the root of the mean square is nothing beside this epsilon
            factor = epsilon = 1e12
        rectified = {"lr": self.learning_rate * factor, "eps": epsilon, "weight_decay": self.decay / factor}
        self.param_groups[0].update(rectified, betas=self.betas)
        super().step()


def rectification(n_steps: int, beta2: float) -> float:
    """Return RAdam's factor on Adam's step size; 0 in the first steps, where the mean square is not reliable.

    The length of the running mean (rho in the paper) must exceed 5 for a finite variance.
    """
    largest_length = 2 / (1 - beta2) - 1
    length = largest_length - 2 * n_steps * beta2**n_steps / (1 - beta2**n_steps)
    if length <= 5:
        return 0.0
    variance_ratio = (length - 4) * (length - 2) * largest_length
    return math.sqrt(variance_ratio / ((largest_length - 4) * (largest_length - 2) * length))


def not_finite_tensors(state: Any) -> list[str]:
    """Return the names of tensors with infinite or NaN numbers, such as `target/A_head.0.weight`.

    Synchronizes with a GPU once.

    Args:
        state: nested dicts and lists with tensors and other values.
    """
    found = [
        ("/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), leaf)
        for path, leaf in tree_flatten_with_path(state)[0]
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    if not found:
        return []
    device = found[0][1].device
    # A sum with NaN or infinity is not finite, and is much faster than isfinite; but finite numbers may overflow.
    sums = torch.stack([tensor.sum().to(device, torch.float32) for _, tensor in found]).tolist()
    return [
        name
        for (name, tensor), total in zip(found, sums, strict=True)
        if not math.isfinite(total) and not torch.isfinite(tensor).all()
    ]


def in_few_words(names: list[str], most: int = 3) -> str:
    """Name the first tensors, and count the others."""
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others
