"""A run's folder: checkpoints, of which the newest whole one and the best are kept, and best races."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch

from trackmania_rl.errors import UserError
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.runs import store as store_module
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.manifest import CheckpointError, DiskTooFullError
from trackmania_rl.runs.reading import find_manifests, load_checkpoint
from trackmania_rl.runs.store import CheckpointFacts, CheckpointStore, save_best_run, save_checkpoint
from trackmania_rl.settings import load_settings

from .conftest import assert_same, files_of, make_state


def test_saved_state_is_loaded(tmp_path, save):
    assert load_checkpoint(tmp_path) is None
    folder = save(5)
    state = load_checkpoint(tmp_path).state
    assert_same(state, make_state(5))
    moved = shutil.move(folder, tmp_path / "mine")
    assert_same(load_checkpoint(Path(moved)).state, state)


def test_a_checkpoint_is_a_manifest_and_files_that_other_programs_can_open(tmp_path):
    facts = CheckpointFacts(session=3, frames=400, updates=50, score=(1.0, -21.5), settings={"seed": 7})
    folder = CheckpointStore(tmp_path).save(make_state(1), 0, facts)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert sizes.pop("manifest.json")
    assert sorted(sizes) == ["state.pt", "weights.safetensors"]
    network = safetensors.torch.load_file(folder / "weights.safetensors")
    shapes = {name: tuple(weight.shape) for name, weight in network.items()}
    assert shapes == {"averaged.weight": (3, 4), "online.weight": (2, 3), "online.bias": (2,)}
    assert torch.load(folder / "state.pt", weights_only=True)["number"] == 1
    (manifest,) = find_manifests(tmp_path).values()
    told = (manifest.number, manifest.session, manifest.frames, manifest.updates, manifest.score, manifest.settings)
    assert told == (1, 3, 400, 50, (1.0, -21.5), {"seed": 7})
    assert {name: entry.bytes for name, entry in manifest.files.items()} == sizes
    assert manifest.n_bytes == sum(sizes.values())


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    scores = (None, (0.5, 0.0), (0.9, -20.0), (0.9, -19.0), (0.4, 0.0), (0.9, -19.5), None, None)
    kept = []
    for number, score in enumerate(scores, start=1):
        store.save(make_state(number), 0, CheckpointFacts(score=score), keep=2)
        kept.append([int(name) for name in files_of(tmp_path / "checkpoints")])
    assert kept == [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6], [4, 6, 7], [4, 7, 8]]
    found = find_manifests(tmp_path)
    assert [manifest.number for manifest in found.values()] == [8, 7, 4]
    assert [load_checkpoint(folder).state["number"] for folder in found] == [8, 7, 4]


def test_a_damaged_one_is_told_and_the_newest_whole_one_is_taken(tmp_path, save, caplog):
    for number in (1, 2, 3):
        folder = save(number, keep=3)
    file = folder / "state.pt"
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "checkpoints" / "000002" / "manifest.json").unlink()
    loaded = load_checkpoint(tmp_path)
    assert loaded.state["number"] == 1
    (record,) = caplog.records
    said = record.getMessage()
    assert all(word in said for word in (str(folder), "state.pt has", "000002: manifest.json", "resuming from"))
    assert str(tmp_path / "checkpoints" / "000001") in said
    assert "\n" not in said

    store = CheckpointStore(tmp_path)
    store.continue_from(loaded, SimpleNamespace(origin=None))
    assert files_of(tmp_path / "checkpoints") == ["000001", "000002.damaged", "000003.damaged"]
    store.save(make_state(4), 0, keep=2)
    assert files_of(tmp_path / "checkpoints") == ["000001", "000002.damaged", "000003.damaged", "000004"]
    store.save(make_state(5), 0, keep=2)
    assert files_of(tmp_path / "checkpoints") == ["000004", "000005"]  # nobody would go on from before these


def test_a_run_never_begins_anew_over_checkpoints_that_are_all_damaged(tmp_path, save):
    for number in (1, 2):
        (save(number) / "state.pt").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"000002: .*None of the 2 checkpoints .* another run_name") as caught:
        load_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_older_checkpoints_make_room_where_that_is_enough(tmp_path, monkeypatch):
    store, large = CheckpointStore(tmp_path), {"large": torch.zeros(2**20)}
    for number in (1, 2, 3):
        store.save(make_state(number) | large, 0, keep=4)
    checkpoints = tmp_path / "checkpoints"
    each_bytes = sum(file.stat().st_size for file in (checkpoints / "000001").iterdir())
    disk = {"free": 0}

    def usage(_):
        n_there = len([path for path in checkpoints.iterdir() if path.name.isdigit()])
        return SimpleNamespace(free=disk["free"] + (3 - n_there) * each_bytes)

    monkeypatch.setattr("shutil.disk_usage", usage)
    with pytest.raises(DiskTooFullError, match="minimum_free_disk_mb = 1073741824 must remain"):
        store.save(make_state(4), 2**30, keep=4)
    assert files_of(checkpoints) == ["000001", "000002", "000003"]
    disk["free"] = 2**20 + 2**19  # and as much as one takes
    store.save(make_state(5) | large, 1, keep=4)
    assert files_of(checkpoints) == ["000002", "000003", "000004"]
    assert load_checkpoint(tmp_path).state["number"] == 5


def test_a_checkpoint_of_another_version_is_named(tmp_path, save):
    manifest = save(1) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 5', '"format_version": 99'))
    with pytest.raises(CheckpointError, match="its format is 99, this program reads format 5"):
        load_checkpoint(manifest.parent)


def test_unreadable_values_are_refused_with_their_place(tmp_path):
    for value in (np.float32(1), np.zeros(2), {1, 2}, object(), {1.5: 2}, b"bytes"):
        with pytest.raises(TypeError, match=r"state\['learner'\]\[1\] (is a|has the key)"):
            save_checkpoint(tmp_path, {"learner": [0, value]}, minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*gone.*: No such file or directory"):
        save_checkpoint(tmp_path / "gone", make_state(1), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_an_older_one_that_somebody_holds_open_does_not_fail_the_new_one(tmp_path, save, monkeypatch):
    def held(source, target):
        if source.name == "000001":
            raise PermissionError(13, "Permission denied")
        source.replace(target)

    save(1)
    with monkeypatch.context() as on_windows:
        on_windows.setattr(store_module, "replace_patiently", held)
        save(2, keep=1)
    assert files_of(tmp_path / "checkpoints") == ["000001", "000002"]
    save(3, keep=1)
    assert files_of(tmp_path / "checkpoints") == ["000003"]


@pytest.fixture(scope="module")
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


def a_race(values):
    facts = {"map_name": "valley", "is_explo": False, "fill_buffer": True, "race_time_ms": 31_250}
    return Race({"q_values": values}, RaceFacts(**facts, inputs="0.00 press up\n"))


def test_a_best_run_holds_inputs_values_and_settings(tmp_path, settings):
    run = RunFolder.create(tmp_path, "trial")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):  # the same time once more changes nothing
        folder = save_best_run(run.best_runs, a_race(values), settings)
    assert folder == tmp_path / "save/trial/best_runs/valley_31250"
    assert files_of(run.best_runs) == ["valley_31250"]
    assert (folder / "valley_31250.inputs").read_text() == "0.00 press up\n"
    np.testing.assert_array_equal(np.load(folder / "q_values.npy"), values)
    assert load_settings(folder / "settings.toml") == settings


def test_a_best_run_that_cannot_be_kept_leaves_nothing(tmp_path, settings, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(store_module.np, "save", fail)
    with pytest.raises(CheckpointError, match="valley_31250: No space left"):
        save_best_run(tmp_path, a_race(np.zeros((1, 3), np.float32)), settings)
    assert files_of(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "save").write_text("a file is in the way")
    with pytest.raises(UserError, match="cannot make the folder"):
        RunFolder.create(tmp_path, "trial")
