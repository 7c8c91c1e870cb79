"""The race as a Gymnasium environment, for algorithms of your own; importing this package registers it.

* `gymnasium.make("TrackMania/Race-v0")`: one game, simulated or the real one (`race_env`);
* `gymnasium.make_vec("TrackMania/Race-v0", num_envs=64)`: many simulated games in this process, stepped together
  (`race_vector_env`);
* `"TrackMania/RaceAnalog-v0"`: both with steer, gas and brake as numbers (`actions = "analog"`);
* `"TrackMania/RealTime-v0"`: one game that goes on while its driver thinks (`real_time`).

Observation, actions, rewards and the rules of a race are those of the configuration that it is made with, hence those
that `scripts/train.py` trains with. docs/library.rst shows both, and torchrl's wrapper around them.
"""

import gymnasium

from trackmania_rl.games.envs.making import (
    make_analog_race_env,
    make_analog_race_vector_env,
    make_race_env,
    make_race_vector_env,
    make_real_time_race_env,
)
from trackmania_rl.games.envs.race_env import RaceEnv
from trackmania_rl.games.envs.race_vector_env import RaceVectorEnv

RACE_ID = "TrackMania/Race-v0"
ANALOG_RACE_ID = "TrackMania/RaceAnalog-v0"
REAL_TIME_RACE_ID = "TrackMania/RealTime-v0"

gymnasium.register(
    RACE_ID,
    entry_point="trackmania_rl.games.envs:make_race_env",
    vector_entry_point="trackmania_rl.games.envs:make_race_vector_env",
)

gymnasium.register(
    ANALOG_RACE_ID,
    entry_point="trackmania_rl.games.envs:make_analog_race_env",
    vector_entry_point="trackmania_rl.games.envs:make_analog_race_vector_env",
)

gymnasium.register(
    REAL_TIME_RACE_ID,
    entry_point="trackmania_rl.games.envs:make_real_time_race_env",
    nondeterministic=True,
)

__all__ = [
    "ANALOG_RACE_ID",
    "RACE_ID",
    "REAL_TIME_RACE_ID",
    "RaceEnv",
    "RaceVectorEnv",
    "make_analog_race_env",
    "make_analog_race_vector_env",
    "make_race_env",
    "make_race_vector_env",
    "make_real_time_race_env",
]
