"""TMInterface's folder for plugins, and the files there when the plugin is installed."""

import os
import re

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.tmi_interaction.launchers.plugin_files import (
    PLUGIN_FILE,
    PLUGIN_NAME,
    Outcome,
    find_plugins_folder,
    install_plugin,
)

OTHERS = "// Somebody else's plugin\nvoid Main() {}\n"


@pytest.fixture
def plugins(tmp_path):
    folder = tmp_path / "Documents" / "TMInterface" / "Plugins"
    folder.mkdir(parents=True)
    return folder


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def with_version(version):
    return re.sub(r"LINK_VERSION = \d+;", f"LINK_VERSION = {version};", PLUGIN_FILE.read_text(encoding="utf-8"))


def test_the_first_installation_copies_the_plugin_and_the_next_one_leaves_it_alone(plugins):
    done = install_plugin(plugins)
    assert (done.outcome, done.backup, done.version) == (Outcome.INSTALLED, None, LINK_VERSION)
    assert done.path.read_bytes() == PLUGIN_FILE.read_bytes()
    done.path.write_bytes(PLUGIN_FILE.read_bytes().replace(b"\n", b"\r\n"))
    before = done.path.stat().st_mtime_ns
    assert install_plugin(plugins).outcome == Outcome.UP_TO_DATE
    assert done.path.stat().st_mtime_ns == before
    assert names_in(plugins) == [PLUGIN_NAME]


def test_other_files_of_its_name_are_kept_as_backups_that_are_no_plugins(plugins):
    contents = [OTHERS, "", with_version(0), with_version(1) + "// mine\n", "const int LINK_VERSION = 999;\n"]
    for content in contents:
        (plugins / PLUGIN_NAME).write_text(content, encoding="utf-8")
        done = install_plugin(plugins)
        assert done.outcome == Outcome.UPDATED
        assert done.backup.read_text(encoding="utf-8") == content
        assert done.path.read_bytes() == PLUGIN_FILE.read_bytes()
    backups = [name for name in names_in(plugins) if name != PLUGIN_NAME]
    assert len(backups) == len(contents)
    assert not any(name.endswith(".as") for name in backups)


def test_a_newer_version_is_left_alone(plugins):
    newer = with_version(999)
    (plugins / PLUGIN_NAME).write_text(newer, encoding="utf-8")
    done = install_plugin(plugins)
    assert (done.outcome, done.version, done.backup) == (Outcome.NEWER, 999, None)
    assert (plugins / PLUGIN_NAME).read_text(encoding="utf-8") == newer


def test_unusable_files_are_named(plugins, tmp_path):
    (tmp_path / "other.as").write_text(OTHERS)
    for folder, source, told in (
        (plugins, tmp_path / "other.as", "is not this project's plugin"),
        (plugins, tmp_path / "absent.as", "is not this project's plugin"),
        (tmp_path / "nowhere", PLUGIN_FILE, "nowhere: there is no such folder"),
    ):
        with pytest.raises(UserError, match=told):
            install_plugin(folder, source)
    for blocked, told in ((PLUGIN_NAME, "cannot be read"), (PLUGIN_NAME + ".unfinished", "cannot be written")):
        (plugins / blocked).mkdir()
        with pytest.raises(UserError, match=told):
            install_plugin(plugins)
        (plugins / blocked).rmdir()


@pytest.mark.parametrize(
    "documents",
    ["OneDrive/Documents", "prefix/drive_c/users/x/My Documents"],
)
def test_the_usual_places_are_searched(tmp_path, documents, monkeypatch):
    if "drive_c" in documents and os.name != "posix":
        pytest.skip("Wine is for Linux")
    monkeypatch.delenv("WINEPREFIX", raising=False)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    if documents.startswith("prefix"):
        monkeypatch.setenv("WINEPREFIX", str(tmp_path / "prefix"))
    expected = tmp_path / documents / "TMInterface" / "Plugins"
    expected.parent.mkdir(parents=True)
    assert find_plugins_folder("") == expected
    assert expected.is_dir()
    assert find_plugins_folder(str(tmp_path / documents / "TrackMania")) == expected
