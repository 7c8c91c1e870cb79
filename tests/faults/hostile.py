"""Streams of bytes that no game and no client sends, drawn from a seed."""

from __future__ import annotations

import random
import struct

from trackmania_rl.protocol.state_blob import new_state_blob

SIZES_OF_REPORTS = {1: 4, 2: 8, 3: 8, 4: 0, 5: 0}
"""Payload bytes of the game's messages; a picture's pixels are added where one was asked for."""
SIZES_OF_REQUESTS = {
    **dict.fromkeys((1, 2, 4, 5, 8, 9, 11, 12, 13, 16, 18, 20, 22, 23), 0),
    **dict.fromkeys((6, 10, 15, 19, 21), 4),
    17: 8,
}
"""Payload bytes of the client's messages; 7 and 14 have a length of their own."""
EDGES = (0, 1, -1, 2, 50, 4096, 4097, 1 << 20, (1 << 20) + 1, 2**31 - 1, -(2**31))
INTERESTING_FLOATS = (0.0, -1.0, 80.0, float("nan"), float("inf"), 1e-40, 3e38)
LONGEST_TIMEOUT_MS = 300


def int32(value: int) -> bytes:
    return struct.pack("<i", value)


def block(draw: random.Random, content: bytes) -> bytes:
    """A length and so many bytes; at times the length lies."""
    length = len(content) if draw.random() < 0.8 else draw.choice((*EDGES, len(content) - 1, len(content) + 1))
    return int32(length) + content


def state(draw: random.Random) -> bytes:
    """A state blob: whole, with a few wild words, of noise, or of another size."""
    blob = new_state_blob(draw.randrange(4), draw.randrange(5))
    match draw.randrange(5):
        case 0:
            pass
        case 1 | 2:
            for _ in range(draw.randrange(1, 200)):
                at = 4 * draw.randrange(len(blob) // 4)
                blob[at : at + 4] = draw.choice((draw.randbytes(4), int32(draw.choice(EDGES))))
        case 3:
            blob[:] = draw.randbytes(len(blob))
        case 4:
            blob = blob[: draw.randrange(len(blob))]
    return bytes(blob)


def report(draw: random.Random, frame_bytes: int) -> bytes:
    """A message of the game: mostly well formed, with numbers of any size."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(1, 40))
    if draw.random() < 0.05:
        return int32(draw.choice((0, 6, 99, -1, 2**31 - 1)))
    message_id = draw.choice((1, 1, 1, 2, 3, 4, 5))
    numbers = [
        draw.choice((draw.choice(EDGES), 50 * draw.randrange(-3, 9))) for _ in range(SIZES_OF_REPORTS[message_id] // 4)
    ]
    payload = b"".join(map(int32, numbers))
    pixels = draw.randbytes(frame_bytes) if message_id == 4 else b""
    return int32(message_id) + payload + pixels


def from_game(draw: random.Random, n_messages: int, frame_bytes: int) -> bytes:
    """Reports and answers in any order, perhaps cut off in the middle."""
    parts = [report(draw, frame_bytes) if draw.random() < 0.6 else block(draw, state(draw)) for _ in range(n_messages)]
    stream = b"".join(parts)
    return stream if draw.random() < 0.5 else stream[: draw.randrange(len(stream) + 1)]


def request(draw: random.Random) -> bytes:
    """A message of the client: mostly well formed, with numbers of any size."""
    kind = draw.random()
    if kind < 0.05:
        return draw.randbytes(draw.randrange(1, 60))
    if kind < 0.1:
        return int32(draw.choice((*EDGES, 24, 99)))
    message_id = draw.randrange(1, 24)
    if message_id == 7:
        return int32(7) + block(draw, state(draw))
    if message_id == 14:
        words = ("map", "load", "unload", "set countdown_speed", '"', "\\", "straight.npy", "../..", "\0", "9" * 400)
        text = " ".join(draw.choices(words, k=draw.randrange(4))).encode()
        return int32(14) + block(draw, draw.choice((text, draw.randbytes(draw.randrange(50)))))
    if message_id == 15:
        return int32(15) + struct.pack("<I", draw.randrange(1, LONGEST_TIMEOUT_MS))
    if message_id == 6:
        return int32(6) + struct.pack("<f", draw.choice(INTERESTING_FLOATS))
    if message_id == 17:
        return int32(17) + int32(draw.choice((4, 16, *EDGES))) + int32(draw.choice((3, 12, *EDGES)))
    size = SIZES_OF_REQUESTS.get(message_id, 0)
    is_edge = size == 4 and draw.random() < 0.5
    return int32(message_id) + (int32(draw.choice(EDGES)) if is_edge else draw.randbytes(size))


def from_client(draw: random.Random, n_messages: int) -> bytes:
    """Requests and answers in any order, perhaps cut off in the middle."""
    stream = b"".join(request(draw) for _ in range(n_messages))
    return stream if draw.random() < 0.5 else stream[: draw.randrange(len(stream) + 1)]
