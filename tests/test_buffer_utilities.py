"""Batches of mini-races against a loop over single transitions; settings, resumption, the torchrl interface."""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data.replay_buffers import ReplayBuffer
from torchrl.envs.transforms import Transform

from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.experience_replay.mini_races import buffer_collate_function
from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES, RowColumns

from .test_buffer_management import IMAGE_SIZE_PX, N_FLOATS, SHIPPED, make, random_race
from .test_buffer_management import replay_settings as settings_of_replay


def replay_settings(**changes):
    return settings_of_replay(
        **{
            "batch_size": 50,
            "memory_size_schedule": ((0, 37),),
            "temporal_mini_race_duration_actions": 6,
            "oversample_long_term_steps": 3,
        }
        | changes
    )


def add_race(buffer, buffer_test, n_states, is_finished, seed, n_steps_max=3):
    """Add a race of random rows, each transition spanning a random number of the steps it may."""
    rng = np.random.default_rng(seed)
    last = n_states - 1
    race = RowColumns.empty(n_states, N_FLOATS, tuple(buffer.ring.columns.frames.shape[2:]), torch.device("cpu"))
    race.frames.copy_(torch.from_numpy(rng.integers(0, 256, race.frames.shape)))
    race.state_floats.copy_(torch.from_numpy(rng.normal(size=race.state_floats.shape)))
    race.actions.copy_(torch.from_numpy(rng.integers(0, 12, n_states)))
    for column in (race.rewards, race.potentials):
        column.copy_(torch.from_numpy(rng.normal(size=n_states)))
    possible = [min(n_steps_max, last - t) for t in range(n_states)]
    race.n_steps.copy_(torch.tensor([rng.integers(1, n + 1) if n else 0 for n in possible]))
    race.steps_to_finish.copy_(torch.tensor([last - t if is_finished else NEVER_FINISHES for t in range(n_states)]))
    index = torch.tensor(list(buffer.ring.append(race))[:last])
    is_test = torch.from_numpy(rng.random(last) < 0.3)
    buffer.append_index(index[~is_test])
    buffer_test.append_index(index[is_test])
    return race


def naive_mini_race(race, t, elapsed, rules):
    """Return one transition as seen in a mini-race of which `elapsed` actions are over."""
    n_states = len(race)
    is_finished = int(race.steps_to_finish[t]) != NEVER_FINISHES
    reward, discount, is_over, n = 0.0, 1.0, False, 0
    while n < int(race.n_steps[t]) and not is_over:
        reward += discount * float(race.rewards[t + n])
        discount *= rules.gamma
        n += 1
        is_over = elapsed + n == rules.duration_actions or (is_finished and t + n == n_states - 1)
    next_t = t + n
    next_float = race.state_floats[next_t].clone()
    next_float[0] = elapsed + n
    state_float = race.state_floats[t].clone()
    state_float[0] = elapsed
    next_potential = 0.0 if is_over else float(race.potentials[next_t])
    return {
        "state_img": race.frames[t],
        "state_float": state_float,
        "action": race.actions[t].long(),
        "reward": torch.tensor(reward + discount * next_potential - float(race.potentials[t])),
        "next_state_img": race.frames[next_t],
        "next_state_float": next_float,
        "gamma_n": torch.tensor(0.0 if is_over else discount),
        "weight": torch.tensor(1.0),
    }


@settings(max_examples=60)
@given(
    races=st.lists(st.tuples(st.integers(2, 12), st.booleans(), st.integers(0, 10_000)), min_size=1, max_size=6),
    gamma=st.sampled_from([1.0, 0.9]),
    duration=st.integers(3, 8),
    memory_size=st.integers(3, 37),
    has_image=st.booleans(),
)
def test_batches_equal_transitions_one_by_one(races, gamma, duration, memory_size, has_image):
    replay = replay_settings(
        batch_size=20, memory_size_schedule=((0, memory_size),), temporal_mini_race_duration_actions=duration
    )
    image_size_px = IMAGE_SIZE_PX if has_image else (0, 0)
    sides = make(replay, gamma=0.123, image_size_px=image_size_px)
    for column in sides[0].ring.columns.by_name().values():  # what was never written must not matter
        column.fill_(math.nan if column.is_floating_point() else 99)
    row_of = {}
    for race in races:
        first_row = sides[0].ring.end_row
        rows = add_race(*sides, *race)
        row_of |= {first_row + t: (rows, t) for t in range(len(rows))}
    sides[0].rules.gamma = gamma  # the discount of the moment counts, for both sides

    for side in sides:
        if len(side) == 0:
            continue
        batch = side.sample()
        assert batch.batch_size == (replay.batch_size,)
        assert set(batch["index"].tolist()) <= set(side.storage.index.tolist())
        for i, row in enumerate(batch["index"].tolist()):
            elapsed = int(batch["state_float"][i, 0])
            assert 0 <= elapsed < duration
            expected = naive_mini_race(*row_of[row], elapsed, side.rules)
            for name, value in expected.items():
                if name.startswith("next_state") and expected["gamma_n"] == 0:
                    assert batch[name][i].isfinite().all(), "without meaning, but zero times it must be zero"
                    continue
                actual = batch[name][i]
                assert actual.dtype == value.dtype, name
                torch.testing.assert_close(actual, value, msg=lambda text, name=name: f"{name}: {text}")


