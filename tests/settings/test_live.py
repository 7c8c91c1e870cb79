"""Edits to a run's own settings: applied, refused, or left for the next start."""

import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.runs import snapshot as settings_file
from trackmania_rl.runs.snapshot import LiveSettings, read_snapshot, write_snapshot
from trackmania_rl.settings import SettingsError, load_settings


def edit(snapshot, *lines):
    """Put lines of TOML in the place of those of the same setting; a line that sets none goes to the end."""
    text = snapshot.read_text()
    for line in lines:
        name = line.partition(" =")[0]
        text, n_found = re.subn(rf"^{re.escape(name)} = .*$", lambda _, line=line: line, text, flags=re.MULTILINE)
        text += "" if n_found else f"{line}\n"
    snapshot.write_text(text)
    os.utime(snapshot, ns=(snapshot.stat().st_mtime_ns + 1_000_000_000,) * 2)


def test_an_edit_is_applied_once_and_logged(snapshot, caplog):
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()
    settings = live.current
    edit(snapshot, "n_collectors = 9", "evaluation_weights_decay = 0.8")
    with caplog.at_level(logging.INFO):
        assert live.refresh()
    assert live.current.agent.evaluation_weights_decay == 0.8
    assert live.current.game.n_collectors == 1
    assert "evaluation_weights_decay = 0.8 (was 0.998)" in caplog.text
    assert "wait for the next start: n_collectors" in caplog.text
    assert not live.refresh()
    began_later = LiveSettings(snapshot, settings)
    assert began_later.refresh(), "the file was edited since the settings were read"
    assert began_later.current == live.current


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "evaluation_weights_decay = 7",
            r"evaluation_weights_decay = 7: input should be less than 1; allowed: number >= 0, < 1$",
        ),
        (
            "evaluation_weights_decay = 0.998\nevaluation_weights_decays = 1",
            r"evaluation_weights_decays is no known setting; did you mean evaluation_weights_decay\?",
        ),
        ("def (", r"settings\.toml: .*at line \d+"),
        (
            "evaluation_weights_decay = 0.8\nevaluation_weights_decay = 0.8",
            r"settings\.toml: Cannot overwrite a value \(at line \d+",
        ),
        ("lr_schedule = [[0, 1e-3], [inf, 1e-4]]", "lr_schedule"),
        ("schedule_stretch = 1e308", "schedule_stretch"),
        ("evaluation_weights_decay = 0.8  # é", r"settings\.toml: is not UTF-8 text"),
        ("batch_size = 1000000000000000000000000", "batch_size"),
    ],
)
def test_a_wrong_edit_leaves_the_last_good_settings_and_is_told_in_one_line(snapshot, line, told, caplog):
    live = LiveSettings(snapshot, load_settings(snapshot))
    edit(snapshot, line)
    if "é" in line:
        snapshot.write_bytes(snapshot.read_text().encode("cp1252"))
    for _ in range(3):
        assert not live.refresh()
    assert live.current.agent.evaluation_weights_decay == 0.998
    (record,) = caplog.records
    assert "the last good ones stay in force" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert re.search(told, record.getMessage())


@pytest.mark.parametrize("text", ["", "run_name = 'simulated'\n"])
def test_an_emptied_file_is_refused_in_one_short_line(snapshot, text, caplog):
    live = LiveSettings(snapshot, load_settings(snapshot))
    snapshot.write_text(text)
    assert not live.refresh()
    assert re.search(r"settings\.toml: .*restore the file", caplog.text)
    with pytest.raises(SettingsError, match=r"settings\.toml: .*restore the file"):  # at the next start
        read_snapshot(snapshot.parent)


def test_editors_may_rename_or_delete_the_file(snapshot, caplog):
    live = LiveSettings(snapshot, load_settings(snapshot))
    other = snapshot.with_name("settings.toml~")
    shutil.copy2(snapshot, other)
    edit(other, "evaluation_weights_decay = 0.8")
    snapshot.unlink()
    assert not live.refresh()
    assert "No such file" in caplog.text
    os.replace(other, snapshot)
    assert live.refresh()
    assert live.current.agent.evaluation_weights_decay == 0.8


