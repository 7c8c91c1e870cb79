"""Decisions of collectors: values of states by a network, and actions by exploration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.exploration import GREEDY, ActionChooser, Exploration
from trackmania_rl.agents.iqn import IQN_Network, QuantileNetwork, midpoints
from trackmania_rl.agents.networks import LEAKY_RELU_SLOPE
from trackmania_rl.race.policy import BatchDecision, PolicyDecision
from trackmania_rl.settings import ExplorationSettings


class Actor(Protocol):
    """Decides in a collector. Own actors may derive from this class, or have the same members.

    Attributes:
        network: its weights are replaced in place by newer ones.
        exploration_settings: schedules of exploration; may be replaced.
    """

    network: nn.Module
    exploration_settings: ExplorationSettings

    def weights_changed(self) -> None:
        """Recompute what depends on the network's weights; called after they were replaced."""
        return

    def exploration_of_race(self, *, is_explo: bool, frame_count: int) -> Exploration:
        """Return the exploration of a race.

        Args:
            is_explo: False for an evaluation race: greedy, without noise.
            frame_count: actions played in the run so far, for the schedules.
        """
        return Exploration.scheduled(self.exploration_settings, frame_count) if is_explo else GREEDY

    @abstractmethod
    def act_batch(
        self,
        frames: npt.NDArray[np.uint8],
        floats: npt.NDArray[np.float32],
        explorations: Sequence[Exploration] | None = None,
    ) -> BatchDecision:
        """Decide in B states.

        Args:
            frames: (B, S, H, W) uint8.
            floats: (B, F) float32.
            explorations: of each state; greedy by default.
        """


class Inferer(Actor):
    """Actor by a quantile network's values.

    A value is the mean over fixed taus, the midpoints (i + 1/2) / `n_quantiles`. So it is a function of the state
    alone, and a greedy race can be repeated exactly. `throttle_actions` accelerate and do not brake; `dtype` is the
    precision of the network's large products.
    """

    network: QuantileNetwork

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
        self._mean_values: MeanValues
        if isinstance(network, IQN_Network) and type(network).forward is IQN_Network.forward:
            self._mean_values = PreparedMeanValues(network, n_quantiles, dtype)
        else:
            self._mean_values = MeanValues(network, n_quantiles, dtype)

    @override
    def weights_changed(self) -> None:
        self._mean_values.prepare()

    def begin_race(self, *, is_explo: bool, frame_count: int) -> None:
        """Set the exploration of `act`, see `exploration_of_race`."""
        self._exploration = self.exploration_of_race(is_explo=is_explo, frame_count=frame_count)

    def act(self, frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        """Decide in one state of a frame (S, H, W) uint8 and floats (F,) float32."""
        decision = self.act_batch(frame[np.newaxis], floats[np.newaxis], [self._exploration])
        return PolicyDecision(int(decision.actions[0]), bool(decision.is_greedy[0]), decision.q_values[0])

    @override
    def act_batch(
        self,
        frames: npt.NDArray[np.uint8],
        floats: npt.NDArray[np.float32],
        explorations: Sequence[Exploration] | None = None,
    ) -> BatchDecision:
        explorations = explorations or [GREEDY] * len(floats)
        img, states = torch.from_numpy(frames).to(self._device), torch.from_numpy(floats).to(self._device)
        q_values = self._mean_values(img, states).cpu().numpy()
        actions = self._chooser.choose(q_values, explorations)
        return BatchDecision(actions=actions, is_greedy=actions == q_values.argmax(axis=1), q_values=q_values)


class MeanValues:
    """Mean returns of all actions over K fixed taus, by the network's own `forward`."""

    def __init__(self, network: QuantileNetwork, n_quantiles: int, dtype: torch.dtype) -> None:
        self._network = network
        self._dtype = dtype
        self._tau = midpoints(n_quantiles, network.float_mean.device)

    def prepare(self) -> None:
        """Recompute what depends on the network's weights."""
        return

    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """Compute the values (B, A) float32 of img (B, S, H, W) uint8 and floats (B, F) float32."""
        with self._autocast(floats):
            return self._network(img, floats, self._tau).mean(dim=1)  # type: ignore[no-any-return]

    def _autocast(self, floats: Tensor) -> torch.autocast:
        return torch.autocast(floats.device.type, dtype=self._dtype, enabled=self._dtype != torch.float32)


class PreparedMeanValues(MeanValues):
    """The same for an `IQN_Network`, several times as fast: all that depends only on the weights is computed once.

    The heads' first layers are one matrix, and the mean is taken before the last layers, which are linear. Products are
    transposed, which is faster for few rows. Where factors multiply hidden layers, their mean is in the last layer.

    Shapes as in `iqn`; K taus.
    """

    _network: IQN_Network

    def __init__(self, network: IQN_Network, n_quantiles: int, dtype: torch.dtype) -> None:
        super().__init__(network, n_quantiles, dtype)
        self.prepare()

    @override
    @torch.inference_mode()
    def prepare(self) -> None:
        network, of = self._network, self._network.get_parameter
        hidden_weight = torch.cat((of("A_head.0.weight"), of("V_head.0.weight")))
        hidden_bias = torch.cat((of("A_head.0.bias"), of("V_head.0.bias")))
        self._hidden_weight = hidden_weight.to(self._dtype)  # (2U, D)
        self._hidden_bias = hidden_bias.to(self._dtype).unsqueeze(1)  # (2U, 1)
        self._last_weight, self._last_bias = network.last_layer()  # (A, 2U), (A,)
        factors = network.factors(self._tau).squeeze(0)  # (K, D or 2U)
        if network.quantiles_multiply_hidden_layers:
            self._last_weight = self._last_weight * factors.mean(dim=0)
        else:
            self._factors = factors.to(self._dtype).t().contiguous().unsqueeze(1)  # (D, 1, K)

    @override
    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        with self._autocast(floats):
            features = self._network.features(img, floats)
        rows = features.to(self._dtype).t()  # (D, B)
        if not self._network.quantiles_multiply_hidden_layers:
            rows = (rows.unsqueeze(2) * self._factors).flatten(1)  # (D, B K)
        hidden = F.leaky_relu_(torch.addmm(self._hidden_bias, self._hidden_weight, rows), LEAKY_RELU_SLOPE)
        mean_hidden = hidden.view(len(hidden), len(floats), -1).mean(dim=2, dtype=torch.float32)  # (2U, B)
        values = torch.addmm(self._last_bias, mean_hidden.t(), self._last_weight.t())
        return values + self._network.baseline(floats).unsqueeze(1)
