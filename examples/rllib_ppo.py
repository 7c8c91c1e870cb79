"""PPO of RLlib on the race, in a Python environment of its own: RLlib pins another Gymnasium.

    python3 -m venv rllib && rllib/bin/python -m pip install -r examples/rllib_requirements.txt
    rllib/bin/python examples/rllib_ppo.py --timesteps 1000000

EnvRunners play in their own processes, on the cluster in RAY_ADDRESS if set. The learner is in this process.
"""

import argparse

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig

RACE_ID = "trackmania_rl:TrackMania/Race-v0"  # imports the part before the colon


def main() -> None:
    """Learn on several games, then drive one race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--batch", type=int, default=4096, help="actions for one update (%(default)s)")
    parser.add_argument("--runners", type=int, default=1, help="EnvRunners: processes that play (%(default)s)")
    parser.add_argument("--games", type=int, default=8, help="games of each EnvRunner (%(default)s)")
    parser.add_argument("--map", default="valley", help="what is driven (%(default)s)")
    options = parser.parse_args()

    ray.init(include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(RACE_ID, env_config={"maps": options.map})
        .env_runners(
            num_env_runners=options.runners,
            num_envs_per_env_runner=options.games,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .training(train_batch_size_per_learner=options.batch, minibatch_size=min(256, options.batch), num_epochs=4)
        .training(lr=3e-4, gamma=0.99, lambda_=0.95, entropy_coeff=0.01, grad_clip=0.5, vf_clip_param=1e4)
        .rl_module(model_config={"fcnet_hiddens": [256, 256], "fcnet_activation": "tanh"})
        .debugging(seed=0)
    )
    algorithm, n_actions = config.build_algo(), 0
    while n_actions < options.timesteps:
        played = algorithm.train()["env_runners"]
        n_actions = int(played["num_env_steps_sampled_lifetime"])
        print(f"{n_actions} actions, {played.get('episode_return_mean', np.nan):.2f} points a race", flush=True)

    module, env = algorithm.get_module(), gymnasium.make(RACE_ID, maps=options.map)
    assert module is not None
    (observation, info), race_is_over = env.reset(), False
    while not race_is_over:
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.from_numpy(observation)[None]})["action_dist_inputs"]
        observation, _, terminated, truncated, info = env.step(int(logits.argmax()))
        race_is_over = terminated or truncated
    time_s = info["race_time_ms"] / 1000
    print(f"driven greedily: {info['meters']:.0f} m, finished: {info['race_finished']}, {time_s:.2f} s")
    env.close()
    algorithm.stop()


if __name__ == "__main__":
    main()
