"""`RaceVectorEnv` against as many single environments, and torchrl's view of both."""

import contextlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from trackmania_rl.envs import RACE_ID, make_race_env, make_race_vector_env
from trackmania_rl.errors import UserError


@pytest.mark.parametrize("has_image", [False, True])
def test_every_game_goes_as_a_single_environment_does(tracks: dict[str, str], image: dict, has_image: bool) -> None:
    """Over several races of each game; the first game's car stands still, so that its races are cut off."""
    n_games, n_steps = 3, 250
    overrides = {"cutoff_no_progress_within_ms": 2000} | (image if has_image else {})
    actions = np.random.default_rng(1).choice([0, 0, 0, 1, 2, 4, 5], (n_steps, n_games))
    actions[:, 0] = 3
    with contextlib.ExitStack() as opened:
        open_ = opened.enter_context
        many = open_(contextlib.closing(make_race_vector_env(n_games, tracks["straight"], overrides=overrides)))
        singles = [
            open_(contextlib.closing(make_race_env(tracks["straight"], overrides=overrides))) for _ in range(n_games)
        ]
        seen, infos = many.reset(seed=0)
        assert many.observation_space.contains(seen)
        _assert_same(seen, [single.reset()[0] for single in singles])
        has_ended, n_ends = [False] * n_games, {True: 0, False: 0}
        for chosen in actions:
            seen, rewards, terminated, truncated, infos = many.step(chosen)
            steps = [
                (*single.reset(), 0.0, False, False) if ended else _in_order(single.step(action))
                for single, action, ended in zip(singles, chosen, has_ended, strict=True)
            ]
            expected, single_infos, *others = zip(*steps, strict=True)
            _assert_same(seen, expected)
            for values, of_singles in zip((rewards, terminated, truncated), others, strict=True):
                np.testing.assert_allclose(values, of_singles, rtol=1e-5)
            has_ended = list(np.logical_or(terminated, truncated))
            for game, info in enumerate(single_infos):
                for name in info.keys() - {"map"}:
                    assert infos[f"_{name}"][game]
                    assert infos[name][game] == info[name]
                if has_ended[game]:
                    n_ends[info["race_finished"]] += 1
        assert min(n_ends.values()) >= 3


def _in_order(step):
    observation, reward, terminated, truncated, info = step
    return observation, info, reward, terminated, truncated


def _assert_same(seen, of_singles) -> None:
    if isinstance(seen, dict):
        for name, values in seen.items():
            np.testing.assert_array_equal(values, np.stack([one[name] for one in of_singles]))
    else:
        np.testing.assert_array_equal(seen, np.stack(of_singles))


def test_a_seed_gives_the_same_maps_again(tracks: dict[str, str]) -> None:
    with contextlib.closing(make_race_vector_env(9, list(tracks.values()))) as env:
        first = env.reset(seed=[4] * 9)[0]
        assert len(np.unique(first, axis=0)) == 2, "both tracks, whose finishes are not as far away"
        np.testing.assert_array_equal(env.reset(seed=4)[0], first)
        chosen = env.reset(options={"map": "lane"})[0]
        assert len(np.unique(chosen, axis=0)) == 1


def test_gymnasium_makes_it_by_its_name(tracks: dict[str, str]) -> None:
    with contextlib.closing(gymnasium.make_vec(RACE_ID, num_envs=5, maps=tracks["lane"])) as env:
        env.reset(seed=0)
        observations, rewards, *_ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observations)
        assert observations.shape == (5, 184)
        assert rewards.shape == (5,)


def test_games_behind_sockets_are_not_stepped_together(tracks: dict[str, str]) -> None:
    with pytest.raises(UserError, match="game_transport"):
        make_race_vector_env(2, tracks["lane"], overrides={"game_transport": "socket"})


def test_tracks_folder_goes_with_the_environment() -> None:
    env = make_race_vector_env(2, "generated:0.2:7-8")
    tracks_folder = Path(env._maps[0].map_path).parent
    assert tracks_folder.exists()
    env.close()
    assert not tracks_folder.exists()


@pytest.mark.parametrize("has_image", [False, True])
def test_torchrl_takes_it(tracks: dict[str, str], image: dict, has_image: bool) -> None:
    env = GymWrapper(make_race_env(tracks["lane"], overrides=image if has_image else {}))
    check_env_specs(env)
    rollout = env.rollout(7)
    assert rollout["next", "reward"].shape == (7, 1)
    env.close()
