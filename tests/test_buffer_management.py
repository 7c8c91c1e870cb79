"""Filling the buffers from races, against a loop that builds one transition after the other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.buffer_management import (
    draw_test_side,
    fill_buffer_from_rollout_with_n_steps_rule,
    n_steps_of_transitions,
    rows_of_rollout,
)
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.experience_replay.experience import Experience
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.rewards import (
    NO_ENGINEERED_REWARDS,
    EngineeredRewards,
    RewardedRace,
    race_rewards,
    state_potentials,
)
from trackmania_rl.settings import ReplaySettings, RewardSettings, load_settings

MS_PER_ACTION = 50
GAMMA = 0.9
N_FLOATS = 18
IMAGE_SIZE_PX = (3, 2)
PLACES = {
    "previous_actions": slice(1, 5),
    "wheel_has_ground_contact": slice(5, 9),
    "velocity_m_s": slice(9, 12),
    "zone_centers_m": slice(12, 18),
}
REWARD = RewardSettings(
    reward="trackmania_rl.race.rewards:RaceReward",
    constant_reward_per_ms=-0.02,
    reward_per_m_advanced_along_centerline=0.3,
    final_speed_reward_per_m_per_s=0.1,
    engineered_speedslide_reward_schedule=((0, 0.0),),
    engineered_neoslide_reward_schedule=((0, 0.0),),
    engineered_kamikaze_reward_schedule=((0, 0.0),),
    engineered_close_to_vcp_reward_schedule=((0, 0.0),),
    engineered_reward_min_dist_to_cur_vcp_m=5.0,
    engineered_reward_max_dist_to_cur_vcp_m=25.0,
    shaped_reward_dist_to_cur_vcp=-0.1,
    shaped_reward_min_dist_to_cur_vcp_m=1.0,
    shaped_reward_max_dist_to_cur_vcp_m=5.0,
    shaped_reward_point_to_vcp_ahead=0.2,
)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compile once, so that no single example takes seconds."""
    settings = replay_settings()
    fill(*make(settings), random_rollout(5, None, seed=0), settings)


def replay_settings(**changes) -> ReplaySettings:
    values = {
        "memory": "trackmania_rl.training.building:make_memory",
        "batch_size": 4,
        "memory_size_schedule": ((0, 23),),
        "memory_size_start_learn_schedule": ((0, 2),),
        "number_times_single_memory_is_used_before_discard": 2.0,
        "buffer_test_ratio": 0.3,
        "buffer_test_side_redraw_probability": 0.4,
        "n_steps": 3,
        "discard_non_greedy_actions_in_nsteps": True,
        "no_done_at_end": False,
        "max_training_steps_per_environment_step": None,
        "offline": (),
        "temporal_mini_race_duration_actions": 7,
        "oversample_long_term_steps": 0,
        "oversample_maximum_term_steps": 0,
        "prio_alpha": 0.0,
        "prio_beta": 1.0,
        "prio_epsilon": 1e-3,
        "min_horizon_to_update_priority_actions": None,
        "transforms": (),
    }
    return ReplaySettings(**values | changes)


