"""Figures of the agent's single parameters."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import torch
from tensordict import TensorDictBase

from trackmania_rl.agents.layers import layer_figures
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
