"""Which data sets fit a run, and that the environment of one can be made again."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.dataset_environments import check_dataset, check_fits, environment_spec
from trackmania_rl.experience_replay.episodes import DataSetForm, Episode
from trackmania_rl.experience_replay.minari_files import write_dataset
from trackmania_rl.games.envs import RACE_ID
from trackmania_rl.games.gymnasium_games import GymnasiumGames
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import Settings, settings_from_flat


def floats(n: int) -> Box:
    return Box(-np.inf, np.inf, (n,), np.float32)


def with_changes(settings: Settings, **changes: Any) -> Settings:
    return settings_from_flat(settings.flat() | changes)


def fits(settings: Settings, observation: Any, action: Any, spec: EnvSpec | None = None) -> None:
    check_fits("'theirs'", observation, action, spec, settings, DataSetForm(race_spaces(settings)))


def test_a_configuration_learns_from_its_own_recordings(default_settings: Settings) -> None:
    spaces = race_spaces(default_settings)
    fits(default_settings, DataSetForm(spaces).observation_space, spaces.action, environment_spec(default_settings))
    fits(default_settings, floats(spaces.n_floats), Discrete(12))
    with_image = with_changes(default_settings, image_width_px=8, image_height_px=6, frames_per_state=2)
    image = Dict({"floats": floats(184), "image": Box(0, 255, (2, 6, 8), np.uint8)})
    fits(with_image, image, Discrete(12), environment_spec(with_image))


def test_other_shapes_are_told_with_both_sides(default_settings: Settings) -> None:
    told = "'theirs' has Box(-inf, inf, (185,), float32) and Box(-1.0, 1.0, (3,), float32); this configuration has "
    with pytest.raises(UserError, match=re.escape(told)):
        fits(default_settings, floats(185), Box(-1, 1, (3,), np.float32))


def test_the_same_shapes_with_another_meaning_are_told(default_settings: Settings) -> None:
    spaces = race_spaces(default_settings)
    recorded = environment_spec(with_changes(default_settings, one_every_n_zone_centers_in_inputs=10))
    with pytest.raises(UserError, match="one_every_n_zone_centers_in_inputs is 10 there and 20 here; set these alike"):
        fits(default_settings, DataSetForm(spaces).observation_space, spaces.action, recorded)
    rewarded_otherwise = environment_spec(with_changes(default_settings, constant_reward_per_ms=-1.0))
    fits(default_settings, DataSetForm(spaces).observation_space, spaces.action, rewarded_otherwise)


def test_normalized_observations_are_refused(default_settings: Settings) -> None:
    spec = environment_spec(default_settings)
    spec.kwargs.pop("normalize")
    with pytest.raises(UserError, match="holds normalized observations"):
        fits(default_settings, floats(184), Discrete(12), spec)


@pytest.mark.parametrize("normalize", [False, True])
def test_values_tell_whether_observations_are_normalized_if_a_wrapper_hides_the_environment(
    default_settings: Settings, normalize: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = gymnasium.make(RACE_ID, maps="valley", normalize=normalize)
    observations = [env.reset(seed=1)[0], *(env.step(0)[0] for _ in range(40))]
    env.close()
    form = DataSetForm(race_spaces(default_settings))
    episode = Episode(np.array(observations), np.zeros(40, np.int64), np.zeros(40, np.float32), is_finished=False)
    dataset = write_dataset("mine/hidden-v0", [episode], form, None, "", tmp_path)
    if normalize:
        with pytest.raises(UserError, match="holds normalized observations"):
            check_dataset(dataset, default_settings, form)
    else:
        check_dataset(dataset, default_settings, form)
    assert "hidden-v0 names no environment" in caplog.text


def test_somebodys_own_environment_is_written_down_if_it_can_be(default_settings: Settings) -> None:
    gymnasium.register("Tested/Made-v0", entry_point=lambda: None)  # a function is no text
    for env, written in (("CartPole-v1", "CartPole-v1"), ("Tested/Made-v0", None)):
        spec = environment_spec(with_changes(default_settings, games=partial(GymnasiumGames, env=env)))
        assert spec is written or spec.id == written


def test_the_environment_is_made_again_from_its_text(default_settings: Settings) -> None:
    settings = with_changes(default_settings, cutoff_race_longer_than_ms=1_000, constant_reward_per_ms=-0.5)
    spec = environment_spec(settings, ["valley"])
    assert spec is not None
    env = gymnasium.make(EnvSpec.from_json(spec.to_json()))
    assert env.observation_space == DataSetForm(race_spaces(settings)).observation_space
    assert env.action_space == Discrete(12)
    unwrapped: Any = env.unwrapped
    assert unwrapped.settings.reward == settings.reward
    assert unwrapped.settings.observation == settings.observation
    assert unwrapped.settings.game == settings.game
    env.close()
