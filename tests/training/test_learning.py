"""Learning in one process: races and fragments in, updates and weights out, schedules, edits, and exact resume."""

import threading

import numpy as np
import pytest
import torch

from trackmania_rl.agents import devices
from trackmania_rl.agents.builder import IQN
from trackmania_rl.agents.devices import pick_device
from trackmania_rl.agents.weights import packed
from trackmania_rl.channels.run_state import WEIGHTS_KINDS
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay import memory
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import write_changes
from trackmania_rl.seeds import SeedTree
from trackmania_rl.training.hooks.checkpoints import load_state
from trackmania_rl.training.hooks.figures import LearningFigures
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.updates import publish_settings

from .conftest import edit, fragments_of, n_stored


class NoteUpdates(Hook):
    """Notes batch size and learning rate of each update."""

    def __init__(self):
        self.noted = []

    def on_update(self, batch, losses):
        self.noted.append((len(batch), float(self.run.agent.optimizer.learning_rate)))


def resume(run, other):
    """Load a checkpoint of another run into a run."""
    load_state(run.context, load_checkpoint(other.save()).state)


def test_each_transition_is_trained_on_as_often_as_configured_and_weights_are_published(live, make_run, make_race):
    run = make_run()
    networks = [IQN(live.current, race_spaces(live.current), SeedTree(seed)).make_network() for seed in (98, 99)]
    before = run.run_state.pull_weights("exploration", networks[0], 0)
    assert torch.equal(packed(networks[0]), packed(run.agent.exploration_network))
    run.train_on([make_race(31, False)])
    assert run.agent.updates == 0, "too little is stored to learn yet"
    for n_actions in (37, 23):
        run.put(make_race(n_actions, False))
    run.train()
    stored = 31 + 37 + 23
    assert n_stored(run) == stored
    assert run.agent.updates == stored * 2 // 13
    assert run.frames_total == run.run_state.frames_total == stored
    versions = [run.run_state.pull_weights(kind, one, 0) for kind, one in zip(WEIGHTS_KINDS, networks, strict=True)]
    assert min(versions) > before
    exploring, evaluating = (packed(network) for network in networks)
    assert torch.equal(exploring, packed(run.agent.exploration_network))
    assert torch.equal(evaluating, packed(run.agent.evaluation_network))
    assert not torch.equal(exploring, evaluating), "races are evaluated with averaged weights"
    means = run.hook(LearningFigures).take_means()
    assert set(means) == {"loss", "grad_norm", "mean_q"}
    assert all(np.isfinite(value) for value in means.values())
    run.train_on([make_race(31, True, fill_buffer=False, is_explo=False)])
    assert (n_stored(run), run.frames_total) == (stored, stored + 31), "not learned from, only counted"
    assert run.context.statistics.maps["valley"].history(is_explo=False).n_finished == 1


