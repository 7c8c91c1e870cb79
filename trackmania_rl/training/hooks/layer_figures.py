"""Figures of the agent's single parameters."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trackmania_rl.agents.agent import Layer
from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook

MOST_SAMPLES: Final = 1000
"""So many gradients' norms are remembered for each parameter, the newest ones."""
QUANTILES: Final = ("median", "q3", "d9", "c98", "max")


class LayerFigures(Hook):
    """Samples the norm of each parameter's gradient once a race, and measures the rest only when somebody asks."""

    def __init__(self) -> None:
        self._gradient_norms: defaultdict[str, deque[torch.Tensor]] = defaultdict(lambda: deque(maxlen=MOST_SAMPLES))
        self._updates_before = 0

    def begin(self) -> None:
        """Wait for the first update of this session."""
        self._updates_before = self.run.agent.updates

    def post_optim_complete_log(self, _: int, __: TensorDictBase | None) -> None:
        """Note the norms of the gradients of a race's last update."""
        if self.run.agent.updates == self._updates_before:
            return
        self._updates_before = self.run.agent.updates
        for name, layer in self.run.agent.layers().items():
            if layer.gradient is not None:
                self._gradient_norms[name].append(torch.linalg.vector_norm(layer.gradient))

    def rare_figures(self) -> dict[str, float]:
        """Return `layer_figures`, and `weights/gradient_norm_{quantile}/{parameter}` since the last call."""
        figures = layer_figures(self.run.agent.layers(), self.run.settings.agent.adam_epsilon)
        for name, norms in self._gradient_norms.items():
            of_layer = quantile_figures("weights/gradient_norm", torch.stack(list(norms)), QUANTILES)
            figures |= {f"{figure}/{name.replace('.', '/')}": value for figure, value in of_layer.items()}
        self._gradient_norms.clear()
        return figures


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
