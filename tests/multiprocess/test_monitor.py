"""RunMonitor: what a failing disk or spoilt weights cost a run, what is kept of it, and what a new run begins with."""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trackmania_rl import checkpoints
from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.checkpoints import CheckpointError, RunFolder, load_checkpoint, read_checkpoint, save_checkpoint
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.race_record import CommandClock
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.training import monitor as monitor_module
from trackmania_rl.training.learner import Learning
from trackmania_rl.training.monitor import RunMonitor


class Writer:
    """Stands for tensorboard's, which never writes again once it failed."""

    made: list["Writer"]

    def __init__(self, *_: object) -> None:
        self.made.append(self)
        self.fails = False
        self.n_races = 0
        self.n_rows = 0

    def write_race(self, *_: object) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.n_races += 1

    def write_progress(self, *_: object) -> None:
        self.n_rows += 1

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    Writer.made = []
    monkeypatch.setattr(monitor_module, "TensorboardWriter", Writer)
    return Writer.made


def _race(make_race: Any, **stats: Any) -> Any:
    """A race to the finish; `stats` are what else `end_race_stats` says."""
    received = make_race(17, True)
    received.end_race_stats |= {"map_name": "valley", "track": "valley", "is_explo": True, "inputs": ""}
    received.end_race_stats |= {"cutoff_reason": None, "meters": 978.0}
    received.end_race_stats |= stats
    received.rollout_results["position_m"] = received.rollout_results["state_float"][:, :3]
    return received


