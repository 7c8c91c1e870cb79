"""What is used of pygbx, if it is installed; without it everything works but reading `.Gbx` files.

pygbx asks for python-lzo, which fails to build without a compiler and liblzo2's headers. So it is no requirement of the
installed package, and can be installed without its own requirements (`HOW_TO_INSTALL`): the one function of python-lzo
that it calls is lzallright's here.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Final

import lzallright

HOW_TO_INSTALL: Final = "python -m pip install --no-deps pygbx==0.3"
IS_INSTALLED: Final = importlib.util.find_spec("pygbx") is not None


def decompress(data: bytes, size: int) -> bytes:
    """Unpack LZO1X data whose unpacked size (bytes) is known.

    Raises:
        lzallright.LZOError: if it is damaged.
    """
    return lzallright.LZOCompressor.decompress(data, output_size_hint=max(size, 1))


if IS_INSTALLED:
    if importlib.util.find_spec("lzo") is None:  # imported by pygbx, but not called: see `reading`
        sys.modules["lzo"] = types.ModuleType("lzo")
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
        """Stands in for pygbx's classes; nothing is ever one of these."""

    gbx_module, STADIUM_BLOCK_OFFSETS = None, {}
    Gbx = ByteReader = _Missing
    CGameChallenge = CGameCtnGhost = CGameHeader = CGameReplayRecord = ControlEntry = MapBlock = _Missing
