"""Parts named in the configuration: found beside it, and missed with a remedy."""

import shutil
import sys
from pathlib import Path

import pytest

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.parts import load_part
from trackmania_rl.settings import SettingsError, load_settings


@pytest.fixture
def config_file(tmp_path, repository_root, monkeypatch):
    """A configuration with a module of a user beside it, `own_parts`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    file = Path(shutil.copytree(repository_root / "config_files", tmp_path, dirs_exist_ok=True)) / "config.py"
    (tmp_path / "own_parts.py").write_text("class LogSpeed: pass\n")
    (tmp_path / "broken_parts.py").write_text("import a_library_that_is_missing\n")
    (tmp_path / "failing_parts.py").write_text("1 / 0\n")
    return file


def test_parts_are_found_beside_the_configuration_and_in_the_current_folder(config_file, tmp_path, monkeypatch):
    assert load_part(load_settings(config_file).agent.network, "network") is IQN_Network
    (name,) = load_settings(config_file, ["hooks=own_parts:LogSpeed"]).run.hooks
    assert load_part(name, "hooks").__name__ == "LogSpeed"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "parts_of_this_folder.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_part("parts_of_this_folder:answer", "hooks") == 42


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "no_such_parts:Hook",
            r"hooks = 'no_such_parts:Hook': there is no module no_such_parts; put no_such_parts\.py",
        ),
        ("own_parts.deeper:Hook", r"there is no module own_parts.deeper; put own_parts/deeper\.py"),
        ("own_parts:LogSped", r"own_parts\.py has no LogSped; did you mean LogSpeed\?"),
        ("own_parts:Zebra", r"own_parts\.py has no Zebra; define it there"),
        ("broken_parts:Hook", r"broken_parts fails as it is imported: .*'a_library_that_is_missing'"),
        ("failing_parts:Hook", r"failing_parts fails as it is imported: ZeroDivisionError: division by zero"),
    ],
)
def test_missing_and_wrong_values_are_named(config_file, text, message):
    (name,) = load_settings(config_file, [f"hooks={text}"]).run.hooks
    with pytest.raises(SettingsError, match=message):
        load_part(name, "hooks")


@pytest.mark.parametrize(
    "override", ["network=IQN_Network", "hooks=my hook:A", "transforms=('a:b', 'c')", "network=a:"]
)
def test_other_forms_are_refused(config_file, override):
    with pytest.raises(SettingsError, match=f"{override.partition('=')[0]}.*: write it as"):
        load_settings(config_file, [override])
