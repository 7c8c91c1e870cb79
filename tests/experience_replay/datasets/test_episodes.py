"""Races and memories to episodes in files and back, byte for byte."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import (
    GREEDY,
    METERS,
    RACE_TIME,
    DataSetForm,
    episode_of_race,
    episodes_of_memory,
    race_of_episode,
    recorded_reward,
)
from trackmania_rl.experience_replay.minari_files import write_dataset
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import rollout
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, settings_from_flat

from .conftest import N_ACTIONS, FillMemory, random_race, short_episode, small_form


@pytest.mark.parametrize("has_views", [False, True], ids=["", "views"])
@pytest.mark.parametrize("has_image", [False, True], ids=["floats", "image"])
@pytest.mark.parametrize("is_analog", [False, True], ids=["keys", "analog"])
@pytest.mark.parametrize("n_races", [3, 9], ids=["all in memory", "the oldest overwritten"])
def test_a_memory_that_went_through_a_file_has_the_same_bytes(
    fill_memory: FillMemory, tmp_path: Path, has_image: bool, is_analog: bool, n_races: int, has_views: bool
) -> None:
    form = small_form(has_image=has_image, is_analog=is_analog, has_views=has_views)
    spaces = form.spaces
    races = [random_race(13 + k, k, spaces, is_finished=k % 2 == 0) for k in range(n_races)]
    before = fill_memory(spaces, races).ring.state_dict()["columns"]
    columns = {name: column.numpy() for name, column in before.items()}
    dataset = write_dataset(
        "tested/memory-v0", episodes_of_memory(columns, form, "a run"), form, None, "tested", tmp_path
    )
    read = list(dataset.episodes())
    again = [race_of_episode(episode, form) for episode in read]
    for race, episode in zip(again, read, strict=True):
        race.rewards, race.potentials = recorded_reward(episode)
    assert {about["source"] for about in dataset.data.storage.get_episode_metadata(range(len(read)))} == {"a run"}
    after = fill_memory(spaces, again).ring.state_dict()["columns"]
    n_rows = len(after["actions"])  # where the oldest race has lost all but its end, that is left out
    assert len(before["actions"]) - n_rows <= 1
    is_transition = after["n_steps"] > 0
    for name, column in before.items():
        kept = column[len(column) - n_rows :]
        assert kept.dtype == after[name].dtype
        if name in ("actions", "rewards"):  # which mean nothing in a race's last row
            assert torch.equal(kept[is_transition], after[name][is_transition]), name
        else:
            assert torch.equal(kept, after[name]), name


@pytest.fixture(scope="module")
def driven(default_settings: Settings, repository_root: Path) -> tuple[Settings, Any]:
    """Some seconds on the valley, cut off, and their configuration."""
    settings = settings_from_flat(
        default_settings.flat() | {"cutoff_race_longer_than_ms": 3_000, "final_speed_reward_per_m_per_s": 0.01}
    )
    games = InProcessGames(1, settings.game, settings.observation, repository_root / "maps")
    rng = np.random.default_rng(1)
    race = rollout(
        games,
        settings.game.map_cycle[0],
        lambda: lambda *_: PolicyDecision(int(rng.integers(3)), bool(rng.random() < 0.5), np.zeros(12, np.float32)),
    )
    return settings, race


def test_a_driven_race_is_rewarded_by_the_configuration_that_learns(driven: Any, tmp_path: Path) -> None:
    settings, race = driven
    form = DataSetForm(race_spaces(settings))
    reward = RaceReward(settings, form.spaces, SeedTree(0))
    rewarded = reward(race.rollout_results(), settings, 0)
    race.rewards, race.potentials = rewarded
    episode = episode_of_race(race, form, 50, {"map": "valley"})
    dataset = write_dataset("tested/driven-v0", [episode], form, None, "tested", tmp_path)
    [read] = dataset.episodes()
    assert read.rewards.tobytes() == rewarded.rewards.tobytes()
    assert recorded_reward(read) is None, "it has the columns"
    again = race_of_episode(read, form)
    for name in ("state_float", "actions", GREEDY, METERS, "car_gear_and_wheels", "position_m", "current_zone_idx"):
        assert again.columns[name].tobytes() == np.asarray(race.columns[name]).tobytes(), name
    assert not again.facts.race_finished
    others = settings_from_flat(settings.flat() | {"reward_per_m_advanced_along_centerline": 1.0})
    assert (reward(again.rollout_results(), settings, 0).rewards == rewarded.rewards).all()
    assert (
        reward(again.rollout_results(), others, 0).rewards == reward(race.rollout_results(), others, 0).rewards
    ).all()
    assert read.infos[RACE_TIME][-1] == race.facts.race_time_ms


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"observations": np.zeros((5, 9), np.float32)}, r"its floats have the shape \(5, 9\), not \(5, 5\)"),
        ({"observations": np.full((5, 5), np.nan, np.float32)}, "its floats hold numbers that are not finite"),
        ({"rewards": np.zeros(3, np.float32)}, r"its rewards have the shape \(3,\), not \(4,\)"),
        ({"actions": np.array([0, 1, 2, 7])}, "its actions are not all from 0 to 6"),
        ({"infos": {GREEDY: np.ones(4, dtype=bool)}}, r"its action_was_greedy have the shape \(4,\), not 5 rows"),
    ],
)
def test_impossible_columns_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        race_of_episode(short_episode(4, **changes), small_form())


def test_without_columns_actions_and_rewards_are_those_of_the_environment() -> None:
    spaces = dataclasses.replace(small_form().spaces, action=Discrete(N_ACTIONS, start=3))
    form = DataSetForm(spaces)
    episode = short_episode(4, actions=np.array([3, 9, 4, 5]))
    assert race_of_episode(episode, form).columns["actions"].tolist() == [0, 6, 1, 2]
    with pytest.raises(UserError, match="its actions are not all from 3 to 9"):
        race_of_episode(short_episode(4, actions=np.array([3, 9, 4, 10])), form)
    rewarded = recorded_reward(episode)
    assert rewarded is not None
    assert rewarded.rewards.tolist() == episode.rewards.tolist()
    assert rewarded.potentials.tolist() == [0.0] * 5
