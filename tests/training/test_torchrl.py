"""Hooks of torchrl's Trainer work in a training, and checkpoints hold the sections of a run."""

import io

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
    LogTiming,
    RewardNormalizer,
    SelectKeys,
    Trainer,
    UTDRHook,
)
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.errors import UserError
from trackmania_rl.runs.reading import find_manifests, load_checkpoint
from trackmania_rl.telemetry.terminal_view import plain_line, render
from trackmania_rl.training.hooks.checkpoints import load_state, state_of
from trackmania_rl.training.hooks.hook import Hook

from .conftest import edit, fragments_of, n_stored


def _state(run):
    file = io.BytesIO()
    torch.save(load_checkpoint(run.save()).state, file)
    return file.getvalue()


@pytest.mark.parametrize("goes_by", ["000001", "another name"])
def test_checkpoint_holds_each_section_and_loads(make_run, make_race, goes_by):
    run = make_run(name="saved", clock=lambda: 0.0)
    run.train_on([make_race(60, True)])
    file = run.save()
    state = load_checkpoint(run.context.folder.path).state
    sections = {"statistics", "collectors", "replay", "resets", "recordings"}
    assert state.keys() == {"agent", "n_turns", "hooks"} | sections
    assert state["statistics"]["frames_total"] == 60
    if goes_by != file.name:
        file = file.rename(file.with_name(goes_by))
    loaded = make_run(name="loaded", seed=7, clock=lambda: 0.0)
    load_state(loaded.context, load_checkpoint(file).state)
    assert _state(loaded) == _state(run)
    assert loaded.agent.updates == run.agent.updates > 0
    assert loaded.context.replay.transitions_due == run.context.replay.transitions_due


REWARDS = ("next", "reward")
STORED = ["frames", "state_float", "actions", "action_was_greedy", "potential", "next"]


class WithTrainer(TrainerHookBase):
    """Registers a hook that needs the Trainer."""

    def register(self, trainer, name="utd"):
        assert isinstance(trainer, Trainer)
        UTDRHook(trainer).register(trainer, name)


class Registered(TrainerHookBase):
    """A user's hook with functions at several points, which `register_op` is given."""

    def __init__(self):
        self.calls = []

    def register(self, trainer, name="registered"):
        self.trainer = trainer
        trainer.register_module(name, self)
        for point in ("pre_optim_steps", "post_optim", "post_steps"):
            trainer.register_op(point, lambda point=point: self.calls.append((point, trainer.collected_frames)))
        trainer.register_op("post_loss", self.keep_errors)
        trainer.register_op("process_loss", self.double_losses)
        trainer.register_op("optimizer", self.keep_losses)
        trainer.register_op("post_optim_complete_log", lambda n, mean: {"mine/updates": n, "mine/loss": mean["loss"]})

    def keep_errors(self, batch):
        self.calls.append(("post_loss", "td_error" in batch))

    def double_losses(self, batch, losses):
        return losses.apply(lambda loss: 2 * loss)

    def keep_losses(self, losses, *_):
        self.calls.append(("optimizer", "grad_norm" in losses))

    def state_dict(self):
        return {"n_calls": len(self.calls)}

    def load_state_dict(self, state):
        self.calls = [None] * state["n_calls"]


HOOKS = {
    "RewardNormalizer": RewardNormalizer,
    "LogScalar": lambda: LogScalar(REWARDS, "rewards"),  # LogReward in torchrl before 0.8
    "SelectKeys": lambda: SelectKeys(STORED),
    "BatchSubSampler": lambda: BatchSubSampler(batch_size=5),
    "CountFramesLog": lambda: CountFramesLog(frame_skip=1),
    "ClearCudaCache": lambda: ClearCudaCache(interval=1),
    "LogTiming": LogTiming,
    "UTDRHook": WithTrainer,
    "register_op": Registered,
}


class SeenBatches(Hook):
    """Keeps the rewards of each batch, as the loss is given them."""

    def __init__(self):
        self.rewards = []

    def on_batch(self, batch):
        self.rewards.append(batch["reward"].clone())


@pytest.mark.parametrize("name", HOOKS)
def test_hook_of_torchrl_works_in_a_training(live, make_run, make_race, logger, name):
    edit(live, tensorboard_interval_s=1e-9)
    before, after, hook = SeenBatches(), SeenBatches(), HOOKS[name]()
    run = make_run([before, hook, after])
    races = [make_race(60, True), make_race(41, False)]
    run.train_on(races)
    assert run.agent.updates > 10
    assert n_stored(run) == run.frames_total == 101
    logged = [(figure, value, frames) for values, frames in logger.of("figures") for figure, value in values.items()]
    rewards = np.concatenate([run.context.reward(race.rollout_results(), live.current, 0).rewards for race in races])
    is_same = all(torch.equal(*pair) for pair in zip(before.rewards, after.rewards, strict=True))
    assert is_same == (name not in ("RewardNormalizer", "BatchSubSampler"))
    if name == "RewardNormalizer":
        stats = hook.state_dict()["_reward_stats"]
        for statistic in ("mean", "std"):
            values = [value for figure, value, _ in logged if figure == f"reward_{statistic}"]
            assert len(values) == len(races)
            assert values[-1] == pytest.approx(float(stats[statistic]))
        assert stats["mean"] == pytest.approx(rewards.mean(), rel=0.2)
        torch.testing.assert_close(after.rewards[-1], (before.rewards[-1] - stats["mean"]) / stats["std"])
    if name == "LogScalar":
        values = [value for figure, value, _ in logged if figure == "rewards"]
        assert values == pytest.approx([rewards[:60].mean(), rewards[60:].mean()], rel=1e-5)
    if name == "BatchSubSampler":
        assert {len(batch) for batch in after.rewards} == {5}
    if name == "CountFramesLog":
        assert [entry for entry in logged if entry[0] == "n_frames"] == [("n_frames", n, n) for n in (60, 101)]
    if name == "ClearCudaCache":
        assert hook.state_dict() == {"count": 2}
    if name == "LogTiming":
        assert any(figure.startswith("time/") for figure, *_ in logged)
    if name == "UTDRHook":
        assert {"utd_ratio", "write_count", "update_count"} <= {figure for figure, *_ in logged}
    if name == "register_op":
        assert hook.calls[0] == ("pre_optim_steps", 60)
        assert {("post_loss", True), ("optimizer", True), ("post_optim", 60), ("post_steps", 101)} <= set(hook.calls)
        assert ("mine/updates", float(run.agent.updates), 101) in logged
    run.save()
    resumed = make_run([before, HOOKS[name](), after])
    resumed.train_on(races[:1])
    states = state_of(resumed.context)["hooks"]
    of_hook = {key: value for state in states.values() for module in state.values() for key, value in module.items()}
    assert of_hook.get("frame_count", 161) == 161
    assert of_hook.get("count", 3) == 3


