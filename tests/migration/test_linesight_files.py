"""Reading files that a stranger wrote: numbers come out, and nothing is run."""

import collections
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch

from trackmania_rl.migration import linesight_files
from trackmania_rl.migration.linesight_files import (
    LinesightFileError,
    LinesightStatistics,
    read_loss_scale,
    read_moments,
    read_statistics,
    read_weights,
)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.system, (f"touch {self.folder / 'was_run'}",)


@pytest.fixture
def written(tmp_path):
    def write(content, protocol=pickle.HIGHEST_PROTOCOL):
        file = tmp_path / "accumulated_stats.joblib"
        file.write_bytes(pickle.dumps(content, protocol))
        return file

    return write


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_numbers_of_all_kinds_are_read(written, protocol):
    content = collections.defaultdict(int)
    content |= {
        "cumul_number_frames_played": np.int64(-0) + 2**40,
        "cumul_number_memories_generated": np.uint16(65_535),
        "cumul_number_batches_done": np.float32(12.0),
        "cumul_training_hours": np.float64(0.1),
        "alltime_min_ms": {"a": np.int32(54_000), "b": 61_000.0, "c": np.array(5, dtype=">i4")[()]},
        "list": [1, (2, 3), None, True, "text", b"bytes"],
    }
    assert read_statistics(written(content, protocol)) == LinesightStatistics(
        frames=2**40,
        transitions=65_535,
        batches=12,
        training_hours=0.1,
        best_times_ms={"a": 54_000, "b": 61_000, "c": 5},
    )


def test_statistics_that_run_code_are_refused(written, tmp_path):
    with pytest.raises(LinesightFileError, match=r"it asks for posix\.system|it asks for nt\.system"):
        read_statistics(written({"cumul_number_frames_played": Evil(tmp_path)}))
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"x": np.zeros(3)},
        {"x": np.array("text")[()]},
        collections.Counter(a=1),
        [1, 2],
        collections.defaultdict(eval),
        {"x": len},
    ],
    ids=["array", "text scalar", "Counter", "list", "defaultdict of eval", "function"],
)
def test_other_contents_are_refused(written, content):
    with pytest.raises(LinesightFileError):
        read_statistics(written(content))


@pytest.mark.parametrize("read", [read_weights, read_moments, read_loss_scale])
def test_torch_files_that_run_code_are_refused(tmp_path, read):
    torch.save({"weight": Evil(tmp_path)}, tmp_path / "file.torch")
    with pytest.raises(LinesightFileError, match="cannot be read as plain tensors"):
        read(tmp_path / "file.torch")
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("read", [read_weights, read_moments, read_loss_scale])
@pytest.mark.parametrize("content", [{}, [], 5, {"state": 3}, {1: torch.ones(2)}, {"scale": "x"}, {"scale": -1.0}])
def test_torch_files_of_another_kind_are_refused(tmp_path, read, content):
    torch.save(content, tmp_path / "file.torch")
    if read is read_loss_scale and isinstance(content, dict) and "scale" not in content:
        assert read(tmp_path / "file.torch") == {}  # a scaler that is switched off saves nothing
        return
    with pytest.raises(LinesightFileError):
        read(tmp_path / "file.torch")


HASH_BOMB = b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s."
"""Dictionary whose key is a tuple of two equal tuples, 60 deep: hashing it takes 2**60 steps."""


def torch_bomb(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", HASH_BOMB)
        archive.writestr("archive/version", "3")


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("accumulated_stats.joblib", lambda file: file.write_bytes(HASH_BOMB), "takes longer than 1 s"),
        ("optimizer1.torch", torch_bomb, "takes longer than 1 s"),
        ("config_copy.py", lambda file: file.write_text("a = (1, 2)\n" + "a = a + a\n" * 40), "fills more than 2 GiB"),
    ],
)
def test_a_file_that_hangs_or_fills_the_memory_is_refused(name, write, reason, small_run, tool, capsys, monkeypatch):
    monkeypatch.setattr(linesight_files, "READ_LIMIT_S", 1.0 if "longer" in reason else 60.0)
    write(small_run.folder / name)
    assert tool("import_linesight", small_run.folder, "--output", small_run.folder.parent / "save" / "new") == 78
    assert re.search(f"error: .*{name} {reason}", capsys.readouterr().err)
