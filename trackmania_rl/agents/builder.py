"""The part `agent`: from settings and spaces to what drives in a collector and what learns. The one that ships: IQN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Discrete
from torch import nn

from trackmania_rl.agents.agent import Agent, IQNAgent
from trackmania_rl.agents.exploration import Exploration
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.iqn import QuantileNetwork
from trackmania_rl.agents.run_network import arithmetic_dtype, network_of_seed, pick_device
from trackmania_rl.parts import make_part
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import ExplorationSettings, Settings, SettingsError


class Actor(Protocol):
    """Decides in a collector.

    Attributes:
        exploration_settings: schedules of exploration; may be replaced.
    """

    exploration_settings: ExplorationSettings

    @property
    def network(self) -> nn.Module:
        """The network that it decides by, whose weights are replaced in place by newer ones."""

    def weights_changed(self) -> None:
        """Decide by the network's weights as they are now."""

    def exploration_of_race(self, *, is_explo: bool, frame_count: int) -> Exploration:
        """Say how to explore in a race that begins after so many actions of the run; not at all in an evaluation."""

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
            explorations: how to explore in each; greedily by default.
        """


class AgentBuilder(Protocol):
    """Makes an agent's parts; called with (settings, spaces, seeds), in every process."""

    def make_network(self) -> nn.Module:
        """Make the network that drives, with its initial weights, on the CPU; its parameters travel to collectors."""

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> Actor:
        """Make what decides by a network, which is moved to a device; `rng` is the source of exploration."""

    def make_learner(self, network: nn.Module) -> Agent:
        """Make what trains a network."""


MakeAgentBuilder = Callable[[Settings, Spaces, SeedTree], AgentBuilder]


class IQN:
    """The agent that ships, see `agents.iqn`.

    Args:
        settings: of the run.
        spaces: of its games.
        seeds: of the run.

    Raises:
        SettingsError: if actions are no choice among a few.
    """

    learner_class: ClassVar[type[IQNAgent]] = IQNAgent

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        if not isinstance(spaces.action, Discrete):
            raise SettingsError(
                f"agent = {str(settings.agent.agent)!r} chooses among a few actions, Discrete(A), but the games take "
                f'{spaces.action}: name another agent, such as "trackmania_rl.agents.torchrl_agent:SAC"'
            )
        self._settings, self._spaces = settings, spaces
        self._network_seed, self._learner_seed = seeds.integer("network"), seeds.integer("learner")

    def make_network(self) -> QuantileNetwork:
        """Make what the setting `network` names; see `AgentBuilder`."""
        return network_of_seed(self._settings, self._spaces, self._network_seed)

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> Inferer:
        """See `AgentBuilder`."""
        assert isinstance(network, QuantileNetwork)
        return Inferer(
            network.to(device).eval(),
            n_quantiles=self._settings.agent.iqn_k,
            throttle_actions=self._spaces.throttle_actions,
            exploration_settings=self._settings.exploration,
            rng=rng,
            dtype=arithmetic_dtype(device, self._settings.agent),
        )

    def make_learner(self, network: nn.Module) -> IQNAgent:
        """See `AgentBuilder`."""
        assert isinstance(network, QuantileNetwork)
        return self.learner_class(
            network,
            self._settings.agent,
            device=pick_device(self._settings.run.torch_device),
            seed=self._learner_seed,
            use_torch_compile=self._settings.run.use_torch_compile,
        )


def make_agent_builder(settings: Settings, spaces: Spaces, seeds: SeedTree) -> AgentBuilder:
    """Make what the setting `agent` names.

    Raises:
        SettingsError: if it names something that makes no agent, or one that does not fit the spaces.
    """
    builder = make_part(settings.agent.agent, "agent", settings, spaces, seeds, takes="settings, spaces, seeds")
    missing = [name for name in ("make_network", "make_actor", "make_learner") if not hasattr(builder, name)]
    if missing:
        raise SettingsError(
            f"agent = {str(settings.agent.agent)!r} made a {type(builder).__name__} without {', '.join(missing)}: see "
            "AgentBuilder (trackmania_rl/agents/builder.py)"
        )
    return builder  # type: ignore[no-any-return]


def check_decision(actor: Actor, spaces: Spaces) -> None:
    """Let an actor decide in two blank states, so that what does not fit the games is told before they begin.

    Raises:
        SettingsError: if its decision has other shapes than the games take, which are both named.
    """
    frames = np.zeros((2, *spaces.image_shape), dtype=np.uint8)
    floats = np.tile(np.array(spaces.float_mean, dtype=np.float32), (2, 1))
    decision = actor.act_batch(frames, floats)
    wanted = {
        "actions": (2, *spaces.action_shape),
        "is_greedy": (2,),
        "q_values": (2, spaces.n_values),
    }
    for name, shape in wanted.items():
        if (given := np.shape(getattr(decision, name))) != shape:
            raise SettingsError(
                f"agent: for two states its {name} have the shape {given}, but the games, whose actions are "
                f"{spaces.action}, take {shape}"
            )
    if isinstance(spaces.action, Discrete) and not (decision.actions < spaces.action.n).all():
        raise SettingsError(f"agent: it chose the actions {decision.actions.tolist()}, but there are {spaces.action.n}")
