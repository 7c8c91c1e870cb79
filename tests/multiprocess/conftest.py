"""A tiny configuration with distinct sizes (so that a swapped axis fails), and made-up races that fit it."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.shared_weights import SharedWeights
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.live import LiveSettings, write_snapshot
from trackmania_rl.training.learner import Learning, build_learning

TINY = (
    "float_hidden_dim=11",
    "dense_hidden_dimension=14",
    "iqn_embedding_dimension=9",
    "iqn_n=6",
    "iqn_k=10",
    "conv_channels=(3, 5)",
    "conv_kernel_sizes=(4, 3)",
    "conv_strides=(2, 1)",
    "batch_size=13",
    "memory_size_schedule=((0, 300),)",
    "memory_size_start_learn_schedule=((0, 50),)",
    "number_times_single_memory_is_used_before_discard=2.0",
    "send_shared_network_every_n_batches=2",
    "test_loss_every_n_batches=3",
    "number_memories_trained_on_between_target_network_updates=26",
    "torch_device=cpu",
    "use_torch_compile=False",
)


@dataclass
class FakeReceived:
    """A race as the learner receives it, without shared memory."""

    rollout_results: dict[str, Any]
    end_race_stats: dict[str, Any]
    collector: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 1.0
    is_released: bool = field(default=False, init=False)

    def __enter__(self) -> "FakeReceived":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_released = True


@pytest.fixture
def live(tmp_path: Path, repository_root: Path) -> LiveSettings:
    """The tiny configuration in a run folder of its own, with an image of 17 x 15 pixels."""
    overrides = (*TINY, "image_width_px=17", "image_height_px=15")
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", overrides)
    live = LiveSettings(snapshot, load_settings(snapshot))
    live.refresh()  # so that tests may replace `current`
    return live


@pytest.fixture
def layout(live: LiveSettings) -> ObservationLayout:
    return ObservationLayout.from_settings(live.current.observation)


@pytest.fixture
def make_learning(live: LiveSettings, layout: ObservationLayout) -> Callable[..., Learning]:
    """`make_learning(seed=1, part=..., ...)` gives a learner that no race reaches, with some of its parts replaced."""

    def make(seed: int = 1, **parts: Any) -> Learning:
        seeds, context = SeedTree(seed), multiprocessing.get_context("spawn")
        network, *others = (make_network(live.current, layout, seeds) for _ in range(3))
        explorer, evaluator = (SharedWeights(other, context) for other in others)
        all_parts: dict[str, Any] = {
            "exploration_weights": explorer,
            "evaluation_weights": evaluator,
            "receive": lambda: None,
            "should_stop": lambda: True,
            "on_race": lambda race: None,
            "housekeeping": lambda: None,
        }
        return build_learning(live, network, layout, seeds, **(all_parts | parts))

    return make


@pytest.fixture
def make_race(live: LiveSettings, layout: ObservationLayout) -> Callable[[int, bool], FakeReceived]:
    """`make_race(n_actions, race_finished)` gives a race of random observations."""
    rng = np.random.default_rng(5)
    game = live.current.game

    def make(n_actions: int, race_finished: bool) -> FakeReceived:
        n_states = n_actions + 1
        floats = (layout.mean + layout.std * rng.standard_normal((n_states, layout.float_input_dim))).astype(np.float32)
        floats[:, layout["mini_race_time_actions"]] = 0
        rollout = {
            "frames": rng.integers(0, 256, (n_states, 1, game.image_height_px, game.image_width_px), dtype=np.uint8),
            "state_float": floats,
            "actions": rng.integers(0, len(game.inputs), n_actions),
            "action_was_greedy": rng.random(n_actions) < 0.8,
            "input_w": np.ones(n_actions, dtype=bool),
            "q_values": rng.standard_normal((n_actions, len(game.inputs))).astype(np.float32),
            "car_gear_and_wheels": np.zeros((n_states, len(CAR_COLUMNS)), dtype=np.float32),
            "current_zone_idx": np.arange(n_states),
            "meters_advanced_along_centerline": np.cumsum(rng.random(n_states)),
            "furthest_zone_idx": n_states,
        }
        if race_finished:
            rollout["race_time"] = n_actions * game.ms_per_action - 20
        stats = {"race_finished": race_finished, "race_time_ms": n_actions * game.ms_per_action, "fill_buffer": True}
        return FakeReceived(rollout, stats)

    return make
