"""Drawing evenly and by priority: frequencies, importance weights, updates."""

import pytest
import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import ProportionalSampler, TransitionStorage

N_DRAWS = 60_000


def storage_of(index, capacity=20):
    ring = RingBuffer(capacity, 1)
    ring.append(RowColumns.empty(index[-1] + 1, 1, (0, 0), ring.device))
    storage = TransitionStorage(ring, 1)
    storage.append(torch.tensor(index))
    return storage


def sampler_with(alpha, seed=5):
    sampler = ProportionalSampler(alpha)
    sampler._rng = torch.Generator().manual_seed(seed)
    return sampler


def frequencies(drawn, storage):
    """Of each transition, in the storage's order."""
    return (drawn[:, None] == storage.index).float().mean(0)


def test_alpha_0_draws_evenly_and_ignores_priorities():
    storage = storage_of([0, 2, 3, 7])
    storage.priorities[0] = 1e6
    index, info = sampler_with(0.0).sample(storage, N_DRAWS)
    torch.testing.assert_close(frequencies(index, storage), torch.full((4,), 0.25), atol=0.01, rtol=0)
    assert info == {}


def test_draws_in_proportion_to_the_priorities():
    storage = storage_of([0, 2, 3, 7, 8])
    priorities = torch.tensor([1.0, 0.0, 4.0, 0.5, 2.5])
    storage.priorities.copy_(priorities)
    index, info = sampler_with(0.6).sample(storage, N_DRAWS)
    probability = priorities / priorities.sum()
    torch.testing.assert_close(frequencies(index, storage), probability, atol=0.01, rtol=0)
    weight = 1 / (5 * probability[torch.searchsorted(storage.index, index)])
    torch.testing.assert_close(info["weight"], weight / weight.max())
    half = sampler_with(0.6)
    half.beta = 0.5
    torch.testing.assert_close(half.sample(storage, N_DRAWS)[1]["weight"], (weight / weight.max()).sqrt())


def test_the_same_seed_draws_the_same():
    storage = storage_of([0, 2, 3, 7, 8])
    for alpha in (0.0, 1.0):
        first, second, other = (sampler_with(alpha, seed).sample(storage, 50)[0] for seed in (1, 1, 2))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)


def test_priorities_follow_the_errors():
    storage = storage_of([0, 2, 3, 7])
    sampler = sampler_with(0.5)
    sampler.update_priority(torch.tensor([3, 0, 3]), torch.tensor([-9.0, 0.0, 3.0]), storage=storage)
    least, most = 2e-3**0.5, (9 + 2e-3) ** 0.5
    assert storage.priorities.tolist() == pytest.approx([least, 1.0, most, 1.0])  # of two errors, the larger
    storage.append(torch.tensor([9]))
    assert storage.priorities.tolist()[-1] == pytest.approx(most)  # a new transition has the largest priority so far


def test_transitions_that_are_gone_are_passed_over():
    storage = storage_of([0, 2, 3, 7], capacity=8)
    storage.ring.append(RowColumns.empty(3, 1, (0, 0), storage.device))  # overwrites rows 0 to 2
    errors = torch.tensor([5.0, 6.0, 1.5 - 2e-3, 7.0])
    sampler_with(1.0).update_priority(torch.tensor([0, 2, 7, 9]), errors, storage=storage)
    assert storage.index.tolist() == [3, 7]
    assert storage.priorities.tolist() == [1.0, 1.5]
    sampler_with(0.0).update_priority(torch.tensor([3]), torch.tensor([5.0]), storage=storage)
    assert storage.priorities.tolist() == [1.0, 1.5], "switched off"
