"""One side's list of transitions against a plain Python list."""

import pytest
import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import TransitionStorage


def append_rows(ring, n):
    return ring.append(RowColumns.empty(n, 1, (0, 0), ring.device))


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
