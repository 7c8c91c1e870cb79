"""Collectors' decisions: state values from a network, and actions by exploration, greedy or random."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl import schedules
from trackmania_rl.agents.iqn import IQN_Network, QuantileNetwork, midpoints
from trackmania_rl.agents.networks import LEAKY_RELU_SLOPE, weight_and_bias
from trackmania_rl.race.actions import BatchDecision, PolicyDecision
from trackmania_rl.settings import ExplorationSettings

BOLTZMANN_STD: Final = 0.01
"""Standard deviation of the noise added to Q, in reward units."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """A race's departures from the greedy action."""

    epsilon: float  # probability of a random action
    epsilon_boltzmann: float  # probability, in addition, of the best action by values with noise
    throttle_probability: float | None  # that a random action accelerates and does not brake; None draws evenly


GREEDY = Exploration(epsilon=0.0, epsilon_boltzmann=0.0, throttle_probability=None)
"""Always the best action."""


class ActionChooser:
    """Draws actions by state values; `throttle_actions` accelerate and do not brake."""

    def __init__(self, n_actions: int, throttle_actions: Sequence[int], rng: np.random.Generator) -> None:
        self._throttle_actions = np.array(throttle_actions, dtype=np.int64)
        self._other_actions = np.setdiff1d(np.arange(n_actions), self._throttle_actions)
        self._rng = rng

    def choose(self, q_values: npt.NDArray[np.float32], explorations: Sequence[Exploration]) -> npt.NDArray[np.int64]:
        """Draw the actions (B,) int64 for B states.

        Args:
            q_values: (B, A).
            explorations: one per state; if all are `GREEDY`, no random number is drawn.
        """
        if all(exploration is GREEDY for exploration in explorations):
            return q_values.argmax(axis=1)
        draws = self._rng.random(len(q_values))
        epsilon = np.array([exploration.epsilon for exploration in explorations])
        is_noisy = draws < epsilon + [exploration.epsilon_boltzmann for exploration in explorations]
        noise_std = np.where(is_noisy, np.float32(BOLTZMANN_STD), np.float32(0))
        noise = self._rng.standard_normal(q_values.shape, dtype=np.float32)
        actions = (q_values + noise_std[:, None] * noise).argmax(axis=1)
        for row in np.flatnonzero(draws < epsilon).tolist():
            actions[row] = self._random_action(explorations[row].throttle_probability)
        return actions

    def _random_action(self, throttle_probability: float | None) -> int:
        n_throttle = len(self._throttle_actions)
        n_other = len(self._other_actions)
        if throttle_probability is None or n_throttle == 0 or n_other == 0:
            return int(self._rng.integers(n_throttle + n_other))
        throttles = self._rng.random() < throttle_probability
        actions = self._throttle_actions if throttles else self._other_actions
        return int(actions[self._rng.integers(len(actions))])