def random_rollout(n_actions: int, finish_after_ms: int | None, seed: int, greedy_share: float = 0.7) -> dict:
    """The part of `rollout_results` that replay reads, its arrays read-only as the shared memory's are."""
    n_states = n_actions + 1
    rng = np.random.default_rng(seed)
    rollout = {
        "frames": rng.integers(0, 256, (n_states, 1, *IMAGE_SIZE_PX), dtype=np.uint8),
        "state_float": rng.normal(0, 2, (n_states, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, 12, n_actions),
        "action_was_greedy": rng.random(n_actions) < greedy_share,
        "meters_advanced_along_centerline": rng.normal(1, 1, n_states).cumsum(),
    }
    for array in rollout.values():
        array.flags.writeable = False
    if finish_after_ms is None:
        return rollout
    return rollout | {"race_time": (n_actions - 1) * MS_PER_ACTION + finish_after_ms}


def rewarded_race(rollout, places=PLACES, reward=REWARD, engineered=None) -> RewardedRace:
    states = rollout["state_float"]
    rewards = race_rewards(
        states,
        rollout["meters_advanced_along_centerline"],
        rollout.get("race_time"),
        places=places,
        settings=reward,
        engineered=engineered or NO_ENGINEERED_REWARDS,
        ms_per_action=MS_PER_ACTION,
    )
    return RewardedRace(rewards, state_potentials(states, places=places, settings=reward))


def fill(buffer, buffer_test, rollout, settings, reward=REWARD, engineered=None) -> int:
    rewarded = rewarded_race(rollout, PLACES, reward, engineered)
    return fill_buffer_from_rollout_with_n_steps_rule(buffer, buffer_test, rollout, rewarded, settings)


def make(settings, seed=0):
    return make_buffers(
        settings,
        n_floats=N_FLOATS,
        image_size_px=IMAGE_SIZE_PX,
        device="cpu",
        generator=torch.Generator().manual_seed(seed),
        gamma=GAMMA,
    )


def naive_experiences(rollout: dict, settings: ReplaySettings) -> list[Experience]:
    """One transition after the other."""
    states = rollout["state_float"]
    n_actions = len(rollout["actions"])
    is_finished = "race_time" in rollout
    rewards = race_rewards(
        states,
        rollout["meters_advanced_along_centerline"],
        rollout.get("race_time"),
        places=PLACES,
        settings=REWARD,
        engineered=EngineeredRewards(),
        ms_per_action=MS_PER_ACTION,
    )
    potentials = state_potentials(states, places=PLACES, settings=REWARD)
    experiences = []
    for i in range(n_actions):
        n_steps = 0
        while n_steps < settings.n_steps and i + n_steps < n_actions:
            explores = not rollout["action_was_greedy"][i + n_steps]
            if n_steps > 0 and explores and settings.discard_non_greedy_actions_in_nsteps:
                break
            n_steps += 1
        next_state = i + n_steps
        reaches_finish = is_finished and next_state == n_actions
        sums, total = [], 0.0
        for k in range(settings.n_steps):
            if k < n_steps:
                total += GAMMA**k * rewards[i + k]
            sums.append(total)
        experiences.append(
            Experience(
                state_img=rollout["frames"][i],
                state_float=states[i],
                state_potential=potentials[i],
                action=rollout["actions"][i],
                n_steps=n_steps,
                rewards=np.array(sums),
                gammas=np.array([GAMMA ** (k + 1) for k in range(settings.n_steps)]),
                next_state_img=rollout["frames"][next_state],
                next_state_float=states[next_state],
                next_state_potential=0.0 if reaches_finish else potentials[next_state],
                terminal_actions=n_actions - i if is_finished else 2**31 - 1,
            )
        )
    return experiences


def assert_same(actual: Experience, expected: Experience) -> None:
    for name, value in vars(expected).items():
        np.testing.assert_allclose(getattr(actual, name), value, rtol=1e-5, atol=1e-6, err_msg=name)


races = st.lists(
    st.tuples(st.integers(1, 13), st.none() | st.integers(1, 50), st.integers(0, 10_000)), min_size=1, max_size=7
)


@given(
    races=races,
    n_steps=st.integers(1, 4),
    discard=st.booleans(),
    memory_size=st.integers(1, 40),
    new_memory_size=st.integers(1, 40),
)
def test_the_buffers_hold_the_newest_transitions(races, n_steps, discard, memory_size, new_memory_size):
    settings = replay_settings(
        n_steps=n_steps,
        discard_non_greedy_actions_in_nsteps=discard,
        memory_size_schedule=((0, memory_size),),
        memory_size_start_learn_schedule=((0, 1),),
    )
    buffer, buffer_test = make(settings)
    ever: dict[int, Experience] = {}  # by row
    n_rows = 0
    for i, race in enumerate(races):
        rollout = random_rollout(*race)
        if i == len(races) // 2:
            buffer.ring.resize(new_memory_size)
        experiences = naive_experiences(rollout, settings)
        n_added = fill(buffer, buffer_test, rollout, settings)
        ever |= {n_rows + t: experience for t, experience in enumerate(experiences)}
        race_rows = range(n_rows, n_rows + len(experiences))
        assert n_added == sum(row >= buffer.ring.first_row for row in race_rows)
        n_rows += race[0] + 1
        assert buffer.ring.end_row == n_rows

    train, test = buffer.storage.index.tolist(), buffer_test.storage.index.tolist()
    assert sorted(train + test) == [row for row in ever if row >= buffer.ring.first_row]
    for side, index in ((buffer, train), (buffer_test, test)):
        assert len(side) == len(index)
        for place, row in enumerate(index):
            assert_same(side[place], ever[row])


def test_the_default_configuration_fills_its_buffers(repository_root):
    settings = load_settings(repository_root / "config_files" / "config.py", ["memory_size_schedule=((0, 2_000),)"])
    layout = ObservationLayout.from_settings(settings.observation)
    buffer, buffer_test = make_buffers(
        settings.replay,
        n_floats=layout.float_input_dim,
        image_size_px=(0, 0),
        device="cpu",
        generator=torch.Generator(),
    )
    rollout = random_rollout(9, 30, seed=0)
    rollout["frames"] = np.empty((10, 1, 0, 0), dtype=np.uint8)
    rollout["state_float"] = np.ones((10, layout.float_input_dim), dtype=np.float32)
    engineered = EngineeredRewards(kamikaze=1.0, neoslide=1.0, speedslide=1.0, close_to_vcp=1.0)
    rewarded = rewarded_race(rollout, layout, settings.reward, engineered)
    n_added = fill_buffer_from_rollout_with_n_steps_rule(buffer, buffer_test, rollout, rewarded, settings.replay)
    assert n_added == len(buffer) + len(buffer_test) == 9
    assert layout.index("mini_race_time_actions") == ELAPSED_ACTIONS_FLOAT


def test_optional_rewards_are_stored():
    reward = REWARD.model_copy(update={"final_speed_reward_per_m_per_s": 0.3})
    engineered = EngineeredRewards(neoslide=0.7)
    n_actions = 20
    rollout = random_rollout(n_actions, 30, seed=0)

    def rewards_of(reward_settings, engineered):
        return race_rewards(
            rollout["state_float"],
            rollout["meters_advanced_along_centerline"],
            rollout["race_time"],
            places=PLACES,
            settings=reward_settings,
            engineered=engineered,
            ms_per_action=MS_PER_ACTION,
        )

    settings = replay_settings()
    buffer, buffer_test = make(settings)
    fill(buffer, buffer_test, rollout, settings, reward, engineered)
    stored = buffer.ring.columns.rewards[:n_actions].numpy()
    np.testing.assert_array_equal(stored, rewards_of(reward, engineered))
    assert not np.array_equal(stored, rewards_of(REWARD, engineered))
    assert not np.array_equal(stored, rewards_of(reward, NO_ENGINEERED_REWARDS))


def test_a_race_may_be_over_after_its_first_action():
    settings = replay_settings(buffer_test_ratio=0.0)
    buffer, buffer_test = make(settings)
    assert fill(buffer, buffer_test, random_rollout(1, 20, seed=0), settings) == 1
    assert fill(buffer, buffer_test, random_rollout(1, None, seed=1), settings) == 1
    finish, cut_off = buffer[0], buffer[1]
    assert (finish.n_steps, finish.terminal_actions, finish.next_state_potential) == (1, 1, 0.0)
    assert (cut_off.n_steps, cut_off.terminal_actions) == (1, 2**31 - 1)


def test_the_last_action_of_a_cut_off_race_leads_to_the_state_of_the_cut_off():
    settings = replay_settings(buffer_test_ratio=0.0, batch_size=256)
    buffer, buffer_test = make(settings)
    rollout = random_rollout(8, None, seed=0)
    fill(buffer, buffer_test, rollout, settings)
    batch = buffer.sample()
    last = batch[batch["index"] == 7]
    np.testing.assert_array_equal(last["next_state_float"][0, 1:], rollout["state_float"][8, 1:])
    np.testing.assert_array_equal(last["next_state_img"][0], rollout["frames"][8])
    going_on = last["state_float"][:, ELAPSED_ACTIONS_FLOAT] < settings.temporal_mini_race_duration_actions - 1
    assert going_on.any()
    assert (last["gamma_n"][going_on] == np.float32(GAMMA)).all(), "bootstrapped: a race that was cut off was not over"
    assert (last["gamma_n"][~going_on] == 0).all()


@pytest.mark.parametrize("finish_after_ms", [None, 20])
def test_a_rollout_can_be_written_to_one_side_alone(finish_after_ms):
    settings = replay_settings(buffer_test_ratio=0.0)
    (filled, filled_test), (extended, _) = make(settings), make(settings)
    rollout = random_rollout(8, finish_after_ms, seed=0)
    fill(filled, filled_test, rollout, settings)
    rows = rows_of_rollout(rollout, rewarded_race(rollout), settings)
    assert extended.extend(rows).tolist() == filled.storage.index.tolist() == list(range(8))
    for place in range(8):
        assert_same(extended[place], filled[place])


def test_the_same_seed_fills_the_same_sides():
    settings = replay_settings(memory_size_schedule=((0, 200),))
    sides = []
    for seed in (1, 1, 2):
        buffer, buffer_test = make(settings, seed)
        fill(buffer, buffer_test, random_rollout(150, None, seed=0), settings)
        sides.append(buffer_test.storage.index.tolist())
    assert sides[0] == sides[1] != sides[2]


def test_there_is_no_experience_in_an_empty_buffer():
    settings = replay_settings()
    buffer, _ = make(settings)
    with pytest.raises(IndexError):
        buffer[0]


@pytest.mark.parametrize(
    ("greedy", "n_max", "discard", "expected"),
    [
        ("11111", 3, True, [3, 3, 3, 2, 1]),
        ("01011", 3, True, [2, 1, 3, 2, 1]),
        ("00000", 3, True, [1, 1, 1, 1, 1]),
        ("00000", 3, False, [3, 3, 3, 2, 1]),
        ("", 3, True, []),
    ],
)
def test_number_of_steps(greedy, n_max, discard, expected):
    was_greedy = np.array([flag == "1" for flag in greedy], dtype=bool)
    assert n_steps_of_transitions(was_greedy, n_max, discard).tolist() == expected


def test_test_sides_come_in_runs_of_the_right_share():
    side = draw_test_side(200_000, 0.05, 0.1, torch.Generator().manual_seed(0))
    assert side.mean() == pytest.approx(0.05, abs=0.01)
    # A run of the test side ends at a step with a redraw (0.1) that falls on the training side (0.95).
    ends = (side[:-1] & ~side[1:]).sum() / side[:-1].sum()
    assert ends == pytest.approx(0.1 * 0.95, abs=0.01)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_extreme_test_shares(ratio):
    assert draw_test_side(50, ratio, 1.0, torch.Generator()).mean() == ratio
