"""Soft actor-critic with analog actions (Haarnoja et al. 2018), TMRL's agent: steer, gas and brake as numbers.

Use it with `scripts/train.py --preset sac`.
"""

from functools import partial

from torchrl.objectives import SACLoss

from trackmania_rl.agents.torchrl_agent import TorchRLAgent

based_on = "config.py"
run_name = "sac"

# An action's reward is a few hundredths, far below torchrl's default entropy coefficient of 1.
agent = partial(TorchRLAgent, loss=SACLoss, alpha_init=0.002, min_alpha=1e-5)
actions = "analog"

# Discounted returns; no mini-races.
temporal_mini_race_duration_actions = None
gamma_schedule = ((0, 0.99),)
expected_reward_per_action = 0.0
oversample_long_term_steps = 0

# Usual for actor-critics: large batches, each transition eight times, slow target networks.
batch_size = 256
number_times_single_memory_is_used_before_discard = 8.0
lr_schedule = ((0, 3e-4),)
adam_epsilon = 1e-8
clip_grad_norm = 10.0
soft_update_tau = 0.005
number_memories_trained_on_between_target_network_updates = batch_size
evaluation_weights_decay = 0.0
use_torch_compile = False
