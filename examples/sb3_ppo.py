"""PPO of Stable-Baselines3 on the race.

    python -m pip install stable-baselines3
    python examples/sb3_ppo.py --timesteps 200000

The id names the module that registers the environment, so that it can be made anywhere, also in other processes.
"""

import argparse
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

RACE_ID = "trackmania_rl.games.envs:TrackMania/Race-v0"


def main() -> None:
    """Learn on several games, then drive one race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=200_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--games", type=int, default=8, help="games played at the same time (%(default)s)")
    parser.add_argument("--steps", type=int, default=512, help="actions of each game for one update (%(default)s)")
    parser.add_argument("--map", default="valley", help="what is driven (%(default)s)")
    options = parser.parse_args()

    envs = make_vec_env(RACE_ID, options.games, seed=0, env_kwargs={"maps": options.map})
    agent = PPO("MlpPolicy", envs, n_steps=options.steps, batch_size=256, gamma=0.99, device="cpu", verbose=1, seed=0)
    agent.learn(options.timesteps)

    observations, is_over, infos = envs.reset(), np.zeros(1), [dict[str, Any]()]
    while not is_over[0]:
        actions, _ = agent.predict(observations, deterministic=True)  # type: ignore[arg-type]
        observations, _, is_over, infos = envs.step(actions)  # type: ignore[assignment]
    print(f"driven greedily: {infos[0]['meters']:.0f} m, finished: {infos[0]['race_finished']}")
    envs.close()


if __name__ == "__main__":
    main()
