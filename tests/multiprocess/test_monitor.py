"""RunMonitor: what a disk that fails costs a run, and which weights a new run begins with."""

import errno
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.checkpoints import CheckpointError, RunFolder, save_checkpoint
from trackmania_rl.features import ObservationLayout
from trackmania_rl.multiprocess import monitor as monitor_module
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.multiprocess.monitor import RunMonitor
from trackmania_rl.multiprocess.run_network import make_network
from trackmania_rl.seeds import SeedTree
from trackmania_rl.telemetry.race_record import CommandClock
from trackmania_rl.telemetry.statistics import TrainingStatistics


class Writer:
    """Stands for tensorboard's, which never writes again once it failed."""

    made: list["Writer"]

    def __init__(self, *_: object) -> None:
        self.made.append(self)
        self.fails = False
        self.n_races = 0

    def write_race(self, *_: object) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.n_races += 1

    def close(self) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    Writer.made = []
    monkeypatch.setattr(monitor_module, "TensorboardWriter", Writer)
    return Writer.made


def test_a_full_disk_costs_lines_but_not_the_run(
    live: LiveSettings,
    make_race: Any,
    tmp_path: Path,
    writers: list[Writer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = RunFolder.create(tmp_path, "run")
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, {}, lambda: 0.0)
    monitor._tensorboard = monitor._open_tensorboard()

    def race() -> Any:
        received = make_race(17, True)
        received.end_race_stats |= {"map_name": "valley", "track": "valley", "is_explo": True, "inputs": ""}
        received.end_race_stats |= {"cutoff_reason": None, "started_at_m": 0.0, "meters": 978.0}
        received.rollout_results["position_m"] = received.rollout_results["state_float"][:, :3]
        return received

    monitor.on_race(race())
    writers[0].fails = True
    with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
        full.setattr(monitor._race_log, "write", _no_space)
        full.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        for _ in range(3):
            monitor.on_race(race())
    assert monitor.statistics.races_total == 4
    assert caplog.text.count("cannot be written: No space left on device; the run goes on") == 1
    monkeypatch.setattr(monitor_module, "DISK_IS_TRIED_EVERY_S", 0.0)
    monitor.on_race(race())  # there is space again: tensorboard gets another writer
    monitor.on_race(race())
    assert [writer.n_races for writer in writers] == [1, 1]
    monitor._race_log.close()
    assert len(folder.races.read_text().splitlines()) == 3


def _learner(live: LiveSettings, layout: ObservationLayout, seed: int) -> IQNLearner:
    network = make_network(live.current, layout, SeedTree(seed))
    return IQNLearner(network, live.current.agent, device=torch.device("cpu"), seed=seed)


def _attach(live: LiveSettings, folder: RunFolder, learner: IQNLearner, weights_from: Path) -> None:
    clock = CommandClock()
    monitor = RunMonitor(live, folder, TrainingStatistics(clock), clock, {}, lambda: 0.0, weights_from)
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
