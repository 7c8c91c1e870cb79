"""The replay memory's rows on disk, against a naive oracle: a ring's own state."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.runs import memory_rows
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import find_manifests, load_checkpoint
from trackmania_rl.runs.store import CheckpointStore

from .conftest import IMAGE_SIZE_PX, N_FLOATS, assert_same, files_of, ring_of, rows, with_rows

ROW_BYTES = RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX)


def new_ring(capacity=20):
    return RingBuffer(capacity, N_FLOATS, IMAGE_SIZE_PX)


def fill(ring, n):
    ring.append(rows(ring.end_row, n))


class Run:
    """A run that saves its ring, is killed, and goes on."""

    def __init__(self, folder, ring):
        folder.mkdir(exist_ok=True)
        self.folder, self.ring, self.number = folder, ring, 0
        self.store = CheckpointStore(folder)

    def save(self, keep=2):
        """Save; return how many rows that wrote."""
        self.number += 1
        before = set(self.segments())
        self.store.save(with_rows({"number": self.number}, self.ring), 0, keep=keep)
        new = set(self.segments()) - before
        first_and_end = (map(int, name.split("-")[:2]) for name in new)
        return sum(end - first for first, end in first_and_end)

    def load(self):
        loaded = load_checkpoint(self.folder)
        return loaded

    def go_on(self):
        """Begin a process of its own with the saved state."""
        loaded = self.load()
        self.ring, self.store = new_ring(), CheckpointStore(self.folder)
        self.ring.load_state_dict(ring_of(loaded.state))
        self.store.continue_from(loaded, self.ring)

    def segments(self):
        folder = self.folder / "checkpoints" / "memory"
        return files_of(folder) if folder.is_dir() else []


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(memory_rows, "SEGMENT_BYTES", 7 * ROW_BYTES)
    monkeypatch.setattr(memory_rows, "SMALL_SEGMENT_BYTES", 3 * ROW_BYTES)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, new_ring())


@pytest.mark.usefixtures("small_segments")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 30)),
            st.tuples(st.sampled_from(["save", "save", "go on", "new ring"]), st.just(0)),
            st.tuples(st.just("resize"), st.integers(1, 30)),
        ),
        max_size=14,
    )
)
def test_a_loaded_ring_equals_the_saved_one(tmp_path_factory, operations):
    run = Run(tmp_path_factory.mktemp("run"), new_ring())
    run.save()
    for operation, n in operations:
        match operation:
            case "append":
                fill(run.ring, n)
            case "resize":
                run.ring.resize(n)
            case "go on":
                run.go_on()
            case "new ring":  # other rows of the same numbers
                run.ring = new_ring()
                run.ring.append(rows(1000, 4))
            case "save":
                run.save()
        if operation == "save":
            oracle = {name: column.clone() for name, column in run.ring.state_dict()["columns"].items()}
            stored = ring_of(run.load().state)
            assert_same(stored, run.ring.state_to_write() | {"columns": oracle})
            named = {s.file for m in find_manifests(run.folder).values() if m.rows for s in m.rows.segments}
            assert set(run.segments()) == named


@pytest.mark.usefixtures("small_segments")
def test_a_checkpoint_writes_new_rows_only(run):
    written = []
    for n_new in (5, 5, 4, 0, 2, 2, 7):
        fill(run.ring, n_new) if n_new else None
        written.append(run.save())
    # 2 rows are a small file, which the next one takes up.
    assert written == [5, 5, 4, 0, 2, 4, 7]
    run.go_on()
    fill(run.ring, 3)
    assert run.save() == 3
    manifest = run.load().manifest
    assert manifest.written_bytes == manifest.n_bytes + 3 * ROW_BYTES


def test_rows_are_written_again_where_their_file_is_gone_or_the_ring_is_another_one(run):
    fill(run.ring, 9)
    run.save()
    (run.folder / "checkpoints" / "memory" / run.segments()[0]).unlink()
    assert run.save() == 9
    assert len(ring_of(run.load().state)["columns"]["actions"]) == 9
    run.ring.load_state_dict(run.ring.state_dict())
    assert run.save() == 9


@pytest.fixture
def disk_run(tmp_path):
    ring = new_ring(8)
    ring.folder = tmp_path / "replay"
    ring.resize(8)
    return Run(tmp_path, ring)


@pytest.mark.parametrize("on_disk_again", [True, False])
@pytest.mark.parametrize("new_capacity", [8, 12])
def test_rows_on_disk_are_those_of_the_checkpoint_or_none(disk_run, on_disk_again, new_capacity):
    run, ring = disk_run, disk_run.ring
    for n_new in (5, 7):
        fill(ring, n_new)
        run.save()
    oracle = ring.state_dict()
    # In files of 10 positions two rows may follow the checkpoint before one of its own is overwritten.
    fill(ring, 2)
    again = new_ring()
    again.folder = ring.folder if on_disk_again else None
    again.load_state_dict(ring_of(run.load().state) | {"capacity": new_capacity})
    assert (again.files is not None) == on_disk_again
    goes_on = again.files is not None and again.files.folder == ring.files.folder
    assert goes_on == (on_disk_again and new_capacity == 8)
    assert_same(again.state_dict(), oracle | {"capacity": new_capacity})
    with pytest.raises(CheckpointError, match="newer rows have overwritten"):
        load_checkpoint(run.folder / "checkpoints" / "000001")
    fill(ring, 1)
    loaded = run.load()
    assert (loaded.state["number"], loaded.has_rows) == (2, False)


def test_files_of_rows_stay_as_long_as_the_newest_checkpoint_needs_them(disk_run):
    ring, names = disk_run.ring, lambda: files_of(disk_run.folder / "replay")
    fill(ring, 5)
    disk_run.save()
    first = names()
    ring.resize(11)
    assert len(names()) == 2
    assert disk_run.load().has_rows
    disk_run.save()
    assert names() == [ring.files.folder.name] != first
    disk_run.ring = new_ring()
    fill(disk_run.ring, 3)
    disk_run.save()
    assert names() == []


def _damage(run, name):
    file = run.folder / "checkpoints" / "memory" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.usefixtures("small_segments")
def test_damaged_rows_are_those_of_an_older_checkpoint_then_or_none(run, caplog):
    fill(run.ring, 5)
    run.save()
    fill(run.ring, 4)
    run.save()
    shared, newest = run.segments()
    _damage(run, newest)
    loaded = run.load()
    assert (loaded.state["number"], loaded.has_rows) == (1, True)
    assert "; resuming from" in caplog.text
    _damage(run, shared)
    caplog.clear()
    loaded = run.load()
    assert (loaded.state["number"], loaded.has_rows) == (2, False)
    assert loaded.state["replay"] == {"transitions_stored": 5, "memory": None}
    assert "no older checkpoint is whole: resuming without it" in caplog.text
    assert len(caplog.records) == 1


def test_rows_are_left_out_where_they_are_not_asked_for(run):
    fill(run.ring, 5)
    run.save()
    (run.folder / "checkpoints" / "memory" / run.segments()[0]).unlink()
    loaded = load_checkpoint(run.folder, with_rows=False)
    assert loaded.state["replay"]["memory"] is None
