"""The page of a driver's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackmania_rl.dashboard import driver_races
from trackmania_rl.dashboard.driver_races import PageOfDriverError, drive, run_of_driver
from trackmania_rl.dashboard.page import RunPage
from trackmania_rl.dashboard.run_on_disk import RunOnDisk, find_run
from trackmania_rl.errors import UserError


def test_a_driver_s_races_are_shown_as_a_run_s_records(tmp_path: Path, repository_root: Path) -> None:
    driver = repository_root / "drivers" / "ring.driver"
    drive(driver, tmp_path / "save" / "ring", repository_root)
    run = find_run("ring", tmp_path / "save", repository_root)
    [record] = RunPage(run).files.listed()["best_runs"]
    assert record["map"] == "ring"
    assert 40_000 < record["time_ms"] < 50_000
    assert (run.path / record["driver"]).read_bytes() == driver.read_bytes()


def test_a_folder_is_lent_and_taken_back(
    tmp_path: Path, repository_root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.driver"
    with pytest.raises(UserError, match="there is no such driver's file"), run_of_driver(file, repository_root):
        pass
    file.write_bytes(b"no driver")
    with pytest.raises(PageOfDriverError, match="cannot be shown"), run_of_driver(file, repository_root):
        pass
    assert str(file) in capfd.readouterr().err
    folders: list[RunOnDisk] = []

    class Driven:
        returncode = 0

    def run(command: list[str], **_: object) -> Driven:
        Path(command[-2]).mkdir(parents=True)
        return Driven()

    monkeypatch.setattr(driver_races.subprocess, "run", run)
    with run_of_driver(file, repository_root) as shown:
        folders.append(shown)
        assert shown.path.is_dir()
        assert shown.name == "mine"
    assert not folders[0].path.exists()
