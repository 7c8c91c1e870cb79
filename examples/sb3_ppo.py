"""PPO of Stable-Baselines3 on the race, with its default hyperparameters.

    python -m pip install stable-baselines3
    python examples/sb3_ppo.py --timesteps 1000000
    python examples/sb3_ppo.py --timesteps 1000000 --watch      # with pygame-ce: shows the race at the end

`RaceVecEnv` is many games that compiled code steps together; their rewards are metres and a bonus for an early finish.
"""

import argparse
from typing import Any

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

from trackmania_rl.games.envs import RACE_ID
from trackmania_rl.games.envs.sb3 import RaceVecEnv


def main() -> None:
    """Learn on several games, then drive one race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--games", type=int, default=8, help="games played at the same time (%(default)s)")
    parser.add_argument("--map", default="valley", help="what is driven (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the agent (%(default)s)")
    parser.add_argument("--watch", action="store_true", help="show the race at the end in a window")
    options = parser.parse_args()

    envs = VecMonitor(RaceVecEnv(options.games, options.map), info_keywords=("meters", "race_finished"))
    agent = PPO("MlpPolicy", envs, device="cpu", verbose=1, seed=options.seed)
    agent.learn(options.timesteps)
    envs.close()

    env = gymnasium.make(RACE_ID, maps=options.map, render_mode="human" if options.watch else None)
    (observation, info), race_is_over = env.reset(), False
    while not race_is_over:
        action, _ = agent.predict(observation, deterministic=True)
        observation, _, terminated, truncated, info = env.step(action)
        race_is_over = terminated or truncated
    print(_told(info))
    env.close()


def _told(info: dict[str, Any]) -> str:
    time_s = info["race_time_ms"] / 1000
    return f"driven greedily: {info['meters']:.0f} m, finished: {info['race_finished']}, {time_s:.2f} s"


if __name__ == "__main__":
    main()
