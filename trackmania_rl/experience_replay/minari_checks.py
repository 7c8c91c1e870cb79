"""What a data set's files may be, before Minari and HDF5 read them: a stranger may have made them.

HDF5 can name other files, keep terabytes in a kilobyte and lead in circles. None of that is in a data set as Minari
writes it, so none of it is read.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, Final

from trackmania_rl.files import open_regular, parse_json, read_bounded

METADATA: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
LARGEST_METADATA_BYTES: Final = 8 << 20
LARGEST_FILE_BYTES: Final = 1 << 40
LARGEST_SPACE: Final = 10_000_000
"""Numbers in an observation or action."""
LARGEST_EPISODE_BYTES: Final = 1 << 30
LARGEST_PACKING: Final = 20
"""How many times its place on disk a part of an episode may be; Minari packs nothing but JPEG pictures."""
SMALL_BYTES: Final = 1 << 16
"""Which may be packed to any size."""
MOST_EPISODES: Final = 10_000_000
MOST_PARTS: Final = 1000
"""Of one episode."""


def read_metadata(data: Path) -> dict[str, Any]:
    """Read what a data set says of itself.

    Args:
        data: the folder of its files.

    Raises:
        UserError: if its files are no files, or too large.
        ValueError: if it is none of Minari's in HDF5, or asks for more memory than a data set may.
        KeyError: if it does not say what its observations and actions are.
    """
    metadata = parse_json(read_bounded(data / METADATA, LARGEST_METADATA_BYTES), allow_infinity=True)
    open_regular(data / MAIN_FILE, LARGEST_FILE_BYTES).close()
    if not isinstance(metadata, dict) or metadata.get("data_format") != "hdf5":
        raise ValueError("its format is not hdf5")
    for name in ("observation_space", "action_space"):
        if name not in metadata:
            # Minari would make the environment that the file names, whatever that runs.
            raise ValueError("it does not say what its observations and actions are")
        if numbers_in(parse_json(str(metadata[name]), allow_infinity=True)) > LARGEST_SPACE:
            raise ValueError(f"its {name} is of more than {LARGEST_SPACE:,} numbers")
    n_episodes = metadata.get("total_episodes")
    if not isinstance(n_episodes, int) or not 0 <= n_episodes <= MOST_EPISODES:
        raise ValueError(f"it says that it holds {n_episodes!r:.40} episodes; at most {MOST_EPISODES:,} are read")
    return metadata


def require_plain_episode(group: Any, has_jpeg: bool) -> None:
    """See that an episode is data that lies in this file, and of bounded size.

    Args:
        group: of h5py, which holds the episode.
        has_jpeg: whether pictures may be kept as JPEG.

    Raises:
        ValueError: if it is anything else.
    """
    import h5py

    parts: list[Any] = []

    def look_at(name: str, link: Any) -> str | None:
        """Tell what is wrong, which ends the visit; HDF5 bears no exception."""
        if not isinstance(link, h5py.HardLink):
            return f"{name[:100]!r} lies in another place or another file"
        if len(parts) >= MOST_PARTS or name.count("/") > 20:
            return f"an episode of more than {MOST_PARTS} parts, or more than 20 deep"
        parts.append(group[name])
        return None

    if wrong := group.visititems_links(look_at):
        raise ValueError(wrong)
    left_bytes = LARGEST_EPISODE_BYTES
    for part in parts:
        if not isinstance(part, h5py.Dataset):
            continue
        left_bytes -= _bytes_of(part, has_jpeg)
        if left_bytes < 0:
            raise ValueError(f"an episode of more than {LARGEST_EPISODE_BYTES >> 20} MiB")


def _bytes_of(part: Any, has_jpeg: bool) -> int:
    """How much memory one part of an episode takes; raises `ValueError` where that is far more than on disk."""
    if part.is_virtual or part.external:
        raise ValueError(f"{part.name[:100]!r} lies in another file")
    n_bytes = math.prod(part.shape or ()) * part.dtype.itemsize
    if n_bytes > SMALL_BYTES + LARGEST_PACKING * part.id.get_storage_size():
        raise ValueError(f"{part.name[:100]!r} is of {n_bytes:,} bytes, packed into {part.id.get_storage_size():,}")
    if part.dtype.kind == "O":  # entries of any length, which may all lie in the same place
        if part.ndim != 1:
            raise ValueError(f"{part.name[:100]!r} is no list of numbers or texts")
        for place in range(len(part)):
            n_bytes += len(part[place])
            if n_bytes > LARGEST_EPISODE_BYTES:
                return n_bytes
    if has_jpeg and part.ndim and ("observations" in part.name or "actions" in part.name):
        n_bytes += _bytes_of_pictures(part)
    return n_bytes


def _bytes_of_pictures(part: Any) -> int:
    from PIL import Image, UnidentifiedImageError

    n_bytes = 0
    for packed in part:
        try:
            with Image.open(io.BytesIO(packed)) as picture:  # which reads the head alone
                width_px, height_px = picture.size
        except Image.DecompressionBombError as error:
            raise ValueError(f"{part.name[:100]!r} holds a picture of far more than a screen") from error
        except (UnidentifiedImageError, TypeError, OSError):
            return n_bytes  # numbers, not pictures; or Minari says so
        n_bytes += 3 * width_px * height_px
    return n_bytes


def numbers_in(space: Any) -> int:
    """How many numbers a space, as Minari writes it, has to hold."""
    if not isinstance(space, dict):
        raise ValueError("a space is no space")
    subspaces = space.get("subspaces", ())
    within = subspaces.values() if isinstance(subspaces, dict) else subspaces
    sizes = [space.get("n", 1) if space.get("type") == "MultiBinary" else 1, space.get("max_length", 1)]
    shape = space.get("shape", ())
    if not all(isinstance(size, int) and size >= 0 for size in (*shape, *sizes[1:])):
        raise ValueError("a space's shape is of no numbers")
    own = math.prod(shape) * (sizes[0] if isinstance(sizes[0], int) else math.prod(sizes[0])) * sizes[1]
    return own + sum(map(numbers_in, within))
