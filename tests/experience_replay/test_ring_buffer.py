"""The ring of rows against a dictionary that never forgets; states of sides, elapsed times, and where rows are kept."""

import io
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs.conftest import IMAGE_SIZE_PX, N_FLOATS, rows
from trackmania_rl.experience_replay.memory import pick_replay_device
from trackmania_rl.experience_replay.mini_races import MiniRaceRules
from trackmania_rl.experience_replay.ring_buffer import RingBuffer, RowColumns
from trackmania_rl.experience_replay.transitions import TransitionStorage

GPU, CPU = torch.device("cuda"), torch.device("cpu")
GROWING = ((0, 500), (7_000, 1_100), (9_000, 900))
ROW_BYTES = RingBuffer.bytes_per_row(5, (7, 9))


def assert_holds_the_newest(ring, n_written, n_held):
    assert (ring.first_row, ring.end_row, len(ring)) == (n_written - n_held, n_written, n_held)
    positions = torch.arange(ring.first_row, ring.end_row) % ring.n_positions
    expected = rows(ring.first_row, n_held).by_name()
    for name, column in ring.columns.by_name().items():
        assert torch.equal(column[positions], expected[name]), name


@pytest.mark.parametrize("on_disk", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 9),
    operations=st.lists(st.tuples(st.sampled_from(["append", "resize", "restore"]), st.integers(1, 12)), max_size=8),
)
def test_the_ring_holds_the_newest_rows_whatever_happens(tmp_path_factory, on_disk, capacity, operations):
    ring = RingBuffer(capacity, N_FLOATS, IMAGE_SIZE_PX)
    if on_disk:
        ring.folder = tmp_path_factory.mktemp("replay")
        ring.resize(capacity)
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


def test_a_state_of_other_rows_is_refused():
    ring = RingBuffer(4, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 6))
    for n_floats, changes in ((N_FLOATS, {"first_row": 3}), (N_FLOATS + 1, {})):
        with pytest.raises(ValueError, match="was the observation changed"):
            RingBuffer(4, n_floats, IMAGE_SIZE_PX).load_state_dict(ring.state_dict() | changes)


def append_rows(ring, n):
    return ring.append(RowColumns.empty(n, 1, (0, 0), ring.device))


def test_the_state_of_a_storage_comes_back():
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


@pytest.mark.parametrize(("schedule", "most_rows"), [(GROWING, 1_100 + 900), (GROWING[:1], 500)])
@pytest.mark.parametrize(("share", "device"), [(0.71, CPU), (0.69, GPU)])
def test_it_leaves_a_gpu_that_old_and_new_columns_would_fill(monkeypatch, caplog, schedule, most_rows, share, device):
    free_bytes = int(most_rows * ROW_BYTES / share)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 10 * free_bytes))
    assert pick_replay_device(GPU, schedule, 5, (7, 9)) == device
    assert ("kept in host memory" in caplog.text) == (device == CPU)


@pytest.mark.parametrize(("duration", "long"), [(7, 0), (7, 3), (9, 6), (9, 9), (20, 13)])
def test_elapsed_times_are_drawn_as_documented(duration, long):
    rules, maximum = MiniRaceRules(1.0, duration, long), 5
    draws = rules.draw_elapsed_actions(90_000, torch.Generator().manual_seed(3))
    integers = range(maximum - long, maximum + duration)
    expected = Counter(max(0, abs(i) - maximum) for i in integers)
    frequencies = Counter(draws.tolist())
    assert frequencies.keys() == expected.keys() <= set(range(duration))
    for elapsed, count in expected.items():
        assert frequencies[elapsed] / len(draws) == pytest.approx(count / len(integers), abs=0.01)
