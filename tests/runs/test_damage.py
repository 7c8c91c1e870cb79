"""Damaged checkpoints are refused by name, code in them is not run, and those of format 3 load."""

import io
import json
import os
import pickle
import random
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.runs import memory_rows
from trackmania_rl.runs.manifest import CheckpointError, Manifest, bytes_of_manifest
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.store import CheckpointStore

from .conftest import IMAGE_SIZE_PX, N_FLOATS, assert_same, make_state, ring_of, rows, with_rows

N_RANDOM = 60
DAMAGES = ("flip a bit", "flip a bit", "cut short", "add bytes", "overwrite", "swap", "delete", "folder")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint whose rows are in three files."""
    folder = tmp_path_factory.mktemp("whole")
    row_bytes = RingBuffer.bytes_per_row(N_FLOATS, IMAGE_SIZE_PX)
    ring = RingBuffer(12, N_FLOATS, IMAGE_SIZE_PX)
    ring.append(rows(0, 11))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(memory_rows, "SMALL_SEGMENT_BYTES", row_bytes)
        monkeypatch.setattr(memory_rows, "SEGMENT_BYTES", 4 * row_bytes)
        return CheckpointStore(folder).save(with_rows(make_state(1), ring), 0)


@pytest.fixture
def good(whole, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(whole.parent, tmp_path / "run")) / whole.name


def damage(how, folder, rng):
    """Damage one file of a checkpoint or of its rows."""
    files = sorted(file for file in folder.parent.rglob("*") if file.is_file())
    file, other = rng.sample(files, 2)
    content = file.read_bytes()
    at = rng.randrange(len(content))
    match how:
        case "flip a bit":
            file.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        case "cut short":
            file.write_bytes(content[:at])
        case "add bytes":
            file.write_bytes(content + rng.randbytes(rng.randrange(1, 100)))
        case "overwrite":
            file.write_bytes(content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 40]) + content[at + 40 :])
        case "swap":
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
        case "delete":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()


def test_the_good_one_loads(good):
    assert_is_whole(good)


def assert_is_whole(folder):
    state = load_checkpoint(folder).state
    assert_same(ring_of(state)["columns"], rows(0, 11).by_name())
    assert_same({key: value for key, value in state.items() if key != "replay"}, make_state(1))


def problem_of(folder):
    """The error of a damaged checkpoint; "" if the damage changed nothing, such as a bit of a zip's dates."""
    try:
        assert_is_whole(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def test_random_damage_is_refused_or_changes_nothing(good, tmp_path):
    n_refused = 0
    for number in range(N_RANDOM):
        folder = tmp_path / f"damaged_{number}" / "checkpoints"
        shutil.copytree(good.parent, folder)
        damage(DAMAGES[number % len(DAMAGES)], folder / good.name, random.Random(number))
        if text := problem_of(folder / good.name):
            assert str(folder / good.name) in text
            assert "\n" not in text
            n_refused += 1
        shutil.rmtree(folder)
    assert n_refused > 0.9 * N_RANDOM


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_code_is_not_run(good, tmp_path):
    manifest = Manifest.model_validate(json.loads((good / "manifest.json").read_bytes())["manifest"])
    content = pickle.dumps({"agent": Code(tmp_path / "run by state.pt")})
    (good / "state.pt").write_bytes(content)
    entry = manifest.files["state.pt"].model_copy(update={"bytes": len(content), "crc32": zlib.crc32(content)})
    forged = manifest.model_copy(update={"files": manifest.files | {"state.pt": entry}})
    (good / "manifest.json").write_bytes(bytes_of_manifest(forged))
    with pytest.raises(CheckpointError, match="its state is damaged"):
        load_checkpoint(good)
    segment = manifest.rows.segments[0]
    archive = io.BytesIO()
    np.savez(
        archive, file_name=np.array(segment.file), actions=np.array([Code(tmp_path / "run by rows")], dtype=object)
    )
    (good.parent / "memory" / segment.file).write_bytes(archive.getvalue())
    shorter = manifest.rows.model_copy(
        update={"segments": (segment.model_copy(update={"bytes": len(archive.getvalue())}),)}
    )
    (good / "manifest.json").write_bytes(bytes_of_manifest(manifest.model_copy(update={"rows": shorter, "files": {}})))
    with pytest.raises(CheckpointError, match=r"\.npz is damaged"):
        load_checkpoint(good)
    assert not list(tmp_path.glob("run by*"))


def test_rows_files_of_equal_size_that_were_swapped_are_noticed(good):
    by_size = {}
    for file in (good.parent / "memory").glob("*.npz"):
        by_size.setdefault(file.stat().st_size, []).append(file)
    first, second = max(by_size.values(), key=len)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"({first.name}|{second.name}) is damaged: it is 0"):
        load_checkpoint(good)
