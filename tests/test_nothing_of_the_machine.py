"""What is handed on holds no login, no home folder and no whole path: records, drivers, data sets."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.experience_replay.dataset_environments import environment_spec
from trackmania_rl.runs import save_best_run
from trackmania_rl.runs.driver_file import DriverTrack, driver_values
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.telemetry.figures import configuration_texts, hyperparameters

LOGIN = "secret-login"
TMLOADER = ("tmloader_path", "tmloader_profile_name")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "somebody-like-me"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("USER", "somebody-like-me")
    monkeypatch.setenv("LOGNAME", "somebody-like-me")
    return folder


@pytest.fixture
def snapshot(tmp_path: Path, home: Path, repository_root: Path) -> Path:
    """A run's configuration that is full of its owner."""
    entry = {"map_name": "mine", "map_path": str(home / "maps" / "mine.toml"), "is_explo": True, "fill_buffer": True}
    entry |= {"reference_line": str(home / "maps" / "mine.npy")}
    overrides = [
        f"maps_folder={str(home / 'maps')!r}",
        f"username={LOGIN}",
        f"map_cycle=({entry!r},)",
        f"trackmania_base_path={str(home)!r}",
    ]
    overrides += [f"game_command='WINEPREFIX={home}/prefix {'a' * 120} sh {home}/start.sh {LOGIN} {{port}}'"]  # wrapped
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", overrides)
    with (snapshot.parent / "user_config.py").open("a") as file:
        file.write("\f\n# line 1 \u2028 line 1, too\n")  # page and line breaks that end no line of Python
        file.write(f"username = {LOGIN!r}\ntmloader_path = 'C:/Users/somebody-like-me/TM.exe'\n# see {home}/notes\n")
        file.write(f"(game_command, username) = [\n    'x',\n    {LOGIN!r},\n]\n")
    snapshot.write_text(f"# Mine.\n\f\n# \u2028 é\n{snapshot.read_text()}")
    return snapshot


def words_of_the_machine(home: Path) -> set[str]:
    """What nothing that is handed on may hold; names as short as others' words are left out."""
    words = {LOGIN, str(home), "somebody-like-me", getpass.getuser(), socket.gethostname()}
    return {word for word in words if len(word) > 4}


def test_a_record_holds_nothing_of_the_machine(tmp_path: Path, home: Path, snapshot: Path) -> None:
    values = np.zeros((3, 2), np.float32)
    folder = save_best_run(tmp_path / "best_runs", "mine", 54_321, "0.00 press up\n", values, snapshot.parent)
    held = {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert {"config.py", "user_config.py", "inputs_list.py", "q_values.npy"} <= held.keys()
    for name, content in held.items():
        for word in words_of_the_machine(home):
            assert word.encode() not in content, f"{name} holds {word}"
    kept, own = load_settings(folder / "config" / "config.py"), load_settings(snapshot)
    differ = {name for name, value in own.flat().items() if kept.flat()[name] != value}
    assert differ == {"username", "map_cycle", "trackmania_base_path", "game_command", "maps_folder", *TMLOADER}
    assert kept.game.map_cycle[0].map_path == "mine.toml"


def test_loggers_get_nothing_of_the_machine(home: Path, snapshot: Path) -> None:
    texts, told = configuration_texts(snapshot.parent), hyperparameters(load_settings(snapshot))
    assert texts.keys() == {"config.py", "inputs_list.py", "state_normalization.py"}
    assert "batch_size = 64\n" in texts["config.py"]
    for word in words_of_the_machine(home) | {"WINEPREFIX", "aaaaaaaa"}:
        assert word not in str(texts)
        assert word not in str(told)
    assert told["maps_folder"] == "maps"


@pytest.mark.parametrize("content", [b"# \xe9\nseed = 1\n", b"seed = (\n", b"\0"])
def test_a_record_is_kept_without_a_configuration_that_is_being_edited(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.py").write_bytes(content)
    folder = save_best_run(tmp_path, "mine", 54_321, "", np.zeros((1, 3), np.float32), tmp_path / "config")
    assert sorted(path.name for path in folder.rglob("*")) == ["config", "mine_54321.inputs", "q_values.npy"]
    assert "is kept without" in caplog.text


def test_drivers_and_data_sets_hold_nothing_of_the_machine(home: Path, snapshot: Path) -> None:
    settings = load_settings(snapshot)
    tracks = [DriverTrack.of_entry(entry, None).model_dump_json() for entry in settings.game.map_cycle]
    spec = environment_spec(settings, [str(home / "maps" / "mine.toml")])
    assert spec is not None
    for held in (json.dumps(driver_values(settings)), *tracks, spec.to_json()):
        for word in words_of_the_machine(home):
            assert word not in held
    assert "mine.toml" in spec.to_json()
