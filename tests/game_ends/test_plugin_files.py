"""Finding TMInterface's folder, and what installing does to the files there."""

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
    read_version,
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


def test_the_plugin_knows_its_version():
    assert read_version(PLUGIN_FILE) == LINK_VERSION


def test_the_first_installation_copies_the_plugin(plugins):
    done = install_plugin(plugins)
    assert (done.outcome, done.backup, done.version) == (Outcome.INSTALLED, None, read_version(PLUGIN_FILE))
    assert done.path.read_bytes() == PLUGIN_FILE.read_bytes()
    assert names_in(plugins) == [PLUGIN_NAME]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_plugin_that_is_up_to_date_is_left_alone(plugins, line_end):
    text = PLUGIN_FILE.read_text(encoding="utf-8")
    (plugins / PLUGIN_NAME).write_bytes(text.replace("\n", line_end).encode())
    before = (plugins / PLUGIN_NAME).stat()
    assert install_plugin(plugins).outcome == Outcome.UP_TO_DATE
    assert (plugins / PLUGIN_NAME).stat() == before
    assert names_in(plugins) == [PLUGIN_NAME]


@pytest.mark.parametrize(
    "content", [OTHERS.encode(), b"", b"\xff\xfe\0", with_version(0).encode(), with_version(1).encode() + b"// mine\n"]
)
def test_whatever_else_is_there_is_kept_as_a_backup(plugins, content):
    (plugins / PLUGIN_NAME).write_bytes(content)
    done = install_plugin(plugins)
    assert done.outcome == Outcome.UPDATED
    assert done.backup.read_bytes() == content
    assert done.path.read_bytes() == PLUGIN_FILE.read_bytes()


def test_backups_are_never_overwritten_and_are_no_plugins(plugins):
    for edit in ("a", "b", "c"):
        (plugins / PLUGIN_NAME).write_text(edit)
        install_plugin(plugins)
    backups = [name for name in names_in(plugins) if name != PLUGIN_NAME]
    assert [(plugins / name).read_text() for name in backups] == ["a", "b", "c"]
    assert not any(name.endswith(".as") for name in backups)


def test_a_newer_version_is_left_alone(plugins):
    newer = with_version(999)
    (plugins / PLUGIN_NAME).write_text(newer, encoding="utf-8")
    done = install_plugin(plugins)
    assert (done.outcome, done.version, done.backup) == (Outcome.NEWER, 999, None)
    assert (plugins / PLUGIN_NAME).read_text(encoding="utf-8") == newer


def test_a_version_line_alone_makes_no_plugin_of_ours(plugins):
    (plugins / PLUGIN_NAME).write_text("const int LINK_VERSION = 999;\n")
    assert read_version(plugins / PLUGIN_NAME) is None
    assert install_plugin(plugins).outcome == Outcome.UPDATED


def test_what_cannot_be_written_is_named(plugins):
    (plugins / PLUGIN_NAME).mkdir()
    with pytest.raises(UserError, match=f"{PLUGIN_NAME}: cannot be read"):
        install_plugin(plugins)
    (plugins / PLUGIN_NAME).rmdir()
    (plugins / (PLUGIN_NAME + ".unfinished")).mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        install_plugin(plugins)
    assert names_in(plugins) == [PLUGIN_NAME + ".unfinished"]


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        install_plugin(tmp_path / "nowhere")


def test_a_source_that_is_none_of_ours_is_refused(plugins, tmp_path):
    (tmp_path / "other.as").write_text(OTHERS)
    for source in (tmp_path / "other.as", tmp_path / "absent.as"):
        with pytest.raises(UserError, match="is not this project's plugin"):
            install_plugin(plugins, source)


# Finding the folder.


def test_the_folder_lies_beside_the_games(plugins, tmp_path):
    assert find_plugins_folder(str(tmp_path / "Documents" / "TrackMania")) == plugins
    assert find_plugins_folder(str(tmp_path / "Documents")) == plugins


@pytest.mark.parametrize(
    "documents",
    ["Documents", "OneDrive/Documents", ".wine/drive_c/users/me/Documents", "prefix/drive_c/users/x/My Documents"],
)
def test_the_usual_places_are_looked_at(tmp_path, documents, monkeypatch):
    if "drive_c" in documents and os.name != "posix":
        pytest.skip("Wine is for Linux")
    monkeypatch.delenv("WINEPREFIX", raising=False)
    if documents.startswith("prefix"):
        monkeypatch.setenv("WINEPREFIX", str(tmp_path / "prefix"))
    (tmp_path / documents / "TMInterface").mkdir(parents=True)
    assert find_plugins_folder("", home=tmp_path) == tmp_path / documents / "TMInterface" / "Plugins"
    assert (tmp_path / documents / "TMInterface" / "Plugins").is_dir()


def test_documents_that_were_moved_are_found_where_the_registry_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MOVED_TO", str(tmp_path / "disk"))
    moved = tmp_path / "disk" / "Dokumente" / "TMInterface"
    for folder in (moved, tmp_path / "Documents" / "TMInterface"):
        folder.mkdir(parents=True)
    found = find_plugins_folder("", home=tmp_path, read_documents=lambda: "%MOVED_TO%/Dokumente")
    assert found == moved / "Plugins"


def test_the_usual_places_are_looked_at_also_where_the_registry_is_wrong(plugins, tmp_path):
    assert find_plugins_folder("", home=tmp_path, read_documents=lambda: str(tmp_path / "gone")) == plugins
    assert find_plugins_folder("", home=tmp_path, read_documents=lambda: None) == plugins


@pytest.mark.parametrize(("base", "remedy"), [("", "set trackmania_base_path"), ("nowhere/TrackMania", "set it to")])
def test_a_missing_folder_is_named_with_what_to_do(tmp_path, base, remedy, monkeypatch):
    monkeypatch.delenv("WINEPREFIX", raising=False)
    with pytest.raises(UserError) as caught:
        find_plugins_folder(base and str(tmp_path / base), home=tmp_path)
    text = str(caught.value)
    assert remedy in text
    assert str(tmp_path / ("nowhere" if base else "Documents") / "TMInterface") in text
    assert "start the game with TMInterface once" in text
