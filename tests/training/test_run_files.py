"""Files of a run: full disks, race log, records, kept drivers, checkpoints in time, and weights to begin with."""

import errno
import logging
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.weights import hex_digest, packed
from trackmania_rl.drivers.driver_file import DriverFile, DriverTrack, read_driver, write_driver
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.run_setup import new_run_folder
from trackmania_rl.race.race import CollectorProgress, CyclePosition
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.run import _logging_to
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import iterate_races, read_status
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.store import MANIFEST_ROOM_BYTES, save_checkpoint, state_files
from trackmania_rl.seeds import SeedTree
from trackmania_rl.training.hooks import hook as hook_module
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints, state_of
from trackmania_rl.training.hooks.status import WriteStatus
from trackmania_rl.training.learner import reward_race

from .conftest import edit


@pytest.fixture
def begin_run(live, make_run, logger):
    """`begin_run(name=value, ...)` begins a run, or resumes it, with these settings and a clock set by `_tick`."""
    intervals = ("checkpoint_interval_s", "tensorboard_interval_s")

    def begin(**settings):
        edit(live, **(dict.fromkeys(intervals, 1e6) | settings))
        now = SimpleNamespace(s=0.0)
        run = make_run(clock=lambda: now.s)
        run.now = now
        return run

    return begin


def _tick(run, now_s):
    """Let all hooks tick after `now_s` of training at 100 frames a second."""
    run.now.s = now_s
    run.context.statistics.frames_total = int(100 * now_s)
    for hook in run.hooks:
        hook.tick()


def _take(run, race):
    """Let a race come in."""
    assert reward_race(run.context, race)
    run.context.statistics.add(race)
    run.context.progress.add(race.facts)
    for hook in run.hooks:
        hook.on_race(race)


def _published_digest(run):
    """The digest of the newest evaluation weights, which a collector reads."""
    vector = packed(run.agent.evaluation_network)
    run.run_state.weights["evaluation"].read_newer(0, vector)
    return hex_digest(vector)


def _drivers(run):
    return sorted(file.name for file in run.context.folder.drivers.glob("*"))


def test_a_full_disk_costs_neither_races_nor_the_run(begin_run, make_race, logger, monkeypatch, caplog):
    run = begin_run(tensorboard_interval_s=1e-9, minimum_free_disk_mb=1)  # each race is written
    race_log = run.context.run_log
    _take(run, make_race(17, True))
    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(race_log, "_write_waiting", _no_space)
        full.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        for _ in range(3):
            _take(run, make_race(17, True))
    assert run.context.statistics.races_total == 4
    assert caplog.text.count("cannot be written: No space left on device; the run goes on") == 1
    _take(run, make_race(17, True))  # there is space again
    _take(run, make_race(17, True))
    assert logger.n_figures("rollout/meters/") == 6
    run.close_files()
    assert len(list(iterate_races(run.context.folder.run_log))) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")], ids=["a pipe", "/dev/zero"])
def test_pipes_and_devices_in_a_runs_folder_are_not_opened(begin_run, live, make_race, caplog, make):
    run = begin_run(tensorboard_interval_s=1e-9)
    folder = run.context.folder
    for file in (folder.settings, folder.run_log):
        file.unlink(missing_ok=True)
        make(file)
    _take(run, make_race(17, True, race_time_ms=3100))
    _tick(run, 1.0)
    run.hook(WriteStatus).end()
    assert read_status(folder.run_log) is None
    for read in (lambda: list(iterate_races(folder.run_log)), lambda: new_run_folder(folder).__enter__()):
        with pytest.raises(UserError, match=r"is a folder, a pipe|is no file"):
            read()


