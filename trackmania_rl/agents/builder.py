"""The part `agent`: makes the network, the collectors' actor and the learner. The one that ships is `IQN`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn

from trackmania_rl.agents.devices import arithmetic_dtype, pick_device
from trackmania_rl.agents.inference import Actor, Inferer
from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.agents.networks import QuantileNetwork, Sizes
from trackmania_rl.parts import make_part
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, SettingsError

if TYPE_CHECKING:
    from trackmania_rl.agents.agent import Agent


@runtime_checkable
class AgentBuilder(Protocol):
    """Makes an agent's parts; called with (settings, spaces, seeds), in every process."""

    def make_network(self) -> nn.Module:
        """Make the network that drives, with initial weights, on the CPU; collectors receive its parameters."""

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> Actor:
        """Make an actor with a network moved to a device; `rng` is the exploration source."""

    def make_learner(self, network: nn.Module) -> Agent:
        """Make the agent that trains a network."""


MakeAgentBuilder = Callable[[Settings, Spaces, SeedTree], AgentBuilder]


class IQN:
    """The agent that ships, see `agents.iqn`.

    Args:
        settings: run settings.
        spaces: game spaces.
        seeds: run seeds.

    Raises:
        SettingsError: if actions are numbers.
    """

    learner_class: ClassVar[type[IQNAgent]] = IQNAgent

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        if not isinstance(spaces.action, Discrete):
            raise SettingsError(
                f"agent = {str(settings.agent.agent)!r} chooses among a few actions, Discrete(A), but the games take "
                f'{spaces.action}: name another agent, such as "trackmania_rl.agents.torchrl_agent:SAC"'
            )
        self._settings, self._spaces = settings, spaces
        self._network_seed = seeds.integer("network")
        self._learner_seed = seeds.integer("learner")

    def make_network(self) -> QuantileNetwork:
        """Make the network that the setting `network` names, on the CPU.

        Raises:
            SettingsError: if the setting names no network.
            UserError: if the image is too small for the convolutions.
        """
        settings = self._settings
        spaces = self._spaces
        sizes = Sizes(
            float_mean=spaces.float_mean,
            float_std=spaces.float_std,
            n_actions=spaces.n_values,
            image_shape=spaces.image_shape,
            mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
            waves=spaces.waves,
        )
        network: QuantileNetwork = make_part(
            settings.agent.network,
            "network",
            settings.agent,
            sizes,
            torch.Generator().manual_seed(self._network_seed),
            takes="settings, sizes, generator",
            kinds=(QuantileNetwork,),
        )
        return network

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> Inferer:
        """Make an `Inferer`."""
        assert isinstance(network, QuantileNetwork)
        return Inferer(
            network.to(device).eval(),
            n_quantiles=self._settings.agent.iqn_k,
            throttle_actions=self._spaces.throttle_actions,
            exploration_settings=self._settings.exploration,
            rng=rng,
            dtype=arithmetic_dtype(device, self._settings.agent, network),
        )

    def make_learner(self, network: nn.Module) -> IQNAgent:
        """Make an `IQNAgent`."""
        assert isinstance(network, QuantileNetwork)
        return self.learner_class(
            network,
            self._settings.agent,
            device=pick_device(self._settings.run.torch_device),
            seed=self._learner_seed,
            use_torch_compile=self._settings.run.use_torch_compile,
        )


def make_agent_builder(settings: Settings, spaces: Spaces, seeds: SeedTree) -> AgentBuilder:
    """Make the agent builder that the setting `agent` names.

    Raises:
        SettingsError: if it makes no agent, or one that does not fit the spaces.
    """
    takes = "settings, spaces, seeds"
    kinds = (AgentBuilder,)
    builder: AgentBuilder = make_part(settings.agent.agent, "agent", settings, spaces, seeds, takes=takes, kinds=kinds)
    return builder


def check_decision(actor: Actor, spaces: Spaces) -> None:
    """Check an actor's decision shapes in two blank states, before games begin.

    Raises:
        SettingsError: if the games take other shapes; it names both.
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
