"""Made-up memories and races of small sizes that all differ, and Minari's own folder in a temporary one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.experience_replay.episodes import DataSetForm, Episode
from trackmania_rl.experience_replay.mini_races import MiniRaceReplayBuffer
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.race.views import View, Views
from trackmania_rl.settings import ReplaySettings, Settings, load_settings

N_FLOATS, N_ACTIONS = 5, 7
IMAGE_SHAPE = (2, 3, 4)
"""(S, H, W)."""

FillMemory = Callable[..., MiniRaceReplayBuffer]


@pytest.fixture(autouse=True)
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari keeps data sets."""
    pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    folder = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


@pytest.fixture(scope="session")
def default_settings(repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py")


def small_form(*, has_image: bool = False, is_analog: bool = False, has_views: bool = False) -> DataSetForm:
    """Floats, with an image or without, and a choice among a few actions or two numbers."""
    before = View("before", "floats", (-2, -1), 1, 3)
    views = Views(
        frame_shifts=tuple(range(1 - IMAGE_SHAPE[0], 1)) if has_image else (0,),
        inputs=(before,) if has_views else (),
        n_input_floats=4 if has_views else 0,
    )
    spaces = Spaces(
        float_mean=(0.0,) * (N_FLOATS + views.n_input_floats),
        float_std=(1.0,) * (N_FLOATS + views.n_input_floats),
        views=views,
        action=Box(-1, 1, (2,), np.float32) if is_analog else Discrete(N_ACTIONS),
        image_shape=IMAGE_SHAPE if has_image else (1, 0, 0),
    )
    return DataSetForm(spaces)


def random_race(n_actions: int, seed: int, spaces: Spaces, *, is_finished: bool) -> Race:
    """A rewarded race with the columns that a memory keeps."""
    rng = np.random.default_rng(seed)
    is_choice = isinstance(spaces.action, Discrete)
    actions = rng.integers(0, N_ACTIONS, n_actions) if is_choice else rng.uniform(-1, 1, (n_actions, 2))
    columns: dict[str, Any] = {
        "frames": rng.integers(0, 256, (n_actions + 1, 1, *spaces.image_size_px), dtype=np.uint8),
        "state_float": rng.standard_normal((n_actions + 1, spaces.n_row_floats)).astype(np.float32),
        "actions": actions.astype(spaces.action_dtype),
        "action_was_greedy": rng.random(n_actions) < 0.7,
    }
    facts = RaceFacts(map_name="a", is_explo=True, fill_buffer=True, n_actions=n_actions, terminated=is_finished)
    rewards, potentials = (rng.standard_normal(n).astype(np.float32) for n in (n_actions, n_actions + 1))
    return Race(columns, facts, rewards, potentials)


@pytest.fixture
def replay_settings(default_settings: Settings) -> ReplaySettings:
    """A memory of 100 rows, whose transitions end before exploratory actions."""
    changes = {
        "memory_size_schedule": ((0, 100),),
        "discard_non_greedy_actions_in_nsteps": True,
        "n_steps": 3,
        "buffer_test_ratio": 0.0,
    }
    return default_settings.replay.model_copy(update=changes)


@pytest.fixture
def fill_memory(default_settings: Settings, replay_settings: ReplaySettings) -> FillMemory:
    """`fill_memory(spaces, races)` makes a memory that holds them."""

    def make(spaces: Spaces) -> MiniRaceReplayBuffer:
        buffer, _ = make_buffers(
            replay_settings,
            n_floats=spaces.n_row_floats,
            image_size_px=spaces.image_size_px,
            device="cpu",
            generator=torch.Generator().manual_seed(0),
            views=spaces.views,
            action_shape=spaces.action_shape,
        )
        return buffer

    def fill(spaces: Spaces, races: list[Race]) -> MiniRaceReplayBuffer:
        buffer, test_side = make(spaces), make(spaces)  # the test share is 0
        test_side.storage.ring = buffer.ring
        settings = default_settings.model_copy(update={"replay": replay_settings})
        for race in races:
            fill_buffer_from_rollout_with_n_steps_rule(buffer, test_side, race, settings)
        return buffer

    return fill


def short_episode(n_actions: int = 4, *, is_finished: bool = True, **changes: Any) -> Episode:
    """An episode without columns."""
    rng = np.random.default_rng(n_actions)
    columns: dict[str, Any] = {
        "observations": rng.standard_normal((n_actions + 1, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, N_ACTIONS, n_actions),
        "rewards": rng.standard_normal(n_actions).astype(np.float32),
        "is_finished": is_finished,
    }
    return Episode(**columns | changes)
