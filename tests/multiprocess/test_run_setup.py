"""Before a run starts: missing files and taken names are one-line errors."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.run_log import write_races
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.run_state import SharedRunState
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess import collectors as collectors_module
from trackmania_rl.multiprocess import run_setup
from trackmania_rl.multiprocess.collectors import CollectorSetup, CollectorSupervisor
from trackmania_rl.multiprocess.run_setup import count_session, new_run_folder
from trackmania_rl.multiprocess.supervisor import RestartPolicy
from trackmania_rl.race.race import CollectorProgress
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.store import CheckpointFacts, CheckpointStore
from trackmania_rl.settings import load_settings


def _settings(repository_root, *overrides):
    return load_settings(repository_root / "config_files" / "config.py", overrides)


def test_every_game_has_a_port_of_its_own(repository_root):
    several = ("game_transport=socket", "n_collectors=2", "games_per_collector=3", "base_tmi_port=9000")
    game = _settings(repository_root, *several).game
    assert [list(game.tmi_ports_of(collector)) for collector in (0, 1)] == [[9000, 9001, 9002], [9003, 9004, 9005]]
    with pytest.raises(UserError, match="last of 6 games would pass 65535"):
        _settings(repository_root, *several[:3], "base_tmi_port=65531")


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    folder, other = RunFolder.create(tmp_path, "run"), RunFolder.create(tmp_path, "other")
    refused = pytest.raises(UserError, match="run is being trained by another process")
    with new_run_folder(folder), new_run_folder(other), refused, new_run_folder(folder):
        pass
    with new_run_folder(folder):
        pass


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOLCK])
def test_a_folder_that_cannot_be_written_to_is_refused_and_one_that_cannot_be_locked_is_used(
    number, tmp_path, monkeypatch, caplog
):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_setup.FileLock, "acquire", refuse)
    folder = RunFolder.create(tmp_path, "run")
    if number == errno.EROFS:
        with pytest.raises(UserError, match=r"cannot be written to: Read-only.*--output-folder"):
            new_run_folder(folder).__enter__()
    else:
        with new_run_folder(folder):
            assert "cannot be locked (No locks available)" in caplog.text


def test_a_command_that_fails_leaves_its_folder_only_if_its_run_had_begun(tmp_path):
    output = tmp_path / "new" / "place"
    folder = RunFolder.below(output, "run")

    def fail(has_begun):
        with new_run_folder(folder) as begin:
            folder.log.write_text("an error\n")
            if has_begun:
                begin()
            raise UserError("no such map")

    with pytest.raises(UserError):
        fail(has_begun=False)
    assert list(tmp_path.iterdir()) == []
    RunFolder.create(output, "other")
    folder.path.mkdir()
    (folder.path / "notes.txt").write_text("the user's")
    with pytest.raises(UserError):
        fail(has_begun=False)
    assert (folder.path / "notes.txt").is_file()
    assert not folder.tensorboard.exists()
    assert (output / "save" / "other" / "best_runs").is_dir()
    with pytest.raises(UserError):
        fail(has_begun=True)
    assert folder.best_runs.is_dir()
    assert folder.tensorboard.is_dir()


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"1" * 10_000, b"\xff"])
def test_sessions_are_counted_and_after_a_power_cut_above_all_that_is_known(content, tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    assert [count_session(folder) for _ in range(3)] == [1, 2, 3]
    folder.sessions.write_bytes(content)
    assert count_session(folder) == 1
    CheckpointStore(folder.path).save({}, 0, CheckpointFacts(session=4))
    folder.sessions.write_bytes(content)
    assert count_session(folder) == 5
    write_races(folder.run_log, [{"session": 7, "wall_s": 1.0, "frames_total": 1, "map": "valley", "is_explo": True}])
    folder.sessions.write_bytes(content)
    assert count_session(folder) == 8
    assert folder.sessions.read_text() == "8\n"
    assert [count_session(folder) for _ in range(2)] == [9, 10]


class DyingCollectors:
    """Two collectors that die as soon as they are started; their tasks are kept."""

    def __init__(self, live):
        self.run_state = SharedRunState(live.current, {})
        self.tasks = []

    def place(self, task, _):
        self.tasks.append(task)
        return SimpleNamespace(is_alive=lambda: False, exitcode=1)

    def start(self, session, n_starts, demonstrations=(), progress=None):
        def open_collector(index):
            return SimpleNamespace(index=index, heartbeat=Heartbeat()), self.run_state

        folders, name = (Path("/maps"), Path("/run")), f"session-{session}"
        setup = CollectorSetup(
            2, name, open_collector, lambda _: None, progress or {}, *folders, demonstrations=demonstrations
        )
        started = CollectorSupervisor(setup)
        started.start()
        for _ in range(n_starts - 1):
            started.check()  # finds them dead
            started.check()


@pytest.fixture
def collectors(live, monkeypatch):
    collectors = DyingCollectors(live)
    monkeypatch.setattr(collectors_module, "start_collector", collectors.place)
    monkeypatch.setattr(collectors_module, "COLLECTOR_POLICY", RestartPolicy(0.0, 0.0))
    return collectors


def test_each_start_of_a_collector_has_a_name_and_so_random_numbers_of_its_own(collectors):
    progress = {1: CollectorProgress(n_races=17, place=2, streams={"explorer": "state"})}
    for session in (1, 2):
        collectors.start(session, n_starts=3, progress=progress)
    tasks = collectors.tasks
    assert [task.index for task in tasks] == [0, 1] * 3 * 2
    assert [task.n_starts_before for task in tasks] == [0, 0, 1, 1, 2, 2] * 2
    assert len({task.name for task in tasks}) == 12
    assert [task.progress.n_races for task in tasks] == [0, 17] * 6
    # After a crash the streams begin anew, as their last numbers may have caused it.
    assert [dict(task.progress.streams) for task in tasks] == [{}, {"explorer": "state"}, {}, {}, {}, {}] * 2
    assert [task.rollouts.index for task in tasks] == [0, 1] * 6
    assert [task.tracks_folder.name for task in tasks] == ["collector-0", "collector-1"] * 6
    assert all(task.run_state is collectors.run_state for task in tasks)


@pytest.mark.parametrize(("frames_total", "expected"), [(0, [("a", "c"), ("b",)]), (1, [(), ()])])
def test_collectors_share_the_demonstrations_of_a_run_without_races(collectors, frames_total, expected):
    collectors.run_state.publish(frames_total=frames_total)
    collectors.start(session=1, n_starts=1, demonstrations=("a", "b", "c"))
    assert [task.demonstrations for task in collectors.tasks] == expected
