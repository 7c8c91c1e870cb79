"""A Gymnasium environment with continuous actions: Pendulum-v1, learned by SAC.

Use it with `scripts/train.py --preset pendulum`. Any environment with a bounded Box of actions is named the same way.
"""

from functools import partial

from trackmania_rl.games.gymnasium_games import GymnasiumGames

based_on = "config_sac.py"
run_name = "pendulum"

# Rewards are far larger than a race's, so the agent has torchrl's default entropy.
games = partial(GymnasiumGames, env="Pendulum-v1")
agent = "trackmania_rl.agents.torchrl_agent:SAC"

# Exploration and evaluation episodes, and their name in statistics.
map_cycle = (
    {"map_name": "pendulum", "is_explo": True, "fill_buffer": True, "repeat": 4},
    {"map_name": "pendulum", "is_explo": False, "fill_buffer": True, "repeat": 1},
)

# Few actions, each learned from often. The collectors wait for the updates, so that they act with newest weights.
games_per_collector = 1
sampling = "synchronous"
lr_schedule = ((0, 1e-3),)
number_times_single_memory_is_used_before_discard = 256.0

# No floats of races.
memory_size_start_learn_schedule = ((0, 500),)
fourier_wavelengths = {}
