"""One side's list of transitions against a plain Python list."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.experience_replay.ring_buffer import RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import TransitionStorage


def append_rows(ring: RingBuffer, n: int) -> range:
    return ring.append(RowColumns.empty(n, 1, (0, 0), ring.device))


@given(capacity=st.integers(1, 12), races=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**9 - 1)), max_size=20))
def test_the_list_holds_every_transition_whose_row_is_there(capacity, races):
    ring = RingBuffer(capacity, 1)
    storage = TransitionStorage(ring, 1)
    ever_added: list[int] = []
    for n_rows, chosen_bits in races:
        chosen = [row for i, row in enumerate(append_rows(ring, n_rows)) if chosen_bits >> i & 1]
        n_added = storage.append(torch.tensor(chosen, dtype=torch.int64))
        ever_added += chosen
        expected = [row for row in ever_added if row >= ring.first_row]
        assert storage.index.tolist() == expected
        assert len(storage) == len(storage.priorities) == len(expected)
        assert n_added == sum(row >= ring.first_row for row in chosen)


def test_growing_keeps_transitions_and_priorities():
    ring = RingBuffer(3, 1)
    storage = TransitionStorage(ring, 1)
    append_rows(ring, 3)
    storage.append(torch.tensor([0, 2]))
    storage.priorities[:] = torch.tensor([0.5, 4.0])
    storage.new_priority.fill_(4.0)
    ring.resize(10)
    append_rows(ring, 7)
    storage.append(torch.arange(3, 10))
    assert storage.index.tolist() == [0, 2, *range(3, 10)]
    assert storage.priorities.tolist() == [0.5, *[4.0] * 8]
    assert storage.max_size == 10


def test_state_comes_back_and_is_refused_where_it_contradicts_itself():
    ring = RingBuffer(5, 1)
    storage = TransitionStorage(ring, 1)
    append_rows(ring, 7)
    storage.append(torch.tensor([3, 4, 6]))
    storage.priorities[1] = 9.0
    storage.new_priority.fill_(9.0)
    other = TransitionStorage(ring, 1)
    other.append(torch.tensor([5]))
    other.load_state_dict(storage.state_dict())
    assert other.index.tolist() == [3, 4, 6]
    assert other.priorities.tolist() == [1.0, 9.0, 1.0]
    assert other.new_priority == 9.0
    for index in ([1, 3], [3, 7], [4, 3]):
        state = storage.state_dict() | {"index": torch.tensor(index), "priorities": torch.ones(2)}
        with pytest.raises(ValueError, match="outside 2 to 6"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="1 stored transitions with 3 priorities"):
        other.load_state_dict(storage.state_dict() | {"index": torch.tensor([3])})