def test_a_full_disk_costs_lines_but_not_the_run(
    live: LiveSettings,
    make_race: Any,
    tmp_path: Path,
    writers: list[Writer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _edit(live, tensorboard_interval_s=1e-9)  # each race is written
    folder = RunFolder.create(tmp_path, "run")
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, 1, {}, lambda: 0.0)
    monitor._tensorboard = monitor._open_tensorboard()

    monitor.on_race(_race(make_race))
    writers[0].fails = True
    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(monitor._race_log, "write", _no_space)
        full.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        for _ in range(3):
            monitor.on_race(_race(make_race))
    assert monitor.statistics.races_total == 4
    assert caplog.text.count("cannot be written: No space left on device; the run goes on") == 1
    monkeypatch.setattr(monitor_module, "DISK_IS_TRIED_EVERY_S", 0.0)
    monitor.on_race(_race(make_race))  # there is space again: tensorboard gets another writer
    monitor.on_race(_race(make_race))
    assert [writer.n_races for writer in writers] == [1, 1]
    monitor._race_log.close()
    assert len(folder.races.read_text().splitlines()) == 3


def test_tensorboard_gets_a_race_in_each_interval_and_every_best_time(
    live: LiveSettings, make_race: Any, tmp_path: Path, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(monitor_module, "time", SimpleNamespace(monotonic=lambda: now.s))
    _edit(live, tensorboard_interval_s=10.0)
    folder = RunFolder.create(tmp_path, "run")
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, 1, {}, lambda: 0.0)
    monitor._tensorboard = monitor._open_tensorboard()

    def n_written_after(now_s: float, race_time_ms: int, is_explo: bool = True) -> int:
        now.s = now_s
        monitor.on_race(_race(make_race, race_time_ms=race_time_ms, is_explo=is_explo))
        return writers[0].n_races

    assert n_written_after(0.0, 3000) == 1
    assert n_written_after(1.0, 3100) == 1
    assert n_written_after(2.0, 3000) == 1, "only as fast as the best one"
    assert n_written_after(3.0, 2900) == 2, "faster than all before"
    assert n_written_after(4.0, 3500, is_explo=False) == 3, "the first of another kind"
    assert n_written_after(5.0, 3400, is_explo=False) == 4, "the fastest of its kind"
    assert n_written_after(9.9, 3200) == 4
    assert n_written_after(10.0, 3200) == 5
    monitor._race_log.close()
    assert len(folder.races.read_text().splitlines()) == 8, "every race"


@pytest.mark.usefixtures("writers")
def test_only_a_race_faster_than_all_before_is_kept(live: LiveSettings, make_race: Any, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, 1, {}, lambda: 0.0)
    monitor._tensorboard = monitor._open_tensorboard()

    def kept_after(**stats: Any) -> list[str]:
        monitor.on_race(_race(make_race, **stats))
        return sorted(path.name for path in folder.best_runs.iterdir())

    assert kept_after(race_time_ms=900, race_finished=False, cutoff_reason="no_progress") == []
    assert kept_after(race_time_ms=3100) == ["valley_3100"]
    assert kept_after(race_time_ms=3100) == ["valley_3100"]
    assert kept_after(race_time_ms=3200, is_explo=False) == ["valley_3100"], "the first evaluation, but no record"
    assert kept_after(race_time_ms=2000, is_demonstration=True) == ["valley_3100"], "not the agent's"
    assert kept_after(race_time_ms=3000, inputs="0.00 press up\n") == ["valley_3000", "valley_3100"]
    assert (folder.best_runs / "valley_3000" / "valley_3000.inputs").read_text() == "0.00 press up\n"
    monitor._race_log.close()


class MonitoredRun:
    """A run whose training clock is set by hand: 100 frames a second."""

    def __init__(self, live: LiveSettings, learning: Learning, folder: RunFolder, attached_s: float) -> None:
        self._now_s = attached_s
        self.folder = folder
        self.learning = learning
        statistics = TrainingStatistics(lambda: self._now_s)
        self.monitor = RunMonitor(live, folder, statistics, CommandClock(), 1, {}, lambda: 0.0)
        self.monitor.attach(self.learning)

    def observe_at(self, now_s: float) -> None:
        self._now_s = now_s
        self.monitor.statistics.frames_total = int(100 * now_s)
        self.monitor.observe()

    @property
    def drivers(self) -> list[str]:
        return sorted(file.name for file in self.folder.drivers.glob("*"))


def _edit(live: LiveSettings, **values: Any) -> None:
    """Put settings in force, of whatever group."""
    live.current = settings_from_flat(live.current.flat() | values)


@pytest.fixture
def attach_run(
    live: LiveSettings, make_learning: Callable[..., Learning], tmp_path: Path, writers: list[Writer]
) -> Iterator[Callable[..., MonitoredRun]]:
    """`attach_run(attached_s=65.0, name=value, ...)` takes a run up, which writes what the settings ask for only."""
    runs: list[MonitoredRun] = []
    intervals = ("checkpoint_interval_s", "tensorboard_interval_s", "histogram_interval_s")
    quiet = dict.fromkeys(intervals, 1e6) | {"minimum_free_disk_mb": 0}

    def attach(attached_s: float = 0.0, **settings: Any) -> MonitoredRun:
        _edit(live, **(quiet | settings))
        runs.append(MonitoredRun(live, make_learning(), RunFolder.create(tmp_path, "run"), attached_s))
        return runs[-1]

    yield attach
    for run in runs:
        run.monitor._race_log.close()


def test_a_checkpoint_is_written_whenever_its_interval_is_over(
    attach_run: Callable[..., MonitoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(monitor_module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    run = attach_run(checkpoint_interval_s=30.0)
    saved_frames = []
    for now_s in (29.0, 31.0, 60.0, 62.0):
        clock.now_s = now_s
        run.observe_at(now_s)
        state = load_checkpoint(run.folder.path)
        saved_frames.append(state and state["statistics"]["frames_total"])
    assert saved_frames == [None, 3100, 3100, 6200]


def test_races_and_figures_wait_while_a_checkpoint_needs_the_space(
    make_race: Any,
    writers: list[Writer],
    attach_run: Callable[..., MonitoredRun],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = attach_run(minimum_free_disk_mb=3, tensorboard_interval_s=1e-9)
    assert run.monitor.try_to_save()
    enough_bytes = (3 << 20) + run.folder.checkpoint.stat().st_size
    for free_bytes in (enough_bytes, enough_bytes - 1, enough_bytes - 1, enough_bytes):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free_bytes=free_bytes: SimpleNamespace(free=free_bytes))
        run.observe_at(1.0)
        run.monitor.on_race(_race(make_race))
    assert run.monitor.statistics.maps["valley"].explored.n_races == 4
    assert len(run.folder.races.read_text().splitlines()) == 2
    assert (writers[-1].n_races, writers[-1].n_rows) == (2, 2)
    assert caplog.text.count("wait for space") == caplog.text.count("are written again") == 1


def test_the_previous_checkpoint_counts_as_space_since_it_would_make_room(
    attach_run: Callable[..., MonitoredRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = attach_run(minimum_free_disk_mb=3, tensorboard_interval_s=1e-9)
    assert run.monitor.try_to_save()
    assert run.monitor.try_to_save()
    newest_bytes, previous_bytes = (
        file.stat().st_size for file in (run.folder.checkpoint, run.folder.previous_checkpoint)
    )
    free_bytes = (3 << 20) + newest_bytes - previous_bytes
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    run.observe_at(1.0)
    assert "wait for space" not in caplog.text


def _spoil(run: MonitoredRun, network: str, value: float) -> None:
    """Make all weights of a network's first layer a value."""
    weights = run.learning.learner.state_dict()[network]
    next(iter(weights.values())).fill_(value)


@pytest.mark.parametrize(("network", "value"), [("online", torch.nan), ("averaged", torch.inf)])
def test_weights_that_are_no_numbers_end_the_run_and_its_checkpoint_stays(
    live: LiveSettings, attach_run: Callable[..., MonitoredRun], network: str, value: float
) -> None:
    run = attach_run()
    assert run.monitor.try_to_save()
    sound = run.folder.checkpoint.read_bytes()
    _spoil(run, network, value)
    with pytest.raises(UserError, match="weights are no longer finite numbers"):
        run.monitor.try_to_save()  # as at the end of a run
    _edit(live, checkpoint_interval_s=1e-9)
    with pytest.raises(UserError, match="weights are no longer finite numbers"):
        run.observe_at(1.0)
    assert run.folder.checkpoint.read_bytes() == sound
    assert not list(run.folder.path.glob("checkpoint.previous*"))


def test_weights_that_are_no_numbers_are_not_kept_as_a_driver(attach_run: Callable[..., MonitoredRun]) -> None:
    run = attach_run(keep_driver_every_s=60.0)
    _spoil(run, "online", torch.nan)
    with pytest.raises(UserError, match="weights are no longer finite numbers"):
        run.observe_at(75.0)
    assert run.drivers == []


def test_a_run_does_not_begin_with_weights_that_are_no_numbers(attach_run: Callable[..., MonitoredRun]) -> None:
    run = attach_run()
    _spoil(run, "online", torch.nan)
    state = {"trainer": run.learning.trainer.state_dict(), "statistics": run.monitor.statistics.state_dict()}
    save_checkpoint(run.folder.path, state, 0)  # as earlier versions did
    with pytest.raises(CheckpointError, match="the weights to begin with are not finite numbers"):
        attach_run()


def test_on_a_disk_too_full_for_the_replay_memory_the_checkpoint_is_written_without_it(
    attach_run: Callable[..., MonitoredRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = attach_run(checkpoint_holds_replay=True)
    assert run.monitor.try_to_save()
    full, without = (run.learning.trainer.state_dict() for _ in range(2))
    without["replay"]["buffers"] = None
    needed_bytes = [checkpoints._tensor_bytes(state) for state in (without, full)]
    assert needed_bytes[0] < needed_bytes[1]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=sum(needed_bytes) // 2))
    assert run.monitor.try_to_save()
    state = load_checkpoint(run.folder.path)
    assert state is not None
    assert state["trainer"]["replay"]["buffers"] is None
    assert "is written without it" in caplog.text
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed_bytes[0] // 2))
    assert not run.monitor.try_to_save()
    assert "no checkpoint written" in caplog.text


@pytest.mark.parametrize(
    ("keep_driver_every_s", "attached_s", "observed_s", "kept_s"),
    [
        (60.0, 0.0, (10, 59, 60, 61, 130), (60, 130)),
        (60.0, 65.0, (66, 119, 120), (120,)),
        (0.0, 0.0, (10, 60, 130), ()),
    ],
    ids=["new run", "resumed run", "none wanted"],
)
def test_a_driver_is_kept_whenever_its_time_of_training_is_over(
    attach_run: Callable[..., MonitoredRun],
    keep_driver_every_s: float,
    attached_s: float,
    observed_s: tuple[int, ...],
    kept_s: tuple[int, ...],
) -> None:
    run = attach_run(attached_s, keep_driver_every_s=keep_driver_every_s)
    for now_s in observed_s:
        run.observe_at(now_s)
    assert run.drivers == [f"{100 * now_s:012d}.pt" for now_s in kept_s]


def test_a_kept_driver_holds_both_networks_of_its_moment(
    live: LiveSettings, layout: ObservationLayout, attach_run: Callable[..., MonitoredRun]
) -> None:
    run = attach_run(keep_driver_every_s=60.0)
    learner = run.learning.learner
    learner.online.load_state_dict(make_network(live.current, layout, SeedTree(2)).state_dict())
    run.observe_at(75.0)
    state = read_checkpoint(run.folder.drivers / "000000007500.pt")
    assert state["statistics"] == {"frames_total": 7500, "training_s": 75.0}
    kept = state["trainer"]["loss_module"]
    assert kept.keys() == {"online", "averaged"}
    for kind, network in (("online", learner.online), ("averaged", learner.evaluation_network)):
        for name, weight in network.state_dict().items():
            assert torch.equal(kept[kind][name], weight), (kind, name)
    assert any(not torch.equal(weight, kept["averaged"][name]) for name, weight in kept["online"].items())


def test_a_disk_too_full_for_a_driver_is_told_once_when_one_is_due(
    live: LiveSettings, attach_run: Callable[..., MonitoredRun], caplog: pytest.LogCaptureFixture
) -> None:
    run = attach_run(keep_driver_every_s=60.0, minimum_free_disk_mb=10**9)
    for now_s in (59, 60, 61, 119, 120, 121):
        run.observe_at(now_s)
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2
    assert run.drivers == []
    _edit(live, minimum_free_disk_mb=0)
    run.observe_at(180)
    assert run.drivers == ["000000018000.pt"]


def _learner(live: LiveSettings, layout: ObservationLayout, seed: int) -> IQNLearner:
    network = make_network(live.current, layout, SeedTree(seed))
    return IQNLearner(network, live.current.agent, device=torch.device("cpu"), seed=seed)


def _attach(live: LiveSettings, folder: RunFolder, learner: IQNLearner, weights_from: Path) -> None:
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, 1, {}, lambda: 0.0, weights_from)
    try:
        monitor.attach(SimpleNamespace(learner=learner, publish=SimpleNamespace(publish=lambda: None)))  # type: ignore[arg-type]
    finally:
        monitor._race_log.close()


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_new_run_begins_with_the_networks_of_another(
    live: LiveSettings, layout: ObservationLayout, tmp_path: Path, is_folder: bool
) -> None:
    trained, fresh = _learner(live, layout, 1), _learner(live, layout, 2)
    other = RunFolder.create(tmp_path, "other")
    file = save_checkpoint(other.path, {"trainer": {"loss_module": trained.state_dict()}}, 0)
    _attach(live, RunFolder.create(tmp_path, "new"), fresh, other.path if is_folder else file)
    for network in (fresh.online, fresh.target, fresh.evaluation_network):
        for name, weight in trained.online.state_dict().items():
            assert torch.equal(network.state_dict()[name], weight), name
    assert fresh.updates == 0


@pytest.mark.usefixtures("writers")
def test_weights_that_cannot_be_the_beginning_are_refused(
    live: LiveSettings, layout: ObservationLayout, tmp_path: Path
) -> None:
    other, new = RunFolder.create(tmp_path, "other"), RunFolder.create(tmp_path, "new")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        _attach(live, new, _learner(live, layout, 2), other.path)
    save_checkpoint(other.path, {"trainer": {"loss_module": {"online": {"weight": torch.zeros(3)}}}}, 0)
    with pytest.raises(CheckpointError, match="does not fit this configuration"):
        _attach(live, new, _learner(live, layout, 2), other.path)


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
