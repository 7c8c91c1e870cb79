"""The learner is torchrl's Trainer: its hooks, its saving and its logging work on a run."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from torchrl.trainers import (
    BatchSubSampler,
    ClearCudaCache,
    CountFramesLog,
    EarlyStopping,
    LogScalar,
    RewardNormalizer,
    SelectKeys,
    Trainer,
)

from trackmania_rl.errors import UserError
from trackmania_rl.runs import find_manifests, load_checkpoint
from trackmania_rl.telemetry.terminal_view import plain_line, render
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import SampleAtReplayRatio

from .conftest import edit, fragments_of, n_stored


class KeepingLogger(SimpleNamespace):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(written=[])

    def log_scalar(self, name, value, step=None):
        self.written.append((name, value, step))


def _state(run):
    file = io.BytesIO()
    torch.save(load_checkpoint(run.trainer.save_checkpoint()).state, file)
    return file.getvalue()


@pytest.mark.parametrize("goes_by", ["000001", "another name"])
def test_torchrls_saving_writes_and_reads_the_runs_checkpoint(make_run, make_race, goes_by):
    run = make_run(name="saved", clock=lambda: 0.0)
    run.train_on([make_race(60, True)])
    assert isinstance(run.trainer, Trainer)
    run.trainer.save_trainer(force_save=True)
    state = load_checkpoint(run.context.folder.path).state
    assert state.keys() == {"agent", "frames", "optim_count", "n_turns", "hooks"}
    assert state["frames"] == 60
    due = run.hook(SampleAtReplayRatio).transitions_due
    file = run.context.folder.checkpoints / "000001"
    if goes_by != file.name:
        file = file.rename(file.with_name(goes_by))
    loaded = make_run(name="loaded", seed=7, clock=lambda: 0.0)
    loaded.trainer.load_state_dict(load_checkpoint(file).state)
    assert _state(loaded) == _state(run)
    assert loaded.trainer._optim_count == run.trainer._optim_count > 0
    assert loaded.hook(SampleAtReplayRatio).transitions_due == due


REWARDS = ("next", "reward")
STORED = ["frames", "state_float", "actions", "action_was_greedy", "potential", "next"]
HOOKS = {
    "RewardNormalizer": RewardNormalizer,
    "LogScalar": lambda: LogScalar(REWARDS, "rewards"),  # LogReward of earlier versions
    "SelectKeys": lambda: SelectKeys(STORED),
    "BatchSubSampler": lambda: BatchSubSampler(batch_size=5),
    "CountFramesLog": lambda: CountFramesLog(frame_skip=1),
    "ClearCudaCache": lambda: ClearCudaCache(interval=1),
}


class SeenBatches(Hook):
    """Keeps the rewards of each batch, as the loss is given them."""

    def __init__(self):
        self.rewards = []

    def process_optim_batch(self, batch):
        self.rewards.append(batch["reward"].clone())


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_torchrl_works_in_a_training(live, make_run, make_race, name):
    edit(live, tensorboard_interval_s=1e-9)
    before, after, hook = SeenBatches(), SeenBatches(), HOOKS[name]()
    run = make_run([before, hook, after])
    run.trainer.logger = logger = KeepingLogger()
    races = [make_race(60, True), make_race(41, False)]
    run.train_on(races)
    assert run.agent.updates > 10
    assert n_stored(run) == run.trainer.collected_frames == 101
    rewards = np.concatenate([run.context.reward(race.rollout_results, live.current, 0).rewards for race in races])
    is_same = all(torch.equal(*pair) for pair in zip(before.rewards, after.rewards, strict=True))
    assert is_same == (name not in ("RewardNormalizer", "BatchSubSampler"))
    if isinstance(hook, RewardNormalizer):
        stats = hook.state_dict()["_reward_stats"]
        assert stats["mean"] == pytest.approx(rewards.mean(), rel=0.2)
        torch.testing.assert_close(after.rewards[-1], (before.rewards[-1] - stats["mean"]) / stats["std"])
    if isinstance(hook, LogScalar):
        logged = [value for figure, value, _ in logger.written if figure == "rewards"]
        assert logged == pytest.approx([rewards[:60].mean(), rewards[60:].mean()], rel=1e-5)
    if isinstance(hook, BatchSubSampler):
        assert {len(batch) for batch in after.rewards} == {5}
    if isinstance(hook, CountFramesLog):
        assert logger.written == [("n_frames", frames, frames) for frames in (60, 101)]
    if isinstance(hook, ClearCudaCache):
        assert hook.state_dict() == {"count": 2}
    run.trainer.save_trainer(force_save=True)
    resumed = make_run([before, HOOKS[name](), after])
    resumed.train_on(races[:1])
    resumed_hook = resumed.trainer.state_dict()["hooks"][type(hook).__name__]
    assert resumed_hook.get("frame_count", 161) == 161
    assert resumed_hook.get("count", 3) == 3


class FirstActions(Hook):
    """Returns a part of a race."""

    def batch_process(self, race):
        return race[:5]


class ChangeRaces(Hook):
    """Multiplies rewards by 3, clips them, negates the floats and never ends a race."""

    takes_fragments = True

    def batch_process(self, race):
        changed = race.copy()
        changed[REWARDS] = (3 * race[REWARDS]).clamp(max=0.5)
        changed["next", "terminated"] = torch.zeros_like(race["next", "terminated"])
        changed["potential"].add_(1.0)  # in its place, as is that of the next state but for the last one
        for floats in ("state_float", ("next", "state_float")):
            changed[floats] = -race[floats]
        return changed


@pytest.mark.parametrize("comes_in_fragments", [False, True])
def test_what_a_hook_returns_at_batch_process_is_what_is_stored(make_run, make_race, comes_in_fragments):
    races = [make_race(60, True), make_race(41, False)]
    plain, changed = make_run(name="plain"), make_run([ChangeRaces()], name="changed")
    plain.train_on(races)
    for race in races:
        changed.train_on(fragments_of(race, n_steps=3, n_actions=7) if comes_in_fragments else [race])
    assert n_stored(plain) == n_stored(changed) == 101
    for is_changed, run in enumerate((plain, changed)):
        experiences = {
            tuple(experience.state_float.tolist()): experience
            for side in (run.buffer, run.buffer_test)
            for experience in (side[place] for place in range(len(side)))
        }
        for race in races:
            rewards = run.context.reward(race.rollout_results, run.context.settings, 0).rewards
            floats = race.rollout_results["state_float"]
            if is_changed:
                rewards, floats = np.minimum(3 * rewards, np.float32(0.5)), -floats
            for step in range(len(rewards)):
                stored = experiences[tuple(floats[step].tolist())]
                discounted = rewards[step : step + stored.n_steps] * stored.gammas[0] ** np.arange(stored.n_steps)
                np.testing.assert_allclose(stored.rewards[: stored.n_steps], discounted.cumsum(), rtol=1e-5)
                np.testing.assert_array_equal(stored.next_state_float, floats[step + stored.n_steps])
                np.testing.assert_array_equal(stored.state_img, race.rollout_results["frames"][step])
                assert stored.state_potential == is_changed
                ends = "race_time" in race.rollout_results and not is_changed
                assert stored.terminal_actions == (len(rewards) - step if ends else 2**31 - 1)
    returns = [run.context.statistics.returns.mean_return for run in (plain, changed)]
    assert returns[0] == returns[1], "of the games"


def test_figures_for_a_progress_bar_are_in_the_terminal(make_run, make_race):
    run = make_run([LogScalar(REWARDS, "reward", log_pbar=True), LogScalar("state_float", "floats")])
    race = make_race(17, True)
    run.train_on([race])
    shown = (
        f"reward {run.context.reward(race.rollout_results, run.context.settings, 0).rewards.mean():.4g}, reward std "
    )
    console = Console(width=150)
    with console.capture() as live_view:
        console.print(render(run.context.statistics, "run"))
    assert shown in plain_line(run.context.statistics)
    assert "hooks" in live_view.get()
    assert "floats" not in plain_line(run.context.statistics)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (LogScalar("speed"), r"hooks: LogScalar fails at pre_steps_log \(.*\); .*'state_float'"),
        (
            SelectKeys(["actions"]),
            "hooks: a hook at batch_process returned a race without a column that is stored: .*frames",
        ),
        (FirstActions(), "hooks: a hook at batch_process returned 5 actions of a race of 17"),
    ],
)
def test_a_hook_that_cannot_work_ends_the_run_in_one_line(make_run, make_race, hook, message):
    run = make_run([hook])
    with pytest.raises(UserError, match=message) as caught:
        run.train_on([make_race(17, True)])
    assert "\n" not in str(caught.value)


class LogOneTwoTwo(Hook):
    """Logs a figure that stays the same from the second race on."""

    n_races = 0

    def pre_steps_log(self, _):
        self.n_races += 1
        return {"score": float(min(self.n_races, 2))}


def test_torchrls_early_stopping_ends_a_run_with_a_checkpoint(make_run, make_race):
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
