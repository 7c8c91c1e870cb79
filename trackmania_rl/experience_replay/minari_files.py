"""Data set files in Minari's format. Minari is imported only when one is used.

HDF5 files can name other files, hold terabytes in a kilobyte and contain cycles, and metadata can name an environment
to be made. So only numbers in the file itself, with bounded size, are read, and metadata that names the spaces.
"""

from __future__ import annotations

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
from trackmania_rl.experience_replay.episodes import COLUMNS, FLOATS, IMAGE, DataSetForm, Episode
from trackmania_rl.files import parse_json, portable, read_bounded, replace_patiently, require_regular

METADATA: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
LARGEST_METADATA_BYTES: Final = 8 << 20
LARGEST_COLUMN_BYTES: Final = 1 << 30
"""Limit for one episode."""
MOST_EPISODES: Final = 10_000_000
DATA: Final = "data"
"""Name of the files' folder in a data set's folder."""


@dataclass(frozen=True)
class DataSet:
    """A data set on this machine, with the environment's spaces."""

    name: str  # as given, for messages
    folder: Path  # with the files
    data: Any  # Minari's object
    observation_space: Space[Any]
    action_space: Space[Any]
    env_spec: EnvSpec | None  # None if unknown

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes, with the infos used here.

        Raises:
            UserError: if one is damaged.
        """
        import h5py

        n_read = 0
        try:
            with h5py.File(self.folder / MAIN_FILE, "r") as file:
                for number in self.data.episode_indices:
                    yield _read_episode(_part(file, f"episode_{number}"))
                    n_read += 1
        except Exception as error:  # h5py fails in many ways
            raise UserError(
                f"{self.name}: {self.folder} is damaged after {n_read} of its {len(self.data)} races "
                f"({one_line(error)}); record it again, or fetch it again from where it is from"
            ) from error


def _read_episode(group: Any) -> Episode:
    observations = _part(group, "observations")
    if not isinstance(observations, np.ndarray):
        observations = {name: _part(observations, name) for name in (FLOATS, IMAGE) if name in observations}
    infos = _part(group, "infos") if "infos" in group else {}
    return Episode(
        observations=observations,
        actions=_part(group, "actions"),
        rewards=_part(group, "rewards"),
        is_finished=bool(_part(group, "terminations")[-1:].any()),
        infos={name: _part(infos, name) for name in COLUMNS if name in infos},
    )


def _part(group: Any, name: str) -> Any:
    """Return the array or the group with this name in an h5py group.

    Raises:
        ValueError: if it is in another file, too large, or not numbers.
    """
    import h5py

    part = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if isinstance(part, h5py.Group):
        return part
    if not isinstance(part, h5py.Dataset) or part.is_virtual or part.external:
        raise ValueError(f"{name} is missing, or in another file")
    if part.dtype.kind not in "biuf" or part.nbytes > LARGEST_COLUMN_BYTES:
        raise ValueError(f"{name} holds no numbers, or more than {LARGEST_COLUMN_BYTES >> 20} MiB")
    return part[()]


def open_dataset(text: str, folder: Path) -> DataSet:
    """Open a data set, named by a folder, relative to `folder`, or by an id in Minari's.

    Raises:
        UserError: if it does not exist or is damaged, or Minari is missing.
    """
    minari, _ = _minari()
    path = _find(text, folder)
    try:
        _check_files(path)
        data = minari.MinariDataset(path)
        return DataSet(text, path, data, data.observation_space, data.action_space, data.env_spec)
    except UserError as error:
        raise UserError(f"{text}: {error}") from error
    except Exception as error:  # Minari fails in many ways
        raise UserError(f"{text}: {path} is damaged, or no Minari data set: {one_line(error)}") from error


def write_dataset(
    dataset_id: str,
    episodes: Iterable[Episode],
    form: DataSetForm,
    spec: EnvSpec | None,
    description: str,
    folder: Path | None = None,
) -> DataSet:
    """Write a data set, atomically, one episode after the other.

    The id is NAMESPACE/NAME-vNUMBER. The folder with that name is in `folder`, or in Minari's for None.

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
    except (OSError, RuntimeError) as error:  # HDF5's error for a full disk is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise UserError(f"{target} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_dataset(str(target), Path())


def _buffers(episodes: Iterable[Episode], about: list[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the episodes in Minari's form, and collect what is known about each."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for episode in episodes:
        # Without this machine's folders, as data sets are shared.
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
    """Return Minari's folder, without creating it as Minari does."""
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
    """Import Minari; return the package and the storage class.

    Raises:
        UserError: if not installed.
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


def _check_files(data: Path) -> None:
    """Check a data set's files before Minari reads them.

    Raises:
        UserError: if not regular, or too large.
        ValueError: if not in Minari's HDF5 format.
    """
    metadata = parse_json(read_bounded(data / METADATA, LARGEST_METADATA_BYTES), allow_infinity=True)
    require_regular(data / MAIN_FILE)
    if not isinstance(metadata, dict) or metadata.get("data_format") != "hdf5":
        raise ValueError("its format is not hdf5")
    if not {"observation_space", "action_space"} <= metadata.keys():
        # Minari would make the environment that the file names, which may run any code.
        raise ValueError("it does not say what its observations and actions are")
    n_episodes = metadata.get("total_episodes")
    if not isinstance(n_episodes, int) or not 0 <= n_episodes <= MOST_EPISODES:
        raise ValueError(f"it says that it holds {n_episodes!r:.40} episodes; at most {MOST_EPISODES:,} are read")
