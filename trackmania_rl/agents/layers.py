"""What training keeps of each of a network's parameters, and figures of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn


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


def layers_of(
    named_parameters: Iterable[tuple[str, nn.Parameter]], moments: Mapping[Tensor, Mapping[str, Tensor]]
) -> Iterator[tuple[str, Layer]]:
    """Give each parameter that learns, by its name.

    Args:
        named_parameters: of the network, or of the loss.
        moments: an optimizer's state by parameter, in torch's names: that of any kind of Adam.
    """
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            state = moments.get(parameter, {})
            gradient = parameter.grad
            yield name, Layer(parameter.detach(), gradient, state.get("exp_avg"), state.get("exp_avg_sq"))


@torch.no_grad()
def layer_figures(layers: Mapping[str, Layer], adam_epsilon: float) -> dict[str, float]:
    """Measure how large weights and the optimizer's running means are: root mean squares, so that sizes compare.

    Args:
        layers: by name.
        adam_epsilon: the optimizer's epsilon.

    Returns:
        By `weights/{what}/{parameter}`: `weight_rms`; `moment_1_rms` and `moment_2_rms` of the running means of
        gradients and of their squares; `step_scale_rms` of 1 / (root of the mean square + epsilon), which multiplies
        the learning rate.
    """
    measured: dict[str, Tensor] = {}
    for name, layer in layers.items():
        of = name.replace(".", "/")
        measured[f"weights/weight_rms/{of}"] = _rms(layer.weight)
        if layer.first_moment is not None and layer.second_moment is not None:
            measured[f"weights/moment_1_rms/{of}"] = _rms(layer.first_moment)
            measured[f"weights/moment_2_rms/{of}"] = _rms(layer.second_moment)
            measured[f"weights/step_scale_rms/{of}"] = _rms(1 / (layer.second_moment.sqrt() + adam_epsilon))
    if not measured:
        return {}
    return dict(zip(measured, torch.stack(list(measured.values())).tolist(), strict=True))


def _rms(tensor: Tensor) -> Tensor:
    return tensor.float().square().mean().sqrt()
