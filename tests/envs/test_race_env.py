"""`RaceEnv` on games of both kinds: Gymnasium's rules, and the races of the trainer."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from trackmania_rl.envs import RACE_ID, RaceEnv, make_race_env
from trackmania_rl.errors import UserError
from trackmania_rl.features import ObservationLayout
from trackmania_rl.in_process.games import InProcessGames
from trackmania_rl.policy import PolicyDecision
from trackmania_rl.rewards import EngineeredRewards, race_rewards
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.track.named_maps import map_entries

COAST = 3
SOCKET = {"game_transport": "socket"}
OPTIONAL_REWARDS = {
    "final_speed_reward_per_m_per_s": 0.013,
    "wall_contact_reward": -0.17,
    "engineered_kamikaze_reward_schedule": ((0, 0.1), (200, 0.1)),
    "engineered_close_to_vcp_reward_schedule": ((0, -0.02), (200, -0.02)),
}

MakeEnv = Callable[..., RaceEnv]


@pytest.fixture
def make_env(tracks: dict[str, str]) -> Iterator[MakeEnv]:
    """`make_env(*names, **arguments)`; closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(*names: str, **arguments) -> RaceEnv:
            env = make_race_env([tracks.get(name, name) for name in names], **arguments)
            return opened.enter_context(contextlib.closing(env))

        yield make


def play(env: RaceEnv, actions: list[int]):
    """Play one race, forward when the actions are over; returns observations, rewards and the last info."""
    observation, _ = env.reset(seed=0)
    observations, rewards, is_over, step = [observation], [], False, 0
    while not is_over:
        action = actions[step] if step < len(actions) else 0
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        is_over, step = terminated or truncated, step + 1
    assert terminated == info["race_finished"] != truncated
    return observations, rewards, info


def settings_with(repository_root: Path, overrides: dict) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py", [f"{k}={v!r}" for k, v in overrides.items()])


@pytest.mark.filterwarnings("ignore:.*Box observation space.*infinity")
@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("transport", [{}, SOCKET], ids=["in process", "socket"])
def test_it_keeps_gymnasiums_rules(make_env: MakeEnv, image: dict, transport: dict, has_image: bool) -> None:
    overrides = transport | (image if has_image else {})
    check_env(make_env("straight", "lane", overrides=overrides), skip_render_check=True)


@pytest.mark.parametrize("overrides", [OPTIONAL_REWARDS, OPTIONAL_REWARDS | SOCKET], ids=["in process", "socket"])
def test_a_race_is_the_trainers_race(
    make_env: MakeEnv, tracks: dict[str, str], wandering: list[int], repository_root: Path, overrides: dict
) -> None:
    observations, rewards, info = play(make_env("straight", overrides=overrides, normalize=False), wandering)

    settings = settings_with(repository_root, OPTIONAL_REWARDS)
    games = InProcessGames(1, settings.game, settings.observation, repository_root / "maps")
    upcoming = iter(wandering + [0] * 1000)
    no_values = np.zeros(len(settings.game.inputs), dtype=np.float32)
    entry = map_entries(settings, repository_root / "maps", [tracks["straight"]])[0]
    race, stats = games.rollout(entry, lambda frame, floats: PolicyDecision(next(upcoming), True, no_values))
    expected = race_rewards(
        race["state_float"],
        race["meters_advanced_along_centerline"],
        race["race_time"],
        places=games.layout,
        settings=settings.reward,
        engineered=EngineeredRewards.at_frame(settings.reward, 0),
        ms_per_action=settings.game.ms_per_action,
        car=race["car_gear_and_wheels"],
    )
    assert race["race_time"] % settings.game.ms_per_action != 0, "else the socket's game asks once more at the finish"
    np.testing.assert_allclose(rewards, expected, rtol=1e-5)
    np.testing.assert_array_equal(np.stack(observations[:-1]), race["state_float"])
    np.testing.assert_array_equal(observations[-1], observations[-2])
    assert info["race_time_ms"] == stats["race_time_ms"] == race["race_time"]
    assert info["map"] == "straight"


def test_floats_are_normalized_unless_asked_otherwise(make_env: MakeEnv, repository_root: Path) -> None:
    raw, _ = make_env("straight", normalize=False).reset()
    normalized, _ = make_env("straight").reset()
    layout = ObservationLayout.from_settings(settings_with(repository_root, {}).observation)
    np.testing.assert_allclose(normalized, (raw - layout.mean) / layout.std, rtol=1e-6)
    assert normalized.dtype == raw.dtype == np.float32


