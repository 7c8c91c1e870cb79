"""Small files that would take all memory, never end, or reach where they have no business. Each is a function."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

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


def zip_bomb(name: str) -> Make:
    def make(file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, npy(npy_header((1 << 25,)), bytes(1 << 28)))

    return make


def track_with(line: str) -> Make:
    return text(f'name = "bomb"\nline = "{line}"\n')


def track_with_a_pipe(file: Path) -> None:
    os.mkfifo(file.with_name("pipe.npy"))
    track_with("pipe.npy")(file)


def driver(header: Any, data: bytes = b"", n_bytes: int | None = None) -> Make:
    def make(file: Path) -> None:
        encoded = (header if isinstance(header, str) else json.dumps(header)).encode()
        encoded += b" " * (-len(encoded) % 8)
        file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
        if n_bytes is not None:
            os.truncate(file, n_bytes)

    return make


def tensor(n: int, begin: int = 0, end: int | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [n], "data_offsets": [begin, 4 * n if end is None else end]}


def gbx(unpacked_bytes: int, packed: bytes) -> Make:
    head = b"GBX\x06\x00BUCR" + struct.pack("<III", 0x03043000, 0, 1) + struct.pack("<I", 0)
    return content(head + struct.pack("<II", unpacked_bytes, len(packed)) + packed)


def torch_archive(file: Path, pickled: bytes, data: bytes = b"", packing: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(file, "w", packing) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", data)
        archive.writestr("archive/version", "3\n")


def packed_weights(file: Path) -> None:
    stored = io.BytesIO()
    torch.save({"weight": torch.zeros(1 << 28)[: 1 << 26].clone()}, stored)
    with zipfile.ZipFile(stored) as archive, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in archive.namelist():
            packed.writestr(entry, archive.read(entry))


def one_number_a_billion_times(file: Path) -> None:
    torch.save({"weight": torch.zeros(1).expand(1 << 32)}, file)


def the_same_numbers_often(file: Path) -> None:
    base = torch.zeros(1 << 20)
    torch.save({str(i): base[i:] for i in range(4000)}, file)


def bytes_of_nothing(file: Path) -> None:
    torch_archive(file, b"\x80\x02cbuiltins\nbytearray\nK\x01\x8a\x05\x00\x00\x00\x00\x04\x85R.")


FAR_MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
LONG_BYTES = b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"."
PAIRS_OF_PAIRS = b"\x80\x02}K\x00" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"K\x01s."
"""A dictionary whose key holds the same tuple twice, which holds the same tuple twice, and so on 60 deep."""
SAME_HASHES = (
    b"\x80\x02}(" + b"".join(pickle.dumps(i * sys.hash_info.modulus, 2)[2:-1] + b"K\x01" for i in range(70_000)) + b"u."
)
"""A dictionary of whole numbers that all have the hash value 0."""
NESTED_KEY = b"\x80\x02}K\x01" + b"\x85" * 900_000 + b"K\x01s."


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


def _replace(file: Any, **arguments: Any) -> None:
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", **arguments)


def _nowhere(file: Any, _: Any) -> None:
    _replace(file, shape=(1 << 40,), dtype="f8", chunks=(1024,))


def _packed(file: Any, _: Any) -> None:
    _replace(file, data=np.zeros(40_000_000), chunks=(1 << 20,), compression="gzip")


def _external_link(file: Any, _: Any) -> None:
    import h5py

    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.ExternalLink("/etc/passwd", "/x")


def _circle(file: Any, _: Any) -> None:
    file["episode_0/infos"] = file["episode_0"]


def _pipe_for_data(folder: Path) -> None:
    dataset(lambda file, metadata: None)(folder)
    (folder / "main_data.hdf5").unlink()
    os.mkfifo(folder / "main_data.hdf5")


MANY_POINTS = npy(npy_header((1_390_000, 3), "|i1"), bytes(4_170_000))
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
    "track: nested tables": ("track", "a.toml", text("a = " + "{a = " * 10_000)),
    "track: a key of 30,000 names": ("track", "a.toml", text("a." * 30_000 + "a = 1")),
    "track: thousands of unknown keys": ("track", "a.toml", text("".join(f"k{i} = 1\n" for i in range(6_000)))),
    "track: its line is a pipe": ("track", "a.toml", track_with_a_pipe),
    "track: its line lies elsewhere": ("track", "a.toml", track_with("../../../../etc/hostname")),
    "track: its line is on another machine": ("track", "a.toml", track_with("\\\\\\\\host\\\\share\\\\a.npy")),
    "line: 100 GB": ("line", "a.npy", sparse(100 << 30, npy(npy_header((4_473_924_266, 3))))),
    "line: a shape of terabytes": ("line", "a.npy", content(npy(npy_header((1 << 40, 3))))),
    "line: a header of 4 GB": ("line", "a.npy", content(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")),
    "line: nested header": ("line", "a.npy", content(npy("(" * 60_000))),
    "line: an archive that unpacks to 256 MB": ("line", "a.npy", zip_bomb("line.npy")),
    "line: four million points of a byte": ("line", "a.npy", content(MANY_POINTS)),
    "driver: 100 GB": ("driver", "a.driver", driver({"w": tensor(1 << 34)}, n_bytes=100 << 30)),
    "driver: nested header": ("driver", "a.driver", driver("[" * 900_000)),
    "driver: a shape of terabytes": ("driver", "a.driver", driver({"w": tensor(1 << 40)}, bytes(64))),
    "driver: all tensors are the same": ("driver", "a.driver", driver(THE_SAME, n_bytes=5 << 20)),
    "driver: 128 MB of zeros": ("driver", "a.driver", driver({"w": tensor(127 << 18)}, n_bytes=8 + 64 + (127 << 20))),
    "gbx: unpacks to 2 GB": ("gbx", "a.Challenge.Gbx", gbx(1 << 31, b"\x12\x00" + bytes(900_000))),
    "weights: packed": ("weights", "a.torch", packed_weights),
    "weights: one number a billion times": ("weights", "a.torch", one_number_a_billion_times),
    "weights: the same numbers often": ("weights", "a.torch", the_same_numbers_often),
    "weights: 16 GB of no bytes": ("weights", "a.torch", bytes_of_nothing),
    "optimizer: a far place": ("optimizer", "a.torch", lambda file: torch_archive(file, FAR_MEMO)),
    "statistics: a far place": ("statistics", "a.joblib", content(FAR_MEMO)),
    "statistics: 8 GB of no bytes": ("statistics", "a.joblib", content(LONG_BYTES)),
    "weights: the same tuple twice, 60 deep": ("weights", "a.torch", lambda file: torch_archive(file, PAIRS_OF_PAIRS)),
    "statistics: the same tuple twice, 60 deep": ("statistics", "a.joblib", content(PAIRS_OF_PAIRS)),
    "statistics: a key nested 900,000 deep": ("statistics", "a.joblib", content(NESTED_KEY)),
    "statistics: 70,000 keys of one hash value": ("statistics", "a.joblib", content(SAME_HASHES)),
    "dataset: a pipe": ("dataset", "a", _pipe_for_data),
    "dataset: terabytes that are nowhere": ("dataset", "a", dataset(_nowhere)),
    "dataset: zeros, packed": ("dataset", "a", dataset(_packed)),
    "dataset: another file": ("dataset", "a", dataset(_external_link)),
    "dataset: a circle": ("dataset", "a", dataset(_circle)),
    "dataset: a billion episodes": ("dataset", "a", dataset(lambda f, m: m.update(total_episodes=10**12))),
    "dataset: nested": ("dataset", "a", dataset(lambda f, m: m.update(observation_space="[" * 100_000))),
}  # fmt: skip
"""By what they are: what reads them, their name, and what makes them."""

LAUGHS = "a = (1, 1)\n" + "a = (a, a)\n" * 60
"""A configuration of Linesight whose value is of 2**60 numbers; the name counts as not worked out."""
