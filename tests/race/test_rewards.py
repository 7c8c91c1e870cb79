"""Rewards and potentials of whole races, against loops over single actions written from their definitions."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.race.rewards import PER_M, Arrival, ProgressReward, RaceReward, speedslide_quality
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import RewardSettings, load_settings

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


SHIPPED = load_settings(Path(__file__).parents[2] / "config_files" / "config.py")
METERS = "meters_advanced_along_centerline"


def settings(**changes):
    none = ((0, 0.0),)
    values = {
        **dict.fromkeys((name for name in RewardSettings.model_fields if name.endswith("_schedule")), none),
        "shaped_reward_dist_to_cur_vcp": -0.1,
        "shaped_reward_point_to_vcp_ahead": 0.0,
    }
    return SHIPPED.reward.model_copy(update=values | changes)


def reward_of(of_reward):
    """The shipped reward, which finds the blocks in `random_states`."""
    reward = RaceReward(SHIPPED.model_copy(update={"reward": of_reward}), race_spaces(SHIPPED), SeedTree(0))
    reward._places = PLACES
    return reward


def rewarded(states, meters, race_time_ms, of_reward):
    race = {"state_float": states, METERS: meters} | ({} if race_time_ms is None else {"race_time": race_time_ms})
    reward = reward_of(of_reward)
    return reward(race, reward.settings, 0)


def random_states(n_states, seed):
    rng = np.random.default_rng(seed)
    state_float = rng.normal(0, 3, (n_states, N_FLOATS)).astype(np.float32)
    state_float[:, PLACES["previous_actions"]] = rng.integers(0, 2, (n_states, 8))
    state_float[:, PLACES["wheel_has_ground_contact"]] = rng.random((n_states, 4)) < 0.8
    state_float[:, PLACES["zone_centers_m"]] *= rng.choice([0.3, 1, 20], (n_states, 1))  # both clips are met
    state_float[:, PLACES["velocity_m_s"].stop - 1] += rng.choice([60, 60, -60], n_states)  # forwards, or in reverse
    return state_float


def naive_reward(states, meters, race_time_ms, action, reward):
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
    terms = ("speedslide", "neoslide", "kamikaze", "close_to_vcp")
    speedslide, neoslide, kamikaze, close_to_vcp = (
        getattr(reward, f"engineered_{term}_reward_schedule")[0][1] for term in terms
    )
    if wheels == 4:
        total += speedslide * max(0, 1 - abs(float(speedslide_quality(forward, left)) - 1))
    if abs(left) >= 2:
        total += neoslide
    accelerates, brakes = after[5], after[6]
    if (accelerates and not brakes) or wheels <= 1:
        total += kamikaze
    distance_m = math.sqrt(sum(x**2 for x in after[16:19]))
    return total + close_to_vcp * min(25.0, max(5.0, distance_m))


@given(n_states=st.integers(2, 12), finish_after_ms=st.none() | st.integers(1, 50), seed=st.integers(0, 1000))
def test_rewards_equal_those_of_single_actions(n_states, finish_after_ms, seed):
    rng = np.random.default_rng(seed)
    states = random_states(n_states, seed)
    is_finished = finish_after_ms is not None
    race_time_ms = (n_states - 2) * MS_PER_ACTION + finish_after_ms if is_finished else None
    meters = rng.normal(0, 2, n_states).cumsum()
    coefficients = {"speedslide": 0.7, "neoslide": 0.11, "kamikaze": -0.13, "close_to_vcp": -0.017}
    schedules = {f"engineered_{term}_reward_schedule": ((0, value),) for term, value in coefficients.items()}
    reward = settings(final_speed_reward_per_m_per_s=0.3, **schedules)
    rewards = rewarded(states, meters, race_time_ms, reward).rewards
    expected = [naive_reward(states, meters, race_time_ms, i, reward) for i in range(n_states - 1)]
    assert rewards.dtype == np.float32
    np.testing.assert_allclose(rewards, expected, rtol=1e-5, atol=1e-5)


def test_a_race_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="race_time = 90 ms, but the race has 3 actions of 50 ms"):
        rewarded(random_states(4, 0), np.zeros(4), 90, settings())


@pytest.mark.parametrize(
    ("kmh", "sideways_m_s", "quality"),
    [(100, 0.0, 0.0), (300, -6.7, 1.0), (350, 12.7, 2.0)],
)
def test_speedslide_quality(kmh, sideways_m_s, quality):
    assert speedslide_quality(np.array(kmh / 3.6), np.array(sideways_m_s)) == pytest.approx(quality)


def test_potential_of_every_state():
    states = random_states(40, seed=3)
    potentials = reward_of(settings(shaped_reward_point_to_vcp_ahead=0.4)).potentials(states)
    expected = []
    for state in states.astype(float):
        distance_m = math.sqrt(sum(x**2 for x in state[16:19]))
        ahead = state[19:22] - state[16:19]
        cosine = ahead[2] / math.sqrt(sum(x**2 for x in ahead))
        expected.append(-0.1 * min(25.0, max(2.0, distance_m)) + 0.4 * (cosine - 1))
    np.testing.assert_allclose(potentials, expected, rtol=1e-5)
    distances = reward_of(settings()).potentials(states)
    assert {-0.2, -2.5} <= set(np.round(distances.astype(float), 6).tolist()), "both clips are met"


def test_a_race_cut_off_earns_its_metres():
    reward = ProgressReward(SHIPPED, race_spaces(SHIPPED), SeedTree(0))
    race = {METERS: np.array([3.0, 3.5, 5.0, 4.0]), "state_float": np.empty((4, 0))}
    earned = reward(race, SHIPPED, 0)
    np.testing.assert_allclose(earned.rewards, PER_M * np.array([0.5, 1.5, -1.0]), rtol=1e-6)
    assert earned.rewards.dtype == earned.potentials.dtype == np.float32
    assert earned.potentials.tolist() == [0, 0, 0, 0]


def test_a_finished_race_earns_the_more_the_sooner_and_its_actions_earn_what_it_earns():
    reward = ProgressReward(SHIPPED, race_spaces(SHIPPED), SeedTree(0), per_m=2.0, finish_s=3.0)
    meters, race_time_ms = np.array([1.0, 2.0, 4.5, 4.0, 8.0]), 180
    race = {METERS: meters, "state_float": np.empty((5, 0))}
    whole = reward(race | {"race_time": race_time_ms}, SHIPPED, 0).rewards
    assert whole.sum() == pytest.approx(2.0 * 7 * (1 + 3.0 / 0.180), rel=1e-6)
    assert whole.sum() < reward(race | {"race_time": 160}, SHIPPED, 0).rewards.sum()
    nothing = np.empty((3, 0), dtype=np.float32)
    steps = reward.of_actions(nothing, nothing, np.diff(meters)[:3], n_actions_made=3)
    arrival = Arrival(advanced_m=4.0, duration_ms=30, race_m=7.0, race_time_ms=race_time_ms)
    np.testing.assert_allclose([*steps, reward.of_arrival(arrival)], whole, rtol=1e-6)
    assert reward({"rewards": [1.0, 2.0]}, SHIPPED, 0).rewards.tolist() == [1.0, 2.0], "an environment's own are kept"
