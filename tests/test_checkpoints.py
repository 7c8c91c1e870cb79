import errno
import os
import pickle
import struct
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trackmania_rl import checkpoints
from trackmania_rl.checkpoints import (
    CheckpointError,
    DiskTooFullError,
    RunFolder,
    load_checkpoint,
    read_checkpoint,
    save_best_run,
    save_checkpoint,
)


def make_state(number):
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.RAdam(network.parameters())
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    return {
        "number": number,
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "numpy_rng": np.random.default_rng(number).bit_generator.state,  # holds integers of 128 bits
        "tensor": torch.full((100,), 2.625, dtype=torch.float64),
        "torch_rng": torch.get_rng_state(),
        "maps": {"valley": {"best_time_ms": None, "times_ms": [31_250, 30_100]}, "flat": {"pair": (1, 2.5)}},
    }


def assert_same(actual, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    else:
        assert actual == expected


def files_of(folder):
    return sorted(file.name for file in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path):
    state = make_state(5)
    save_checkpoint(tmp_path, state, minimum_free_disk_mb=0)
    assert_same(load_checkpoint(tmp_path), state)


def test_none_only_without_any_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path) is None


def test_the_one_before_is_kept(tmp_path):
    for number in (1, 2, 3):
        save_checkpoint(tmp_path, make_state(number), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert load_checkpoint(tmp_path)["number"] == 3
    (tmp_path / "checkpoint.pt").unlink()  # what a power cut between the two renames leaves
    assert load_checkpoint(tmp_path)["number"] == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not a checkpoint",
        lambda content: content[:200] + bytes(400) + content[600:],
        lambda content: content.replace(struct.pack("<d", 2.625), struct.pack("<d", 2.5)),
        lambda content: pickle.dumps({"format_version": 1, "state": namedtuple}, protocol=2),
    ],
    ids=["cut short", "empty", "foreign", "overwritten", "one bit flipped", "pickled code"],
)
def test_a_damaged_checkpoint_stops_and_names_the_older_good_one(tmp_path, damage):
    for number in (1, 2):
        save_checkpoint(tmp_path, make_state(number), minimum_free_disk_mb=0)
    newest = tmp_path / "checkpoint.pt"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(CheckpointError, match=r"checkpoint\.previous\.pt of .* is good") as caught:
        load_checkpoint(tmp_path)
    assert str(newest) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_an_older_good_one_it_says_so(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="another run_name"):
        load_checkpoint(tmp_path)


def test_another_format_is_named(tmp_path):
    torch.save({"format_version": 99, "state": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="its format is 99, this program reads format 2"):
        load_checkpoint(tmp_path)


def test_a_low_disk_is_told_before_writing(tmp_path):
    save_checkpoint(tmp_path, make_state(1), minimum_free_disk_mb=0)
    with pytest.raises(CheckpointError, match="minimum_free_disk_mb = 1000000000 must remain"):
        save_checkpoint(tmp_path, make_state(2), minimum_free_disk_mb=10**9)
    assert files_of(tmp_path) == ["checkpoint.pt"]
    assert load_checkpoint(tmp_path)["number"] == 1


def test_the_older_checkpoint_makes_room_where_that_is_enough(tmp_path, monkeypatch):
    for number in (1, 2):
        save_checkpoint(tmp_path, make_state(number), minimum_free_disk_mb=0)
    older = tmp_path / "checkpoint.previous.pt"
    size = older.stat().st_size
    disk = {"free": 0}
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=disk["free"] + size * (not older.exists())))
    with pytest.raises(DiskTooFullError):
        save_checkpoint(tmp_path, make_state(3), minimum_free_disk_mb=1)
    assert files_of(tmp_path) == ["checkpoint.previous.pt", "checkpoint.pt"]
    disk["free"] = 2**20  # and as much as the older one takes
    save_checkpoint(tmp_path, make_state(4), minimum_free_disk_mb=1)
    assert load_checkpoint(tmp_path)["number"] == 4
    assert read_checkpoint(older)["number"] == 2


