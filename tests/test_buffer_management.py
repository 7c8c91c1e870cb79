"""Filling the buffers from whole races and from fragments, against a loop over single transitions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.experience_replay.memory import draw_test_side
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES
from trackmania_rl.experience_replay.transitions import Experience
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.settings import load_settings
from trackmania_rl.training.collector import FragmentCutter

MS_PER_ACTION = 50
GAMMA = 0.9
N_FLOATS = 4
IMAGE_SIZE_PX = (3, 2)
SHIPPED = load_settings(Path(__file__).parent.parent / "config_files" / "config.py")


def replay_settings(**changes):
    values = {
        "batch_size": 4,
        "memory_size_schedule": ((0, 500),),
        "memory_size_start_learn_schedule": ((0, 1),),
        "buffer_test_ratio": 0.3,
        "n_steps": 3,
        "discard_non_greedy_actions_in_nsteps": True,
        "no_done_at_end": False,
        "temporal_mini_race_duration_actions": 7,
        "oversample_long_term_steps": 0,
        "prio_alpha": 0.0,
    }
    return SHIPPED.replay.model_copy(update=values | changes)


def random_race(n_actions, finish_after_ms, seed, greedy_share=0.7):
    """A rewarded race with the columns that replay reads, read-only as in shared memory."""
    n_states = n_actions + 1
    rng = np.random.default_rng(seed)
    columns = {
        "frames": rng.integers(0, 256, (n_states, 1, *IMAGE_SIZE_PX), dtype=np.uint8),
        "state_float": rng.normal(0, 2, (n_states, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, 12, n_actions),
        "action_was_greedy": rng.random(n_actions) < greedy_share,
    }
    for column in columns.values():
        column.flags.writeable = False
    is_finished = finish_after_ms is not None
    facts = RaceFacts(
        map_name="a",
        is_explo=True,
        fill_buffer=True,
        n_actions=n_actions,
        race_finished=is_finished,
        terminated=is_finished,
        race_time_ms=(n_actions - 1) * MS_PER_ACTION + (finish_after_ms or 0),
    )
    return Race(columns, facts, rng.normal(1, 1, n_actions).astype(np.float32), columns["state_float"][:, 1].copy())


def fill(buffer, buffer_test, race, replay, horizon=None):
    game = SHIPPED.game.model_copy(update={"horizon": horizon, "soft_horizon": True})
    settings = SHIPPED.model_copy(update={"replay": replay, "game": game})
    return fill_buffer_from_rollout_with_n_steps_rule(buffer, buffer_test, race, settings)


def make(replay, *, gamma=GAMMA, seed=0, image_size_px=IMAGE_SIZE_PX):
    generator = torch.Generator().manual_seed(seed)
    return make_buffers(
        replay, n_floats=N_FLOATS, image_size_px=image_size_px, device="cpu", generator=generator, gamma=gamma
    )


def naive_experiences(race, replay):
    """One transition after the other."""
    columns = race.columns
    states = columns["state_float"]
    n_actions = race.n_actions
    is_finished = race.facts.race_finished
    rewards, potentials = race.rewards, race.potentials
    experiences = []
    for i in range(n_actions):
        n_steps = 0
        while n_steps < replay.n_steps and i + n_steps < n_actions:
            explores = not columns["action_was_greedy"][i + n_steps]
            if n_steps > 0 and explores and replay.discard_non_greedy_actions_in_nsteps:
                break
            n_steps += 1
        next_state = i + n_steps
        reaches_finish = is_finished and next_state == n_actions
        sums, total = [], 0.0
        for k in range(replay.n_steps):
            if k < n_steps:
                total += GAMMA**k * rewards[i + k]
            sums.append(total)
        experiences.append(
            Experience(
                state_img=columns["frames"][i],
                state_float=states[i],
                state_potential=potentials[i],
                action=columns["actions"][i],
                n_steps=n_steps,
                rewards=np.array(sums),
                gammas=np.array([GAMMA ** (k + 1) for k in range(replay.n_steps)]),
                next_state_img=columns["frames"][next_state],
                next_state_float=states[next_state],
                next_state_potential=0.0 if reaches_finish else potentials[next_state],
                terminal_actions=n_actions - i if is_finished else 2**31 - 1,
            )
        )
    return experiences


def assert_same(actual, expected):
    for name, value in vars(expected).items():
        np.testing.assert_allclose(getattr(actual, name), value, rtol=1e-5, atol=1e-6, err_msg=name)


@settings(max_examples=60)
@given(
    races=st.lists(
        st.tuples(st.integers(1, 13), st.none() | st.integers(1, 50), st.integers(0, 10_000)), min_size=1, max_size=7
    ),
    n_steps=st.integers(1, 4),
    discard=st.booleans(),
    memory_size=st.integers(1, 40),
    new_memory_size=st.integers(1, 40),
)
def test_the_buffers_hold_the_newest_transitions(races, n_steps, discard, memory_size, new_memory_size):
    replay = replay_settings(
        n_steps=n_steps,
        discard_non_greedy_actions_in_nsteps=discard,
        memory_size_schedule=((0, memory_size),),
    )
    buffer, buffer_test = make(replay)
    ever = {}  # by row
    n_rows = 0
    for i, (n_actions, *others) in enumerate(races):
        race = random_race(n_actions, *others)
        if i == len(races) // 2:
            buffer.ring.resize(new_memory_size)
        n_added = fill(buffer, buffer_test, race, replay)
        ever |= {n_rows + t: experience for t, experience in enumerate(naive_experiences(race, replay))}
        assert n_added == sum(row >= buffer.ring.first_row for row in range(n_rows, n_rows + n_actions))
        n_rows += n_actions + 1
        assert buffer.ring.end_row == n_rows

    train, test = buffer.storage.index.tolist(), buffer_test.storage.index.tolist()
    assert sorted(train + test) == [row for row in ever if row >= buffer.ring.first_row]
    for side, index in ((buffer, train), (buffer_test, test)):
        assert len(side) == len(index)
        for place, row in enumerate(index):
            assert_same(side[place], ever[row])


def test_a_finish_ends_a_race_unless_no_done_at_end():
    race = random_race(9, 30, seed=0)
    for no_done_at_end, least in ((False, 1), (True, NEVER_FINISHES)):
        replay = replay_settings(no_done_at_end=no_done_at_end, buffer_test_ratio=0.0)
        buffer, buffer_test = make(replay)
        fill(buffer, buffer_test, race, replay)
        assert min(buffer[place].terminal_actions for place in range(len(buffer))) == least


def test_test_sides_come_in_blocks_of_the_right_share_by_the_seed():
    side, again, other = (draw_test_side(200_003, 0.05, 10, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert len(side) == 200_003
    assert side.mean() == pytest.approx(0.05, abs=0.01)
    blocks = side[:200_000].reshape(-1, 10)
    assert (blocks == blocks[:, :1]).all()
    assert np.array_equal(side, again)
    assert not np.array_equal(side, other)
    for ratio in (0.0, 1.0):
        assert draw_test_side(50, ratio, 1, torch.Generator()).mean() == ratio


# --- races in fragments


def in_parts(race, cutter, cuts, *, finish_shows_late=False):
    """Cut a race where the game waits after these numbers of decisions; perhaps once more at the very finish."""
    parts = []
    for n_decided in range(1, race.n_actions + finish_shows_late):
        cutter.n_decided = n_decided
        if n_decided in cuts and cutter.n_to_hand_on > 0:
            states, fragment = cutter.cut()
            of_actions = slice(states.start, states.stop - 1)
            columns = {
                name: column[of_actions if len(column) == race.n_actions else slice(states.start, states.stop)]
                for name, column in race.columns.items()
            }
            facts = RaceFacts(map_name="a", is_explo=True, fill_buffer=True, fragment=fragment)
            potentials = race.potentials[states.start : states.stop]
            parts.append(Race(columns, facts, race.rewards[of_actions], potentials))
    whole = race.facts.with_changes(fragment=cutter.end(race.n_actions))
    return [*parts, Race(race.columns, whole, race.rewards, race.potentials)]


def store(replay, parts, horizon=None):
    """Return the contents of a memory after parts of races, in their order."""
    buffer, buffer_test = make(replay)
    for race in parts:
        fill(buffer, buffer_test, race, replay, horizon)
    stored = [
        (row, side[place]) for side in (buffer, buffer_test) for place, row in enumerate(side.storage.index.tolist())
    ]
    return [experience for _, experience in sorted(stored, key=lambda entry: entry[0])]


def without_what_came_later(experience):
    """That a race will be finished is not known while it goes on, and matters to its last transitions only."""
    reaches_finish = experience.terminal_actions == experience.n_steps
    return Experience(**vars(experience) | {"terminal_actions": experience.n_steps if reaches_finish else -1})


@settings(max_examples=60)
@given(
    n_actions=st.integers(1, 40),
    finish_after_ms=st.none() | st.integers(1, 50),
    seed=st.integers(0, 10_000),
    n_steps=st.integers(1, 5),
    discard=st.booleans(),
    cuts=st.sets(st.integers(1, 40)),
    finish_shows_late=st.booleans(),
)
def test_the_transitions_of_fragments_are_those_of_the_whole_race(
    n_actions, finish_after_ms, seed, n_steps, discard, cuts, finish_shows_late
):
    replay = replay_settings(n_steps=n_steps, discard_non_greedy_actions_in_nsteps=discard)
    race = random_race(n_actions, finish_after_ms, seed)
    parts = in_parts(race, FragmentCutter(n_steps), cuts, finish_shows_late=finish_shows_late)
    n_new = [part.n_actions - part.facts.new.n_actions_before for part in parts]
    assert (sum(n_new), min(n_new) > 0) == (n_actions, True)
    expected, stored = naive_experiences(race, replay), store(replay, parts)
    assert len(stored) == len(expected)
    for ours, theirs in zip(stored, expected, strict=True):
        assert_same(without_what_came_later(ours), without_what_came_later(theirs))
    assert all(experience.terminal_actions == NEVER_FINISHES for experience in store(replay, parts[:-1]))


def test_a_race_that_was_lost_with_its_game_begins_again():
    replay, race = replay_settings(n_steps=3), FragmentCutter(3)
    lost, driven = random_race(20, None, seed=0), random_race(15, 30, seed=1)
    parts = in_parts(lost, race, [8, 12])[:-1]
    race.begin_again()
    of_driven = in_parts(driven, race, [5])
    stored = store(replay, parts + of_driven)
    expected = naive_experiences(lost, replay)[: 11 - 3 + 1] + naive_experiences(driven, replay)
    for ours, theirs in zip(stored, expected, strict=True):
        assert_same(without_what_came_later(ours), without_what_came_later(theirs))


def test_a_soft_horizon_is_seen_by_no_transition_across_it():
    replay = replay_settings(n_steps=4, discard_non_greedy_actions_in_nsteps=False)
    race = random_race(17, 30, seed=0)
    in_fragments = in_parts(race, FragmentCutter(4), [4, 9, 12])
    for parts in ([race], in_fragments):
        stored = store(replay, parts, horizon=6)
        assert [experience.n_steps for experience in stored] == [4, 4, 4, 3, 2, 1] * 2 + [4, 4, 3, 2, 1]
    last = store(replay, [race], horizon=17)[-1]
    assert last.terminal_actions == 1, "the finish stays one"
