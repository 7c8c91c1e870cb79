"""Playing with a network: states in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.agents.exploration import GREEDY, ActionChooser, Exploration
from trackmania_rl.agents.iqn import QuantileNetwork
from trackmania_rl.agents.mean_values import mean_values
from trackmania_rl.race.policy import BatchDecision, PolicyDecision
from trackmania_rl.settings import ExplorationSettings


class Inferer:
    """The policy of a collector: a network's values, and exploration.

    A value is the mean over `n_quantiles` fixed taus, the midpoints (i + 1/2) / n: the value is then a function of
    the state alone and a greedy race can be repeated exactly, and the midpoints are the best n points for a mean.

    When the network's weights were changed in place, call `weights_changed`: what is computed from them alone is kept.

    Args:
        network: on the device where it shall compute.
        n_quantiles: K (`iqn_k`).
        throttle_actions: those that accelerate and do not brake.
        exploration_settings: schedules of exploration; may be replaced (`inferer.exploration_settings = ...`).
        rng: source of exploration.
        dtype: precision of the network's large products.
    """

    def __init__(
        self,
        network: QuantileNetwork,
        *,
        n_quantiles: int,
        throttle_actions: Sequence[int],
        exploration_settings: ExplorationSettings,
        rng: np.random.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network = network
        self.exploration_settings = exploration_settings
        self._exploration = GREEDY
        self._chooser = ActionChooser(network.n_actions, throttle_actions, rng)
        self._device = network.float_mean.device
        self._mean_values = mean_values(network, n_quantiles, dtype)

    def weights_changed(self) -> None:
        """Decide by the network's weights as they are now."""
        self._mean_values.prepare()

    def begin_race(self, *, is_explo: bool, frame_count: int) -> None:
        """Fix how `act` explores in the race that begins; see `exploration_of_race`."""
        self._exploration = self.exploration_of_race(is_explo=is_explo, frame_count=frame_count)

    def exploration_of_race(self, *, is_explo: bool, frame_count: int) -> Exploration:
        """How to explore in one race.

        Args:
            is_explo: False for an evaluation race: greedy, without noise.
            frame_count: actions played in the run so far, where the schedules are read.
        """
        return Exploration.scheduled(self.exploration_settings, frame_count) if is_explo else GREEDY

    def act(self, frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        """Decide in one state.

        Args:
            frame: (S, H, W) uint8.
            floats: (F,) float32.
        """
        decision = self.act_batch(frame[np.newaxis], floats[np.newaxis], [self._exploration])
        return PolicyDecision(int(decision.actions[0]), bool(decision.is_greedy[0]), decision.q_values[0])

    def act_batch(
        self,
        frames: npt.NDArray[np.uint8],
        floats: npt.NDArray[np.float32],
        explorations: Sequence[Exploration] | None = None,
    ) -> BatchDecision:
        """Decide in several states with one pass through the network.

        Args:
            frames: (B, S, H, W) uint8.
            floats: (B, F) float32.
            explorations: how to explore in each; greedily by default.
        """
        explorations = explorations or [GREEDY] * len(floats)
        img, states = torch.from_numpy(frames).to(self._device), torch.from_numpy(floats).to(self._device)
        q_values = self._mean_values(img, states).cpu().numpy()
        actions = self._chooser.choose(q_values, explorations)
        return BatchDecision(actions=actions, is_greedy=actions == q_values.argmax(axis=1), q_values=q_values)
