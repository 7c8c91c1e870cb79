"""Time of one update of the learner, beside the plain form of the same update.

    python benchmarks/learner_step.py [--threads 1] [--repetitions 60] [--config config_files/config.py ...]

The plain form computes the same algorithm tensor by tensor, the way it is first written down: features repeated for
each quantile, one optimizer, clipping, decay and soft update for each parameter tensor. Both are measured in turns in
the same process, since machines and moments differ; the ratio is what counts. Numbers are medians after a warm-up.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from trackmania_rl.agents.iqn import IQN_Network, SelfLossScaling
from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.settings import AgentSettings, Settings, load_settings

CONFIG_FILES = Path(__file__).resolve().parent.parent / "config_files"
N_FLOATS = 184
LEARNING_RATE = 1e-4
SLOW_UPDATE_S = 0.5
"""Updates slower than this are repeated only a few times."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s); ms per update, target's soft update included")
    print(f"{'configuration':20} {'batch':>5} {'parameters':>10} {'this':>9} {'plain':>9} {'ratio':>6}")
    for config in arguments.config:
        settings = load_settings(config)
        for batch_size in arguments.batch or [settings.replay.batch_size]:
            report(config.name, settings, batch_size, arguments.repetitions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--batch", type=int, nargs="*", help="batch sizes instead of the configuration's own")
    both = [CONFIG_FILES / "config.py", CONFIG_FILES / "config_tmnf.py"]
    parser.add_argument("--config", type=Path, nargs="*", default=both)
    return parser.parse_args()


def report(name: str, settings: Settings, batch_size: int, repetitions: int) -> None:
    network = make_network(settings)
    batch = make_batch(settings, batch_size)
    plain = PlainUpdate(copy.deepcopy(network), settings.agent)
    learner = IQNLearner(network, settings.agent, device=torch.device("cpu"), seed=0)

    def update() -> None:
        learner.update(batch, LEARNING_RATE)
        learner.soft_update_target()

    ours_ms, plain_ms = median_times_ms([update, lambda: plain.update(batch, LEARNING_RATE)], repetitions)
    n_parameters = sum(parameter.numel() for parameter in learner.online.parameters())
    print(f"{name:20} {batch_size:5} {n_parameters:10} {ours_ms:9.2f} {plain_ms:9.2f} {plain_ms / ours_ms:6.2f}")


def median_times_ms(functions: list[Callable[[], None]], repetitions: int) -> list[float]:
    """Medians of the functions' times, called in turns."""
    start = time.perf_counter()
    for function in functions:
        function()
    if time.perf_counter() - start > SLOW_UPDATE_S * len(functions):
        repetitions = 3
    times_ms: list[list[float]] = [[] for _ in functions]
    for _ in range(repetitions + repetitions // 5):
        for function, samples in zip(functions, times_ms, strict=True):
            start = time.perf_counter()
            function()
            samples.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(samples[-repetitions:]) for samples in times_ms]


def make_network(settings: Settings) -> IQN_Network:
    return IQN_Network(
        settings.agent,
        float_mean=[0.0] * N_FLOATS,
        float_std=[1.0] * N_FLOATS,
        n_actions=len(settings.game.inputs),
        image_height_px=settings.game.image_height_px,
        image_width_px=settings.game.image_width_px,
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
        generator=torch.Generator().manual_seed(0),
    )


def make_batch(settings: Settings, batch_size: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(0)
    image = (batch_size, 1, settings.game.image_height_px, settings.game.image_width_px)
    return SimpleNamespace(
        state_img=torch.randint(256, image, generator=generator, dtype=torch.uint8),
        state_float=torch.randn(batch_size, N_FLOATS, generator=generator),
        action=torch.randint(len(settings.game.inputs), (batch_size,), generator=generator),
        reward=torch.randn(batch_size, generator=generator),
        next_state_img=torch.randint(256, image, generator=generator, dtype=torch.uint8),
        next_state_float=torch.randn(batch_size, N_FLOATS, generator=generator),
        gamma_n=torch.full((batch_size,), 0.997),
        weight=torch.ones(batch_size),
    )


class PlainUpdate:
    """The update without any of the shortcuts."""

    def __init__(self, network: IQN_Network, settings: AgentSettings) -> None:
        self.settings = settings
        self.online = network
        self.target = copy.deepcopy(network)
        self.optimizer = torch.optim.RAdam(network.parameters(), eps=settings.adam_epsilon)
        self.scaling = SelfLossScaling(torch.device("cpu"))

    def returns(self, network: IQN_Network, img: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (B, N, A) at random quantiles (B, N), and these."""
        n = self.settings.iqn_n
        lower = (torch.arange(n // 2).repeat(len(floats), 1) + torch.rand(len(floats), n // 2)) / n
        tau = torch.cat((lower, 1 - lower), dim=1)
        features = network.features(img, floats).repeat_interleave(n, dim=0)
        mixed = features * network.iqn_fc(network.cosines(tau.reshape(-1)))
        advantage, value = network.A_head(mixed), network.V_head(mixed)
        quantiles = (value + advantage - advantage.mean(dim=-1).unsqueeze(-1)).reshape(len(floats), n, -1)
        return quantiles + network.baseline(floats)[:, None, None], tau

    def loss(self, targets: Tensor, predictions: Tensor, tau: Tensor) -> Tensor:
        """Quantile Huber losses (B,)."""
        kappa = self.settings.iqn_kappa
        error = targets[:, :, None] - predictions[:, None, :]
        huber = torch.where(error.abs() < kappa, 0.5 / kappa * error**2, error.abs() - 0.5 * kappa)
        share = torch.where(error < 0, 1 - tau[:, None, :], tau[:, None, :].expand_as(error))
        return (share * huber).sum(dim=2).mean(dim=1)

    def update(self, batch: SimpleNamespace, learning_rate: float) -> None:
        """Train on one batch and move the target network."""
        settings = self.settings
        with torch.no_grad():
            next_returns, next_tau = self.returns(self.target, batch.next_state_img, batch.next_state_float)
            if settings.target_action == "argmax_of_mean":
                best = next_returns.mean(dim=1).max(dim=1)[1]
                chosen = next_returns.gather(2, best[:, None, None].expand(-1, settings.iqn_n, 1))[:, :, 0]
            else:
                chosen = next_returns.max(dim=2)[0]
            targets = batch.reward[:, None] + batch.gamma_n[:, None] * chosen
        returns, tau = self.returns(self.online, batch.state_img, batch.state_float)
        predictions = returns.gather(2, batch.action[:, None, None].expand(-1, settings.iqn_n, 1))[:, :, 0]
        loss = self.loss(targets, predictions, tau)
        loss = loss * self.scaling.factors(targets, next_tau, settings, learning=True)
        self.optimizer.zero_grad(set_to_none=True)
        (batch.weight * loss).sum().backward()
        nn.utils.clip_grad_value_(self.online.parameters(), settings.clip_grad_value)
        nn.utils.clip_grad_norm_(self.online.parameters(), settings.clip_grad_norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        with torch.no_grad():
            for parameter, slow in zip(self.online.parameters(), self.target.parameters(), strict=True):
                parameter.mul_(1 - learning_rate * settings.weight_decay_lr_ratio)
                slow.mul_(1 - settings.soft_update_tau).add_(settings.soft_update_tau * parameter)


if __name__ == "__main__":
    main()