def test_both_sides_are_torchrl_buffers_over_the_same_rows():
    buffer, buffer_test = make(replay_settings())
    with pytest.raises(RuntimeError, match="fill it with a race"):
        buffer.sample()
    with pytest.raises(IndexError):
        buffer[0]
    add_race(buffer, buffer_test, 20, True, seed=1)
    assert isinstance(buffer, ReplayBuffer)
    assert isinstance(buffer_test, ReplayBuffer)
    assert buffer.ring is buffer_test.ring
    assert len(buffer) + len(buffer_test) == 19
    assert not set(buffer.storage.index.tolist()) & set(buffer_test.storage.index.tolist())
    assert buffer.write_count == len(buffer)
    assert len(buffer[torch.tensor([0, 2])]) == 2
    assert buffer[-1].terminal_actions == 19 - buffer.storage.index[-1]


def test_a_batch_is_memory_of_its_own():
    buffer, buffer_test = make(replay_settings())
    add_race(buffer, buffer_test, 12, True, seed=1)
    before = {name: column.clone() for name, column in buffer.ring.columns.by_name().items()}
    batch = buffer.sample()
    for name in ("state_img", "next_state_img", "state_float", "next_state_float", "action", "reward"):
        batch[name].fill_(1)
    for name, column in buffer.ring.columns.by_name().items():
        assert torch.equal(column[:12], before[name][:12]), name


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_restored_memory_goes_on_with_the_same_batches(alpha):
    replay = replay_settings(prio_alpha=alpha)
    buffer, buffer_test = make(replay)
    for seed in range(4):
        add_race(buffer, buffer_test, 14, seed % 2 == 0, seed)
    buffer.ring.resize(41)
    add_race(buffer, buffer_test, 9, True, seed=9)
    buffer.update_priority(buffer.sample()["index"], torch.linspace(0, 3, replay.batch_size))
    file = io.BytesIO()
    torch.save(buffer.state_dict() | {"test": buffer_test.side_state_dict()}, file)
    file.seek(0)

    restored = make(replay, seed=77)
    add_race(*restored, 5, True, seed=8)
    state = torch.load(file, weights_only=True)
    restored[0].load_state_dict(state)
    restored[1].load_side_state_dict(state["test"])
    assert restored[0].ring.capacity == 41
    for going_on in (False, True):
        for side, other in zip((buffer, buffer_test), restored, strict=True):
            assert len(side) == len(other)
            assert side.write_count == other.write_count
            expected, actual = side.sample(), other.sample()
            for name in ("state_img", "state_float", "reward", "next_state_float", "gamma_n", "index", "weight"):
                assert torch.equal(actual[name], expected[name]), name
        if not going_on:
            for pair in ((buffer, buffer_test), restored):
                add_race(*pair, 25, False, seed=10)


def test_edited_settings_keep_the_content():
    buffer, buffer_test = make(replay_settings(), gamma=0.8)
    add_race(buffer, buffer_test, 20, True, seed=1)
    rules, n_train = buffer.rules, len(buffer)
    edited = replay_settings(batch_size=7, temporal_mini_race_duration_actions=4, prio_alpha=0.5)
    MiniRaceMemory(buffer, buffer_test, SHIPPED).apply_settings(SHIPPED.model_copy(update={"replay": edited}), 0)
    assert buffer_test.rules is buffer.rules is rules
    assert (rules.gamma, rules.duration_actions) == (SHIPPED.agent.gamma_schedule[0][1], 4)
    assert (buffer.sampler.alpha, buffer_test.sampler.alpha) == (0.5, 0.0)
    assert len(buffer) == n_train
    batch = buffer.sample()
    assert batch.batch_size == (7,) == buffer_test.sample().batch_size
    assert batch["state_float"][:, 0].max() < 4


def test_no_batch_is_gathered_while_a_race_is_written():
    buffer, buffer_test = make(replay_settings())
    add_race(buffer, buffer_test, 20, True, seed=0)
    with ThreadPoolExecutor(1) as thread:
        with buffer.ring.lock:
            batch = thread.submit(buffer.sample)
            with pytest.raises(TimeoutError):
                batch.result(timeout=0.05)
        assert len(batch.result(timeout=10)) == 50