def test_the_best_races_of_each_map_are_kept_and_the_driver_of_the_best_evaluation_race(live, begin_run, make_race):
    valley, *_ = live.current.game.map_cycle
    cycle = (valley, *(valley.model_copy(update={"map_name": name}) for name in ("valley_2", "kart")))
    run = begin_run(map_cycle=cycle, threshold_to_save_all_runs_ms=3150)
    best_runs = run.context.folder.best_runs

    def kept_after(race_time_ms, name="valley", **facts):
        _take(run, make_race(17, True, race_time_ms=race_time_ms, map_name=name, **facts))
        return sorted(file.stem for file in best_runs.glob("*/*.driver"))

    def publish(seed):
        network = IQN(live.current, race_spaces(live.current), SeedTree(seed)).make_network()
        run.run_state.publish(weights={"evaluation": network})
        return network, _published_digest(run)

    def assert_is(name, network):
        driver = read_driver(best_runs / name / f"{name}.driver")
        assert all(torch.equal(driver.weights[key], weight) for key, weight in network.state_dict().items()), name
        assert [track.best_time_ms for track in driver.card.tracks] == [int(name.rpartition("_")[2])]

    networks, digests = zip(*(publish(seed) for seed in range(2, 6)), strict=True)
    assert kept_after(3100) == [], "explored while the weights changed"
    assert kept_after(3200, is_explo=False, weights_digest=digests[0]) == ["valley_3200"], "the first evaluation"
    assert_is("valley_3200", networks[0])
    assert kept_after(2000, is_demonstration=True) == ["valley_3200"], "not the agent's"
    assert kept_after(3300, "valley_2", is_explo=False, weights_digest=digests[1]) == ["valley_2_3300", "valley_3200"]
    evaluated = {"is_explo": False, "inputs": "0.00 press up\n", "weights_digest": digests[3]}
    assert kept_after(3000, **evaluated) == ["valley_2_3300", "valley_3000"]
    assert kept_after(2900, "taken away", **evaluated) == ["valley_2_3300", "valley_3000"]
    assert kept_after(2950, is_explo=False, weights_digest="0" * 32) == ["valley_2_3300", "valley_3000"], "unknown"
    assert kept_after(2980, is_explo=False, weights_digest="0" * 32) == ["valley_2_3300", "valley_3000"]
    assert not (best_runs / "valley_2980").exists(), "no record, and no driver"
    assert {"valley_3100", "valley_3000", "valley_2950"} < {path.name for path in best_runs.iterdir()}
    good_runs = {path.name for path in run.context.folder.good_runs.iterdir()}
    assert good_runs == {"valley_3100", "valley_3000", "valley_2950", "valley_2980", "taken away_2900"}, "within 3150"
    assert (best_runs / "valley_3000" / "valley_3000.inputs").read_text() == "0.00 press up\n"
    assert_is("valley_2_3300", networks[1])
    assert_is("valley_3000", networks[3])


