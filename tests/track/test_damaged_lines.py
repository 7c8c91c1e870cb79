"""A damaged .npy file is an error or a line that was checked; never a traceback, and never much memory."""

from __future__ import annotations

import contextlib
import io
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.track.line_checks import check_line
from trackmania_rl.track.reference_line import ReferenceLineError, load_reference_line

MOST_MEMORY_BYTES = 20 << 20


def stored(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def damaged(content: bytes, generator: np.random.Generator) -> bytes:
    """A file with bits flipped, cut off, longer, with parts overwritten, or with another header."""
    data = bytearray(content)
    header_bytes = 128
    kind = generator.integers(6)
    if kind == 0:
        for _ in range(generator.integers(1, 20)):
            data[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
    elif kind == 1:
        for _ in range(generator.integers(1, 4)):
            data[generator.integers(header_bytes)] ^= 1 << int(generator.integers(8))
    elif kind == 2:
        del data[generator.integers(len(data)) :]
    elif kind == 3:
        data += generator.bytes(int(generator.integers(1, 500)))
    elif kind == 4:
        begin = generator.integers(len(data))
        data[begin : begin + 40] = generator.bytes(40)
    else:
        shape = tuple(int(n) for n in generator.choice([0, 1, 2, 3, 97, 2**31, 2**62], size=generator.integers(0, 4)))
        dtype = generator.choice(["<f4", "<f8", ">f4", "|O", "<U9", "|b1", "<c8", "<i8", "|V12", "<f2", "nonsense"])
        header = f"{{'descr': '{dtype}', 'fortran_order': {generator.integers(2) == 0}, 'shape': {shape}, }}"
        data[10:header_bytes] = header.encode().ljust(header_bytes - 11)[: header_bytes - 11] + b"\n"
    return bytes(data)


def look_at(n_files: int, seed: int, folder: Path) -> int:
    """Load and check damaged files; return how many were lines nevertheless."""
    z = np.arange(0.0, 60.0, 0.5)
    content = stored(np.stack((0 * z, 0 * z + 9, z), axis=1).astype(np.float32))
    generator, file, n_lines = np.random.default_rng(seed), folder / "line.npy", 0
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers near the end of the range overflow to infinity
            for _ in range(n_files):
                file.write_bytes(damaged(content, generator))
                with contextlib.suppress(ReferenceLineError):
                    check_line(load_reference_line(file, 0.5))
                    n_lines += 1
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY_BYTES
    finally:
        tracemalloc.stop()
    return n_lines


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    assert 0 < look_at(200, seed=3, folder=tmp_path) < 150


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_damaged_files_are_errors(tmp_path: Path) -> None:
    assert 0 < look_at(10_000, seed=11, folder=tmp_path) < 7_500


def test_an_archive_that_is_none_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "line.npy"
    file.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(ReferenceLineError, match=r"not a readable \.npy file"):
        load_reference_line(file, 0.5)
