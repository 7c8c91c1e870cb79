from functools import partial
from trackmania_rl.games.gymnasium_games import GymnasiumGames

based_on = "config_ppo.py"
run_name = "cart_ppo"
games = partial(GymnasiumGames, env="CartPole-v1")
map_cycle = (
    {"map_name": "cartpole", "is_explo": True, "fill_buffer": True, "repeat": 8},
    {"map_name": "cartpole", "is_explo": False, "fill_buffer": True, "repeat": 1},
)
fourier_wavelengths = {}
float_hidden_dim = 64
memory_size_start_learn_schedule = ((0, 1024),)
batch_size = 64