@pytest.mark.parametrize(
    "lines",
    [
        ("temporal_mini_race_duration_actions = 140", "oversample_long_term_steps = 120"),
        (
            "map_cycle = [{map_name = 'hills', map_path = 'hills.toml', reference_line = 'hills_0.5m.npy', "
            "is_explo = true, fill_buffer = true}]",
            "demonstrations = []",
        ),
    ],
)
def test_an_edit_whose_parts_do_not_go_alone_waits_as_a_whole(tmp_path, config, lines, caplog):
    overrides = [
        "temporal_mini_race_duration_actions=100",
        "demonstrations=({'map_name': 'valley', 'inputs': 'x.inputs'},)",
        "map_cycle=({'map_name': 'valley', 'map_path': 'x', 'reference_line': 'x', 'is_explo': 1, 'fill_buffer': 1},)",
    ]
    snapshot = write_snapshot(config, tmp_path, overrides)
    snapshot.write_text(re.sub(r"^map_cycle = \[\n(.*),\n\]", r"map_cycle = [\1]", snapshot.read_text(), flags=re.M))
    live = LiveSettings(snapshot, load_settings(snapshot))
    before = live.current
    edit(snapshot, *lines)
    load_settings(snapshot)  # it is valid as a whole
    assert not live.refresh()
    assert live.current is before
    assert "the whole edit waits for the next start" in caplog.text


def test_an_edit_that_cannot_be_used_is_refused(snapshot, caplog):
    def check(settings):
        if settings.game.running_speed == 7:
            raise UserError("no such speed")

    live = LiveSettings(snapshot, load_settings(snapshot), check=check)
    edit(snapshot, "running_speed = 7")
    assert not live.refresh()
    assert live.current.game.running_speed == 1000
    assert "the edited settings are not applied, the last good ones stay in force: no such speed" in caplog.text
    edit(snapshot, "running_speed = 8")
    assert live.refresh()


def test_settings_of_networks_and_rows_wait(snapshot, caplog):
    names = ["buffer_test_ratio", "cutoff_race_longer_than_ms", "float_hidden_dim", "iqn_k", "n_steps"]
    live = LiveSettings(snapshot, load_settings(snapshot))
    edit(snapshot, *(f"{name} = {2 * live.current.flat()[name]}" for name in names))
    assert not live.refresh()
    assert f"these settings wait for the next start: {', '.join(names)}" in caplog.text


def test_a_disk_that_fails_changes_nothing(snapshot, monkeypatch):
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(Path, "stat", fail)
        assert not live.refresh()
    edit(snapshot, "evaluation_weights_decay = 0.8")
    assert live.refresh()


def test_a_byte_order_mark_is_no_error(tmp_path, config):
    shutil.copytree(config.parent, tmp_path / "mine")
    mine = tmp_path / "mine" / "mine.py"
    mine.write_bytes(b"\xef\xbb\xbf# Mine.\nbased_on = 'config.py'\nseed = 7\n")
    snapshot = write_snapshot(mine, tmp_path)
    snapshot.write_bytes(b"\xef\xbb\xbf" + snapshot.read_bytes().replace(b"\n", b"\r\n"))
    assert load_settings(snapshot).run.seed == 7


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_edit_that_cannot_be_read_for_a_moment_is_not_lost(snapshot, is_wrapped, monkeypatch, caplog):
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()
    edit(snapshot, "evaluation_weights_decay = 0.8")

    def refuse(*_, **__):
        held = PermissionError(13, "The process cannot access the file")
        if is_wrapped:
            raise SettingsError(f"config.py: {held}") from held
        raise held

    with monkeypatch.context() as while_held:
        while_held.setattr(settings_file, "read_snapshot", refuse)
        for _ in range(3):
            assert not live.refresh()
    assert caplog.text.count("the edited settings are not applied, the last good ones stay in force") == 1
    assert live.refresh()
    assert live.current.agent.evaluation_weights_decay == 0.8
    assert not live.refresh()
