"""Memory of on-policy agents: order, epochs, races that are left out, and resuming in the middle."""

import io

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from trackmania_rl.experience_replay.rollout_store import RolloutStore
from trackmania_rl.race.race import Fragment, Race, RaceFacts
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import SettingsError, load_settings, settings_from_flat

SPACES = Spaces(float_mean=(0.0, 0.0), float_std=(1.0, 1.0), action=Discrete(3))
ON_POLICY = {"n_steps": 1, "temporal_mini_race_duration_actions": None, "expected_reward_per_action": 0.0}


@pytest.fixture
def default_settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


@pytest.fixture
def settings(default_settings):
    changes = {**ON_POLICY, "oversample_long_term_steps": 0, "gamma_schedule": ((0, 0.9),)}
    return settings_from_flat(default_settings.flat() | changes)


@pytest.fixture
def store(settings):
    return RolloutStore(settings, SPACES, SeedTree(2))


def race_from(settings, first, n_actions, *, terminated=False, greedy=False, fragment=None, log_prob=0.5):
    """Arguments of `extend`, with a race whose states and actions count from `first`."""
    states = np.arange(first, first + n_actions + 1, dtype=np.float32)
    columns = {
        "actions": states[:-1].astype(np.int64) % 3,
        "action_was_greedy": np.full(n_actions, greedy),
        "state_float": np.stack([np.zeros_like(states), states], axis=1),
        "frames": np.zeros((n_actions + 1, 1, 0, 0), dtype=np.uint8),
        "action_log_prob": np.full(n_actions, log_prob, dtype=np.float32) + states[:-1],
    }
    facts = {"map_name": "a", "is_explo": True, "fill_buffer": True, "n_actions": n_actions}
    facts |= {"terminated": terminated, "fragment": fragment}
    return Race(columns, RaceFacts(**facts), states[:-1], np.zeros_like(states)), settings, 0


def test_rollouts_are_in_their_order_with_their_ends(store, settings):
    seen = []
    store.estimate_advantages = lambda rollouts: (seen.append(rollouts), rollouts)[1]
    assert store.extend(*race_from(settings, 10, 4, terminated=True)) == 4
    new_part = Fragment(True, 0, 3, 3, 3, 5)
    assert store.extend(*race_from(settings, 20, 5, fragment=new_part)) == 2
    assert store.extend(*race_from(settings, 30, 2, greedy=True)) == 0
    assert store.extend(*race_from(settings, 40, 2, log_prob=np.nan)) == 0
    assert len(store) == 6
    store.sample(2)
    [all_of_them] = seen
    assert all_of_them["state_float"][:, 1].tolist() == [10, 11, 12, 13, 23, 24]
    assert all_of_them["next_state_float"][:, 1].tolist() == [11, 12, 13, 14, 24, 25]
    assert all_of_them["reward"].tolist() == [10, 11, 12, 13, 23, 24]
    assert all_of_them["action_log_prob"].tolist() == [10.5, 11.5, 12.5, 13.5, 23.5, 24.5]
    assert all_of_them["done"].tolist() == [False, False, False, True, False, True]
    assert (all_of_them["gamma_n"] == 0).tolist() == [False, False, False, True, False, False]


def test_each_epoch_draws_each_transition_once_until_a_newer_rollout_comes(store, settings):
    store.extend(*race_from(settings, 0, 6))
    epochs = [torch.cat([store.sample(2)["reward"] for _ in range(3)]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(6))
    assert len(store.sample(100)) == 6
    store.extend(*race_from(settings, 50, 3))
    assert sorted(store.sample(3)["reward"].tolist()) == [50, 51, 52]


def test_it_resumes_in_the_middle_of_an_epoch(store, settings):
    store.extend(*race_from(settings, 0, 6))
    store.extend(*race_from(settings, 20, 5))
    for n_draws in (0, 2):  # before the first draw, and within an epoch
        for _ in range(n_draws):
            store.sample(3)
        file = io.BytesIO()
        torch.save(store.state_dict(), file)
        file.seek(0)
        resumed = RolloutStore(settings, SPACES, SeedTree(5))
        resumed.load_state_dict(torch.load(file, weights_only=True))
        drawn = [[memory.sample(4)["reward"].tolist() for _ in range(5)] for memory in (store, resumed)]
        assert drawn[0] == drawn[1]


def test_a_setting_that_does_not_fit_is_named(default_settings, settings):
    with pytest.raises(SettingsError, match=r"memory: RolloutStore needs n_steps = 1"):
        RolloutStore(default_settings, SPACES, SeedTree(0))
    with_share = settings_from_flat(settings.flat() | {"demonstrations_share": 0.1})
    with pytest.raises(SettingsError, match=r"memory: RolloutStore needs demonstrations_share = 0.0"):
        RolloutStore(with_share, SPACES, SeedTree(0))
