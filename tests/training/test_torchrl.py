"""The learner is torchrl's Trainer: its hooks, its saving and its logging work on a run."""

import io
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.trainers import CountFramesLog, EarlyStopping, LogScalar, RewardNormalizer, SelectKeys, Trainer
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.errors import UserError
from trackmania_rl.runs import CheckpointError, find_manifests, load_checkpoint
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import SampleAtReplayRatio

from .conftest import LocalRun, MakeRace, MakeRun, edit


class KeepingLogger(SimpleNamespace):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(written=[])

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        self.written.append((name, value, step))


def _state(run: LocalRun) -> bytes:
    file = io.BytesIO()
    torch.save(run.trainer.state_dict(), file)
    return file.getvalue()


@pytest.mark.parametrize("goes_by", ["000001", "another name"])
def test_torchrls_saving_writes_and_reads_the_runs_checkpoint(
    make_run: MakeRun, make_race: MakeRace, goes_by: str
) -> None:
    run = make_run(name="saved", clock=lambda: 0.0)
    run.train_on([make_race(60, True)])
    assert isinstance(run.trainer, Trainer)
    run.trainer.save_trainer(force_save=True)
    state = load_checkpoint(run.context.folder.path)
    assert state is not None
    assert state.keys() == {"agent", "settings", "frames", "optim_count", "n_turns", "hooks"}
    assert state["frames"] == 60
    due = run.hook(SampleAtReplayRatio).transitions_due
    file = run.context.folder.checkpoints / "000001"
    if goes_by != file.name:
        file = file.rename(file.with_name(goes_by))
    loaded = make_run(name="loaded", seed=7, clock=lambda: 0.0)
    assert loaded.trainer.load_from_file(file) is loaded.trainer
    assert _state(loaded) == _state(run)
    assert loaded.trainer._optim_count == run.trainer._optim_count > 0
    assert loaded.hook(SampleAtReplayRatio).transitions_due == due
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        run.trainer.load_from_file(run.context.folder.races)


def test_torchrls_own_hooks_work_on_a_run(live: LiveSettings, make_run: MakeRun, make_race: MakeRace) -> None:
    edit(live, tensorboard_interval_s=1e-9)
    floats = ("next", "state_float")
    hooks: list[TrainerHookBase] = [
        LogScalar(floats, "floats", include_std=False),
        LogScalar("current_zone_idx", "zone", reduction="max", include_std=False),
        CountFramesLog(frame_skip=1),
    ]
    run = make_run(hooks)
    run.trainer.logger = logger = KeepingLogger()
    races = [make_race(17, True), make_race(23, False)]
    run.train_on(races)
    assert [(name, step) for name, _, step in logger.written] == [
        (name, frames) for frames in (17, 40) for name in ("floats", "zone", "n_frames")
    ]
    written = [value for _, value, _ in logger.written]
    means = [race.rollout_results["state_float"][1:].mean() for race in races]
    assert written == pytest.approx([means[0], 16, 17, means[1], 22, 40], rel=1e-4)

    run.trainer.save_trainer(force_save=True)
    resumed = make_run([CountFramesLog(frame_skip=1)])
    resumed.trainer.logger = logger = KeepingLogger()
    resumed.train_on(races[:1])
    assert ("n_frames", 57, 57) in logger.written


def test_a_figure_for_a_progress_bar_is_logged_with_one_warning(
    make_run: MakeRun, make_race: MakeRace, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run([LogScalar("state_float", "floats", log_pbar=True)])
    run.trainer.logger = logger = KeepingLogger()
    run.train_on([make_race(17, True), make_race(23, False)])
    assert {"floats", "floats_std"} == {name for name, _, _ in logger.written}
    assert caplog.text.count("log_pbar has no effect: floats, floats_std") == 1


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (RewardNormalizer(), r"hooks: RewardNormalizer fails at batch_process \(.*\); the keys are .*actions"),
        (LogScalar(("next", "reward")), r"hooks: LogScalar fails at pre_steps_log \(.*\); .*'state_float'"),
        (
            SelectKeys(["actions"]),
            "hooks: SelectKeys returns another race at batch_process, but the replay memory holds",
        ),
    ],
)
def test_a_hook_of_torchrl_that_cannot_work_ends_the_run_in_one_line(
    make_run: MakeRun, make_race: MakeRace, hook: TrainerHookBase, message: str
) -> None:
    run = make_run([hook])
    with pytest.raises(UserError, match=message) as caught:
        run.train_on([make_race(17, True)])
    assert "\n" not in str(caught.value)


class LogOneTwoTwo(Hook):
    """Logs a figure that stays the same from the second race on."""

    n_races = 0

    def pre_steps_log(self, _: TensorDict) -> dict[str, float]:
        self.n_races += 1
        return {"score": float(min(self.n_races, 2))}


def test_torchrls_early_stopping_ends_a_run_with_a_checkpoint(make_run: MakeRun, make_race: MakeRace) -> None:
    stopping = EarlyStopping(monitor="score", patience=20, wait_for=0)
    run = make_run([LogOneTwoTwo(), stopping])
    for _ in range(3):
        run.put(make_race(17, False))
    run.train()
    assert run.trainer.collected_frames == 51, "the third race is less than 20 frames after the second"
    assert stopping.stop_reason is None
    for _ in range(2):
        run.put(make_race(17, False))
    run.train()
    assert run.trainer.collected_frames == 68
    assert "did not improve" in str(stopping.stop_reason)
    assert find_manifests(run.context.folder.path)
