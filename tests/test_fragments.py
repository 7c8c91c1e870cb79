"""Races in fragments: what is stored of them is what is stored of whole races, see `test_buffer_management`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.experience_replay.experience import Experience
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import Games
from trackmania_rl.race.fragments import Fragment, RaceInFragments
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import ReplaySettings

from .games.conftest import entry_of, make_settings, maps_folder  # noqa: F401  # fixtures
from .test_buffer_management import (
    assert_same,
    fill,
    make,
    naive_experiences,
    random_rollout,
    replay_settings,
    rewarded_race,
)

Parts = list[tuple[dict[str, Any], Fragment]]


def part_of(rollout: dict[str, Any], states: range) -> dict[str, Any]:
    """What the games bring of a race under way."""
    return {
        name: value[states.start : states.stop - (name in ("actions", "action_was_greedy"))]
        for name, value in rollout.items()
        if name != "race_time"
    }


def in_parts(rollout: dict[str, Any], race: RaceInFragments, cuts: Sequence[int], *, finish_shows_late: bool) -> Parts:
    """Cut a race where the game waits after these numbers of decisions; perhaps once more at the very finish."""
    n_actions, parts = len(rollout["actions"]), []
    for n_decided in range(1, n_actions + finish_shows_late):
        race.n_decided = n_decided
        if n_decided in cuts and race.n_to_hand_on > 0:
            states, fragment = race.cut()
            parts.append((part_of(rollout, states), fragment))
    return [*parts, (rollout, race.end(n_actions))]


def store(settings: ReplaySettings, parts: Parts, soft_horizon_actions: int | None = None) -> list[Experience]:
    """What a memory holds of parts of races, in their order."""
    buffer, buffer_test = make(settings)
    for rollout, fragment in parts:
        fill_buffer_from_rollout_with_n_steps_rule(
            buffer,
            buffer_test,
            rollout,
            rewarded_race(rollout),
            settings,
            fragment=fragment,
            soft_horizon_actions=soft_horizon_actions,
        )
    stored = [
        (row, side[place]) for side in (buffer, buffer_test) for place, row in enumerate(side.storage.index.tolist())
    ]
    return [experience for _, experience in sorted(stored, key=lambda entry: entry[0])]


def without_what_came_later(experience: Experience) -> Experience:
    """That a race will be finished is not known while it goes on, and matters to its last transitions only."""
    reaches_finish = experience.terminal_actions == experience.n_steps
    return Experience(**vars(experience) | {"terminal_actions": experience.n_steps if reaches_finish else -1})


@given(
    n_actions=st.integers(1, 40),
    finish_after_ms=st.none() | st.integers(1, 50),
    seed=st.integers(0, 10_000),
    n_steps=st.integers(1, 5),
    discard=st.booleans(),
    cuts=st.sets(st.integers(1, 40)),
    finish_shows_late=st.booleans(),
)
def test_the_transitions_are_those_of_the_whole_race(
    n_actions: int,
    finish_after_ms: int | None,
    seed: int,
    n_steps: int,
    discard: bool,
    cuts: set[int],
    finish_shows_late: bool,
) -> None:
    settings = replay_settings(
        n_steps=n_steps, discard_non_greedy_actions_in_nsteps=discard, memory_size_schedule=((0, 500),)
    )
    rollout = random_rollout(n_actions, finish_after_ms, seed)
    parts = in_parts(rollout, RaceInFragments(n_steps), sorted(cuts), finish_shows_late=finish_shows_late)
    n_new = [len(part["actions"]) - fragment.n_actions_before for part, fragment in parts]
    assert sum(n_new) == n_actions
    assert min(n_new) > 0
    expected = naive_experiences(rollout, settings)
    stored = store(settings, parts)
    assert len(stored) == len(expected)
    for ours, theirs in zip(stored, expected, strict=True):
        assert_same(without_what_came_later(ours), without_what_came_later(theirs))


def test_what_a_fragment_brings_is_there_before_the_race_ends() -> None:
    settings = replay_settings(n_steps=3)
    rollout = random_rollout(20, 30, seed=0)
    parts = in_parts(rollout, RaceInFragments(3), [11], finish_shows_late=False)
    under_way = store(settings, parts[:1])
    assert len(under_way) == 10 - 3 + 1, "state 10 is the last one that is certainly not the finish"
    assert {experience.terminal_actions for experience in under_way} == {NEVER_FINISHES}


def test_a_race_that_was_lost_with_its_game_begins_again() -> None:
    settings, race = replay_settings(n_steps=3, memory_size_schedule=((0, 500),)), RaceInFragments(3)
    lost, driven = random_rollout(20, None, seed=0), random_rollout(15, 30, seed=1)
    parts = in_parts(lost, race, [8, 12], finish_shows_late=False)[:-1]
    race.begin_again()
    of_driven = in_parts(driven, race, [5], finish_shows_late=False)
    stored = store(settings, parts + of_driven)
    expected = naive_experiences(lost, settings)[: 11 - 3 + 1] + naive_experiences(driven, settings)
    for ours, theirs in zip(stored, expected, strict=True):
        assert_same(without_what_came_later(ours), without_what_came_later(theirs))


def test_a_soft_horizon_is_seen_by_no_transition_across_it() -> None:
    settings = replay_settings(n_steps=4, discard_non_greedy_actions_in_nsteps=False, memory_size_schedule=((0, 500),))
    rollout = random_rollout(17, 30, seed=0)
    whole = [(rollout, Fragment.whole(17))]
    in_fragments = in_parts(rollout, RaceInFragments(4), [4, 9, 12], finish_shows_late=False)
    for parts in (whole, in_fragments):
        stored = store(settings, parts, soft_horizon_actions=6)
        assert [experience.n_steps for experience in stored] == [4, 4, 4, 3, 2, 1] * 2 + [4, 4, 3, 2, 1]
    last = store(settings, whole, soft_horizon_actions=17)[-1]
    assert last.terminal_actions == 1, "the finish stays one"


def test_with_no_done_at_end_the_finish_is_bootstrapped() -> None:
    rollout = random_rollout(9, 30, seed=0)
    for no_done_at_end in (False, True):
        settings = replay_settings(no_done_at_end=no_done_at_end)
        buffer, buffer_test = make(settings)
        fill(buffer, buffer_test, rollout, settings)
        terminal = [side[place].terminal_actions for side in (buffer, buffer_test) for place in range(len(side))]
        assert (min(terminal) == NEVER_FINISHES) == no_done_at_end


def drive(games: Games, actions: np.ndarray, cut_every: int | None, n_earlier_rows: int) -> Parts:
    """Play a planned race in the first game, cut every so many actions; arrays as they were when they came."""
    race, parts = RaceInFragments(3, n_earlier_rows), []
    while True:
        received = games.recv()
        if 0 in received.ended:
            ended = received.ended[0].rollout_results
            return [*parts, (copied(ended), race.end(len(ended["actions"])))]
        if cut_every is not None and race.n_to_hand_on >= cut_every:
            states, fragment = race.cut()
            parts.append((copied(games.under_way(0, states)), fragment))
        action = actions[race.n_decided]
        race.n_decided += 1
        q_values = np.full((1, 12), race.n_decided, dtype=np.float32)
        games.send(received.ids, BatchDecision(np.array([action]), np.array([race.n_decided % 3 > 0]), q_values))


def copied(rollout: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in rollout.items()}


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_a_simulated_race_are_cut_out_of_the_whole(
    seed: int,
    maps_folder: Path,  # noqa: F811
    make_settings: Callable[..., Any],  # noqa: F811
    entry_of: Callable[[str], Any],  # noqa: F811
) -> None:
    settings = make_settings(True, "frames_per_state=3")
    games = InProcessGames(1, settings.game, settings.observation, maps_folder)
    actions = np.append(np.random.default_rng(seed).choice([0, 0, 0, 0, 1, 2, 3, 4, 5], 200), np.zeros(500, int))
    games.begin(0, entry_of("straight"))
    [(whole, _)] = drive(games, actions, None, 2)
    games.begin(0, entry_of("straight"))
    *parts, (last, _) = drive(games, actions, 7, 2)
    assert len(parts) > 5
    assert "race_time" in whole
    row = 0
    for part, fragment in parts:
        assert not fragment.is_last
        assert fragment.race_row >= row
        row = fragment.race_row
        for name in whole.keys() - {"race_time", "furthest_zone_idx"}:
            np.testing.assert_array_equal(part[name], whole[name][row : row + len(part[name])], err_msg=name)
    for name in whole:
        np.testing.assert_array_equal(last[name], whole[name], err_msg=name)
