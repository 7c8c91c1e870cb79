"""The race as a Gymnasium environment, for algorithms of your own; importing `trackmania_rl` registers it.

* `gymnasium.make("TrackMania/Race-v0")`: one game, simulated or the real one (`race_env`);
* `gymnasium.make_vec("TrackMania/Race-v0", num_envs=64)`: many simulated games in this process, stepped together
  (`race_vector_env`);
* `"TrackMania/RaceAnalog-v0"`: both with steer, gas and brake as numbers (`actions = "analog"`);
* `"TrackMania/RealTime-v0"`: one game that goes on while its driver thinks (`real_time`).

Observation, actions, rewards and the rules of a race are those of the configuration that it is made with, hence those
that `scripts/train.py` trains with. docs/library.rst shows both, and torchrl's wrapper around them.
"""

from trackmania_rl import ANALOG_RACE_ID, RACE_ID, REAL_TIME_RACE_ID
from trackmania_rl.games.envs.making import (
    make_analog_race_env,
    make_analog_race_vector_env,
    make_race_env,
    make_race_vector_env,
    make_real_time_race_env,
)
from trackmania_rl.games.envs.race_env import RaceEnv
from trackmania_rl.games.envs.race_vector_env import RaceVectorEnv

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