class FirstActions(TrainerHookBase):
    """Returns a part of a race."""

    def register(self, trainer, name="first"):
        trainer.register_op("batch_process", lambda race: race[:5])


class ChangeRaces(TrainerHookBase):
    """Multiplies rewards by 3, clips them, negates the floats and never ends a race."""

    def register(self, trainer, name="change"):
        trainer.register_op("batch_process", self.change)

    def change(self, race):
        changed = race.copy()
        changed[REWARDS] = (3 * race[REWARDS]).clamp(max=0.5)
        changed["next", "terminated"] = torch.zeros_like(race["next", "terminated"])
        changed["potential"].add_(1.0)  # in its place, as is that of the next state but for the last one
        for floats in ("state_float", ("next", "state_float")):
            changed[floats] = -race[floats]
        return changed


class ChangeInPlace(Hook):
    """Does the same as a hook of this project's."""

    def on_fragment(self, race):
        self.on_race(race)

    def on_race(self, race):
        race.rewards = np.minimum(3 * race.rewards, np.float32(0.5))
        race.potentials = race.potentials + np.float32(1)
        race.columns["state_float"] = -race.columns["state_float"]
        race.facts = race.facts.with_changes(terminated=False)


@pytest.mark.parametrize("make_hook", [ChangeRaces, ChangeInPlace])
@pytest.mark.parametrize("comes_in_fragments", [False, True])
def test_memory_stores_races_as_the_hooks_leave_them(make_run, make_race, make_hook, comes_in_fragments):
    races = [make_race(60, True), make_race(41, False)]
    plain, changed = make_run(name="plain"), make_run([make_hook()], name="changed")
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
            rewards = run.context.reward(race.rollout_results(), run.context.settings, 0).rewards
            floats = race.columns["state_float"]
            if is_changed:
                rewards, floats = np.minimum(3 * rewards, np.float32(0.5)), -floats
            for step in range(len(rewards)):
                stored = experiences[tuple(floats[step].tolist())]
                discounted = rewards[step : step + stored.n_steps] * stored.gammas[0] ** np.arange(stored.n_steps)
                np.testing.assert_allclose(stored.rewards[: stored.n_steps], discounted.cumsum(), rtol=1e-5)
                np.testing.assert_array_equal(stored.next_state_float, floats[step + stored.n_steps])
                np.testing.assert_array_equal(stored.state_img, race.columns["frames"][step])
                assert stored.state_potential == is_changed
                ends = race.facts.race_finished and not is_changed
                assert stored.terminal_actions == (len(rewards) - step if ends else 2**31 - 1)
    returns = [run.context.statistics.returns.figures()["ep_rew_mean"] for run in (plain, changed)]
    assert returns[0] == returns[1], "of the games"


def test_figures_for_a_progress_bar_are_in_the_terminal(make_run, make_race):
    run = make_run([LogScalar(REWARDS, "reward", log_pbar=True), LogScalar("state_float", "floats")])
    race = make_race(17, True)
    run.train_on([race])
    rewards = run.context.reward(race.rollout_results(), run.context.settings, 0).rewards
    console = Console(width=150)
    with console.capture() as live_view:
        console.print(render(run.context.statistics, "run"))
    assert f"reward {rewards.mean():.4g}, reward std " in plain_line(run.context.statistics)
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
def test_hook_that_cannot_work_ends_the_run_in_one_line(make_run, make_race, hook, message):
    run = make_run([hook])
    with pytest.raises(UserError, match=message) as caught:
        run.train_on([make_race(17, True)])
    assert "\n" not in str(caught.value)


class LogOneTwoTwo(Hook):
    """Logs a figure that stays the same from the second race on."""

    n_races = 0

    def on_race(self, _):
        self.n_races += 1
        return {"score": float(min(self.n_races, 2))}


def test_early_stopping_of_torchrl_ends_a_run_with_a_checkpoint(make_run, make_race):
    stopping = EarlyStopping(monitor="score", patience=20, wait_for=0)
    run = make_run([LogOneTwoTwo(), stopping])
    for _ in range(3):
        run.put(make_race(17, False))
    run.train()
    assert run.frames_total == 51, "the third race is less than 20 frames after the second"
    assert stopping.stop_reason is None
    for _ in range(2):
        run.put(make_race(17, False))
    run.train()
    assert run.frames_total == 68
    assert "did not improve" in str(stopping.stop_reason)
    for hook in run.hooks:
        hook.end()
    assert find_manifests(run.context.folder.path)