def test_a_new_run_has_checkpoints_soon_after_its_first_finish(begin_run, make_race, monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(hook_module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def written_at(run, first_s, finish_s, last_s):
        written = []
        for clock.now_s in range(first_s, last_s):
            if clock.now_s == finish_s:
                _take(run, make_race(17, True))
            before = run.context.statistics.checkpoint_time_s
            _tick(run, clock.now_s)
            if run.context.statistics.checkpoint_time_s != before:
                written.append(clock.now_s)
        return written

    run = begin_run(checkpoint_interval_s=100.0)
    assert written_at(run, 1, 20, 400) == [35, 65, 125, 225, 325]
    resumed = begin_run(checkpoint_interval_s=100.0)
    assert written_at(resumed, 400, 420, 620) == [499, 599]


def test_a_run_that_was_killed_counts_no_race_twice_and_keeps_its_records(begin_run, make_race):
    run = begin_run()
    for n_actions in (100, 90):
        _take(run, make_race(n_actions, True, position=CyclePosition(number=n_actions, place=3)))
    assert run.hook(SaveCheckpoints).try_to_save()
    known = list(iterate_races(run.context.folder.run_log))
    digest = _published_digest(run)
    for n_actions in (60, 80):
        position = CyclePosition(number=200 + n_actions, place=4)
        _take(run, make_race(n_actions, True, is_explo=False, weights_digest=digest, position=position))
    run.close_files()  # as if it was killed
    best_runs = run.context.folder.best_runs

    resumed = begin_run()
    statistics = resumed.context.statistics
    assert (statistics.races_total, statistics.frames_total) == (2, 190)
    assert list(iterate_races(resumed.context.folder.run_log)) == known
    assert resumed.context.progress == {0: CollectorProgress(101, 4)}
    for n_actions, records in ((70, ["valley_3000"]), (60, ["valley_3000"]), (50, ["valley_2500"])):
        _take(resumed, make_race(n_actions, True, is_explo=False, weights_digest=_published_digest(resumed)))
        assert [file.stem for file in sorted(best_runs.rglob("*.driver"))] == records
    assert {folder.name for folder in best_runs.iterdir()} == {
        "valley_5000",
        "valley_4500",
        "valley_3000",
        "valley_2500",
    }


def test_a_run_folder_that_was_deleted_is_made_again_for_the_next_checkpoint(begin_run):
    run = begin_run()
    folder = run.context.folder.path
    with _logging_to(run.context.folder.log, run.context.run_log):
        shutil.rmtree(folder)
        logging.warning("a record without a folder for it")
        assert run.hook(SaveCheckpoints).try_to_save()
        logging.warning("a record of the folder")
    assert load_checkpoint(folder) is not None
    assert "a record of the folder" in run.context.folder.log.read_text()


def test_io_error_of_a_thread_is_one_line_and_a_bug_keeps_its_traceback(begin_run, capsys):
    def fail(error):
        raise error

    context = begin_run().context
    with _logging_to(context.folder.log, context.run_log):
        for error in (OSError(28, "No space left on device"), KeyError("a bug")):
            thread = threading.Thread(target=fail, args=(error,))
            thread.start()
            thread.join()
    text = context.folder.log.read_text()
    assert "ERROR a thread that writes files has ended: [Errno 28] No space left on device" in text
    told = capsys.readouterr().err
    assert "No space" not in told
    assert "KeyError: 'a bug'" in told


def test_a_folder_in_the_place_of_the_log_is_named(tmp_path):
    with pytest.raises(UserError, match=r": is a folder"), _logging_to(tmp_path, SimpleNamespace()):
        pass


def test_on_a_disk_too_full_for_the_replay_memory_the_checkpoint_is_written_without_it(begin_run, monkeypatch, caplog):
    def bytes_of(state):
        contents, _ = state_files(state)
        return sum(map(len, contents.values())) + MANIFEST_ROOM_BYTES

    run = begin_run(checkpoint_holds_replay=True)
    assert run.hook(SaveCheckpoints).try_to_save()
    full, without = (state_of(run.context) for _ in range(2))
    without["replay"]["memory"] = None
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=(bytes_of(full) + bytes_of(without)) // 2))
    assert run.hook(SaveCheckpoints).try_to_save()
    state = load_checkpoint(run.context.folder.path).state
    assert state["replay"]["memory"] is None
    assert "is written without it" in caplog.text
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=bytes_of(without) // 2))
    assert not run.hook(SaveCheckpoints).try_to_save()
    assert "no checkpoint written" in caplog.text


def test_drivers_are_kept_as_often_as_configured_and_evaluate_as_the_run_did(live, begin_run, caplog):
    run = begin_run(keep_driver_every_s=60.0)
    run.agent.loss_module.online.initialize(torch.Generator().manual_seed(2))
    for now_s in (10, 59, 75, 119):
        _tick(run, now_s)
    assert _drivers(run) == ["000000007500.driver"]
    kept = read_driver(run.context.folder.drivers / "000000007500.driver")
    assert (kept.card.frames_total, kept.card.training_s) == (7500, 75.0)
    for name, weight in run.agent.evaluation_network.state_dict().items():
        assert torch.equal(kept.weights[name], weight), name
    edit(live, minimum_free_disk_mb=10**9)
    for now_s in (120, 121):
        _tick(run, now_s)
    assert caplog.text.count("/drivers has") == 1
    edit(live, minimum_free_disk_mb=0, keep_drivers_at_most=2)
    for now_s in (500, 600):
        _tick(run, now_s)
    kept = _drivers(run)
    assert (len(kept), "000000007500.driver" in kept) == (2, False)
    edit(live, keep_driver_every_s=0.0)
    _tick(run, 700)
    assert _drivers(run) == kept


@pytest.mark.usefixtures("logger")
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_new_run_begins_with_the_networks_of_another_and_keeps_its_own_from_then_on(make_run, caplog, is_folder):
    trained = make_run(name="other", seed=1)
    assert trained.hook(SaveCheckpoints).try_to_save()
    other = trained.context.folder
    fresh = make_run(name="new", seed=2, weights_from=other.path if is_folder else other.checkpoints / "000001")
    assert fresh.hook(SaveCheckpoints).try_to_save()
    resumed = make_run(name="new", seed=3, weights_from=Path("nowhere"))
    assert "--weights-from is for new runs" in caplog.text
    for run in (fresh, resumed):
        loss = run.agent.loss_module
        for network in (loss.online, loss.target, run.agent.evaluation_network):
            for name, weight in trained.agent.loss_module.online.state_dict().items():
                assert torch.equal(network.state_dict()[name], weight), name
    assert fresh.agent.updates == 0


@pytest.mark.usefixtures("logger")
def test_a_new_run_begins_with_a_driver_and_refuses_misfits(live, make_run, tmp_path, caplog):
    other = RunFolder.create(tmp_path, "other")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        make_run(name="new", weights_from=other.path)
    networks = {name: {"weight": torch.zeros(3)} for name in ("online", "averaged")}
    statistics = {"frames_total": 1, "training_s": 2.0}
    save_checkpoint(other.path, {"agent": networks, "statistics": statistics}, 0)
    with pytest.raises(CheckpointError, match="does not fit this configuration"):
        make_run(name="new", weights_from=other.path)
    trained = make_run(name="trained", seed=1)
    weights = trained.agent.evaluation_network.state_dict()
    settings, file = live.current, tmp_path / "a.driver"
    tracks = [DriverTrack.of_entry(settings.game.map_cycle[0], 21_000)]
    counts = {"frames_total": 1, "training_s": 2.0}
    driver = DriverFile.of_network("a", settings, trained.context.spaces, weights, tracks, **counts)
    write_driver(file, driver)
    edit(live, iqn_k=12)
    fresh = make_run(name="new", seed=2, weights_from=file)
    assert all(torch.equal(fresh.agent.exploration_network.state_dict()[name], w) for name, w in weights.items())
    assert "drove with other values of iqn_k" in caplog.text
    edit(live, inputs=settings.game.inputs[::-1])
    with pytest.raises(
        UserError, match=r"for other actions \(12 and 12, or in another order\) than this run; begin with"
    ):
        make_run(name="newer", weights_from=file)
    edit(live, inputs=settings.game.inputs, float_hidden_dim=13)
    with pytest.raises(CheckpointError, match=r"does not fit this configuration: .*driver\.py configuration writes"):
        make_run(name="newest", weights_from=file)


def _no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
