"""Edits to a run's own configuration: applied, refused, or left for the next start."""

import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, SettingsError, load_settings, reading
from trackmania_rl.settings import live as live_settings
from trackmania_rl.settings.live import LiveSettings, SnapshotKeeper, stamp_of, write_snapshot
from trackmania_rl.settings.reading import ReadInProcess


@pytest.fixture
def snapshot(tmp_path: Path, repository_root: Path) -> Path:
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", ["seed=3"])


def edit(snapshot: Path, line: str) -> None:
    with snapshot.open("a") as file:
        file.write(line + "\n")
    os.utime(snapshot, ns=(snapshot.stat().st_mtime_ns + 1_000_000_000,) * 2)


def test_what_is_set_again_below_is_marked_in_the_snapshot(tmp_path: Path, repository_root: Path) -> None:
    overrides = ["seed=3", "run_name=again"]
    snapshot = write_snapshot(repository_root / "config_files" / "config_tmnf.py", tmp_path, overrides)
    lines = snapshot.read_text().splitlines()
    assert [line for line in lines if line.startswith("batch_size")] == [
        "batch_size = 64  # is set again below",
        "batch_size = 512",
    ]
    assert [line for line in lines if line.startswith("run_name")] == [
        'run_name = "simulated"  # is set again below',
        'run_name = "tmnf"  # is set again below',
        "run_name = 'again'",
    ]
    assert ")  # is set again below" in lines  # of the map cycle
    assert "float_hidden_dim = 256" in lines
    expected = load_settings(repository_root / "config_files" / "config_tmnf.py", overrides)
    assert load_settings(snapshot) == expected


def test_an_edit_is_applied_once_and_logged(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()
    settings = live.current
    edit(snapshot, "n_collectors = 9\nadam_beta1 = 0.8")
    with caplog.at_level(logging.INFO):
        assert live.refresh()
    assert live.current.agent.adam_beta1 == 0.8
    assert live.current.game.n_collectors == 1
    assert "adam_beta1 = 0.8 (was 0.9)" in caplog.text
    assert "wait for the next start: n_collectors" in caplog.text
    assert not live.refresh()
    began_later = LiveSettings(snapshot, settings)
    assert began_later.refresh(), "the file was edited since the settings were read"
    assert began_later.current == live.current


@pytest.mark.parametrize(
    "line",
    [
        "adam_beta1 = 7",
        "adam_bata1 = 0.8",
        "def (",
        "lr_schedule = ((0, 1e-3), (float('inf'), 1e-4))",
        "schedule_stretch = 1e308",
        "adam_beta1 = 0.8  # é",
        "batch_size = 10**30",
    ],
)
def test_a_wrong_edit_leaves_the_last_good_settings(
    snapshot: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot))
    snapshot.write_bytes(snapshot.read_bytes() + line.encode("cp1252"))
    edit(snapshot, "")
    assert not live.refresh()
    assert live.current.agent.adam_beta1 == 0.9
    assert "the last good one stays" in caplog.text
    if "é" in line:
        assert re.search(r"config\.py: line \d+ is not UTF-8", caplog.text)


def test_an_emptied_configuration_is_refused_in_one_short_line(
    snapshot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot))
    snapshot.write_text("")
    assert not live.refresh()
    assert re.search(r"config\.py: sets nothing: restore the file", caplog.text)
    with pytest.raises(SettingsError, match=r"config\.py: sets nothing"):  # at the run's next start
        load_settings(snapshot)


