"""Bombs and damaged files of every kind: refused by name, soon and for little memory; good ones load."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .bombs import BOMBS, LAUGHS

MOST_CPU_S = 2.0
MOST_MB = 200.0
N_MUTATED = 15
N_MUTATED_BY_NAME = 200

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from Linux's /proc")


def read_all(files: list[tuple[str, Path]], tmp_path: Path, root: Path) -> list[dict[str, Any]]:
    """Read files in a process of its own; return the result of each."""
    listed = tmp_path / "listed"
    listed.write_text("".join(f"{kind}\t{file}\n" for kind, file in files))
    command = [sys.executable, Path(__file__).with_name("read_files.py"), listed]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=900)
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(told) == len(files), ended.stderr[-3000:]
    return told


def is_refused_cheaply(told: dict[str, Any]) -> bool:
    is_named = told["error"] == "UserError" and told["path"] in told["text"] and "\n" not in told["text"]
    is_cheap = told["cpu_s"] <= MOST_CPU_S and told["peak_mb"] <= MOST_MB
    return is_named and len(told["text"]) <= 1000 and is_cheap


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bombs_are_refused_by_name(tmp_path: Path, repository_root: Path) -> None:
    pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    files = []
    for number, (kind, name, make) in enumerate(BOMBS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / name)
        files.append((kind, folder / name))
    read = zip(BOMBS, read_all(files, tmp_path, repository_root), strict=True)
    wrong = [(name, told) for name, told in read if not is_refused_cheaply(told)]
    assert not wrong, "\n".join(f"{name}: {told}" for name, told in wrong)


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """A driver's file with bits flipped, cut off, longer, or with a header that tells something else."""
    data = bytearray(content)
    header_bytes = struct.unpack("<Q", content[:8])[0]
    kind = generator.integers(6)
    if kind == 0:
        for _ in range(generator.integers(1, 20)):
            data[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
    elif kind == 1:  # in the header
        for _ in range(generator.integers(1, 5)):
            data[8 + generator.integers(header_bytes)] ^= 1 << int(generator.integers(8))
    elif kind == 2:
        del data[generator.integers(len(data)) :]
    elif kind == 3:
        data += generator.bytes(int(generator.integers(1, 500)))
    elif kind == 4:  # another length of the header
        lengths = (0, 1, 8, header_bytes - 8, header_bytes + 8, len(data), 1 << 31, 1 << 40, (1 << 63) + 8)
        data[:8] = struct.pack("<Q", int(generator.choice(np.array(lengths, dtype=np.uint64))))
    else:  # a number in the header that is far larger, or less than nothing
        digits = [place for place in range(8, 8 + header_bytes) if chr(data[place]).isdigit()]
        place = int(generator.choice(digits))
        data[place : place + 1] = generator.choice(np.array([b"-1", b"999999999999", b"1e300", b"[1]", b"NaN"]))
    return bytes(data)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_mutated", [N_MUTATED, pytest.param(N_MUTATED_BY_NAME, marks=pytest.mark.slow)])
def test_good_files_load_and_damaged_drivers_are_refused_by_name(
    tmp_path: Path, repository_root: Path, n_mutated: int
) -> None:
    maps, good = repository_root / "maps", repository_root / "drivers" / "ring.driver"
    (tmp_path / "config.py").write_text(LAUGHS)
    files = [("driver that drives", good), ("track", maps / "valley.toml"), ("line", maps / "ring_0.5m.npy")]
    files += [("config", tmp_path / "config.py")]
    n_good, generator = len(files), np.random.default_rng(20)
    for number in range(n_mutated):
        file = tmp_path / f"{number}.driver"
        file.write_bytes(mutated(good.read_bytes(), generator))
        files.append(("driver that drives", file))
    read = read_all(files, tmp_path, repository_root)
    assert [(told["error"], told["text"]) for told in read[:n_good]] == [("", "")] * n_good
    assert read[n_good - 1]["cpu_s"] < MOST_CPU_S, "a value that would take for ever counts as not worked out"
    wrong = [told for told in read[n_good:] if not is_refused_cheaply(told)]
    assert not wrong, "\n".join(map(str, wrong))