class Actor(Protocol):
    """Decides in a collector. Users' actors may derive from this class, or have the same members.

    Attributes:
        network: newer weights replace its weights in place.
        exploration_settings: exploration schedules; may be replaced.
    """

    network: nn.Module
    exploration_settings: ExplorationSettings

    def weights_changed(self) -> None:
        """Recompute what depends on the network's weights; called after they were replaced."""
        return

    def exploration_of_race(self, *, is_explo: bool, frame_count: int) -> Exploration:
        """Return the exploration for a race.

        Args:
            is_explo: False for an evaluation race: greedy, without noise.
            frame_count: actions played in the run so far, for the schedules, which interpolate exponentially.
        """
        if not is_explo:
            return GREEDY
        settings = self.exploration_settings
        return Exploration(
            epsilon=schedules.exponential(settings.epsilon_schedule, frame_count),
            epsilon_boltzmann=schedules.exponential(settings.epsilon_boltzmann_schedule, frame_count),
            throttle_probability=settings.random_action_throttle_probability,
        )

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
            explorations: one per state; greedy by default.
        """


class Inferer(Actor):
    """Actor by a quantile network's values.

    A value is the mean over fixed taus, the midpoints (i + 1/2) / `n_quantiles`. So it depends on the state
    alone, and a greedy race can be repeated exactly. `throttle_actions` accelerate and do not brake; `dtype` is the
    precision for the network's large products.
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
        if isinstance(network, IQN_Network) and _has_shipped_heads(network):
            self._mean_values = PreparedMeanValues(network, n_quantiles, dtype)
        else:
            self._mean_values = MeanValues(network, n_quantiles, dtype)

    @override
    def weights_changed(self) -> None:
        self._mean_values.prepare()

    def begin_race(self, *, is_explo: bool, frame_count: int) -> None:
        """Set the exploration for `act`, see `exploration_of_race`."""
        self._exploration = self.exploration_of_race(is_explo=is_explo, frame_count=frame_count)

    def act(self, frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
        """Decide in one state: a frame (S, H, W) uint8 and floats (F,) float32."""
        return self.act_batch(frame[np.newaxis], floats[np.newaxis], [self._exploration]).one(0)

    @override
    def act_batch(
        self,
        frames: npt.NDArray[np.uint8],
        floats: npt.NDArray[np.float32],
        explorations: Sequence[Exploration] | None = None,
    ) -> BatchDecision:
        explorations = explorations or [GREEDY] * len(floats)
        img = torch.from_numpy(frames).to(self._device)
        states = torch.from_numpy(floats).to(self._device)
        q_values = self._mean_values(img, states).cpu().numpy()
        actions = self._chooser.choose(q_values, explorations)
        return BatchDecision(actions=actions, is_greedy=actions == q_values.argmax(axis=1), q_values=q_values)


def _has_shipped_heads(network: IQN_Network) -> bool:
    """Return whether `forward` and the heads are those that `PreparedMeanValues` computes."""
    kinds = [[type(layer) for layer in head] for head in (network.A_head, network.V_head)]
    return type(network).forward is IQN_Network.forward and kinds == [[nn.Linear, nn.LeakyReLU, nn.Linear]] * 2


class MeanValues:
    """All actions' mean returns over K fixed taus, by the network's `forward`."""

    def __init__(self, network: QuantileNetwork, n_quantiles: int, dtype: torch.dtype) -> None:
        self._network = network
        self._dtype = dtype
        self._tau = midpoints(n_quantiles, network.float_mean.device)

    def prepare(self) -> None:
        """Recompute what depends on the network's weights."""
        return

    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """Compute the values (B, A) float32 from img (B, S, H, W) uint8 and floats (B, F) float32."""
        with self._autocast(floats):
            return self._network(img, floats, self._tau).mean(dim=1)  # type: ignore[no-any-return]

    def _autocast(self, floats: Tensor) -> torch.autocast:
        return torch.autocast(floats.device.type, dtype=self._dtype, enabled=self._dtype != torch.float32)


class Prepared(NamedTuple):
    """Tensors that depend only on the weights; U units per head, D features, K taus, A actions."""

    hidden_weight: Tensor  # (2U, D), both heads
    hidden_bias: Tensor  # (2U, 1)
    last_weight: Tensor  # (A, 2U)
    last_bias: Tensor  # (A,)
    factors: Tensor  # (D, 1, K), or empty where factors multiply hidden layers


class Recording(NamedTuple):
    """A CUDA graph that computes B states' values, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    img: Tensor
    floats: Tensor
    values: Tensor


class PreparedMeanValues(MeanValues):
    """The same for an `IQN_Network`, several times as fast: all that only the weights determine is computed once.

    The heads' first layers are one matrix, and the mean is taken before the last layers, which are linear. Products are
    transposed, which is faster for few rows. Where factors multiply hidden layers, their mean is in the last layer.

    On a GPU each state count is recorded as a CUDA graph, because some forty launches take longer than the
    arithmetic. The next call with the same count overwrites the returned values.

    Shapes as in `iqn`; K taus.
    """

    _network: IQN_Network

    def __init__(self, network: IQN_Network, n_quantiles: int, dtype: torch.dtype) -> None:
        super().__init__(network, n_quantiles, dtype)
        self._recordings: dict[int, Recording] = {}
        self.prepare()

    @override
    @torch.inference_mode()
    def prepare(self) -> None:
        prepared = self._prepare()
        if not self._recordings:
            self._prepared = prepared
            return
        for tensor, new in zip(self._prepared, prepared, strict=True):  # recorded graphs read these
            tensor.copy_(new)

    def _prepare(self) -> Prepared:
        network = self._network
        hidden = [weight_and_bias(head[0]) for head in (network.A_head, network.V_head)]
        hidden_weight, hidden_bias = map(torch.cat, zip(*hidden, strict=True))
        last_weight, last_bias = network.last_layers_as_one()
        factors = network.factors(self._tau).squeeze(0)  # (K, D or 2U)
        if network.quantiles_multiply_hidden_layers:
            last_weight = last_weight * factors.mean(dim=0)
            factors = factors[:0]
        return Prepared(
            hidden_weight.to(self._dtype),
            hidden_bias.to(self._dtype).unsqueeze(1),
            last_weight,
            last_bias,
            factors.to(self._dtype).t().contiguous().unsqueeze(1),
        )

    @override
    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        if floats.device.type != "cuda":
            return self._compute(img, floats)
        if len(floats) not in self._recordings:
            self._recordings[len(floats)] = self._record(img, floats)
        recording = self._recordings[len(floats)]
        recording.img.copy_(img)
        recording.floats.copy_(floats)
        recording.graph.replay()
        return recording.values

    def _record(self, img: Tensor, floats: Tensor) -> Recording:
        img = img.clone()
        floats = floats.clone()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # the first call allocates workspaces, which a recording may not
            self._compute(img, floats)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            values = self._compute(img, floats)
        return Recording(graph, img, floats, values)

    def _compute(self, img: Tensor, floats: Tensor) -> Tensor:
        prepared = self._prepared
        with self._autocast(floats):
            features = self._network.features(img, floats)
        rows = features.to(self._dtype).t()  # (D, B)
        if not self._network.quantiles_multiply_hidden_layers:
            rows = (rows.unsqueeze(2) * prepared.factors).flatten(1)  # (D, B K)
        hidden = torch.addmm(prepared.hidden_bias, prepared.hidden_weight, rows)
        hidden = F.leaky_relu_(hidden, LEAKY_RELU_SLOPE)
        mean_hidden = hidden.view(len(hidden), len(floats), -1).mean(dim=2, dtype=torch.float32)  # (2U, B)
        values = torch.addmm(prepared.last_bias, mean_hidden.t(), prepared.last_weight.t())
        return values + self._network.baseline(floats).unsqueeze(1)
