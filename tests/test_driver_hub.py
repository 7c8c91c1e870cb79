"""Drivers on the Hugging Face Hub, which a folder stands for here."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from trackmania_rl.drivers.driver_file import DriverFile, DriverFileError, DriverTrack, write_driver
from trackmania_rl.drivers.hub import pull_driver, push_driver
from trackmania_rl.errors import UserError
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import load_settings


@pytest.fixture
def file(repository_root, tmp_path):
    settings = load_settings(repository_root / "config_files" / "config.py")
    tracks = [DriverTrack.of_entry(settings.game.map_cycle[0], 21_000)]
    counts = {"frames_total": 10, "training_s": 20.0}
    weights = {"weight": torch.arange(6.0)}
    driver = DriverFile.of_network("fast", settings, race_spaces(settings), weights, tracks, **counts)
    return write_driver(tmp_path / "mine" / "fast.driver", driver)


class FolderAsHub:
    """Stand-in of the package, with the same signatures."""

    def __init__(self, folder, monkeypatch):
        hub = pytest.importorskip("huggingface_hub")
        self.folder = folder
        self.made = []
        self.api = mock.create_autospec(hub.HfApi, instance=True)
        self.api.create_repo.side_effect = self._create
        self.api.upload_file.side_effect = self._upload
        self.api.file_exists.side_effect = lambda repo_id, filename: (folder / repo_id / filename).is_file()
        self.api.list_repo_files.side_effect = self._list
        self.api.get_paths_info.side_effect = lambda repo_id, paths, revision: [
            SimpleNamespace(size=(folder / repo_id / path).stat().st_size) for path in paths
        ]
        self.api.hf_hub_download.side_effect = lambda repo_id, filename, revision: str(folder / repo_id / filename)
        monkeypatch.setattr(hub, "HfApi", lambda: self.api)

    def _create(self, repo_id, *, private, exist_ok):
        assert exist_ok
        self.made.append((repo_id, private))
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        return f"https://hub/{repo_id}"

    def _upload(self, *, path_or_fileobj, path_in_repo, repo_id):
        content = path_or_fileobj if isinstance(path_or_fileobj, bytes) else path_or_fileobj.read_bytes()
        (self.folder / repo_id / path_in_repo).write_bytes(content)

    def _list(self, repo_id, *, revision):
        from huggingface_hub.errors import OfflineModeIsEnabled

        if not (self.folder / repo_id).is_dir():
            raise OfflineModeIsEnabled("Cannot reach the hub:\noffline mode is enabled")
        return sorted(path.name for path in (self.folder / repo_id).iterdir())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return FolderAsHub(tmp_path / "hub", monkeypatch)


def test_a_driver_goes_there_and_back(hub, file, tmp_path, monkeypatch):
    assert push_driver(file, "me/valley", {"best times": "valley 0:21.000"}, is_private=True) == "https://hub/me/valley"
    assert hub.made == [("me/valley", True)]
    page = hub.folder / "me" / "valley" / "README.md"
    assert "* best times: valley 0:21.000" in page.read_text()
    assert "pull me/valley/fast.driver" in page.read_text()
    page.write_text("My own words")
    push_driver(file, "me/valley", {})
    assert page.read_text() == "My own words"
    monkeypatch.chdir(tmp_path)
    for name, target in (("", None), ("fast.driver", tmp_path / "other.driver")):
        pulled = pull_driver("me/valley", name, target)
        assert pulled.resolve() == (target or tmp_path / "fast.driver")
        assert pulled.read_bytes() == file.read_bytes()


def test_files_in_the_way_are_named(hub, file, tmp_path):
    damaged = tmp_path / "damaged.driver"
    damaged.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DriverFileError, match="is damaged"):
        push_driver(damaged, "me/valley", {})
    assert hub.made == []
    with pytest.raises(UserError, match=r"pull me/absent: Cannot reach the hub: offline mode is enabled$"):
        pull_driver("me/absent")
    push_driver(file, "me/valley", {})
    with pytest.raises(UserError, match=r"fast\.driver is here already"):
        pull_driver("me/valley", target=file)
    there = hub.folder / "me" / "valley"
    (there / "bad.driver").write_bytes(damaged.read_bytes())
    with pytest.raises(UserError, match=r"its drivers are 'bad.driver, fast.driver'; name one of them"):
        pull_driver("me/valley")
    with pytest.raises(DriverFileError, match="is damaged"):
        pull_driver("me/valley", "bad.driver", tmp_path / "pulled.driver")
    hub.api.get_paths_info.side_effect = lambda *_, **__: [SimpleNamespace(size=10**12)]
    with pytest.raises(DriverFileError, match="larger than a driver may be"):
        pull_driver("me/valley", "fast.driver", tmp_path / "pulled.driver")
    assert not (tmp_path / "pulled.driver").exists()
