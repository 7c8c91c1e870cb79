"""An agent of your own: soft Q-learning (Haarnoja et al. 2017, arXiv:1702.08165) in sixty lines.

    python scripts/train.py --set run_name=soft --set agent=examples.soft_q_agent:SoftQAgent \
        --set temporal_mini_race_duration_actions=None --set 'gamma_schedule=((0, 0.98),)' \
        --set expected_reward_per_action=0.0

Only the loss is new; the rest are shipped parts for any torchrl loss. `trackmania_rl/agents/builder.py` has the
protocol of an agent.
"""

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.objectives import LossModule

from trackmania_rl.agents.actor_critic import greedy_actor
from trackmania_rl.agents.devices import pick_device
from trackmania_rl.agents.torchrl_agent import OffPolicyLoss, OwnRandomState, TorchRLActor, TorchRLLearner
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

TEMPERATURE = 0.01
"""Temperature of the soft maximum, in units of reward."""


class SoftQLoss(LossModule):
    """Squared error between Q and the soft maximum of the next state's values."""

    def __init__(self, network: nn.Module, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.convert_to_functional(network, "q_network", create_target_params=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss of B transitions, and their `td_error` (B,)."""
        with self.q_network_params.to_module(self.q_network, preserve_module_state=False):
            values = self.q_network(tensordict.copy())["action_value"]  # (B, A)
        with torch.no_grad(), self.target_q_network_params.to_module(self.q_network, preserve_module_state=False):
            next_values = self.q_network(tensordict["next"].copy())["action_value"]
        later = TEMPERATURE * (next_values / TEMPERATURE).logsumexp(dim=1, keepdim=True)
        discount = self.gamma ** tensordict["steps_to_next_obs"]
        target = tensordict["next", "reward"] + discount * later * ~tensordict["next", "terminated"]  # (B, 1)
        error = target - values.gather(1, tensordict["action"].unsqueeze(1))
        tensordict["td_error"] = error.abs().detach()
        return TensorDict({"loss": error.square().mean()})


class SoftQAgent:
    """Builder of the agent's parts; called with the run's settings, the games' spaces and the run's seeds."""

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        self.settings, self.spaces = settings, spaces
        self.network_seed, self.learner_seed = seeds.integer("network"), seeds.integer("learner")

    def make_network(self) -> TensorDictModuleBase:
        """Make the network of the values (B, A), which also choose the action."""
        with OwnRandomState(self.network_seed, torch.device("cpu"))():
            return greedy_actor(self.settings.agent, self.spaces)

    def make_actor(self, network: nn.Module, device: torch.device, rng: np.random.Generator) -> TorchRLActor:
        """Make the policy, which explores by the settings' schedules."""
        assert isinstance(network, TensorDictModuleBase)
        return TorchRLActor(network.to(device).eval(), self.spaces, self.settings.exploration, device, rng)

    def make_learner(self, network: nn.Module) -> TorchRLLearner:
        """Make a network's learner."""
        loss = SoftQLoss(network, self.settings.agent.gamma_schedule[0][1])
        device = pick_device(self.settings.run.torch_device)
        on_batches = OffPolicyLoss(loss, self.spaces, device, self.learner_seed)
        return TorchRLLearner(on_batches, network, self.settings.agent)
