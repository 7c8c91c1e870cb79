"""QR-DQN of sb3-contrib on the race: quantiles of the return, as IQN learns them, at fixed places.

    python -m pip install sb3-contrib
    python examples/sb3_qrdqn.py --timesteps 200000

The id names the module that registers the environment, so that it can be made anywhere, also in other processes.
"""

import argparse

import gymnasium
from sb3_contrib import QRDQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

RACE_ID = "trackmania_rl:TrackMania/Race-v0"


def main() -> None:
    """Learn in one game, then drive a race greedily."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=200_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--learning-starts", type=int, default=2_000, help="actions before learning (%(default)s)")
    parser.add_argument("--map", default="valley", help="what is driven (%(default)s)")
    options = parser.parse_args()

    env = Monitor(gymnasium.make(RACE_ID, maps=options.map))
    agent = QRDQN(
        "MlpPolicy",
        env,
        gamma=0.99,
        learning_rate=3e-4,
        buffer_size=min(options.timesteps, 200_000),
        learning_starts=options.learning_starts,
        exploration_fraction=0.3,
        policy_kwargs={"n_quantiles": 32},
        device="cpu",
        verbose=1,
        seed=0,
    )
    agent.learn(options.timesteps)
    mean_return, _ = evaluate_policy(agent, env, n_eval_episodes=1)
    print(f"driven greedily: return {mean_return:.2f}")
    env.close()


if __name__ == "__main__":
    main()
