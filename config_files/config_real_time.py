"""Soft actor-critic in real time, as in TMRL: the game continues while the driver computes its action.

Use it with `scripts/train.py --preset real_time`; it needs `python -m pip install rtgym`.
"""

from functools import partial

from torchrl.objectives import SACLoss

from trackmania_rl.agents.torchrl_agent import TorchRLAgent
from trackmania_rl.games.envs import make_real_time_race_env
from trackmania_rl.games.gymnasium_games import GymnasiumGames

based_on = "config_sac.py"
run_name = "real_time"

# Metres and an early finish are rewarded, a metre ten times as much as in config_sac.py.
agent = partial(TorchRLAgent, loss=SACLoss, alpha_init=0.02, min_alpha=1e-5)

# The environment TrackMania/RealTime-v0, with its own settings. For the real game add
# config="config_files/config_tmnf.py", and name one of its maps.
env = partial(make_real_time_race_env, maps="valley", reward="progress", overrides={"actions": "analog"})
games = partial(GymnasiumGames, env=env)
del env

# Games take turns within each time step: several simulated ones learn several times as soon.
games_per_collector = 4

# Transitions before learning starts: half a minute at 20 per second and game.
memory_size_start_learn_schedule = ((0, 2_000),)
