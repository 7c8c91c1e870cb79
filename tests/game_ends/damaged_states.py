"""State blobs that no game can be in."""

import struct

import numpy as np
from raw_client import int32s


def changed(blob: bytes, offset: int, content: bytes) -> bytes:
    copy = bytearray(blob)
    copy[offset : offset + len(content)] = content
    return bytes(copy)


DAMAGES = {
    "empty": lambda blob: b"",
    "short": lambda blob: blob[:-1],
    "long": lambda blob: blob + bytes(8),
    "noise": lambda blob: bytes(range(256)) * 40,
    "negative count": lambda blob: changed(blob, 8348, int32s(-1)),
    "infinite position": lambda blob: changed(blob, 724, struct.pack("<f", np.inf)),
    "velocity that is no number": lambda blob: changed(blob, 744, struct.pack("<f", np.nan)),
    "endless turning": lambda blob: changed(blob, 768, struct.pack("<f", -np.inf)),
}
"""Each makes one of a state of a race with three gates."""
