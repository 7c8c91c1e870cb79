"""Entries are added to a configuration's map cycle, and nothing else in the file changes."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.settings import SettingsError, load_settings
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.settings.map_cycle import MapCycleError, add_to_map_cycle

ENTRY: dict[str, Any] = {
    "map_name": "mine",
    "map_path": 'a "quoted" \\ folder/mine.npy',
    "reference_line": "mine_0.5m.npy",
    "is_explo": True,
    "fill_buffer": True,
    "repeat": 3,
}
GREEDY = {**ENTRY, "is_explo": False, "repeat": 1}


@pytest.fixture
def config(repository_root: Path, tmp_path: Path) -> Path:
    """A copy of the default configuration, with its companions."""
    return Path(shutil.copytree(repository_root / "config_files", tmp_path / "config_files")) / "config.py"


@pytest.mark.parametrize("name", ["config.py", "config_tmnf.py", "config_many_tracks.py"])
def test_entries_are_added_behind_the_others_and_no_other_line_changes(config: Path, name: str) -> None:
    config = config.with_name(name)
    before_text, before = config.read_text(), load_settings(config).game.map_cycle
    backup = add_to_map_cycle(config, [ENTRY, GREEDY])
    after = load_settings(config).game.map_cycle
    assert after[:-2] == before
    assert [entry.model_dump(exclude={"generator"}) for entry in after[-2:]] == [ENTRY, GREEDY]
    assert backup.read_text() == before_text
    changes = list(difflib.ndiff(before_text.splitlines(), config.read_text().splitlines()))
    assert not [line for line in changes if line.startswith("- ")]
    assert len([line for line in changes if line.startswith("+ ")]) == 16


def test_the_new_text_looks_as_if_written_by_hand(config: Path) -> None:
    add_to_map_cycle(config, [{**ENTRY, "map_path": "mine.npy"}])
    assert (
        '        "repeat": 1,\n    },\n    {\n        "map_name": "mine",\n        "map_path": "mine.npy",\n'
        '        "reference_line": "mine_0.5m.npy",\n        "is_explo": True,\n        "fill_buffer": True,\n'
        '        "repeat": 3,\n    },\n)\n'
    ) in config.read_text()


def test_entries_can_take_the_place_of_all_others(config: Path) -> None:
    add_to_map_cycle(config, [ENTRY, GREEDY], replace=True)
    assert [entry.map_name for entry in load_settings(config).game.map_cycle] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("windows line ends", lambda text: text.replace("\n", "\r\n")),
        ("a byte order mark", lambda text: "\ufeff" + text),
        (
            "letters of several bytes",
            lambda text: text.replace('"map_name": "valley",', '"map_name": "valley",  # äöü→'),
        ),
        ("a list", lambda text: text.replace("map_cycle = (", "map_cycle = [").replace("},\n)", "},\n]", 1)),
        ("no comma at the end", lambda text: text.replace("},\n)", "}\n)", 1)),
        ("a comment behind the last entry", lambda text: text.replace("},\n)", "},  # the last\n)", 1)),
        ("a type", lambda text: text.replace("map_cycle = (", "map_cycle: tuple = (")),
    ],
)
def test_files_that_were_edited_by_hand_are_understood(config: Path, name: str, change: Any) -> None:
    before = config.read_bytes().decode()
    assert change(before) != before
    config.write_bytes(change(before).encode())
    add_to_map_cycle(config, [ENTRY])
    assert [entry.map_name for entry in load_settings(config).game.map_cycle] == ["valley", "valley", "mine"]
    assert (b"\r\n" in config.read_bytes()) == (name == "windows line ends")
    assert config.read_bytes().count(b"\n") == config.read_bytes().count(b"\r\n") or name != "windows line ends"


@pytest.mark.parametrize(
    "tail",
    [
        "map_cycle = tuple(map_cycle)",
        "map_cycle += (map_cycle[0],)",
        "map_cycle = map_cycle[:1]",
        "(map_cycle) = (map_cycle[0],)",
    ],
)
def test_a_cycle_that_is_computed_is_left_alone(config: Path, tail: str) -> None:
    config.write_text(f"{config.read_text()}\n{tail}\n")
    before = config.read_bytes()
    with pytest.raises(MapCycleError, match="by hand"):
        add_to_map_cycle(config, [ENTRY])
    assert config.read_bytes() == before
    assert sorted(path.name for path in config.parent.iterdir() if "new" in path.name or "bak" in path.name) == []


def test_a_cycle_that_is_changed_behind_ones_back_is_left_alone(config: Path) -> None:
    config.write_text(f"{config.read_text()}\nglobals()['map_cycle'] = map_cycle[:1]\n")
    before = config.read_bytes()
    with pytest.raises(MapCycleError, match="by hand"):
        add_to_map_cycle(config, [ENTRY])
    assert config.read_bytes() == before


@pytest.mark.parametrize("name", ["config_tmnf.py", "config_many_tracks.py"])
def test_a_runs_own_copy_of_a_configuration_based_on_another_can_be_changed(
    config: Path, tmp_path: Path, name: str
) -> None:
    snapshot = write_snapshot(config.with_name(name), tmp_path / "run", ["game=simulated"])
    before = load_settings(snapshot)
    add_to_map_cycle(snapshot, [ENTRY])
    cycle = load_settings(snapshot).game.map_cycle
    assert cycle[:-1] == before.game.map_cycle
    assert cycle[-1].map_name == "mine"


def test_a_name_is_added_once(config: Path) -> None:
    add_to_map_cycle(config, [ENTRY])
    with pytest.raises(MapCycleError, match="'mine' already"):
        add_to_map_cycle(config, [GREEDY])


def test_every_backup_is_kept(config: Path) -> None:
    texts, backups = [], []
    for name in ("a", "b", "c"):
        texts.append(config.read_text())
        backups.append(add_to_map_cycle(config, [{**ENTRY, "map_name": name}]))
    assert [backup.read_text() for backup in backups] == texts


def test_a_configuration_that_is_wrong_already_is_not_touched(config: Path) -> None:
    config.write_text(f"{config.read_text()}\nbatch_size = -1\n")
    with pytest.raises(SettingsError, match="batch_size"):
        add_to_map_cycle(config, [ENTRY])
