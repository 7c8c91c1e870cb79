"""Programs edit a configuration: one setting, or entries of its map cycle; nothing else in the file changes."""

import difflib
import shutil
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, SettingsError, load_settings
from trackmania_rl.settings.editing import HEADING, edit_setting
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.settings.map_cycle import MapCycleError, add_to_map_cycle


@pytest.fixture
def config(tmp_path: Path, repository_root: Path) -> Path:
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config")


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_the_value_is_changed_where_it_stands(config: Path, line_break: str) -> None:
    config.write_bytes(config.read_bytes().replace(b"\n", line_break.encode()))
    before = config.read_bytes()
    assert edit_setting(config, "batch_size", "32") == {"batch_size": (64, 32)}
    assert config.read_bytes() == before.replace(b"batch_size = 64", b"batch_size = 32")
    assert load_settings(config).replay.batch_size == 32
    assert [file.name for file in config.parent.glob(".*")] == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("adam_beta1", "7", "adam_beta1 = 7: input should be less than 1"),
        ("adam_beta1", "__import__('os').system('true')", "adam_beta1 = \"__import__('os').system('true')\""),
        ("adam_bata1", "0.8", "adam_bata1 is no known setting; did you mean adam_beta1?"),
        ("__builtins__", "0.8", "__builtins__ is no known setting"),
        ("batch_size\nseed", "0.8", "write it as name=value"),
        ("n_collectors", "2", "n_collectors waits for the next start"),
        ("lr_schedule", "((5, 1e-3),)", "starts at frame 0"),
    ],
)
def test_a_wrong_edit_changes_nothing(config: Path, name: str, text: str, told: str) -> None:
    before = config.read_bytes()
    with pytest.raises(SettingsError) as refused:
        edit_setting(config, name, text)
    assert told in str(refused.value)
    assert ".edited" not in str(refused.value)
    assert config.read_bytes() == before
    assert [file.name for file in config.parent.glob(".*")] == []


def test_an_edit_that_the_caller_refuses_changes_nothing_and_one_by_another_program_is_not_lost(config: Path) -> None:
    def somebody_edits(_: Settings) -> None:
        config.write_text(config.read_text() + "\nprio_alpha = 0.25\n")

    def refuse(settings: Settings) -> None:
        raise UserError(f"not with {settings.agent.adam_beta1}")

    before = config.read_bytes()
    with pytest.raises(UserError, match=r"not with 0\.5"):
        edit_setting(config, "adam_beta1", "0.5", refuse)
    assert config.read_bytes() == before
    with pytest.raises(UserError, match="edited by somebody else"):
        edit_setting(config, "adam_beta1", "0.5", somebody_edits)
    assert load_settings(config).replay.prio_alpha == 0.25
    assert load_settings(config).agent.adam_beta1 == 0.9


def test_what_is_set_nowhere_comes_to_the_end(config: Path) -> None:
    config.write_text(config.read_text().replace("adam_beta1 = 0.9\n", "exec('adam_beta1 = 0.9')\n"))
    edit_setting(config, "adam_beta1", "0.7")
    edit_setting(config, "adam_beta1", "0.6")
    assert config.read_text().endswith(f"\n{HEADING}\nadam_beta1 = 0.6\n")


def test_a_value_that_code_sets_again_is_left_to_the_user(config: Path) -> None:
    config.write_text(config.read_text() + "\nif True:\n    batch_size = 64\n")
    with pytest.raises(SettingsError, match="in a way that a program cannot change"):
        edit_setting(config, "batch_size", "32")


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
def map_config(repository_root: Path, tmp_path: Path) -> Path:
    """A copy of the default configuration, with its companions."""
    return Path(shutil.copytree(repository_root / "config_files", tmp_path / "config_files")) / "config.py"


@pytest.mark.parametrize("name", ["config.py", "config_tmnf.py", "config_many_tracks.py"])
def test_entries_are_added_behind_the_others_and_no_other_line_changes(map_config: Path, name: str) -> None:
    map_config = map_config.with_name(name)
    before_text, before = map_config.read_text(), load_settings(map_config).game.map_cycle
    backup = add_to_map_cycle(map_config, [ENTRY, GREEDY])
    after = load_settings(map_config).game.map_cycle
    assert after[:-2] == before
    assert [entry.model_dump(exclude={"generator"}) for entry in after[-2:]] == [ENTRY, GREEDY]
    assert backup.read_text() == before_text
    changes = list(difflib.ndiff(before_text.splitlines(), map_config.read_text().splitlines()))
    assert not [line for line in changes if line.startswith("- ")]
    assert len([line for line in changes if line.startswith("+ ")]) == 16


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("windows line ends", lambda text: text.replace("\n", "\r\n")),
        ("a byte order mark", lambda text: "\ufeff" + text),
        ("a list", lambda text: text.replace("map_cycle = (", "map_cycle = [").replace("},\n)", "},\n]", 1)),
        ("no comma at the end", lambda text: text.replace("},\n)", "}\n)", 1)),
        ("a comment behind the last entry", lambda text: text.replace("},\n)", "},  # the last\n)", 1)),
    ],
)
def test_files_that_were_edited_by_hand_are_understood(map_config: Path, name: str, change: Any) -> None:
    before = map_config.read_bytes().decode()
    assert change(before) != before
    map_config.write_bytes(change(before).encode())
    add_to_map_cycle(map_config, [ENTRY])
    assert [entry.map_name for entry in load_settings(map_config).game.map_cycle] == ["valley", "valley", "mine"]
    assert (b"\r\n" in map_config.read_bytes()) == (name == "windows line ends")
    assert map_config.read_bytes().count(b"\n") == map_config.read_bytes().count(b"\r\n") or name != "windows line ends"


def test_a_name_is_added_once_and_every_backup_is_kept(map_config: Path) -> None:
    texts, backups = [], []
    for name in ("a", "b", "c"):
        texts.append(map_config.read_text())
        backups.append(add_to_map_cycle(map_config, [{**ENTRY, "map_name": name}]))
    assert [backup.read_text() for backup in backups] == texts
    with pytest.raises(MapCycleError, match="'a' already"):
        add_to_map_cycle(map_config, [{**GREEDY, "map_name": "a"}])
    add_to_map_cycle(map_config, [ENTRY, GREEDY], replace=True)
    assert [entry.map_name for entry in load_settings(map_config).game.map_cycle] == ["mine", "mine"]


@pytest.mark.parametrize(
    "tail",
    [
        "map_cycle = tuple(map_cycle)",
        "map_cycle += (map_cycle[0],)",
        "map_cycle = map_cycle[:1]",
        "(map_cycle) = (map_cycle[0],)",
        "globals()['map_cycle'] = map_cycle[:1]",
    ],
)
def test_a_cycle_that_is_computed_is_left_alone(map_config: Path, tail: str) -> None:
    map_config.write_text(f"{map_config.read_text()}\n{tail}\n")
    before = map_config.read_bytes()
    with pytest.raises(MapCycleError, match="by hand"):
        add_to_map_cycle(map_config, [ENTRY])
    assert map_config.read_bytes() == before
    assert sorted(path.name for path in map_config.parent.iterdir() if "new" in path.name or "bak" in path.name) == []
