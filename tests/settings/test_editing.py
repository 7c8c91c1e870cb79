"""One setting of a run's own configuration is edited: validated as a whole, or nothing changes."""

from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, SettingsError, load_settings
from trackmania_rl.settings.editing import HEADING, edit_setting, literals_of
from trackmania_rl.settings.live import write_snapshot


@pytest.fixture
def config(tmp_path: Path, repository_root: Path) -> Path:
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config")


def test_the_value_is_changed_where_it_stands(config: Path) -> None:
    before = config.read_text()
    assert edit_setting(config, "adam_beta1", "0.8") == {"adam_beta1": (0.9, 0.8)}
    assert config.read_text() == before.replace("adam_beta1 = 0.9\n", "adam_beta1 = 0.8\n")
    assert load_settings(config).agent.adam_beta1 == 0.8
    assert [file.name for file in config.parent.glob(".*")] == []


def test_a_value_over_several_lines_gives_way_to_another(config: Path) -> None:
    entry = '{"map_name": "kart", "map_path": "kart.toml", "reference_line": "kart_0.5m.npy", "is_explo": True, '
    edit_setting(config, "map_cycle", f'({entry}"fill_buffer": True}},)')
    settings = load_settings(config)
    assert [entry.map_name for entry in settings.game.map_cycle] == ["kart"]
    assert "# Number of collector processes" in config.read_text()


def test_what_is_set_nowhere_comes_to_the_end(config: Path) -> None:
    text = config.read_text().replace("adam_beta1 = 0.9\n", "exec('adam_beta1 = 0.9')\n")
    config.write_text(text)
    edit_setting(config, "adam_beta1", "0.7")
    edit_setting(config, "adam_beta1", "0.6")
    assert config.read_text().endswith(f"\n{HEADING}\nadam_beta1 = 0.6\n")


def test_what_follows_from_a_setting_is_told_too(config: Path) -> None:
    config.write_text(config.read_text().replace("prio_beta = 1.0\n", "prio_beta = prio_alpha\n"))
    assert edit_setting(config, "prio_alpha", "0.5") == {"prio_alpha": (0.0, 0.5), "prio_beta": (0.0, 0.5)}


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


def test_a_check_of_the_caller_s_own_refuses_an_edit(config: Path) -> None:
    def refuse(settings: Settings) -> None:
        raise UserError(f"not with {settings.agent.adam_beta1}")

    before = config.read_bytes()
    with pytest.raises(UserError, match=r"not with 0\.5"):
        edit_setting(config, "adam_beta1", "0.5", refuse)
    assert config.read_bytes() == before


def test_an_edit_by_somebody_else_at_the_same_time_is_not_lost(config: Path) -> None:
    def somebody_edits(_: Settings) -> None:
        config.write_text(config.read_text() + "\nprio_alpha = 0.25\n")

    with pytest.raises(UserError, match="edited by somebody else"):
        edit_setting(config, "adam_beta1", "0.5", somebody_edits)
    assert load_settings(config).replay.prio_alpha == 0.25
    assert load_settings(config).agent.adam_beta1 == 0.9


def test_a_value_that_code_sets_again_is_left_to_the_user(config: Path) -> None:
    config.write_text(config.read_text() + "\nif True:\n    adam_beta1 = 0.9\n")
    with pytest.raises(SettingsError, match="in a way that a program cannot change"):
        edit_setting(config, "adam_beta1", "0.5")


def test_windows_line_breaks_stay(config: Path) -> None:
    config.write_bytes(config.read_bytes().replace(b"\n", b"\r\n"))
    edit_setting(config, "adam_beta1", "0.8")
    content = config.read_bytes()
    assert b"adam_beta1 = 0.8\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")


def test_how_the_file_writes_a_value() -> None:
    text = "a = 1 / 2\nb = (\n    1,\n)\nc = 3\na = 3  # last\nc = a / 2\nd = 'ä'; e = -2\n"
    assert literals_of(text) == {"a": "3", "b": "(\n    1,\n)", "d": "'ä'", "e": "-2"}
    assert literals_of("a = (") == {}
