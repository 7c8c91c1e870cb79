"""Files for others hold no login, no home folder and no whole path: records, drivers, data sets."""

import getpass
import json
import socket

import numpy as np
import pytest

from trackmania_rl.drivers.driver_file import DriverTrack, driver_values
from trackmania_rl.experience_replay.dataset_environments import environment_spec
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.runs.snapshot import handed_on_text, write_snapshot
from trackmania_rl.runs.store import save_best_run
from trackmania_rl.settings import load_settings
from trackmania_rl.telemetry.figures import hyperparameters

LOGIN = "secret-login"


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home" / "somebody-like-me"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("USER", "somebody-like-me")
    monkeypatch.setenv("LOGNAME", "somebody-like-me")
    return folder


@pytest.fixture
def snapshot(tmp_path, home, repository_root):
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
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path, overrides)


def words_of_the_machine(home):
    """Texts that no file for others may hold; names as short as others' words are left out."""
    words = {LOGIN, str(home), "somebody-like-me", getpass.getuser(), socket.gethostname()}
    return {word for word in words if len(word) > 4}


def test_a_record_holds_nothing_of_the_machine(tmp_path, home, snapshot):
    facts = {"map_name": "mine", "is_explo": False, "fill_buffer": True, "race_time_ms": 54_321}
    race = Race({"q_values": np.zeros((3, 2), np.float32)}, RaceFacts(**facts, inputs="0.00 press up\n"))
    folder = save_best_run(tmp_path / "best_runs", race, load_settings(snapshot))
    held = {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert {"settings.toml", "q_values.npy"} <= held.keys()
    for name, content in held.items():
        for word in words_of_the_machine(home):
            assert word.encode() not in content, f"{name} holds {word}"
    kept, own = load_settings(folder / "settings.toml"), load_settings(snapshot)
    differ = {name for name, value in own.flat().items() if kept.flat()[name] != value}
    assert differ == {"username", "map_cycle", "trackmania_base_path", "game_command", "maps_folder"}
    assert kept.game.map_cycle[0].map_path == "mine.toml"


def test_loggers_get_nothing_of_the_machine(home, snapshot):
    text, told = handed_on_text(load_settings(snapshot), "Settings"), hyperparameters(load_settings(snapshot))
    assert "batch_size = 64\n" in text
    for word in words_of_the_machine(home) | {"WINEPREFIX", "aaaaaaaa"}:
        assert word not in text
        assert word not in str(told)
    assert told["maps_folder"] == "maps"


def test_drivers_and_data_sets_hold_nothing_of_the_machine(home, snapshot):
    settings = load_settings(snapshot)
    tracks = [DriverTrack.of_entry(entry, None).model_dump_json() for entry in settings.game.map_cycle]
    spec = environment_spec(settings, [str(home / "maps" / "mine.toml")])
    for held in (json.dumps(driver_values(settings)), *tracks, spec.to_json()):
        for word in words_of_the_machine(home):
            assert word not in held
    assert "mine.toml" in spec.to_json()
