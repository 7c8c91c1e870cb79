"""Stand-in for python-lzo: the one function that pygbx calls.

The real python-lzo has no Linux wheels and fails to build without liblzo2's headers; `lzallright` has wheels for
every platform.
"""

import lzallright

error = lzallright.LZOError


def decompress(data: bytes, header: bool = True, buflen: int = -1) -> bytes:
    """Decompress LZO1X `data`, whose decompressed size `buflen` (bytes) is known.

    Raises:
        NotImplementedError: for data that starts with python-lzo's own header, which Gbx files never have.
        error: if the data is damaged.
    """
    if header:
        raise NotImplementedError("this stand-in for python-lzo reads raw LZO1X data only (header=False)")
    return lzallright.LZOCompressor.decompress(bytes(data), output_size_hint=max(buflen, 1))
