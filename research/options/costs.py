"""What each option of the agent costs: time of an update and of a decision, relative to the default configuration.

    python research/options/costs.py [--eager]

Updates are compiled, as in a training where there is a compiler. Options take turns within one process, so that a
machine that is busy for a while slows all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

PROJECT_FOLDER = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT_FOLDER))

from trackmania_rl.agents.exploration import Exploration  # noqa: E402
from trackmania_rl.agents.inference import Inferer  # noqa: E402
from trackmania_rl.agents.iqn import Transitions  # noqa: E402
from trackmania_rl.agents.learner import IQNLearner  # noqa: E402
from trackmania_rl.agents.run_network import make_network  # noqa: E402
from trackmania_rl.race.observation import ObservationLayout  # noqa: E402
from trackmania_rl.seeds import SeedTree  # noqa: E402
from trackmania_rl.settings import Settings, load_settings  # noqa: E402

ROUNDS = 15
UPDATES_PER_ROUND = 4
GAMES = 8
IMAGE = ("image_width_px=64", "image_height_px=48")
FLOATS_ONLY = {
    "default": (),
    "use_ddqn": ("use_ddqn=True",),
    "use_layer_norm = False": ("use_layer_norm=False",),
    "quantile_factors_multiply = features": ("quantile_factors_multiply=features",),
    "the same, iqn_n = 4": ("quantile_factors_multiply=features", "iqn_n=4"),
}
WITH_IMAGE = {
    "64 x 48 image": IMAGE,
    "frames_per_state = 4": (*IMAGE, "frames_per_state=4"),
}


class Option:
    """A learner and a collector's policy with one option, and random states for them.

    Args:
        overrides: the option, as `NAME=VALUE`.
        is_compiled: whether updates are.
    """

    def __init__(self, overrides: tuple[str, ...], *, is_compiled: bool) -> None:
        settings = load_settings(PROJECT_FOLDER / "config_files" / "config.py", overrides)
        layout, seeds = ObservationLayout.from_settings(settings.observation), SeedTree(0)
        self._batch = _random_transitions(settings, layout.float_input_dim)
        network = make_network(settings, layout, seeds)
        self._learner = IQNLearner(network, settings.agent, device=CPU, seed=0, use_torch_compile=is_compiled)
        self._learner.rehearse_update(self._batch)
        self._inferer = Inferer(
            make_network(settings, layout, seeds),
            n_quantiles=settings.agent.iqn_k,
            inputs=settings.game.inputs,
            exploration_settings=settings.exploration,
            rng=np.random.default_rng(0),
        )
        self._explorations = [Exploration.scheduled(settings.exploration, 0)] * GAMES
        self.update_s: list[float] = []
        self.decision_s: list[float] = []

    def take_a_turn(self) -> None:
        """A few updates, and decisions with one publication of weights."""
        began_s = time.process_time()
        for _ in range(UPDATES_PER_ROUND):
            self._learner.update(self._batch, 1e-4)
        updated_s = time.process_time()
        self._inferer.weights_changed()
        frames, floats = self._batch.state_img[:GAMES].numpy(), self._batch.state_float[:GAMES].numpy()
        for _ in range(20):
            self._inferer.act_batch(frames, floats, self._explorations)
        self.update_s.append((updated_s - began_s) / UPDATES_PER_ROUND)
        self.decision_s.append((time.process_time() - updated_s) / 20)


CPU = torch.device("cpu")


def _random_transitions(settings: Settings, n_floats: int) -> Transitions:
    n, game = settings.replay.batch_size, settings.game
    image = torch.randint(256, (n, game.frames_per_state, game.image_height_px, game.image_width_px), dtype=torch.uint8)
    floats, ones = torch.randn(n, n_floats), torch.ones(n)
    return Transitions(image, floats, torch.randint(len(game.inputs), (n,)), -ones, image, floats, ones, ones)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true", help="do not compile updates")
    is_compiled = not parser.parse_args().eager
    torch.set_num_threads(1)
    for group in (FLOATS_ONLY, WITH_IMAGE):
        options = {name: Option(overrides, is_compiled=is_compiled) for name, overrides in group.items()}
        for _ in range(ROUNDS):
            for option in options.values():
                option.take_a_turn()
        base = next(iter(options.values()))
        base_update_s, base_decision_s = statistics.median(base.update_s), statistics.median(base.decision_s)
        print(f"{'':40}{'update':>10}{'':>9}{GAMES} decisions")
        for name, option in options.items():
            update_s, decision_s = statistics.median(option.update_s), statistics.median(option.decision_s)
            print(
                f"{name:40}{1000 * update_s:7.2f} ms{update_s / base_update_s:7.2f} x"
                f"{1000 * decision_s:9.2f} ms{decision_s / base_decision_s:7.2f} x"
            )


if __name__ == "__main__":
    main()
