"""Files of data sets in Minari's format. Minari is imported only when one is used.

HDF5 files can name other files, hold terabytes in a kilobyte and contain cycles. `_read_metadata` and
`_require_plain_episode` reject that before Minari reads the files.
"""

from __future__ import annotations

import io
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.episodes import Episode, EpisodeForm
from trackmania_rl.files import parse_json, portable, read_bounded, replace_patiently, require_regular

METADATA: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
LARGEST_METADATA_BYTES: Final = 8 << 20
LARGEST_SPACE: Final = 10_000_000
"""Numbers in an observation or action."""
LARGEST_EPISODE_BYTES: Final = 1 << 30
LARGEST_PACKING: Final = 20
"""Largest ratio of a part's size to its size on disk; Minari compresses only JPEG pictures."""
SMALL_BYTES: Final = 1 << 16
"""Parts up to this size may be compressed at any ratio."""
MOST_EPISODES: Final = 10_000_000
MOST_PARTS: Final = 1000
"""Of one episode."""
DATA: Final = "data"
"""Folder of the files in a data set's folder."""
DAMAGED: Final = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AssertionError, NotImplementedError),
    *(RuntimeError, AttributeError, MemoryError),
)
"""Exceptions of Minari and h5py for damaged files."""


@dataclass(frozen=True)
class DataSet:
    """A data set on this machine.

    Attributes:
        name: as given, for messages.
        data: Minari's object.
    """

    name: str
    data: Any

    @property
    def id(self) -> str:
        """Minari's id."""
        return str(self.data.id)

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return Path(self.data.storage.data_path)

    @property
    def observation_space(self) -> Space[Any]:
        """Observation space of the environment."""
        space: Space[Any] = self.data.observation_space
        return space

    @property
    def action_space(self) -> Space[Any]:
        """Action space of the environment."""
        space: Space[Any] = self.data.action_space
        return space

    @property
    def env_spec(self) -> EnvSpec | None:
        """Specification of the environment; None if unknown."""
        spec: EnvSpec | None = self.data.env_spec
        return spec

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes.

        Raises:
            UserError: if one is damaged.
        """
        n_read = 0
        try:
            for _, episode, about in zip(self._checked(), self._data(), self._about(), strict=True):
                is_finished = bool(episode.terminations[-1]) if len(episode.terminations) else False
                yield Episode(
                    observations=episode.observations,
                    actions=np.asarray(episode.actions),
                    rewards=np.asarray(episode.rewards),
                    is_finished=is_finished,
                    infos=episode.infos or {},
                    about=about,
                )
                n_read += 1
        except DAMAGED as error:
            raise UserError(
                f"{self.name}: {self.folder} is damaged after {n_read} of its {len(self.data)} races "
                f"({one_line(error)}); record it again, or fetch it again from where it is from"
            ) from error

    def _checked(self) -> Iterator[None]:
        """Validate each episode before it is read."""
        import h5py

        has_jpeg = bool(getattr(self.data.storage, "jpeg_encoding", True))
        with h5py.File(self.folder / MAIN_FILE, "r") as file:
            for number in self.data.episode_indices:
                name = f"episode_{number}"
                if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"{name} lies in another place or another file")
                _require_plain_episode(file[name], has_jpeg)
                yield

    def _data(self) -> Iterator[Any]:
        return iter(self.data.iterate_episodes())

    def _about(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.data.storage.get_episode_metadata(self.data.episode_indices))


def open_dataset(text: str, folder: Path) -> DataSet:
    """Open a data set.

    Args:
        text: an id in Minari's folder ($MINARI_DATASETS_PATH, or ~/.minari/datasets), or a folder.
        folder: base of a relative path.

    Raises:
        UserError: if it does not exist or is damaged, or Minari is missing.
    """
    minari, _ = _minari()
    path = _find(text, folder)
    try:
        _read_metadata(path)
        return DataSet(text, minari.MinariDataset(path))
    except ImportError as error:
        raise UserError(f"{text}: {one_line(error)}") from error
    except UserError as error:
        raise UserError(f"{text}: {error}") from error
    except DAMAGED as error:
        raise UserError(f"{text}: {path} is damaged, or no Minari data set: {one_line(error)}") from error


def write_dataset(
    dataset_id: str,
    episodes: Iterable[Episode],
    form: EpisodeForm,
    spec: EnvSpec | None,
    description: str,
    folder: Path | None = None,
) -> DataSet:
    """Write a data set, atomically.

    Args:
        dataset_id: NAMESPACE/NAME-vNUMBER.
        episodes: written one by one.
        form: of all episodes.
        spec: of the environment; None if unknown.
        description: of the data set.
        folder: parent of the data set's folder; None for Minari's.

    Raises:
        UserError: if the id is invalid or exists, there is no episode, or writing fails.
    """
    minari, storage_class = _minari()
    _check_id(dataset_id)
    target = (_root() if folder is None else folder) / dataset_id
    if target.exists():
        raise UserError(f"{target} exists: choose another --id (a higher version), or delete it first")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    about: list[Mapping[str, Any]] = []
    try:
        temporary.mkdir(parents=True)
        storage = storage_class.new(
            temporary / DATA, form.observation_space, form.spaces.action, spec, data_format="hdf5", jpeg_encoding=False
        )
        storage.update_metadata(
            {"dataset_id": dataset_id, "minari_version": minari.__version__, "description": description}
        )
        storage.update_episodes(_buffers(episodes, about))
        if not about:
            raise UserError("there is no race to write: none was driven or kept")
        storage.update_episode_metadata(about)
        replace_patiently(temporary, target)
    except (OSError, RuntimeError) as error:  # HDF5's error of a full disk is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise UserError(f"{target} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_dataset(str(target), Path())


def _buffers(episodes: Iterable[Episode], about: list[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield Minari's form of the episodes, and collect what is known about each."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for episode in episodes:
        # Without folders of this machine, as data sets are shared.
        about.append({name: portable(of) if isinstance(of, str) else of for name, of in episode.about.items()})
        is_last = np.arange(len(episode.actions)) == len(episode.actions) - 1
        yield EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=is_last & episode.is_finished,
            truncations=is_last & (not episode.is_finished),
            infos=dict(episode.infos),
        )


def _find(text: str, folder: Path) -> Path:
    """Return the folder of a data set's files."""
    looked_in = [folder / text, _root() / text]
    for path in looked_in:
        for data in (path / DATA, path):
            if (data / METADATA).is_file():
                return data
    raise UserError(
        f"{text}: there is no data set in {' or '.join(map(str, looked_in))}; make one with "
        f"scripts/tools/dataset.py record, or fetch a published one with: minari download {text}"
    )


