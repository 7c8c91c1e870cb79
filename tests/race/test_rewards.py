"""Rewards and potentials of whole races, against loops over single actions written from their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.race.rewards import EngineeredRewards, race_rewards, speedslide_quality, state_potentials
from trackmania_rl.settings import RewardSettings

MS_PER_ACTION = 50
PLACES = {
    "previous_actions": slice(1, 9),  # two actions
    "last_gas": slice(5, 6),
    "last_brake": slice(6, 7),
    "wheel_has_ground_contact": slice(9, 13),
    "velocity_m_s": slice(13, 16),
    "zone_centers_m": slice(16, 25),  # three centres
}
N_FLOATS = 26


def settings(**changes) -> RewardSettings:
    values = {
        "reward": "trackmania_rl.race.rewards:RaceReward",
        "constant_reward_per_ms": -6 / 5000,
        "reward_per_m_advanced_along_centerline": 5 / 500,
        "final_speed_reward_per_m_per_s": 0.0,
        "engineered_speedslide_reward_schedule": ((0, 0.0),),
        "engineered_neoslide_reward_schedule": ((0, 0.0),),
        "engineered_kamikaze_reward_schedule": ((0, 0.0),),
        "engineered_close_to_vcp_reward_schedule": ((0, 0.0),),
        "engineered_reward_min_dist_to_cur_vcp_m": 4.0,
        "engineered_reward_max_dist_to_cur_vcp_m": 19.0,
        "shaped_reward_dist_to_cur_vcp": -0.1,
        "shaped_reward_min_dist_to_cur_vcp_m": 2.0,
        "shaped_reward_max_dist_to_cur_vcp_m": 25.0,
        "shaped_reward_point_to_vcp_ahead": 0.0,
    }
    return RewardSettings(**values | changes)


def random_states(n_states: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    state_float = rng.normal(0, 3, (n_states, N_FLOATS)).astype(np.float32)
    state_float[:, PLACES["previous_actions"]] = rng.integers(0, 2, (n_states, 8))
    state_float[:, PLACES["wheel_has_ground_contact"]] = rng.random((n_states, 4)) < 0.8
    state_float[:, PLACES["zone_centers_m"]] *= rng.choice([0.3, 1, 20], (n_states, 1))  # both clips are met
    state_float[:, PLACES["velocity_m_s"].stop - 1] += rng.choice([60, 60, -60], n_states)  # forwards, or in reverse
    return state_float


def naive_reward(states, meters, race_time_ms, action, *, reward: RewardSettings, engineered):
    """The reward of one action, as the documentation says it."""
    finishes = race_time_ms is not None and action == len(states) - 2
    duration_ms = race_time_ms - action * MS_PER_ACTION if finishes else MS_PER_ACTION
    total = reward.constant_reward_per_ms * duration_ms
    total += reward.reward_per_m_advanced_along_centerline * (meters[action + 1] - meters[action])
    if finishes:
        return total
    before, after = (states[i].astype(float) for i in (action, action + 1))
    left, _, forward = after[13:16]
    speeds = [math.sqrt(sum(x**2 for x in state[13:16])) for state in (before, after)]
    if forward > 0:
        total += reward.final_speed_reward_per_m_per_s * (speeds[1] - speeds[0])
    wheels = after[9:13].sum()
    if wheels == 4:
        total += engineered.speedslide * max(0, 1 - abs(float(speedslide_quality(forward, left)) - 1))
    if abs(left) >= 2:
        total += engineered.neoslide
    accelerates, brakes = after[5], after[6]
    if (accelerates and not brakes) or wheels <= 1:
        total += engineered.kamikaze
    distance_m = math.sqrt(sum(x**2 for x in after[16:19]))
    return total + engineered.close_to_vcp * min(19.0, max(4.0, distance_m))


@given(n_states=st.integers(2, 12), finish_after_ms=st.none() | st.integers(1, 50), seed=st.integers(0, 1000))
def test_rewards_equal_those_of_single_actions(n_states, finish_after_ms, seed):
    rng = np.random.default_rng(seed)
    states = random_states(n_states, seed)
    is_finished = finish_after_ms is not None
    race_time_ms = (n_states - 2) * MS_PER_ACTION + finish_after_ms if is_finished else None
    meters = rng.normal(0, 2, n_states).cumsum()
    reward = settings(final_speed_reward_per_m_per_s=0.3)
    engineered = EngineeredRewards(speedslide=0.7, neoslide=0.11, kamikaze=-0.13, close_to_vcp=-0.017)

    rewards = race_rewards(
        states,
        meters,
        race_time_ms,
        places=PLACES,
        settings=reward,
        engineered=engineered,
        ms_per_action=MS_PER_ACTION,
    )

    expected = [
        naive_reward(states, meters, race_time_ms, i, reward=reward, engineered=engineered) for i in range(n_states - 1)
    ]
    assert rewards.dtype == np.float32
    np.testing.assert_allclose(rewards, expected, rtol=1e-5, atol=1e-5)


def test_the_rewards_of_a_finished_race_add_up_to_its_time_and_length():
    states = random_states(5, seed=1)
    meters = np.array([0.0, 10.0, 25.0, 45.0, 50.0])
    rewards = race_rewards(
        states,
        meters,
        170,
        places=PLACES,
        settings=settings(),
        engineered=EngineeredRewards(),
        ms_per_action=MS_PER_ACTION,
    )
    assert rewards.sum() == pytest.approx(-6 / 5000 * 170 + 5 / 500 * 50)


def test_final_speed_terms_add_up_to_the_speed_gained():
    states = random_states(6, seed=2)
    forward = PLACES["velocity_m_s"].stop - 1
    states[:, forward] = np.abs(states[:, forward])
    off = settings(constant_reward_per_ms=0, reward_per_m_advanced_along_centerline=0, final_speed_reward_per_m_per_s=1)
    rewards = race_rewards(
        states,
        np.zeros(6),
        None,
        places=PLACES,
        settings=off,
        engineered=EngineeredRewards(),
        ms_per_action=MS_PER_ACTION,
    )
    speeds = np.linalg.norm(states[:, PLACES["velocity_m_s"]], axis=1)
    assert rewards.sum() == pytest.approx(speeds[-1] - speeds[0], rel=1e-5)


@pytest.mark.parametrize(
    ("n_meters", "race_time_ms", "message"),
    [
        (3, 120, "3 values for 4 states"),
        (5, None, "5 values for 4 states"),
        (4, 99, "race_time = 99 ms"),
    ],
)
def test_a_race_that_does_not_fit_together_is_refused(n_meters, race_time_ms, message):
    with pytest.raises(ValueError, match=message):
        race_rewards(
            random_states(4, seed=0),
            np.zeros(n_meters),
            race_time_ms,
            places=PLACES,
            settings=settings(),
            engineered=EngineeredRewards(),
            ms_per_action=MS_PER_ACTION,
        )


@pytest.mark.parametrize(
    ("kmh", "sideways_m_s", "quality"),
    [(100, 0.0, 0.0), (50, 8.0, 1.0), (300, -6.7, 1.0), (350, 12.7, 2.0), (600, 5.5, 1.0)],
)
def test_speedslide_quality(kmh, sideways_m_s, quality):
    assert speedslide_quality(np.array(kmh / 3.6), np.array(sideways_m_s)) == pytest.approx(quality)


def test_potential_of_every_state():
    states = random_states(40, seed=3)
    potentials = state_potentials(states, places=PLACES, settings=settings(shaped_reward_point_to_vcp_ahead=0.4))
    expected = []
    for state in states.astype(float):
        distance_m = math.sqrt(sum(x**2 for x in state[16:19]))
        ahead = state[19:22] - state[16:19]
        cosine = ahead[2] / math.sqrt(sum(x**2 for x in ahead))
        expected.append(-0.1 * min(25.0, max(2.0, distance_m)) + 0.4 * (cosine - 1))
    np.testing.assert_allclose(potentials, expected, rtol=1e-5)
    assert {-0.2, -2.5} <= set(
        np.round(state_potentials(states, places=PLACES, settings=settings()).tolist(), 6).tolist()
    )


def test_the_pointing_term_needs_a_second_zone_center():
    places = PLACES | {"zone_centers_m": slice(16, 19)}
    states = random_states(2, seed=0)
    assert state_potentials(states, places=places, settings=settings()).shape == (2,)
    with pytest.raises(ValueError, match="n_zone_centers_in_inputs"):
        state_potentials(states, places=places, settings=settings(shaped_reward_point_to_vcp_ahead=1.0))


def test_engineered_rewards_follow_their_schedules_linearly():
    reward = settings(
        engineered_speedslide_reward_schedule=((0, 0.1), (100, 0.4)),
        engineered_neoslide_reward_schedule=((0, 0.1), (100, 0.5)),
        engineered_kamikaze_reward_schedule=((0, 0.1), (100, 0.6)),
        engineered_close_to_vcp_reward_schedule=((0, 0.1), (100, 0.7)),
    )
    halfway = EngineeredRewards.at_frame(reward, 50)
    values = (halfway.speedslide, halfway.neoslide, halfway.kamikaze, halfway.close_to_vcp)
    assert values == pytest.approx((0.25, 0.3, 0.35, 0.4))
