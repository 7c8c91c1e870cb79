"""What a client may send that no client should."""

import numpy as np
from raw_client import int32s


def abuse_with_noise(client):
    for seed in range(3):
        client.send(np.random.default_rng(seed).bytes(200_000))


ABUSES = {
    "noise": abuse_with_noise,
    "an unknown id": lambda client: client.send(int32s(99)),
    "huge blob": lambda client: client.send(int32s(7, 2**31 - 1), bytes(100_000)),
    "negative length": lambda client: client.send(int32s(14, -1)),
    "more than allowed": lambda client: client.send(int32s(14, (1 << 20) + 1)),
    "as long as allowed": lambda client: client.send(int32s(7, 1 << 20), bytes(1 << 20)),
    "half an id": lambda client: client.send(b"\x01\x00"),
    "half a blob": lambda client: client.send(int32s(7, 8408), bytes(4000)),
    "half a float": lambda client: client.send(int32s(6), b"\x00"),
    "half a key": lambda client: client.send(int32s(10), b"\x01\x01"),
    "a frame that nobody reads": lambda client: client.send(int32s(17, 400, 300), int32s(1)),
    "no word": lambda client: None,
}
