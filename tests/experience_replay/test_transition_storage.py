"""One side's list of transitions against a plain Python list."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trackmania_rl.experience_replay.row_ring import RowColumns, RowRing
from trackmania_rl.experience_replay.transition_storage import TransitionStorage, TransitionWriter


def append_rows(ring: RowRing, n: int) -> range:
    return ring.append(RowColumns.empty(n, 1, (0, 0), ring.device))


def storage_with_writer(ring: RowRing) -> tuple[TransitionStorage, TransitionWriter]:
    storage, writer = TransitionStorage(ring), TransitionWriter()
    writer.register_storage(storage)
    return storage, writer


@given(capacity=st.integers(1, 12), races=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**9 - 1)), max_size=20))
def test_the_list_holds_every_transition_whose_row_is_there(capacity, races):
    ring = RowRing(capacity, 1)
    storage, writer = storage_with_writer(ring)
    ever_added: list[int] = []
    for n_rows, chosen_bits in races:
        chosen = [row for i, row in enumerate(append_rows(ring, n_rows)) if chosen_bits >> i & 1]
        places = writer.extend(chosen)
        ever_added += chosen
        expected = [row for row in ever_added if row >= ring.first_row]
        assert storage.row_ids.tolist() == expected
        assert len(storage) == len(storage.priorities) == len(expected)
        n_added = sum(row >= ring.first_row for row in chosen)
        assert places.tolist() == list(range(len(expected) - n_added, len(expected)))


def test_overwritten_rows_are_gone_without_a_word_from_anybody():
    ring = RowRing(4, 1)
    storage, writer = storage_with_writer(ring)
    append_rows(ring, 4)
    writer.extend([0, 1, 3])
    append_rows(ring, 2)
    assert storage.row_ids.tolist() == [3]
    ring.resize(1)
    assert len(storage) == 0


def test_growing_keeps_transitions_and_priorities():
    ring = RowRing(3, 1)
    storage, writer = storage_with_writer(ring)
    append_rows(ring, 3)
    writer.extend([0, 2])
    storage.priorities[:] = torch.tensor([0.5, 4.0])
    storage.new_priority.fill_(4.0)
    ring.resize(10)
    append_rows(ring, 7)
    writer.extend(range(3, 10))
    assert storage.row_ids.tolist() == [0, 2, *range(3, 10)]
    assert storage.priorities.tolist() == [0.5, *[4.0] * 8]
    assert storage.max_size == 10


def test_one_transition_can_be_added():
    ring = RowRing(3, 1)
    storage, writer = storage_with_writer(ring)
    append_rows(ring, 2)
    assert (writer.add(0), writer.add(1)) == (0, 1)
    assert storage.get(1) == 1
    assert writer.state_dict() == {"write_count": 2}


def test_content_is_added_only_at_the_end():
    with pytest.raises(TypeError, match="extend"):
        TransitionStorage(RowRing(3, 1))[0] = 1


def test_state_comes_back():
    ring = RowRing(5, 1)
    storage, writer = storage_with_writer(ring)
    append_rows(ring, 7)
    writer.extend([3, 4, 6])
    storage.priorities[1] = 9.0
    storage.new_priority.fill_(9.0)
    other, _ = storage_with_writer(ring)
    other.append(torch.tensor([5]))
    other.load_state_dict(storage.state_dict())
    assert other.row_ids.tolist() == [3, 4, 6]
    assert other.priorities.tolist() == [1.0, 9.0, 1.0]
    assert other.new_priority == 9.0


@pytest.mark.parametrize("row_ids", [[1, 3], [3, 7], [4, 3]])
def test_transitions_outside_the_ring_are_refused(row_ids):
    ring = RowRing(5, 1)
    append_rows(ring, 7)
    storage = TransitionStorage(ring)
    state = storage.state_dict() | {"row_ids": torch.tensor(row_ids), "priorities": torch.ones(2)}
    with pytest.raises(ValueError, match="outside 2 to 6"):
        storage.load_state_dict(state)


def test_priorities_that_do_not_belong_to_the_transitions_are_refused():
    ring = RowRing(5, 1)
    append_rows(ring, 2)
    storage = TransitionStorage(ring)
    with pytest.raises(ValueError, match="1 stored transitions with 2 priorities"):
        storage.load_state_dict(storage.state_dict() | {"row_ids": torch.tensor([0]), "priorities": torch.ones(2)})
