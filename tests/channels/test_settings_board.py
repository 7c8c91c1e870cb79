"""Settings in shared memory: between processes, while they are written, and when they are too long."""

import ctypes
import threading
import time
from pathlib import Path

import pytest

from trackmania_rl.channels.shared_memory.run_state import SharedRunState, SharedRunStateView
from trackmania_rl.channels.shared_memory.settings_board import SettingsBoard
from trackmania_rl.settings import Settings, load_settings, settings_from_flat

from .conftest import SPAWN, network_of


def edited(settings: Settings, running_speed: float) -> Settings:
    return settings_from_flat(settings.flat() | {"running_speed": running_speed})


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", ["config.py", "config_tmnf.py", "config_many_tracks.py", "config_cartpole.py"])
def test_shipped_configurations_come_out_exactly_as_they_went_in(repository_root: Path, name: str) -> None:
    settings = load_settings(repository_root / "config_files" / name)
    read = SettingsBoard(settings, SPAWN).read()
    assert read is not None
    assert repr(read) == repr((1, settings))


def _pull_and_answer(view: SharedRunStateView, connection: object) -> None:
    network = network_of(0.0)
    for _ in range(2):
        connection.recv()  # type: ignore[attr-defined]  # the other side has published
        view.pull()
        version = view.pull_weights("evaluation", network, 0)
        first_weight = float(next(network.parameters()).flatten()[0])
        connection.send((view.settings, view.frames_total, view.stop_requested, version, first_weight))  # type: ignore[attr-defined]


def test_another_process_sees_all_that_is_published(settings: Settings) -> None:
    run_state = SharedRunState(settings, {"evaluation": network_of(1.0)}, SPAWN)
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_pull_and_answer, args=(run_state.view(), there), daemon=True)
    run_state.publish(settings=edited(settings, 5.0), frames_total=3)
    process.start()
    try:
        here.send("go")
        assert here.poll(60), "the collector did not answer within 60 s"
        assert here.recv() == (edited(settings, 5.0), 3, False, 1, 1.0)
        run_state.publish(
            settings=edited(settings, 6.0), frames_total=10**12, stop=True, weights={"evaluation": network_of(2.0)}
        )
        here.send("go")
        assert here.poll(60), "the collector did not answer within 60 s"
        assert here.recv() == (edited(settings, 6.0), 10**12, True, 2, 2.0)
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_readers_see_whole_settings_whatever_the_writer_does(settings: Settings) -> None:
    choices = [edited(settings, speed) for speed in (1.0, 23.25, 456.0)]
    board = SettingsBoard(choices[0], SPAWN)
    is_over = threading.Event()

    def write_on_and_on() -> None:
        while not is_over.is_set():
            board.write(choices[board.version % 3])
            time.sleep(0.001)  # many times faster than anybody edits

    writer = threading.Thread(target=write_on_and_on, daemon=True)
    writer.start()
    last_version, deadline_s = 0, time.monotonic() + 30
    while last_version < 20:
        assert time.monotonic() < deadline_s, f"only {last_version} versions were seen"
        read = board.read()
        assert read is not None
        version, seen = read
        assert seen == choices[(version - 1) % 3]
        assert version >= last_version
        last_version = version
    is_over.set()
    writer.join()


def test_a_writer_that_was_killed_half_way_is_not_believed(settings: Settings) -> None:
    board = SettingsBoard(settings, SPAWN)
    ctypes.memset(board._buffers[0], ord("x"), 100)  # the next version begins to be written
    assert board.read() == (1, settings)
    board._version.value = 2  # stores that another processor sees in another order
    assert board.read() is None


def test_settings_that_are_too_long_leave_the_last_ones(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    run_state = SharedRunState(settings, {}, SPAWN)
    view = run_state.view()
    entry = settings.game.map_cycle[0].model_dump() | {"map_path": "x" * 3_000_000}
    too_long = settings_from_flat(settings.flat() | {"map_cycle": (entry,), "demonstrations": ()})
    for _ in range(2):
        run_state.publish(settings=too_long)
        assert not view.pull()
    assert caplog.text.count("the edited settings are too long") == 1
    run_state.publish(settings=edited(settings, 5.0))
    assert view.pull()
    assert view.settings == edited(settings, 5.0)
