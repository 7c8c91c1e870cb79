"""Writing checkpoints: what is read is what was written, only so many are kept, and what fails loses nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from trackmania_rl import files
from trackmania_rl.checkpoints import (
    CheckpointError,
    CheckpointFacts,
    CheckpointStore,
    DiskTooFullError,
    find_manifests,
    load_checkpoint,
    load_newest,
    read_checkpoint,
    save_checkpoint,
)
from trackmania_rl.checkpoints import store as store_module

from .conftest import assert_same, files_of, make_state

Save = Callable[..., Path]


def test_what_was_saved_is_loaded(tmp_path: Path, save: Save) -> None:
    folder = save(5)
    state = load_checkpoint(tmp_path)
    assert_same(state, make_state(5))
    assert_same(read_checkpoint(folder), state)


def test_none_only_without_any_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None


def test_networks_are_files_that_other_programs_can_open(save: Save) -> None:
    folder = save(2)
    expected = ["averaged.safetensors", "manifest.json", "online.safetensors", "state.json", "tensors.safetensors"]
    assert files_of(folder) == expected
    network = safetensors.torch.load_file(folder / "online.safetensors")
    assert {name: tuple(weight.shape) for name, weight in network.items()} == {"weight": (2, 3), "bias": (2,)}


def test_the_manifest_says_what_is_in_it(tmp_path: Path) -> None:
    facts = CheckpointFacts(session=3, frames=400, updates=50, score=(1.0, -21.5), settings={"seed": 7})
    folder = CheckpointStore(tmp_path).save(make_state(1), 0, facts)
    (manifest,) = find_manifests(tmp_path).values()
    told = (manifest.number, manifest.session, manifest.frames, manifest.updates, manifest.score, manifest.settings)
    assert told == (1, 3, 400, 50, (1.0, -21.5), {"seed": 7})
    assert manifest.files.keys() == set(files_of(folder)) - {"manifest.json"}
    assert (
        manifest.n_bytes == sum(f.stat().st_size for f in folder.iterdir()) - (folder / "manifest.json").stat().st_size
    )
    entry = manifest.tensors["averaged.safetensors"]["weight"]
    assert (entry.dtype, entry.shape, entry.n_bytes) == ("bfloat16", (3, 4), 24)


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    scores = {
        1: None,
        2: (0.5, 0.0),
        3: (0.9, -20.0),
        4: (0.9, -19.0),
        5: (0.4, 0.0),
        6: (0.9, -19.5),
        7: None,
        8: None,
    }
    kept = []
    for number, score in scores.items():
        store.save(make_state(number), 0, CheckpointFacts(score=score), keep=2)
        kept.append([int(name) for name in files_of(tmp_path / "checkpoints")])
    assert kept == [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6], [4, 6, 7], [4, 7, 8]]
    assert {
        manifest.number: read_checkpoint(folder)["number"] for folder, manifest in find_manifests(tmp_path).items()
    } == {
        4: 4,
        7: 7,
        8: 8,
    }


def test_a_damaged_one_is_told_and_the_newest_whole_one_is_taken(
    tmp_path: Path, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        folder = save(number, keep=3)
    file = folder / "state.json"
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "checkpoints" / "000002" / "manifest.json").unlink()
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.state["number"] == 1
    (record,) = caplog.records
    said = record.getMessage()
    assert all(word in said for word in (str(folder), "state.json has", "000002: manifest.json", "going on from"))
    assert str(tmp_path / "checkpoints" / "000001") in said
    assert "\n" not in said

    store = CheckpointStore(tmp_path)
    store.go_on_from(loaded, SimpleNamespace(origin=None))  # type: ignore[arg-type]
    assert files_of(tmp_path / "checkpoints") == ["000001", "000002.damaged", "000003.damaged"]
    store.save(make_state(4), 0, keep=2)
    assert files_of(tmp_path / "checkpoints") == ["000001", "000002.damaged", "000003.damaged", "000004"]
    store.save(make_state(5), 0, keep=2)
    assert files_of(tmp_path / "checkpoints") == ["000004", "000005"]  # nobody would go on from before these


def test_a_run_never_begins_anew_over_checkpoints_that_are_all_damaged(tmp_path: Path, save: Save) -> None:
    for number in (1, 2):
        (save(number) / "tensors.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"000002: .*None of the 2 checkpoints .* another run_name") as caught:
        load_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_an_older_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: an older version wrote it.* another run_name"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="this version's checkpoints are folders"):
        read_checkpoint(tmp_path / "checkpoint.pt")


def test_another_format_is_named(save: Save) -> None:
    folder = save(1)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["manifest"]["format_version"] = 99
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="its format is 99, this program reads format 3"):
        read_checkpoint(folder)


def test_a_low_disk_is_told_before_writing(tmp_path: Path, save: Save) -> None:
    save(1)
    with pytest.raises(CheckpointError, match="minimum_free_disk_mb = 1000000000 must remain"):
        save_checkpoint(tmp_path, make_state(2), minimum_free_disk_mb=10**9)
    assert files_of(tmp_path / "checkpoints") == ["000001"]
    assert load_checkpoint(tmp_path)["number"] == 1  # type: ignore[index]


def test_older_checkpoints_make_room_where_that_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, large = CheckpointStore(tmp_path), {"large": torch.zeros(2**20)}
    for number in (1, 2, 3):
        store.save(make_state(number) | large, 0, keep=4)
    checkpoints = tmp_path / "checkpoints"
    each_bytes = sum(file.stat().st_size for file in (checkpoints / "000001").iterdir())
    disk = {"free": 0}

    def usage(_: object) -> SimpleNamespace:
        n_there = len([path for path in checkpoints.iterdir() if path.name.isdigit()])
        return SimpleNamespace(free=disk["free"] + (3 - n_there) * each_bytes)

    monkeypatch.setattr("shutil.disk_usage", usage)
    with pytest.raises(DiskTooFullError):
        store.save(make_state(4), 2**30, keep=4)
    assert files_of(checkpoints) == ["000001", "000002", "000003"]
    disk["free"] = 2**20 + 2**19  # and as much as one takes
    store.save(make_state(5) | large, 1, keep=4)
    assert files_of(checkpoints) == ["000002", "000003", "000004"]
    assert load_checkpoint(tmp_path)["number"] == 5  # type: ignore[index]


def test_a_write_that_fails_half_way_loses_nothing(tmp_path: Path, save: Save) -> None:
    resource = pytest.importorskip("resource", reason="limits of file sizes are POSIX's")
    save(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write the checkpoint .*000002: File too large; .* are intact"
        ):
            save_checkpoint(tmp_path, make_state(2) | {"large": torch.zeros(10**6)}, minimum_free_disk_mb=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_of(tmp_path / "checkpoints") == ["000001"]
    assert load_checkpoint(tmp_path)["number"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1),
        np.zeros(2),
        {1, 2},
        object(),
        {1.5: 2},
        b"bytes",
        1 << 600,
        torch.zeros(2).to_sparse(),
        [[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]],
    ],
)
def test_what_could_not_be_read_back_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"state\['learner'\]\[1\](\[0\])* (is a|has the key|is nested|is a whole)"):
        save_checkpoint(tmp_path, {"learner": [0, value]}, minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_more_numbers_than_would_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"put them into tensors"):
        save_checkpoint(tmp_path, {"hooks": {"mine": [0.5] * (1 << 21)}}, minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_ordered_dicts_of_modules_are_plain(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"network": OrderedDict(weight=torch.ones(2))}, minimum_free_disk_mb=0)
    assert load_checkpoint(tmp_path)["network"]["weight"].tolist() == [1, 1]  # type: ignore[index]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path, save: Save) -> None:
    left = tmp_path / "checkpoints" / ".000001.4711.tmp"
    left.mkdir(parents=True)
    (left / "state.json").write_bytes(b"half")
    (tmp_path / "checkpoints" / "memory").mkdir()
    for name in (".5.4711.tmp", "000000000000-000000000005-0123456789abcdef.rows"):
        (tmp_path / "checkpoints" / "memory" / name).write_bytes(b"half")
    assert load_checkpoint(tmp_path) is None
    save(1)
    assert files_of(tmp_path / "checkpoints") == ["000001", "memory"]
    assert files_of(tmp_path / "checkpoints" / "memory") == []


def test_a_second_ctrl_c_leaves_nothing_half_written(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(1)
    assert files_of(tmp_path / "checkpoints") == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*gone.*: No such file or directory"):
        save_checkpoint(tmp_path / "gone", make_state(1), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_a_disk_that_became_read_only_is_told(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    save(1)
    with monkeypatch.context() as read_only:
        for name in ("open", "unlink", "mkdir"):
            read_only.setattr(Path, name, refuse)
        with pytest.raises(CheckpointError, match=r"Read-only file system; .* are intact"):
            save(2)
    assert load_checkpoint(tmp_path)["number"] == 1  # type: ignore[index]


def test_an_older_one_that_somebody_holds_open_does_not_fail_the_new_one(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(source: Path, target: Path) -> None:
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


def test_whatever_is_renamed_is_renamed_patiently(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = []

    def replace(source: Path, target: Path) -> None:
        renamed.append(target.name)
        os.replace(source, target)

    for module in (store_module, files):
        monkeypatch.setattr(module, "replace_patiently", replace)
    monkeypatch.setattr(Path, "rename", None)
    monkeypatch.setattr(Path, "replace", None)
    for number in (1, 2):
        save(number, keep=1)
    assert renamed == ["000001", "000002", ".000001.old.tmp"]


def test_a_checkpoint_that_is_moved_alone_is_read_without_its_rows(tmp_path: Path, save: Save) -> None:
    moved = shutil.move(save(3), tmp_path / "mine")
    assert read_checkpoint(Path(moved))["number"] == 3
