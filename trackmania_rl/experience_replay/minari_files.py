"""Minari's files: finding, reading and writing data sets. Minari itself is imported only where one is used.

HDF5 can name other files, hold terabytes in a kilobyte and contain cycles. A data set as Minari writes it does not, so
`_read_metadata` and `_require_plain_episode` refuse all of that before Minari and HDF5 read the files.
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
from trackmania_rl.files import open_regular, parse_json, portable, read_bounded, replace_patiently

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
DATA: Final = "data"
"""Folder of a data set that holds its files."""
DAMAGED: Final = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AssertionError, NotImplementedError),
    *(RuntimeError, AttributeError, MemoryError),
)
"""What Minari and what it reads files with raise where these are not what they should be."""


@dataclass(frozen=True)
class DataSet:
    """A data set on this machine.

    Attributes:
        name: as somebody named it, for messages.
        data: Minari's own object.
    """

    name: str
    data: Any

    @property
    def id(self) -> str:
        """Its name among all data sets."""
        return str(self.data.id)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self.data.storage.data_path)

    @property
    def observation_space(self) -> Space[Any]:
        """Of its environment."""
        space: Space[Any] = self.data.observation_space
        return space

    @property
    def action_space(self) -> Space[Any]:
        """Likewise."""
        space: Space[Any] = self.data.action_space
        return space

    @property
    def env_spec(self) -> EnvSpec | None:
        """How its environment is made, if it says."""
        spec: EnvSpec | None = self.data.env_spec
        return spec

    def episodes(self) -> Iterator[Episode]:
        """Read one episode after the other.

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
        """Look at each episode before it is read."""
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
        text: its id among Minari's own ($MINARI_DATASETS_PATH, or ~/.minari/datasets), or its folder.
        folder: where a relative path begins.

    Raises:
        UserError: if there is none of this name, it is damaged, or Minari is missing.
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
    """Write a data set; it appears as a whole, or not at all.

    Args:
        dataset_id: NAMESPACE/NAME-vNUMBER.
        episodes: taken one by one, and written at once.
        form: of all of them.
        spec: how the environment is made again, if that can be said.
        description: of what it holds.
        folder: in which the data set's own folder is made; None for Minari's.

    Raises:
        UserError: if the id is none, there is one of this id, no episode came, or the disk says no.
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
    except (OSError, RuntimeError) as error:  # the second is HDF5's where the disk is full
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise UserError(f"{target} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_dataset(str(target), Path())


def _buffers(episodes: Iterable[Episode], about: list[Mapping[str, Any]]) -> Iterator[Any]:
    """Hand episodes to Minari, and note what is told of each."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for episode in episodes:
        # Without the folders of this machine, as the data set may go to others.
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
    """Return the folder that holds a data set's files."""
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
    """Where Minari keeps data sets; unlike asking Minari, this makes no folder."""
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
    """Import Minari: the package, and its class of files.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import minari
        from minari.dataset._storages import hdf5_storage  # noqa: F401  # its own optional package
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise UserError(
            f'data sets need the package Minari ({one_line(error)}): python -m pip install "trackmania-rl[datasets]"'
        ) from error
    return minari, MinariStorage


def _read_metadata(data: Path) -> dict[str, Any]:
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
        if _numbers_in(parse_json(str(metadata[name]), allow_infinity=True)) > LARGEST_SPACE:
            raise ValueError(f"its {name} is of more than {LARGEST_SPACE:,} numbers")
    n_episodes = metadata.get("total_episodes")
    if not isinstance(n_episodes, int) or not 0 <= n_episodes <= MOST_EPISODES:
        raise ValueError(f"it says that it holds {n_episodes!r:.40} episodes; at most {MOST_EPISODES:,} are read")
    return metadata


def _require_plain_episode(group: Any, has_jpeg: bool) -> None:
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


def _numbers_in(space: Any) -> int:
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
    return own + sum(map(_numbers_in, within))
