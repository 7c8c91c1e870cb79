"""PPO made of torchrl's parts on many races at once.

    python examples/torchrl_ppo.py --frames 200000

Games are one environment with a batch, which compiled code steps together; torchrl begins the next races.
"""

import argparse
import functools

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, GymWrapper
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import trackmania_rl  # noqa: F401  # registers the environments

GAMMA, LAMBDA, EPOCHS, MINIBATCH, WIDTH = 0.99, 0.95, 4, 256, 256


def make_envs(games: int, track: str) -> EnvBase:
    """Make games that torchrl resets."""
    return GymWrapper(gymnasium.make_vec("TrackMania/Race-v0", games, maps=track, autoreset_mode="DISABLED"))


def main() -> None:
    """Collect, estimate advantages, learn, and again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--games", type=int, default=16, help="games played at the same time (%(default)s)")
    parser.add_argument("--steps", type=int, default=256, help="actions of each game for one update (%(default)s)")
    parser.add_argument("--map", default="valley", help="what is driven (%(default)s)")
    options = parser.parse_args()

    torch.manual_seed(0)
    envs = make_envs(options.games, options.map)
    n_floats, n_actions = envs.observation_spec["observation"].shape[-1], envs.action_spec.shape[-1]
    perceptron = functools.partial(MLP, in_features=n_floats, num_cells=[WIDTH, WIDTH], activation_class=torch.nn.Tanh)
    actor = ProbabilisticActor(
        TensorDictModule(perceptron(out_features=n_actions), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(perceptron(out_features=1), in_keys=["observation"])
    advantages = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    collector = Collector(
        envs,
        actor,
        frames_per_batch=options.games * options.steps,
        total_frames=options.frames,
        auto_register_policy_transforms=True,
    )
    n_frames = 0
    for batch in collector:
        advantages(batch)
        flat = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(flat)).split(MINIBATCH):
                losses = loss(flat[rows])
                optimizer.zero_grad()
                sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        n_frames += len(flat)
        print(f"{n_frames} frames, {batch['next', 'reward'].sum() / options.games:.2f} points of each game", flush=True)
    collector.shutdown()


if __name__ == "__main__":
    main()