@pytest.mark.parametrize("transport", [{}, SOCKET], ids=["in process", "socket"])
def test_an_image_holds_the_last_frames(make_env: MakeEnv, image: dict, transport: dict) -> None:
    env = make_env("straight", overrides=image | transport, render_mode="rgb_array")
    first = env.reset()[0]["image"]
    assert first.shape == (3, 30, 40)
    assert (first == first[:1]).all(), "at the start, the first frame stands in for those before it"
    images = [env.step(0)[0]["image"] for _ in range(30)]
    assert (images[-1][:-1] == images[-2][1:]).all()
    assert (images[-1] != images[-20]).any()
    assert env.metadata["render_fps"] == 20
    shown = env.render()
    assert shown.shape == (30, 40, 3)
    assert (shown == images[-1][-1][..., None]).all()


def test_a_race_that_is_cut_off_is_truncated(make_env: MakeEnv) -> None:
    _, rewards, info = play(make_env("straight", overrides={"cutoff_no_progress_within_ms": 1500}), [COAST] * 100)
    assert (info["race_finished"], info["cutoff_reason"]) == (False, "no_progress")
    assert len(rewards) == 1500 // 50
    assert rewards[-1] == 0


def test_maps_are_drawn_by_the_seed_or_chosen(make_env: MakeEnv) -> None:
    env = make_env("straight", "lane")
    drawn = [[env.reset(seed=seed)[1]["map"]] + [env.reset()[1]["map"] for _ in range(20)] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {"straight", "lane"}
    assert [env.reset(options={"map": "lane"})[1]["map"] for _ in range(5)] == ["lane"] * 5
    with pytest.raises(UserError, match="the maps of this environment are straight, lane"):
        env.reset(options={"map": "elsewhere"})


def test_without_maps_it_drives_those_of_the_map_cycle(make_env: MakeEnv) -> None:
    assert make_env().reset()[1]["map"] == "valley"


def test_generated_tracks_go_with_the_environment(make_env: MakeEnv) -> None:
    env = make_env("generated:0.2:7-9")
    env.reset()
    tracks_folder = Path(env._maps[0].map_path).parent
    assert len(list(tracks_folder.glob("*.toml"))) == 3
    env.close()
    assert not tracks_folder.exists()


def test_a_lost_game_ends_the_race_and_the_next_one_has_another_game(make_env: MakeEnv) -> None:
    env = make_env("straight", overrides=SOCKET)
    env.reset()
    for _ in range(5):
        seen = env.step(0)[0]
    env._game._manager._launcher.kill()
    observation, reward, terminated, truncated, info = env.step(0)
    np.testing.assert_array_equal(observation, seen)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["race_finished"], info["cutoff_reason"]) == (False, "game_lost")
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert play(env, [])[2]["race_finished"]
    assert env._game._manager.game_starts == 2


def test_a_step_needs_a_race(make_env: MakeEnv) -> None:
    env = make_env("straight")
    with pytest.raises(ResetNeeded, match="call reset first"):
        env.step(0)
    play(env, [])
    with pytest.raises(ResetNeeded, match="call reset first"):
        env.step(0)


def test_an_action_that_there_is_not_is_refused(make_env: MakeEnv) -> None:
    env = make_env("straight")
    env.reset()
    with pytest.raises(AssertionError, match="action -1 is not in Discrete"):
        env.step(-1)


def test_rendering_needs_an_image(make_env: MakeEnv) -> None:
    with pytest.raises(UserError, match="image_width_px"):
        make_env("straight", render_mode="rgb_array")


def test_gymnasium_makes_it_by_its_name(tracks: dict[str, str]) -> None:
    with contextlib.closing(gymnasium.make(RACE_ID, maps=tracks["lane"])) as env:
        observation, info = env.reset(seed=1)
        assert env.observation_space.contains(observation)
        assert info["map"] == "lane"
        assert env.action_space.n == 12


def test_an_unknown_way_to_render_is_refused(make_env: MakeEnv, image: dict) -> None:
    with pytest.raises(UserError, match="choose one of rgb_array"):
        make_env(overrides=image, render_mode="human")


def test_metres_are_those_of_the_race(make_env: MakeEnv) -> None:
    env = make_env()
    _, info = env.reset()
    assert info["meters"] == 0.0
    for _ in range(10):
        info = env.step(0)[-1]
    assert 0.0 < info["meters"] < 5.0
