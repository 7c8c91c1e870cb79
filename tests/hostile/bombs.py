"""Small files that would take all memory, never end, or reach where they have no business. Each is a function."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Make = Callable[[Path], object]


def sparse(n_bytes: int, begin: bytes = b"") -> Make:
    """A file that is long, but takes no place on disk."""

    def make(file: Path) -> None:
        file.write_bytes(begin)
        os.truncate(file, n_bytes)

    return make


def text(content: str) -> Make:
    return lambda file: file.write_text(content)


def content(data: bytes) -> Make:
    return lambda file: file.write_bytes(data)


def zero(file: Path) -> None:
    file.symlink_to("/dev/zero")


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    encoded = header.encode() + b"\n"
    return (
        b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(encoded)) + encoded + data
    )


def npy_header(shape: object, descr: str = "<f8") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


def track_with(line: str) -> Make:
    return text(f'name = "bomb"\nline = "{line}"\n')


def driver(header: Any, data: bytes = b"", n_bytes: int | None = None) -> Make:
    def make(file: Path) -> None:
        encoded = (header if isinstance(header, str) else json.dumps(header)).encode()
        encoded += b" " * (-len(encoded) % 8)
        file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
        if n_bytes is not None:
            os.truncate(file, n_bytes)

    return make


def tensor(n: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}


def gbx(unpacked_bytes: int, packed: bytes) -> Make:
    head = b"GBX\x06\x00BUCR" + struct.pack("<III", 0x03043000, 0, 1) + struct.pack("<I", 0)
    return content(head + struct.pack("<II", unpacked_bytes, len(packed)) + packed)


def bytes_of_nothing(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02cbuiltins\nbytearray\nK\x01\x8a\x05\x00\x00\x00\x00\x04\x85R.")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")


def dataset(change: Callable[[Any, dict[str, Any]], object]) -> Make:
    """A sound data set of one episode, changed: `change(file of h5py, metadata)`."""

    def make(folder: Path) -> None:
        import h5py

        folder.mkdir()
        box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0.0, 0.0], "high": [1.0, 1.0]}
        metadata = {"total_episodes": 1, "total_steps": 3, "data_format": "hdf5", "jpeg_encoding": False}
        metadata |= {
            "observation_space": json.dumps(box),
            "action_space": json.dumps({"type": "Discrete", "n": 2, "start": 0}),
        }
        metadata |= {"dataset_id": "a/b-v0", "minari_version": "0.5.4"}
        with h5py.File(folder / "main_data.hdf5", "w") as file:
            episode = file.create_group("episode_0")
            episode.attrs.update(id=0, total_steps=3)
            episode["observations"] = np.zeros((4, 2), np.float32)
            episode["actions"] = np.zeros(3, np.int64)
            episode["rewards"] = np.zeros(3)
            episode["terminations"] = episode["truncations"] = np.zeros(3, bool)
            change(file, metadata)
        (folder / "metadata.json").write_text(json.dumps(metadata))

    return make


def _external_link(file: Any, _: Any) -> None:
    """An episode whose rewards are in another file."""
    import h5py

    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.ExternalLink("/etc/passwd", "/x")


def _column_of_terabytes(file: Any, _: Any) -> None:
    """Rewards that take no room on the disk."""
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (1 << 40,), np.float64, chunks=(1 << 20,))


def _pipe_for_data(folder: Path) -> None:
    dataset(lambda file, metadata: None)(folder)
    (folder / "main_data.hdf5").unlink()
    os.mkfifo(folder / "main_data.hdf5")


THE_SAME = {f"w{i}": tensor(1 << 20) for i in range(9_000)}

NAMES = {
    "track": "a.toml",
    "line": "a.npy",
    "driver": "a.driver",
    "gbx": "a.Challenge.Gbx",
    "inputs": "a.inputs",
    "weights": "a.torch",
    "statistics": "a.joblib",
}
BOMBS: dict[str, tuple[str, str, Make]] = {
    **{f"{kind}: a pipe": (kind, name, os.mkfifo) for kind, name in NAMES.items()},
    **{f"{kind}: zeros without end": (kind, name, zero) for kind, name in NAMES.items()},
    "track: 100 GB": ("track", "a.toml", sparse(100 << 30)),
    "track: nested lists": ("track", "a.toml", text("a = " + "[" * 50_000)),
    "track: its line lies elsewhere": ("track", "a.toml", track_with("../../../../etc/hostname")),
    "line: 100 GB": ("line", "a.npy", sparse(100 << 30, npy(npy_header((4_473_924_266, 3))))),
    "line: a shape of terabytes": ("line", "a.npy", content(npy(npy_header((1 << 40, 3))))),
    "line: a header of 4 GB": ("line", "a.npy", content(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")),
    "driver: 100 GB": ("driver", "a.driver", driver({"w": tensor(1 << 34)}, n_bytes=100 << 30)),
    "driver: nested header": ("driver", "a.driver", driver("[" * 900_000)),
    "driver: a shape of terabytes": ("driver", "a.driver", driver({"w": tensor(1 << 40)}, bytes(64))),
    "driver: all tensors are the same": ("driver", "a.driver", driver(THE_SAME, n_bytes=5 << 20)),
    "gbx: unpacks to 2 GB": ("gbx", "a.Challenge.Gbx", gbx(1 << 31, b"\x12\x00" + bytes(900_000))),
    "weights: 16 GB of no bytes": ("weights", "a.torch", bytes_of_nothing),
    "dataset: a pipe": ("dataset", "a", _pipe_for_data),
    "dataset: another file": ("dataset", "a", dataset(_external_link)),
    "dataset: a column of terabytes": ("dataset", "a", dataset(_column_of_terabytes)),
    "dataset: a billion episodes": ("dataset", "a", dataset(lambda f, m: m.update(total_episodes=10**12))),
    "dataset: nested": ("dataset", "a", dataset(lambda f, m: m.update(observation_space="[" * 100_000))),
}  # fmt: skip
"""By what they are: what reads them, their name, and what makes them."""

LAUGHS = "a = (1, 1)\n" + "a = (a, a)\n" * 60
"""A configuration of Linesight whose value is of 2**60 numbers; the name counts as not worked out."""
