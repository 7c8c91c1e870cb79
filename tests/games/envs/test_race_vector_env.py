"""`RaceVectorEnv`: against as many single environments, and its arguments and infos."""

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from trackmania_rl.errors import UserError

COAST = 3
ENDS_AFTER_TEN_ACTIONS = {"cutoff_no_progress_within_ms": 500}


@pytest.mark.parametrize("has_image", [False, True])
def test_every_game_goes_as_a_single_environment_does(make_env, make_envs, image, has_image):
    """Over several races of each game; the first game's car stands still, so that its races are cut off."""
    n_games, n_steps = 3, 250
    overrides = {"cutoff_no_progress_within_ms": 2000} | (image if has_image else {})
    actions = np.random.default_rng(1).choice([0, 0, 0, 1, 2, 4, 5], (n_steps, n_games))
    actions[:, 0] = 3
    many = make_envs(n_games, "straight", overrides=overrides)
    singles = [make_env("straight", overrides=overrides) for _ in range(n_games)]
    seen, infos = many.reset(seed=0)
    keys = infos.keys()
    assert many.observation_space.contains(seen)
    _assert_same(seen, [single.reset()[0] for single in singles])
    has_ended, n_ends = [False] * n_games, {True: 0, False: 0}
    for chosen in actions:
        seen, rewards, terminated, truncated, infos = many.step(chosen)
        assert infos.keys() == keys
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
            for name, value in info.items():
                assert infos[f"_{name}"][game]
                np.testing.assert_array_equal(infos[name][game], value)
            if has_ended[game]:
                n_ends[info["race_finished"]] += 1
    assert min(n_ends.values()) >= 3


def _in_order(step):
    observation, reward, terminated, truncated, info = step
    return observation, info, reward, terminated, truncated


def _assert_same(seen, of_singles):
    if isinstance(seen, dict):
        for name, values in seen.items():
            np.testing.assert_array_equal(values, np.stack([one[name] for one in of_singles]))
    else:
        np.testing.assert_array_equal(seen, np.stack(of_singles))


def test_a_seed_gives_the_same_maps_again(make_envs):
    envs = make_envs(9, "straight", "lane")
    first, infos = envs.reset(seed=[4] * 9)
    assert len(np.unique(first, axis=0)) == 2, "both tracks, whose finishes are not as far away"
    assert set(infos["map"]) == {"straight", "lane"}
    np.testing.assert_array_equal(envs.reset(seed=4)[0], first)
    chosen, infos = envs.reset(options={"map": "lane"})
    assert len(np.unique(chosen, axis=0)) == 1
    assert set(infos["map"]) == {"lane"}


def test_a_race_that_ended_waits_for_its_reset_where_nothing_else_begins_the_next(make_envs):
    envs = make_envs(3, "straight", "lane", overrides=ENDS_AFTER_TEN_ACTIONS, autoreset_mode="Disabled")
    assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    start = envs.reset(options={"map": "lane"})[0]
    first_only = np.array([True, False, False])
    for _ in range(4):
        envs.step([0, 0, 0])
    observations, infos = envs.reset(options={"reset_mask": first_only, "map": "straight"})
    assert list(infos["map"]) == ["straight", "lane", "lane"]
    assert infos["race_time_ms"].tolist() == [0, 200, 200]
    for _ in range(6):
        observations, _, terminated, truncated, _ = envs.step([0, 0, 0])
    assert truncated.tolist() == [False, True, True]
    with pytest.raises(ResetNeeded, match=r"games \[1, 2\] have ended: call reset\(options="):
        envs.step([0, 0, 0])
    seen, infos = envs.reset(options={"reset_mask": terminated | truncated, "map": "lane"})
    np.testing.assert_array_equal(seen[0], observations[0])
    np.testing.assert_array_equal(seen[1:], start[1:])
    assert infos["race_time_ms"].tolist() == [300, 0, 0]
    assert list(infos["map"]) == ["straight", "lane", "lane"]
    assert not envs.step([0, 0, 0])[3].any()


def test_wrong_uses_are_refused(make_envs):
    with pytest.raises(UserError, match="game_transport"):
        make_envs(2, "lane", overrides={"game_transport": "socket"})
    envs = make_envs(2, "straight")
    with pytest.raises(ResetNeeded, match="call reset first"):
        envs.step([0, 0])
    with pytest.raises(ResetNeeded, match=r"games \[0\] have no race"):
        envs.reset(options={"reset_mask": np.array([False, True])})
    with pytest.raises(UserError, match=r"a mask is an array of bool with the shape \(2,\)"):
        envs.reset(options={"reset_mask": [True]})
    with pytest.raises(UserError, match="the maps of this environment are straight"):
        envs.reset(options={"map": "elsewhere"})
    envs.reset()
    for actions in ([0, 12], [0], [0.0, 1.0]):
        with pytest.raises(UserError, match=r"whole numbers with the shape \(2,\), 0 to 11"):
            envs.step(actions)
    envs.step(np.array([4, COAST], dtype=np.uint8))
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="make another one"):
        envs.reset()
