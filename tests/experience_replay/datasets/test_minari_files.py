"""Finding, writing and reading data sets, and the errors of unusable ones."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.minari_files import DataSet, open_dataset, write_dataset

from .conftest import N_ACTIONS, N_FLOATS, short_episode, small_form


def write(folder: Path | None = None, dataset_id: str = "tested/short-v0", n_races: int = 3) -> DataSet:
    episodes = (short_episode(4 + k, is_finished=k > 0) for k in range(n_races))
    return write_dataset(dataset_id, episodes, small_form(), None, "tested", folder)


def test_by_its_id_it_lies_where_minari_looks(minari_folder: Path, tmp_path: Path) -> None:
    import minari

    write()
    assert (minari_folder / "tested" / "short-v0" / "data" / "metadata.json").is_file()
    assert list(minari.list_local_datasets()) == ["tested/short-v0"]
    theirs = minari.load_dataset("tested/short-v0")
    assert (theirs.total_episodes, theirs.total_steps) == (3, 4 + 5 + 6)
    assert theirs[1].observations.shape == (6, N_FLOATS)
    assert theirs[1].terminations.tolist() == [False] * 4 + [True]
    assert theirs[0].truncations.tolist() == [False] * 3 + [True]
    assert theirs.action_space.n == N_ACTIONS
    opened = open_dataset("tested/short-v0", tmp_path)
    assert [episode.is_finished for episode in opened.episodes()] == [False, True, True]


@pytest.mark.parametrize("named", ["tested/short-v0", "tested/short-v0/data"])
def test_by_its_path_it_lies_anywhere(tmp_path: Path, minari_folder: Path, named: str) -> None:
    assert write(tmp_path / "mine").data.id == "tested/short-v0"
    assert not minari_folder.exists(), "nothing is made in Minari's own folder"
    for text, folder in ((f"mine/{named}", tmp_path), (str(tmp_path / "mine" / named), Path("/nowhere"))):
        assert len(list(open_dataset(text, folder).episodes())) == 3


def test_an_id_is_taken_once_and_nothing_is_left_of_what_failed(minari_folder: Path) -> None:
    write()
    before = sorted(minari_folder.rglob("*"))
    with pytest.raises(UserError, match=r"short-v0 exists: choose another --id"):
        write()
    with pytest.raises(UserError, match=r"--id \.\./x-v0: write"):
        write(dataset_id="../x-v0")
    with pytest.raises(UserError, match="the game is gone"):
        write_dataset("tested/lost-v0", failing(), small_form(), None, "tested")
    assert sorted(minari_folder.rglob("*")) == before
    with pytest.raises(UserError, match=r"atlantis/x-v0: there is no data set in .*/here/atlantis/x-v0 or .*/minari/"):
        open_dataset("atlantis/x-v0", minari_folder / "here")


def failing():
    yield short_episode()
    raise UserError("the game is gone")


def test_damaged_data_and_missing_races_are_errors(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    dataset = write(tmp_path)
    data = dataset.folder / "main_data.hdf5"
    whole = data.read_bytes()
    for n_bytes in (0, 100, 5000):
        data.write_bytes(whole[:n_bytes])
        with pytest.raises(UserError, match=r"data is damaged after 0 of its 3 races .*record it again"):
            list(open_dataset(str(dataset.folder), Path()).episodes())
    data.write_bytes(whole)
    with h5py.File(data, "a") as file:
        del file["episode_2"]
    with pytest.raises(UserError, match="damaged after 2 of its 3 races"):
        list(open_dataset(str(dataset.folder), Path()).episodes())
    metadata = dataset.folder / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"observation_space"', '"nothing"'))
    with pytest.raises(UserError, match="it does not say what its observations and actions are"):
        open_dataset(str(dataset.folder), Path())


def test_foreign_recordings_are_read(tmp_path: Path) -> None:
    """Minari's own way of writing, with rewards in double precision and columns that mean nothing here."""
    import minari
    from gymnasium.spaces import Box, Discrete
    from minari.data_collector.episode_buffer import EpisodeBuffer

    episode = short_episode(4)
    buffer = EpisodeBuffer(
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards.astype(np.float64),
        terminations=[False] * 4,
        truncations=[False] * 3 + [True],
        infos={"wheel": {"angle": np.zeros(5)}, "map": ["valley"] * 5},
    )
    with pytest.warns(UserWarning, match="is set to None"):
        minari.create_dataset_from_buffers(
            "theirs/arm-v0",
            [buffer],
            observation_space=Box(-np.inf, np.inf, (N_FLOATS,), np.float32),
            action_space=Discrete(N_ACTIONS),
        )
    [read] = open_dataset("theirs/arm-v0", tmp_path).episodes()
    assert not read.is_finished
    assert read.floats.tobytes() == episode.floats.tobytes()
    assert read.rewards.tolist() == episode.rewards.tolist()
