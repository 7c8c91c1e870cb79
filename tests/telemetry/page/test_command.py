"""Bad input to the command: one line each, and a way out."""

import os
import socket
import sys

import pytest
from filelock import FileLock

from tests.telemetry.page.conftest import make_run
from trackmania_rl.telemetry.page import command
from trackmania_rl.telemetry.page.runs import find_run
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port


@pytest.fixture
def told(tmp_path, error_line, monkeypatch):
    """`told(*words)`: the error of the command."""

    def run(*words):
        port = ("--port", str(find_free_port()))
        monkeypatch.setattr(sys, "argv", ["dashboard.py", "--save-folder", str(tmp_path), *port, *words])
        return error_line(command.main)

    return run


def test_runs_that_cannot_be_shown(tmp_path, repository_root, told):
    assert "there is no run in" in told()
    empty = make_run(tmp_path, repository_root, "empty", n_races=0)
    make_run(tmp_path, repository_root, "good")
    other = make_run(tmp_path, repository_root, "other")
    other.settings.write_text("of_another_version = 3\n" + other.settings.read_text())
    older = make_run(tmp_path, repository_root, "older")
    older.run_log.write_text("no log")
    (tmp_path / "nothing").mkdir()
    assert "empty has no race yet and is not being trained" in told("empty")
    assert "of another version" in (said := told("other"))
    assert "of_another_version is no known setting" in said
    assert "run.sqlite: file is not a database" in told("older")
    assert "nothing is no run's folder" in told("nothing")
    assert "those in" in (said := told("nosuch"))
    assert "empty, good, older, other" in said
    with FileLock(empty.path / ".train.lock"):
        assert find_run("empty", tmp_path).name == "empty", "its training has just begun"
    os.utime(tmp_path / "good" / "run.sqlite", (4e9, 4e9))
    for name, save_folder in ((None, tmp_path), ("good", tmp_path), (str(tmp_path / "good"), tmp_path / "elsewhere")):
        assert find_run(name, save_folder).name == "good"


def test_ports_hosts_tokens_and_packages_that_do_not_serve(tmp_path, repository_root, told, monkeypatch):
    for host in ("0.0.0.0", "192.0.2.7", "::"):
        assert f"--host {host} lets other machines" in told("--host", host)
    assert command.address("0.0.0.0", 8600, "secret-word") == "http://localhost:8600/?token=secret-word"
    assert "--token has 3 characters" in told("--host", host, "--token", "abc")
    make_run(tmp_path, repository_root)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"port {port} is taken" in told("--port", port)
    monkeypatch.setattr(command, "NEEDED_PACKAGES", ("json", "no_such_package"))
    assert 'no_such_package, which is not installed: python -m pip install "trackmania-rl[dash' in told()
