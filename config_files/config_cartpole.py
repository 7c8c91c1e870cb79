"""A Gymnasium environment in place of races: CartPole-v1, learned by IQN in a minute on a processor.

Use it with `scripts/train.py --preset cartpole`. Any environment with Discrete actions is named the same way.
"""

from functools import partial

from trackmania_rl.games.gymnasium_games import GymnasiumGames

based_on = "config.py"
run_name = "cartpole"

# The environment, with its own rewards.
games = partial(GymnasiumGames, env="CartPole-v1")

# Exploration and evaluation episodes, and their name in statistics.
map_cycle = (
    {"map_name": "cartpole", "is_explo": True, "fill_buffer": True, "repeat": 4},
    {"map_name": "cartpole", "is_explo": False, "fill_buffer": True, "repeat": 1},
)

# A constant discount; no settings for the rewards or blocks of races.
gamma_schedule = ((0, 0.99),)
temporal_mini_race_duration_actions = 100
expected_reward_per_action = 0.0
fourier_wavelengths = {}

# Compiling so small a network takes longer than it saves.
use_torch_compile = False
float_hidden_dim = 64
dense_hidden_dimension = 128
memory_size_start_learn_schedule = ((0, 500),)