RESETS = {"reset_every_n_frames_generated": 60, "additional_transitions_after_reset": 26}
OPTIONS = {
    "none": {},
    "double DQN, priorities, two frames": {"use_ddqn": True, "prio_alpha": 0.6, "frames_per_state": 2},
    "resets": RESETS,
    "demonstrations": {"demonstrations_share": 0.2, "demonstrations_margin": 0.1, "prio_alpha": 0.6},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_resumed_learner_goes_on_to_the_same_bytes(live, make_run, make_race, option):
    edit(live, **OPTIONS[option])
    races = [make_race(n, n % 2 == 0, is_demonstration=n == 41) for n in (60, 41, 38, 52)]
    straight, resumed = make_run(name="straight"), make_run(name="resumed")
    straight.train_on(races[:2])
    assert straight.agent.updates > 10
    if "prio_alpha" in OPTIONS[option]:
        assert len(straight.buffer.storage.priorities.unique()) > 1
    resume(resumed, straight)
    for run in (straight, resumed):
        run.train_on(races[2:])
    assert resumed.agent.updates == straight.agent.updates
    assert resumed.frames_total == straight.frames_total
    weights = [run.agent.loss_module.online.state_dict() for run in (straight, resumed)]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


@pytest.mark.parametrize("run_ends", [False, True])
def test_races_are_stored_while_a_thread_compiles_and_the_first_update_waits_for_it(make_run, make_race, run_ends):
    compiled, stopped, updates = threading.Event(), threading.Event(), []

    class EndOfCompilation(Hook):
        def tick(self):
            if n_stored(self.run_under_test) == 60 and not compiled.is_set():
                updates.append(self.run.agent.updates)
                (stopped if run_ends else compiled).set()

    hook = EndOfCompilation()
    run = hook.run_under_test = make_run([hook], should_stop=lambda: stopped.is_set() or run.rollouts.is_empty)
    run.compilation = threading.Thread(target=compiled.wait)
    run.compilation.start()
    for _ in range(2):
        run.put(make_race(30, False))
    run.train()
    assert updates == [0]
    assert run.agent.updates == (0 if run_ends else 60 * 2 // 13)
    compiled.set()


def test_schedules_follow_the_frame_count(live, make_run, make_race):
    edit(
        live,
        lr_schedule=((0, 1e-3), (100, 1e-5)),
        gamma_schedule=((0, 0.5), (100, 0.9)),
        memory_size_schedule=((0, 80), (100, 500)),
    )
    updates = NoteUpdates()
    run = make_run([updates])
    for n_actions, learning_rate, gamma, capacity in ((50, 1e-4, 0.7, 80), (70, 1e-5, 0.9, 500)):
        run.train_on([make_race(n_actions, False)])
        assert run.context.statistics.current_values["learning_rate"] == pytest.approx(learning_rate)
        assert updates.noted[-1] == (13, pytest.approx(learning_rate))
        assert run.buffer.rules.gamma == pytest.approx(gamma)
        assert run.buffer.ring.capacity == capacity


def test_an_edit_reaches_collectors_and_the_updates_after_the_next_race(live, make_run, make_race):
    updates = NoteUpdates()
    run = make_run([updates])
    run.train_on([make_race(60, True)])
    assert {batch_size for batch_size, _ in updates.noted} == {13}
    updates.noted.clear()
    write_changes(live._file, {"running_speed": 7.0, "batch_size": 7, "evaluation_weights_decay": 0.8})
    publish_settings(run.context)
    assert run.run_state.settings.game.running_speed == 7
    run.train_on([make_race(23, False)])
    assert {batch_size for batch_size, _ in updates.noted} == {7}
    assert run.agent.loss_module.settings.evaluation_weights_decay == 0.8


def test_rewards_follow_their_schedules_at_the_frames_before_the_race(live, make_run, make_race):
    edit(live, engineered_neoslide_reward_schedule=((0, 0.0), (100, 50.0)))
    run = make_run()
    races = [make_race(50, False), make_race(37, True)]
    reward = RaceReward(live.current, race_spaces(live.current), SeedTree(0))
    rewarded = [reward(race.rollout_results(), live.current, n) for race, n in zip(races, (0, 50), strict=True)]
    expected = [race.rewards for race in rewarded]
    assert expected[1].max() > 20 > expected[0].max()
    run.train_on(races)
    stored = run.buffer.ring.columns.rewards[: 51 + 37]  # the first race's last state is between them
    np.testing.assert_array_equal(np.delete(stored.numpy(), 50), np.concatenate(expected))


def test_a_memory_that_cannot_grow_stays_as_it_is(live, make_run, make_race, monkeypatch, caplog):
    allocate = torch.empty

    def no_room(size, *arguments, **named):
        if named.get("dtype") == torch.float32 and isinstance(size, tuple) and size[0] == 500:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")  # at the second column
        return allocate(size, *arguments, **named)

    edit(live, **{"memory_size_schedule": ((0, 80), (100, 500))})
    run = make_run()
    with monkeypatch.context() as full:
        full.setattr(torch, "empty", no_room)
        run.train_on([make_race(50, False) for _ in range(4)])
    assert run.buffer.ring.capacity == 80
    assert run.agent.updates > 0
    assert caplog.text.count("no room for a replay memory of 500 transitions, so it keeps its 80") == 1


def test_resets_come_at_their_interval_also_when_they_are_switched_on_late(live, make_run, make_race, monkeypatch):
    run = make_run()
    reset_at_frames = []
    monkeypatch.setattr(run.agent, "reset_partially", lambda: reset_at_frames.append(run.frames_total))
    run.train_on([make_race(61, False), make_race(43, False)])
    edit(live, **RESETS | {"reset_every_n_frames_generated": 100})
    run.train_on([make_race(43, False)])
    assert reset_at_frames == [], "43 frames after it was switched on"
    run.train_on([make_race(60, False)])
    assert reset_at_frames == [61 + 43 + 43 + 60]
    assert run.agent.updates == (2 * (61 + 43 + 43 + 60) + 26) // 13


def test_another_reset_flag_resets_once(live, make_run, make_race, monkeypatch):
    run = make_run()
    reset_at_frames = []
    monkeypatch.setattr(run.agent, "reset_partially", lambda: reset_at_frames.append(run.frames_total))
    run.train_on([make_race(61, False)])
    edit(live, single_reset_flag=1, additional_transitions_after_reset=26)
    run.train_on([make_race(43, False), make_race(43, False)])
    assert reset_at_frames == [61 + 43]
    assert run.agent.updates == (2 * (61 + 43 + 43) + 26) // 13


def test_a_run_resumed_without_its_memory_fills_it_before_it_learns(live, make_run, make_race):
    edit(live, checkpoint_holds_replay=False)
    before, resumed = make_run(name="before"), make_run(name="resumed")
    before.train_on([make_race(60, True), make_race(41, False)])
    assert before.agent.updates > 0
    resume(resumed, before)
    resumed.train_on([make_race(31, False)])
    assert resumed.agent.updates == before.agent.updates, "31 states are remembered, 50 are asked for"
    resumed.train_on([make_race(23, False)])
    assert resumed.agent.updates > before.agent.updates


def test_the_test_loss_is_of_transitions_that_are_never_trained_on(live, make_run, make_race, monkeypatch):
    monkeypatch.setattr(memory, "TEST_BLOCK", 1)
    edit(live, buffer_test_ratio=0.3)
    run = make_run()
    measured_on = []
    forward = run.agent.loss_module.forward

    def note_and_compute(batch):
        if not run.agent.loss_module.training:
            measured_on.extend(batch["index"].tolist())
        return forward(batch)

    monkeypatch.setattr(run.agent.loss_module, "forward", note_and_compute)
    run.train_on([make_race(60, True), make_race(41, False)])
    assert len(measured_on) == run.agent.updates // 3 * 13 > 0
    assert set(measured_on) <= set(run.buffer_test.storage.index.tolist())
    assert run.agent.loss_module.training
    assert np.isfinite(run.hook(LearningFigures).test_loss)


# ----------------------------------------------------------------------------------------------------------- fragments


class Seen(Hook):
    """Notes the actions of races and fragments, and how many of them are new."""

    def __init__(self):
        self.seen = []

    def on_fragment(self, race):
        self._note("on_fragment", race)

    def on_race(self, race):
        self._note("on_race", race)

    def after_updates(self):
        self.seen.append(("after_updates", 0, 0))

    def _note(self, point, race):
        self.seen.append((point, race.n_actions, race.n_actions - race.facts.new.n_actions_before))


def test_actions_of_fragments_count_as_they_come_and_a_race_when_it_ends(make_run, make_race):
    seen = Seen()
    race = make_race(60, True)
    whole, run = make_run(name="whole"), make_run([seen], name="in fragments")
    whole.train_on([race])
    fragments = fragments_of(race, n_steps=3, n_actions=20)
    assert [fragment.facts.is_under_way for fragment in fragments] == [True, True, False]
    for fragment, n_frames, stored in zip(fragments, (20, 40, 60), (18, 38, 60), strict=True):
        run.train_on([fragment])
        assert run.run_state.frames_total == run.frames_total == n_frames
        assert n_stored(run) == stored
        assert run.context.statistics.races_total == (n_frames == 60)
    assert whole.agent.updates - 1 <= run.agent.updates <= whole.agent.updates
    points = ("on_fragment", "on_fragment", "on_race")
    assert [call for call in seen.seen if call[1]] == [
        (point, n_actions, 20)  # the second one brings the last two actions again, which n steps need
        for point, n_actions in zip(points, (20, 22, 60), strict=True)
    ]
    assert len(seen.seen) == 6
    lines = [[race | {"wall_s": 0} for race in iterate_races(one.context.folder.run_log)] for one in (whole, run)]
    assert lines[0] == lines[1]
    for one in (whole, run):
        assert [file.name for file in one.context.folder.best_runs.iterdir()] == ["valley_3000"]
    run.train_on(fragments_of(make_race(60, False, fill_buffer=False), n_steps=3, n_actions=7))
    assert (run.context.statistics.frames_total, run.context.statistics.races_total) == (120, 2)
    assert n_stored(run) == 60


# ------------------------------------------------------------------------------------------------------------- devices


def test_a_gpu_that_torch_finds_but_cannot_use_leaves_the_processor(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "why_unusable", lambda _: "no kernel image is available")
    assert pick_device("auto") == torch.device("cpu")
    assert "no kernel image is available" in caplog.text
    with pytest.raises(UserError, match=r'torch_device = "cuda" cannot be used here: no kernel image'):
        pick_device("cuda")
    made_current = []
    monkeypatch.setattr(devices, "why_unusable", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    assert [pick_device(name) for name in ("cuda:1", "cuda")] == [torch.device("cuda:1"), torch.device("cuda")]
    assert made_current == [torch.device("cuda:1")]