@pytest.mark.parametrize(
    "text",
    [
        "temporal_mini_race_duration_actions = 140\noversample_long_term_steps = 120",
        "map_cycle = ({'map_name': 'hills', 'map_path': 'hills.toml', 'reference_line': 'hills_0.5m.npy',"
        " 'is_explo': True, 'fill_buffer': True},)\ndemonstrations = ()",
    ],
)
def test_an_edit_whose_parts_do_not_go_alone_waits_as_a_whole(
    tmp_path: Path, repository_root: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    demonstrations = "demonstrations=({'map_name': 'valley', 'inputs': 'x.inputs'},)"
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", [demonstrations])
    live = LiveSettings(snapshot, load_settings(snapshot))
    before = live.current
    edit(snapshot, text)
    load_settings(snapshot)  # there is nothing wrong with it
    assert not live.refresh()
    assert live.current is before
    assert "the whole edit waits for the next start" in caplog.text


def test_an_edit_that_cannot_be_used_is_refused(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    def check(settings: Settings) -> None:
        if settings.game.running_speed == 7:
            raise UserError("no such speed")

    live = LiveSettings(snapshot, load_settings(snapshot), check=check)
    edit(snapshot, "running_speed = 7")
    assert not live.refresh()
    assert live.current.game.running_speed == 1000
    assert "is not applied, the last good one stays: no such speed" in caplog.text
    edit(snapshot, "running_speed = 8")
    assert live.refresh()


def test_what_networks_and_rows_are_made_with_waits(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [
        "cutoff_race_longer_than_ms",
        "dense_hidden_dimension",
        "float_hidden_dim",
        "temporal_mini_race_duration_actions",
    ]
    live = LiveSettings(snapshot, load_settings(snapshot))
    edit(snapshot, "\n".join(f"{name} = 2 * {name}" for name in names))
    assert not live.refresh()
    assert f"these settings wait for the next start: {', '.join(names)}" in caplog.text


def test_a_command_that_fails_early_leaves_the_snapshot_as_it_was(snapshot: Path, repository_root: Path) -> None:
    before = {file.name: file.read_bytes() for file in snapshot.parent.iterdir()}

    def write_and_fail(*, is_too_late: bool) -> None:
        with SnapshotKeeper(snapshot.parent) as keeper:
            write_snapshot(repository_root / "config_files" / "config_tmnf.py", snapshot.parent, ["seed=5"])
            (snapshot.parent / "more.py").write_text("n_steps = 7\n")
            if is_too_late:
                keeper.keep()
            raise ValueError("of any kind")

    with pytest.raises(ValueError, match="of any kind"):
        write_and_fail(is_too_late=False)
    assert {file.name: file.read_bytes() for file in snapshot.parent.iterdir()} == before
    with pytest.raises(ValueError, match="of any kind"):
        write_and_fail(is_too_late=True)
    assert load_settings(snapshot).run.seed == 5


def test_a_disk_that_fails_changes_nothing(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(Path, "stat", fail)
        assert not live.refresh()
    edit(snapshot, "adam_beta1 = 0.8")
    assert live.refresh()


def test_a_byte_order_mark_stays_outside_of_the_snapshot(tmp_path: Path, repository_root: Path) -> None:
    shutil.copytree(repository_root / "config_files", tmp_path / "mine")
    mine = tmp_path / "mine" / "mine.py"
    mine.write_bytes(b"\xef\xbb\xbf# Mine.\nbased_on = 'config.py'\nseed = 7\n")
    assert load_settings(write_snapshot(mine, tmp_path / "config")).run.seed == 7


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_edit_that_cannot_be_read_for_a_moment_is_not_lost(
    snapshot: Path, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot))
    assert not live.refresh()
    edit(snapshot, "adam_beta1 = 0.8")

    def refuse(_: Path) -> Settings:
        held = PermissionError(13, "The process cannot access the file")
        if is_wrapped:  # as for a file that is run
            raise SettingsError(f"config.py: {held}") from held
        raise held

    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(live_settings, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    with monkeypatch.context() as while_held:
        while_held.setattr(reading, "load_settings", refuse)
        for _ in range(3):
            assert not live.refresh()
    assert caplog.text.count("is not applied, the last good one stays") == 1
    assert not live.refresh(), "it is tried again a little later"
    clock.now_s += live_settings.RETRY_AFTER_S + 1
    assert live.refresh()
    assert live.current.agent.adam_beta1 == 0.8
    assert not live.refresh()


WAIT_S = 120.0


def refresh_until(live: LiveSettings, is_so: Callable[[], object]) -> None:
    """Look again and again, as a run does."""
    ends_at_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_at_s
        live.refresh()
        time.sleep(0.02)


def read_in_a_process(snapshot: Path, within_s: float = WAIT_S, most_memory_bytes: int = 3 << 30) -> LiveSettings:
    start = partial(ReadInProcess, within_s=within_s, most_memory_bytes=most_memory_bytes)
    stamp, settings = stamp_of(snapshot), load_settings(snapshot)
    return LiveSettings(snapshot, settings, start_reading=start, seen=stamp)


def test_an_edit_counts_once_it_is_read(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = read_in_a_process(snapshot)
    edit(snapshot, "print('x' * 10_000_000)\nadam_beta1 = 0.8")  # what it prints goes nowhere
    assert not live.refresh(), "it is being read"
    with caplog.at_level(logging.INFO):
        refresh_until(live, lambda: live.current.agent.adam_beta1 == 0.8)
    assert "adam_beta1 = 0.8 (was 0.9)" in caplog.text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise ValueError('wrong')", r"config\.py: ValueError: wrong"),
        ("import sys; sys.exit(3)", r"ends the program \(SystemExit: 3\): take that out"),
        ("import os; os.kill(os.getpid(), 9)", r"ended with exit code -9 before it was done"),
        ("import os; os.write(1, b'{}'); os.close(1); adam_beta1 = 7", r"adam_beta1 = 7"),
        ("import time; time.sleep(1e6)", r"was not read within 3 s: take out what loops or waits"),
    ],
)
def test_an_edit_that_fails_in_any_way_changes_nothing(
    snapshot: Path, line: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    children_before = set(psutil.Process().children())  # such as multiprocessing's own, which stay
    live = read_in_a_process(snapshot, within_s=3.0 if "sleep" in line else WAIT_S)
    before = live.current
    edit(snapshot, line)
    refresh_until(live, lambda: caplog.records)
    assert live.current is before
    assert "is not applied, the last good one stays" in caplog.text
    assert re.search(told, caplog.text)
    assert set(psutil.Process().children()) <= children_before
    if "ValueError" in line:
        snapshot.write_text(snapshot.read_text().replace(line, "adam_beta1 = 0.8"))
        refresh_until(live, lambda: live.current.agent.adam_beta1 == 0.8)
    assert len(caplog.records) == 1, "it is told once"


@pytest.mark.skipif(sys.platform == "win32", reason="where nothing bounds a process, it takes what it has")
def test_an_edit_that_takes_all_memory_is_refused(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = read_in_a_process(snapshot, most_memory_bytes=300 << 20)
    edit(snapshot, "hoard = []\nwhile True: hoard.append(bytearray(1 << 24))")
    refresh_until(live, lambda: caplog.records)
    assert "takes more than 300 MiB of memory to be read" in caplog.text


def test_a_run_that_ends_gives_up_what_it_reads(snapshot: Path) -> None:
    before = set(psutil.Process().children())
    live = read_in_a_process(snapshot)
    edit(snapshot, "import time; time.sleep(1e6)")
    assert not live.refresh()
    live.close()
    assert set(psutil.Process().children()) <= before
    live.close()