def _root() -> Path:
    """Return Minari's folder, without creating it."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def _check_id(dataset_id: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--id {dataset_id}: write NAMESPACE/NAME-vNUMBER of letters, digits, - and _, such as "
            "trackmania/valley-expert-v0"
        ) from error


def _minari() -> tuple[Any, Any]:
    """Import Minari; return the package and its storage class.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import minari
        from minari.dataset._storages import hdf5_storage  # noqa: F401  # needs h5py
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise UserError(
            f'data sets need the package Minari ({one_line(error)}): python -m pip install "trackmania-rl[datasets]"'
        ) from error
    return minari, MinariStorage


def _read_metadata(data: Path) -> dict[str, Any]:
    """Read and validate the metadata of a data set.

    Args:
        data: the folder of its files.

    Raises:
        UserError: if the files are not regular, or too large.
        ValueError: if it is not in Minari's HDF5 format, or its sizes exceed the limits.
    """
    metadata = parse_json(read_bounded(data / METADATA, LARGEST_METADATA_BYTES), allow_infinity=True)
    require_regular(data / MAIN_FILE)
    if not isinstance(metadata, dict) or metadata.get("data_format") != "hdf5":
        raise ValueError("its format is not hdf5")
    for name in ("observation_space", "action_space"):
        if name not in metadata:
            # Minari would make the environment that the file names, which may run any code.
            raise ValueError("it does not say what its observations and actions are")
        if _numbers_in(parse_json(str(metadata[name]), allow_infinity=True)) > LARGEST_SPACE:
            raise ValueError(f"its {name} is of more than {LARGEST_SPACE:,} numbers")
    n_episodes = metadata.get("total_episodes")
    if not isinstance(n_episodes, int) or not 0 <= n_episodes <= MOST_EPISODES:
        raise ValueError(f"it says that it holds {n_episodes!r:.40} episodes; at most {MOST_EPISODES:,} are read")
    return metadata


def _require_plain_episode(group: Any, has_jpeg: bool) -> None:
    """Check that an episode is in this file and of bounded size.

    Args:
        group: h5py's group of the episode.
        has_jpeg: whether pictures may be JPEG.

    Raises:
        ValueError: if it is not.
    """
    import h5py

    parts: list[Any] = []

    def look_at(name: str, link: Any) -> str | None:
        """Return an error, which ends the visit; HDF5 does not propagate exceptions."""
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
    """Return the memory that a part of an episode takes; raise ValueError if it is far more than on disk."""
    if part.is_virtual or part.external:
        raise ValueError(f"{part.name[:100]!r} lies in another file")
    n_bytes = math.prod(part.shape or ()) * part.dtype.itemsize
    if n_bytes > SMALL_BYTES + LARGEST_PACKING * part.id.get_storage_size():
        raise ValueError(f"{part.name[:100]!r} is of {n_bytes:,} bytes, packed into {part.id.get_storage_size():,}")
    if part.dtype.kind == "O":  # entries of any length, which may share their memory
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
            with Image.open(io.BytesIO(packed)) as picture:  # reads the header only
                width_px, height_px = picture.size
        except Image.DecompressionBombError as error:
            raise ValueError(f"{part.name[:100]!r} holds a picture of far more than a screen") from error
        except (UnidentifiedImageError, TypeError, OSError):
            return n_bytes  # not pictures, or Minari raises an error
        n_bytes += 3 * width_px * height_px
    return n_bytes


def _numbers_in(space: Any) -> int:
    """Count the numbers of a value of a space in Minari's JSON form."""
    if not isinstance(space, dict):
        raise ValueError("a space is no space")
    subspaces = space.get("subspaces", ())
    within = subspaces.values() if isinstance(subspaces, dict) else subspaces
    sizes = [space.get("n", 1) if space.get("type") == "MultiBinary" else 1, space.get("max_length", 1)]
    shape = space.get("shape", ())
    if not all(isinstance(size, int) and size >= 0 for size in (*shape, *sizes[1:])):
        raise ValueError("a space's shape is of no numbers")
    own = math.prod(shape) * (sizes[0] if isinstance(sizes[0], int) else math.prod(sizes[0])) * sizes[1]
    return own + sum(map(_numbers_in, within))
