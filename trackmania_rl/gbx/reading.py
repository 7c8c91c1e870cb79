"""Reader for `.Gbx` files through pygbx, guarded so that no file crashes, hangs or fills the memory.

A `.Gbx` file is a head (class; often an XML line) and a body made from chunks, packed with LZO. pygbx parses the body
without checks. So the byte reader is replaced: reads stay within the file, and read count and unpacked
size are bounded.

pygbx is installed without dependencies (`HOW_TO_INSTALL`), as python-lzo needs a compiler and liblzo2's headers:
lzallright replaces its one function.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from xml.etree import ElementTree

import lzallright

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded

HOW_TO_INSTALL: Final = "python -m pip install --no-deps pygbx==0.3"
IS_INSTALLED: Final = importlib.util.find_spec("pygbx") is not None


if IS_INSTALLED:
    if importlib.util.find_spec("lzo") is None:  # imported by pygbx, but not called
        sys.modules["lzo"] = ModuleType("lzo")
    import pygbx.gbx as gbx_module
    from pygbx import STADIUM_BLOCK_OFFSETS, Gbx
    from pygbx.bytereader import ByteReader
    from pygbx.headers import (
        CGameChallenge,
        CGameCtnGhost,
        CGameHeader,
        CGameReplayRecord,
        ControlEntry,
        MapBlock,
    )
else:

    class _Missing:
        """Placeholder for pygbx's classes, without instances."""

    gbx_module = None
    STADIUM_BLOCK_OFFSETS = {}
    Gbx = ByteReader = _Missing
    CGameChallenge = CGameCtnGhost = CGameHeader = CGameReplayRecord = ControlEntry = MapBlock = _Missing

MAX_FILE_BYTES: Final = 8 << 20
MAX_PACKED_BYTES: Final = 1 << 20
"""Unpacking gives at most a few hundred times as much. Real packed parts have 10 to 300 kB."""
MAX_UNPACKED_BYTES: Final = 16 << 20
MAX_READS: Final = 1_000_000
"""Most values in a file, read in a few seconds. Maps have some thousands, an hour's ghost 400,000."""
KINDS: Final = {
    0x03043000: "a map",
    0x24003000: "a map of an older game",
    0x03093000: "a replay",
    0x2403F000: "a replay of an older game",
    0x03092000: "a ghost",
    0x2401B000: "a ghost of an older game",
    0x0304E000: "a campaign or title",
    0x0303F000: "a ghost without inputs",
}
SUPPORTED: Final = (
    "supported are maps, replays and ghosts of TrackMania Nations Forever and United Forever, not of ManiaPlanet or "
    "Trackmania 2020"
)
LINE_FROM_TEXT: Final = (
    "a line is a .npy file of points (N, 3); of a text with x, y, z in each row numpy makes one: numpy.save("
    '"line.npy", numpy.loadtxt("coords.txt", delimiter=","))'
)
_LATER_GAME: Final = re.compile(rb'<header [^>]{0,400}exever="([3-9]\.[\d.]{1,20})"(?: exebuild="(\d{4})-)?')
"""Program that wrote a ManiaPlanet or Trackmania 2020 file; both have versions from 3 on."""
_pygbx_is_guarded = threading.Lock()


class GbxError(UserError):
    """A `.Gbx` file is missing, damaged, or a different kind than expected."""


class _DamagedError(Exception):
    """A value in the file is impossible."""


@dataclass(frozen=True)
class GbxFile:
    """Parsed file."""

    path: Path
    class_id: int
    content: Gbx
    header: ElementTree.Element | None

    @property
    def kind(self) -> str:
        """File kind, in words."""
        return kind_of(self.class_id)

    def nodes(self, node_type: type[Any]) -> list[Any]:
        """Return the body's nodes with one pygbx class, in the file's order."""
        return [node for node in self.content.classes.values() if isinstance(node, node_type)]


def kind_of(class_id: int) -> str:
    """Return the file kind for this class, in words."""
    return KINDS.get(class_id, f"a Gbx file of class {class_id:#010x}")


def wrong_name(path: Path) -> GbxError:
    """Return the error for a file not named as a map, replay, ghost or line."""
    name = path.name.lower()
    if name.endswith(".map.gbx"):
        return GbxError(f"{path}: a map of ManiaPlanet or Trackmania 2020, by its name; {SUPPORTED}")
    if name.endswith((".txt", ".csv")):
        return GbxError(f"{path}: a text, by its name; {LINE_FROM_TEXT}")
    return GbxError(
        f"{path}: a map's name ends in .Challenge.Gbx, a replay's, which holds its map, in .Replay.Gbx, a ghost's in "
        ".Ghost.Gbx, a line's in .npy"
    )


def read_gbx(path: Path) -> GbxFile:
    """Read and parse a file.

    Raises:
        GbxError: if missing, not a `.Gbx` file, too large, or damaged.
    """
    if not path.exists():
        raise GbxError(f"{path}: no such file")
    return parse_gbx(bytes(read_bounded(path, MAX_FILE_BYTES, GbxError)), path)


