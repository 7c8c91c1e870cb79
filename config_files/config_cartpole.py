"""A Gymnasium environment in place of races: CartPole-v1, learned by IQN in a minute on a processor.

Use it with `scripts/train.py --config config_files/config_cartpole.py`. Every setting that is not here is as in
config.py. Any environment whose actions are Discrete is named the same way.
"""

from functools import partial

from trackmania_rl.games.gymnasium_games import GymnasiumGames

# The file beside this one whose settings hold where this one sets none.
based_on = "config.py"

# Name of the run: its files are in save/{run_name}/.
run_name = "cartpole"

# What is played. Its rewards are those that count.
games = partial(GymnasiumGames, env="CartPole-v1")

# How many episodes explore, and how many are driven greedily, under which name.
map_cycle = (
    {"map_name": "cartpole", "is_explo": True, "fill_buffer": True, "repeat": 4},
    {"map_name": "cartpole", "is_explo": False, "fill_buffer": True, "repeat": 1},
)

# One discount all the time, and nothing that is about the rewards of races or the blocks of their observation.
gamma_schedule = ((0, 0.99),)
expected_reward_per_action = 0.0
fourier_wavelengths = {}

# The network is small, so compiling it would take longer than it saves.
use_torch_compile = False
float_hidden_dim = 64
dense_hidden_dimension = 128
memory_size_start_learn_schedule = ((0, 500),)
