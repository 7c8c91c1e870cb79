"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) over the keyboard's actions.

Use it with `scripts/train.py --preset ppo`; `--set actions=analog` is for analog actions. A2C (`agent =
"trackmania_rl.agents.torchrl_agent:A2C"`) learns in one epoch.
"""

from functools import partial

from torchrl.objectives import ClipPPOLoss

from trackmania_rl.agents.torchrl_agent import TorchRLAgent

based_on = "config.py"
run_name = "ppo"

agent = partial(TorchRLAgent, loss=ClipPPOLoss, normalize_advantage=True, entropy_coeff=1e-3)

# Standing still costs nothing. With the default reward PPO learns to park.
reward = "trackmania_rl.race.rewards:ProgressReward"

# The memory holds the newest policy's rollouts only. Collectors wait while it learns.
memory = "trackmania_rl.experience_replay.rollout_store:RolloutStore"
sampling = "synchronous"
batch_mode = "truncate_episodes"
rollout_fragment_length = 512

# 4,096 transitions, 512 from each of two collectors' 4 games, for 10 epochs. 256 from 16 games taught less.
games_per_collector = 4
memory_size_start_learn_schedule = ((0, 4096),)
number_times_single_memory_is_used_before_discard = 10.0
batch_size = 256

# Single steps and discounted returns; no mini-races. The advantages span several steps.
n_steps = 1
temporal_mini_race_duration_actions = None
gamma_schedule = ((0, 0.99),)
expected_reward_per_action = 0.0
oversample_long_term_steps = 0

float_hidden_dim = 128
lr_schedule = ((0, 3e-4),)
adam_epsilon = 1e-5
clip_grad_norm = 0.5
evaluation_weights_decay = 0.0
use_torch_compile = False
