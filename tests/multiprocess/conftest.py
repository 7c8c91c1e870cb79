"""A tiny configuration with distinct sizes (so that a swapped axis fails), and made-up races that fit it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings
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


class WatchedRunState(LocalRunState):
    """A run that ends when `is_over()`."""

    def __init__(self, settings: Settings) -> None:
        self.is_over: Callable[[], bool] = lambda: False
        super().__init__(settings)

    @property
    def stop_requested(self) -> bool:
        return self.is_over()

    @stop_requested.setter
    def stop_requested(self, _: bool) -> None:
        """It ends by `is_over` only."""


class KeepingSink:
    """Copies what is put, and has room only while `has_room`."""

    def __init__(self) -> None:
        self.has_room = True
        self.waited_s = 0.0
        self.races: list[ReceivedRollout] = []

    def acquire_frames(self, game: int, timeout_s: float = 0.0) -> npt.NDArray[np.uint8] | None:
        return np.zeros((1, 1, 15, 17), dtype=np.uint8) if self.has_room else None

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in rollout_results.items()}
        self.races.append(ReceivedRollout(0, copies, dict(end_race_stats)))

    def close(self) -> None:
        """Nothing to let go of."""


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
        seeds = SeedTree(seed)
        network = make_network(live.current, layout, seeds)
        all_parts: dict[str, Any] = {
            "run_state": LocalRunState(live.current),
            "receive": lambda: None,
            "should_stop": lambda: True,
            "on_race": lambda race: None,
            "housekeeping": lambda: None,
        }
        return build_learning(live, network, layout, seeds, **(all_parts | parts))

    return make


@pytest.fixture
def make_race(live: LiveSettings, layout: ObservationLayout) -> Callable[[int, bool], ReceivedRollout]:
    """`make_race(n_actions, race_finished)` gives a race of random observations."""
    rng = np.random.default_rng(5)
    game = live.current.game

    def make(n_actions: int, race_finished: bool) -> ReceivedRollout:
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
        return ReceivedRollout(0, rollout, stats, elapsed_s=1.0)

    return make