def parse_gbx(data: bytes, path: Path) -> GbxFile:
    """Parse a file's bytes; `path` is for errors.

    Raises:
        GbxError: if not a `.Gbx` file, or damaged, or pygbx is not installed.
    """
    class_id = _check_head(data, path)
    if (later := _LATER_GAME.search(data, 17, 17 + int.from_bytes(data[13:17], "little"))) is not None:
        game = "Trackmania 2020" if int(later[2] or 0) >= 2020 else "ManiaPlanet"
        raise GbxError(f"{path}: {kind_of(class_id)} of {game} (version {later[1].decode()}); {SUPPORTED}")
    if not IS_INSTALLED:
        raise GbxError(f"{path}: {kind_of(class_id)}; reading it needs the package pygbx: {HOW_TO_INSTALL}")
    try:
        with _guarded_pygbx():
            content = Gbx(data)
        header = _header_xml(data)
    except Exception as error:  # pygbx checks nothing: a damaged file may raise any error
        reason = str(error) if isinstance(error, _DamagedError) else f"{type(error).__name__}: {error}"
        raise GbxError(
            f"{path}: {kind_of(class_id)}, but not a readable one ({reason}); {SUPPORTED}. Get the file again "
            "if it may be damaged"
        ) from error
    return GbxFile(path, class_id, content, header)


def _check_head(data: bytes, path: Path) -> int:
    if len(data) < 13 or data[:3] != b"GBX":
        raise GbxError(f"{path}: not a readable .Gbx file: it does not begin with GBX")
    version = int.from_bytes(data[3:5], "little")
    if not 3 <= version <= 6:
        raise GbxError(f"{path}: a .Gbx file of version {version}; supported are 3 to 6")
    layout = data[5:8].decode("latin-1")
    if layout[0] != "B" or layout[2] != "C":
        raise GbxError(f"{path}: a .Gbx file written as {layout!r}; supported are packed binary ones (BUC)")
    class_at = 9 if version >= 4 else 8
    return int.from_bytes(data[class_at : class_at + 4], "little")


def _header_xml(data: bytes) -> ElementTree.Element | None:
    begin = data.find(b"<header ")
    end = data.find(b"</header>")
    if begin < 0 or end < begin:
        return None
    return ElementTree.fromstring(data[begin:end] + b"</header>")


class _BoundedReader(ByteReader):  # type: ignore[misc]  # pygbx has no types
    """pygbx's reader with bounded reads; `budget` holds the reads left."""

    def __init__(self, budget: list[int], data: bytes) -> None:
        super().__init__(data)
        self._budget = budget

    def read(self, num_bytes: int, typestr: str | None = None) -> Any:
        self._require_bytes(num_bytes)
        return super().read(num_bytes, typestr)

    def read_byte(self) -> int:
        self._require_bytes(1)
        return super().read_byte()

    def _require_bytes(self, num_bytes: int) -> None:
        self._budget[0] -= 1
        if self._budget[0] < 0:
            raise _DamagedError(f"more than {MAX_READS:,} values")
        if not 0 <= num_bytes <= self.size - self.pos:
            raise _DamagedError(f"something of {num_bytes} bytes begins {self.size - self.pos} bytes before the end")


def _unpack_lzo(data: bytes, _: bool, size: int) -> bytes:
    _check_sizes(len(data), size)
    unpacked = lzallright.LZOCompressor.decompress(bytes(data), output_size_hint=max(size, 1))
    if len(unpacked) != size:
        raise _DamagedError(f"a packed part of {len(unpacked)} bytes says it has {size}")
    return unpacked


def _unpack_zlib(data: bytes, _: int, size: int) -> bytes:
    _check_sizes(len(data), size)
    return zlib.decompressobj().decompress(data, max_length=max(1, size))


def _check_sizes(packed_bytes: int, unpacked_bytes: int) -> None:
    if packed_bytes > MAX_PACKED_BYTES or unpacked_bytes > MAX_UNPACKED_BYTES:
        raise _DamagedError(
            f"a packed part of {packed_bytes:,} bytes that says it unpacks to {unpacked_bytes:,}; "
            f"at most {MAX_PACKED_BYTES:,} and {MAX_UNPACKED_BYTES:,} are read"
        )


@contextmanager
def _guarded_pygbx() -> Iterator[None]:
    """Bound pygbx's reads, and suppress its logs about unknown chunks."""
    guards = {
        "ByteReader": partial(_BoundedReader, [MAX_READS]),
        "lzo": SimpleNamespace(decompress=_unpack_lzo),
        "zlib": SimpleNamespace(decompress=_unpack_zlib),
    }
    with _pygbx_is_guarded:
        originals = {name: getattr(gbx_module, name) for name in guards}
        previous_level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            for name, guard in guards.items():
                setattr(gbx_module, name, guard)
            yield
        finally:
            for name, original in originals.items():
                setattr(gbx_module, name, original)
            logging.disable(previous_level)
