"""The ring of rows against a dictionary that never forgets."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.conftest import IMAGE_SIZE_PX, N_FLOATS, rows
from trackmania_rl.experience_replay.ring_buffer import RingBuffer


def assert_holds_the_newest(ring, n_written, n_held):
    assert (ring.first_row, ring.end_row, len(ring)) == (n_written - n_held, n_written, n_held)
    positions = torch.arange(ring.first_row, ring.end_row) % ring.capacity
    expected = rows(ring.first_row, n_held).by_name()
    for name, column in ring.columns.by_name().items():
        assert torch.equal(column[positions], expected[name]), name


@given(
    capacity=st.integers(1, 9),
    operations=st.lists(st.tuples(st.sampled_from(["append", "resize", "restore"]), st.integers(1, 12)), max_size=8),
)
def test_the_ring_holds_the_newest_rows_whatever_happens(capacity, operations):
    ring = RingBuffer(capacity, N_FLOATS, IMAGE_SIZE_PX)
    n_written = n_held = 0
    for operation, size in operations:
        if operation == "append":
            assert ring.append(rows(n_written, size)) == range(n_written, n_written + size)
            n_written += size
            n_held = min(n_held + size, ring.capacity)
        elif operation == "resize":
            ring.resize(size)
            n_held = min(n_held, size)
        else:
            state = ring.state_dict()
            ring = RingBuffer(size, N_FLOATS, IMAGE_SIZE_PX)
            ring.append(rows(1000, 1))  # what is there before is given up
            ring.load_state_dict(state)
        assert_holds_the_newest(ring, n_written, n_held)


def test_the_state_holds_only_filled_rows_and_needs_no_pickle():
    ring = RingBuffer(1000, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 6))
    file = io.BytesIO()
    torch.save(ring.state_dict(), file)
    assert file.tell() < 1000 * RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX) / 4
    file.seek(0)
    restored = RingBuffer(1, N_FLOATS, IMAGE_SIZE_PX)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.capacity == 1000
    assert_holds_the_newest(restored, 6, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_row": 3}, "another length|stored frames"),
        ({"first_row": -1}, "damaged"),
        ({"capacity": 1}, "damaged"),
        ({"end_row": 1}, "damaged|stored frames"),
    ],
)
def test_a_damaged_state_is_refused(changes, message):
    ring = RingBuffer(4, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 6))
    with pytest.raises(ValueError, match=message):
        RingBuffer(4, N_FLOATS, IMAGE_SIZE_PX).load_state_dict(ring.state_dict() | changes)
    with pytest.raises(ValueError, match="was the observation changed"):
        RingBuffer(4, N_FLOATS + 1, IMAGE_SIZE_PX).load_state_dict(ring.state_dict())


def test_rows_and_sizes_that_do_not_fit_are_refused_and_nothing_is_written():
    ring = RingBuffer(4, N_FLOATS, (3, 2))
    with pytest.raises(ValueError, match=r"frames of a race is \(2, 1, 2, 3\)"):
        ring.append(rows(0, 2))
    assert len(ring) == 0
    with pytest.raises(ValueError, match="at least 1"):
        ring.resize(0)
    with pytest.raises(ValueError, match="0 rows"):
        RingBuffer(0, N_FLOATS)
    with pytest.raises(ValueError, match="states of 0 floats"):
        RingBuffer(5, 0)