def test_a_write_that_fails_half_way_loses_nothing(tmp_path):
    save_checkpoint(tmp_path, make_state(1), minimum_free_disk_mb=0)
    resource = pytest.importorskip("resource", reason="limits of file sizes are POSIX's")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .* are intact"):
            save_checkpoint(tmp_path, make_state(2) | {"large": torch.zeros(10**6)}, minimum_free_disk_mb=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_of(tmp_path) == ["checkpoint.pt"]
    assert load_checkpoint(tmp_path)["number"] == 1


@pytest.mark.parametrize("value", [np.float32(1), np.zeros(2), {1, 2}, object()])
def test_what_could_not_be_read_back_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(TypeError, match=r"state\['learner'\]\[1\] is a "):
        save_checkpoint(tmp_path, {"learner": [0, value]}, minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_ordered_dicts_of_modules_are_plain(tmp_path):
    save_checkpoint(tmp_path, {"network": OrderedDict(weight=torch.ones(2))}, minimum_free_disk_mb=0)
    assert load_checkpoint(tmp_path)["network"]["weight"].tolist() == [1, 1]


def test_a_best_run_holds_inputs_values_and_configuration(tmp_path):
    run = RunFolder.create(tmp_path, "trial")
    (run.config / "config.py").write_text("seed = 1\n")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):  # the same time once more changes nothing
        folder = save_best_run(run.best_runs, "valley", 31_250, "0.00 press up\n", values, run.config)
    assert folder == tmp_path / "save/trial/best_runs/valley_31250"
    assert files_of(run.best_runs) == ["valley_31250"]
    assert (folder / "valley_31250.inputs").read_text() == "0.00 press up\n"
    np.testing.assert_array_equal(np.load(folder / "q_values.npy"), values)
    assert (folder / "config/config.py").read_text() == "seed = 1\n"


def test_a_best_run_that_cannot_be_kept_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(checkpoints.np, "save", fail)
    with pytest.raises(CheckpointError, match="valley_31250: No space left"):
        save_best_run(tmp_path, "valley", 31_250, "", np.zeros((1, 3), np.float32), tmp_path)
    assert files_of(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "save").write_text("a file is in the way")
    with pytest.raises(CheckpointError, match="cannot make the folder"):
        RunFolder.create(tmp_path, "trial")


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    (tmp_path / "checkpoint.pt.4711.tmp").write_bytes(b"half a checkpoint")
    save_checkpoint(tmp_path, make_state(1), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == ["checkpoint.pt"]


def test_a_second_ctrl_c_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, make_state(1), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == []


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*gone.*: No such file or directory"):
        save_checkpoint(tmp_path / "gone", make_state(1), minimum_free_disk_mb=0)


def test_a_disk_that_became_read_only_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    save_checkpoint(tmp_path, make_state(1), minimum_free_disk_mb=0)
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "open", refuse)
        read_only.setattr(Path, "unlink", refuse)
        with pytest.raises(CheckpointError, match=r"Read-only file system; .* are intact"):
            save_checkpoint(tmp_path, make_state(2), minimum_free_disk_mb=0)
    assert load_checkpoint(tmp_path)["number"] == 1


def test_a_checkpoint_that_cannot_take_its_name_leaves_the_newest_one_under_its_own(tmp_path, monkeypatch):
    for number in (1, 2):
        save_checkpoint(tmp_path, make_state(number), minimum_free_disk_mb=0)

    def refuse_the_new_one(source, target):
        if source.suffix == ".tmp":
            raise PermissionError(13, "Permission denied")
        source.replace(target)

    monkeypatch.setattr(checkpoints, "replace_patiently", refuse_the_new_one)
    with pytest.raises(CheckpointError, match=r"Permission denied; the checkpoints written before are intact"):
        save_checkpoint(tmp_path, make_state(3), minimum_free_disk_mb=0)
    assert files_of(tmp_path) == ["checkpoint.pt"]
    assert load_checkpoint(tmp_path)["number"] == 2


def test_whatever_is_renamed_is_renamed_patiently(tmp_path, monkeypatch):
    renamed = []

    def replace(source, target):
        renamed.append(target.name)
        source.replace(target)

    monkeypatch.setattr(checkpoints, "replace_patiently", replace)
    monkeypatch.setattr(Path, "rename", None)
    for number in (1, 2):
        save_checkpoint(tmp_path, make_state(number), minimum_free_disk_mb=0)
    save_best_run(tmp_path, "valley", 31_250, "", np.zeros((1, 3), np.float32), tmp_path)
    assert renamed == ["checkpoint.pt", "checkpoint.previous.pt", "checkpoint.pt", "valley_31250"]