def test_a_memory_of_longer_transitions_gives_shorter_ones():
    buffer, buffer_test = make(replay_settings(n_steps=3, buffer_test_ratio=0.0))
    add_race(buffer, buffer_test, 20, True, seed=1)
    shorter = make(replay_settings(n_steps=1, buffer_test_ratio=0.0))
    shorter[0].load_state_dict(buffer.state_dict())
    ring, rules = shorter[0].ring, shorter[0].rules
    index, elapsed = torch.arange(19), torch.zeros(19, dtype=torch.int64)
    batch = buffer_collate_function(shorter[0].storage.get(index), rules=rules, elapsed=elapsed)
    expected = ring.columns.rewards[:19] - ring.columns.potentials[:19]
    expected[:18] += rules.gamma * ring.columns.potentials[1:19]
    torch.testing.assert_close(batch["reward"], expected)
    assert shorter[0][3].n_steps == 1


def assert_same_sides(side, other):
    assert len(side) == len(other)
    for i in range(len(side)):
        for name, value in vars(side[i]).items():
            np.testing.assert_allclose(getattr(other[i], name), value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_race_can_be_written_as_its_rows_or_as_a_tensordict():
    buffer, buffer_test = make(replay_settings(memory_size_schedule=((0, 30),)))
    race = add_race(buffer, buffer_test, 12, True, seed=1)
    as_rows, _ = make(replay_settings(memory_size_schedule=((0, 30),)))
    as_tensordict, _ = make(replay_settings(memory_size_schedule=((0, 30),)))
    index = as_rows.extend(race)
    assert torch.equal(as_tensordict.extend(TensorDict(race.by_name(), batch_size=[12])), index)
    assert index.tolist() == list(range(11)), "from a race's last state no transition starts"
    assert_same_sides(as_rows, as_tensordict)
    as_rows.extend(race)
    assert as_rows.extend(race).tolist() == list(range(24, 35))
    assert as_rows.storage.index.tolist() == [*range(6, 11), *range(12, 23), *range(24, 35)]


def test_transforms_act_on_batches_and_on_nothing_that_is_written():
    transformed, plain = make(replay_settings()), make(replay_settings())
    transformed[0].append_transform(DoubleRewards())
    transformed[0].append_transform(lambda batch: batch.set("bonus", batch["weight"] + 1))
    for sides in (transformed, plain):
        sides[0].extend(add_race(*sides, 10, True, seed=1))
    assert_same_sides(transformed[0], plain[0])
    batch, info = transformed[0].sample(return_info=True)
    torch.testing.assert_close(batch["reward"], 2 * plain[0].sample()["reward"])
    assert (batch["bonus"] == 2).all()
    assert torch.equal(info["index"], batch["index"])


class DoubleRewards(Transform):
    def _call(self, batch):
        batch["reward"] = 2 * batch["reward"]
        return batch

    forward = _call


def test_demonstrations_have_a_share_of_each_batch_and_are_never_overwritten():
    def memory_of(share):
        replay = replay_settings(demonstrations_share=share, prio_alpha=0.5)
        return MiniRaceMemory(*make(replay), SHIPPED.model_copy(update={"replay": replay}))

    def add(memory, seed, is_demonstration):
        race = random_race(20, None, seed)
        race.facts = race.facts.with_changes(is_demonstration=is_demonstration)
        return memory.extend(race, memory._settings, 0)

    memory = memory_of(0.1)
    add(memory, 0, False)
    assert not memory.sample(50)["is_demonstration"].any()
    assert memory.blank_batch().keys() == memory.sample(50).keys()
    assert [add(memory, seed, True) for seed in (1, 2)] == [20, 20]
    for seed in range(3, 9):  # the ring of 37 rows is full three times over
        add(memory, seed, False)
        batch = memory.sample(50)
        assert batch["is_demonstration"].tolist() == [False] * 45 + [True] * 5
        memory.update_priority(batch.set("td_error", torch.where(batch["is_demonstration"], 1e6, 0.5)))
        assert memory.priorities.max() <= 1, "demonstrations have no priority"
    wanted = np.concatenate([random_race(20, None, seed).columns["state_float"][:20, 1] for seed in (1, 2)])
    seen = torch.cat([batch["state_float"][batch["is_demonstration"], 1] for batch in map(memory.sample, [50] * 80)])
    assert set(seen.tolist()) == set(wanted.tolist())
    content = io.BytesIO()
    torch.save({**memory.state_dict(), "ring": memory.buffer.ring.state_dict()}, content)
    other = memory_of(0.1)
    content.seek(0)
    other.load_state_dict(torch.load(content, weights_only=True))
    for ours, theirs in zip(memory.sample(50).values(), other.sample(50).values(), strict=True):
        assert torch.equal(ours, theirs)
    mixed = memory_of(0.0)
    add(mixed, 1, True)
    assert len(mixed) == 21
    assert mixed.sample(50).get("is_demonstration", None) is None
