"""How uncertain the agent expects its returns to be."""

from __future__ import annotations

from typing import Final

import torch
from tensordict import TensorDictBase

from trackmania_rl.training.hooks.hook import Hook

STATES: Final = 32
"""So many of a batch's states are looked at."""


class MeasureQuantileSpread(Hook):
    """Measures how far an action's returns are spread over their quantiles, in states of the last batch."""

    def __init__(self) -> None:
        self._batch: TensorDictBase | None = None

    def post_loss(self, batch: TensorDictBase) -> None:
        """Keep the batch as long as it is the last one."""
        self._batch = batch

    def rare_figures(self) -> dict[str, float]:
        """`train/quantile_spread/action_{index}` and their mean, in units of reward: standard deviations over taus.

        Of the network that evaluates, averaged over states; nothing of an agent that expects single values.
        """
        if self._batch is None:
            return {}
        states, n_taus = self._batch[:STATES], self.run.settings.agent.iqn_k
        taus = (torch.arange(n_taus) + 0.5) / n_taus
        returns = self.run.agent.returns_at(states["state_img"], states["state_float"], taus)  # (B, N, A)
        if returns is None or returns.shape[1] == 1:
            return {}
        spreads = returns.std(dim=1).mean(dim=0).tolist()
        figures = {f"train/quantile_spread/action_{index}": spread for index, spread in enumerate(spreads)}
        return figures | {"train/quantile_spread/mean": sum(spreads) / len(spreads)}
