"""Learning in one process: races in, updates and weights out, and resuming to the same bytes."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from trackmania_rl.agents import run_network
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.run_network import make_network, pick_device, pick_playing_device
from trackmania_rl.channels.protocols import WEIGHTS_KINDS
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.rewards import EngineeredRewards, race_rewards
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.learning_figures import LearningFigures, MeasureTestLoss
from trackmania_rl.training.hooks.schedules import FollowSchedules

from .conftest import MakeRace, MakeRun, edit


class NoteUpdates(Hook):
    """Notes batch size and learning rate of each update."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, float]] = []

    def process_loss(self, batch: TensorDict, _: TensorDict) -> None:
        self.noted.append((len(batch), float(self.run.agent.optimizer_step.optimizer.param_groups[0]["lr"])))


def test_each_transition_is_trained_on_as_often_as_configured(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    run = make_run()
    run.train_on([make_race(31, False)])
    assert run.agent.updates == 0, "too little stored to learn yet"
    run.train_on([make_race(37, True), make_race(23, False)])
    stored = 31 + 37 + 23
    assert len(run.buffer) + len(run.buffer_test) == stored
    assert run.agent.updates == stored * 2 // 13
    assert run.trainer.collected_frames == stored


def test_the_trainers_own_loop_runs_until_the_stream_ends(
    live: LiveSettings, layout: ObservationLayout, make_run: MakeRun, make_race: MakeRace
) -> None:
    run = make_run()
    network = make_network(live.current, race_spaces(live.current), SeedTree(99))
    before = run.run_state.pull_weights("exploration", network, 0)
    for race in (make_race(60, True), make_race(41, False), make_race(5, False)):
        run.put(race)
    run.train()
    assert run.context.statistics.races_total == 3
    for race in (make_race(60, True), make_race(41, False), make_race(5, False)):
        run.put(race)  # there is room: they were released
    assert run.agent.updates > 2
    assert run.run_state.pull_weights("exploration", network, before) > before
    figures = run.hook(LearningFigures)
    means = figures.take_means()
    assert set(means) == {"loss", "grad_norm", "mean_q"}
    assert all(np.isfinite(value) for value in means.values())
    assert figures.take_means() == {}


def test_races_that_are_not_to_be_learned_from_only_count(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    run = make_run()
    run.train_on([make_race(31, True, fill_buffer=False)])
    assert len(run.buffer) + len(run.buffer_test) == 0
    assert run.trainer.collected_frames == 31


def test_a_resumed_learner_goes_on_to_the_same_bytes(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    races = [make_race(n, n % 2 == 0) for n in (60, 41, 38, 52)]
    straight = make_run(name="straight")
    straight.train_on(races[:2])
    state = straight.trainer.state_dict()
    resumed = make_run(name="resumed")
    resumed.trainer.load_state_dict(torch.load(_bytes_of(state), weights_only=True))
    for run in (straight, resumed):
        run.train_on(races[2:])
    assert resumed.agent.updates == straight.agent.updates
    assert resumed.trainer.collected_frames == straight.trainer.collected_frames
    for (name, one), other in zip(
        straight.agent.loss_module.online.state_dict().items(),
        resumed.agent.loss_module.online.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, other), name


def test_a_rehearsal_changes_nothing(make_run: MakeRun) -> None:
    rehearsed, other = (make_run(name=name, clock=lambda: 0.0) for name in ("rehearsed", "other"))
    rehearsed.agent.rehearse_update(rehearsed.buffer.blank_batch())
    states = [_bytes_of(run.trainer.state_dict()).getvalue() for run in (rehearsed, other)]
    assert states[0] == states[1]


def test_schedules_follow_the_frame_count(live: LiveSettings, make_run: MakeRun, make_race: MakeRace) -> None:
    edit(
        live,
        lr_schedule=((0, 1e-3), (100, 1e-5)),
        gamma_schedule=((0, 0.5), (100, 0.9)),
        memory_size_schedule=((0, 80), (100, 500)),
    )
    updates = NoteUpdates()
    run = make_run([updates])
    run.train_on([make_race(50, False)])
    assert run.hook(FollowSchedules).learning_rate == pytest.approx(1e-4)
    assert [learning_rate for _, learning_rate in updates.noted] == pytest.approx([1e-4] * len(updates.noted))
    assert run.buffer.rules.gamma == pytest.approx(0.7)
    assert run.buffer.ring.capacity == 80
    run.train_on([make_race(20, False), make_race(50, False)])
    assert run.hook(FollowSchedules).learning_rate == pytest.approx(1e-5)
    assert updates.noted[-1] == (13, pytest.approx(1e-5))
    assert run.buffer.rules.gamma == pytest.approx(0.9)
    assert run.buffer.ring.capacity == 500


def test_an_edit_reaches_the_updates_after_the_next_race(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    updates = NoteUpdates()
    run = make_run([updates])
    run.train_on([make_race(60, True)])
    assert {batch_size for batch_size, _ in updates.noted} == {13}
    updates.noted.clear()
    edit(live, batch_size=7, adam_beta1=0.8)
    run.train_on([make_race(23, False)])
    assert {batch_size for batch_size, _ in updates.noted} == {7}
    assert run.agent.loss_module.settings.adam_beta1 == 0.8


def test_rewards_follow_their_schedules_at_the_frames_before_the_race(
    live: LiveSettings, layout: ObservationLayout, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, engineered_neoslide_reward_schedule=((0, 0.0), (100, 50.0)))
    run = make_run()
    races = [make_race(50, False), make_race(37, True)]
    expected = [
        race_rewards(
            race.rollout_results["state_float"],
            race.rollout_results["meters_advanced_along_centerline"],
            race.rollout_results.get("race_time"),
            places=layout,
            settings=live.current.reward,
            engineered=EngineeredRewards(neoslide=neoslide),
            ms_per_action=live.current.game.ms_per_action,
        )
        for race, neoslide in zip(races, (0.0, 25.0), strict=True)
    ]
    assert expected[1].max() > 20 > expected[0].max()
    run.train_on(races)
    stored = run.buffer.ring.columns.rewards[: 51 + 37]  # the first race's last state stands between
    np.testing.assert_array_equal(np.delete(stored.numpy(), 50), np.concatenate(expected))


def test_a_memory_that_cannot_grow_stays_as_it_is(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    allocate = torch.empty

    def no_room(size: Any, *arguments: Any, **named: Any) -> torch.Tensor:
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


def test_a_periodic_reset_changes_the_network_and_adds_training(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(live, reset_every_n_frames_generated=100, additional_transitions_after_reset=26)
    run = make_run()
    reset_at_frames: list[int] = []
    reset = run.agent.reset_partially

    def note_and_reset() -> None:
        reset_at_frames.append(run.trainer.collected_frames)
        reset()

    monkeypatch.setattr(run.agent, "reset_partially", note_and_reset)
    run.train_on([make_race(n_states, False) for n_states in (61, 43, 60, 43)])
    assert reset_at_frames == [61 + 43, 61 + 43 + 60 + 43]
    assert run.agent.updates == (2 * (60 + 42 + 59 + 42) + 2 * 26) // 13


def test_resets_that_are_switched_on_late_count_from_then_on(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    reset_at_frames: list[int] = []
    monkeypatch.setattr(run.agent, "reset_partially", lambda: reset_at_frames.append(run.trainer.collected_frames))
    run.train_on([make_race(61, False), make_race(43, False)])
    edit(live, reset_every_n_frames_generated=100, additional_transitions_after_reset=0)
    run.train_on([make_race(43, False)])
    assert reset_at_frames == [], "43 frames after it was switched on"
    run.train_on([make_race(60, False)])
    assert reset_at_frames == [61 + 43 + 43 + 60]


def test_device_names() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_without_an_image_collectors_decide_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, repository_root: Path
) -> None:
    monkeypatch.setattr(run_network, "why_unusable", lambda _: None)
    without_image, with_image = (
        load_settings(repository_root / "config_files" / name, ["torch_device=cuda"])
        for name in ("config.py", "config_tmnf.py")
    )
    assert pick_playing_device(without_image, race_spaces(without_image)) == torch.device("cpu")
    assert pick_playing_device(with_image, race_spaces(with_image)) == torch.device("cuda")


@pytest.mark.parametrize("file", ["config.py", "config_tmnf.py"])
def test_collectors_may_have_another_device_than_the_learner(
    monkeypatch: pytest.MonkeyPatch, repository_root: Path, file: str
) -> None:
    monkeypatch.setattr(run_network, "why_unusable", lambda device: None if device == "cpu" else "it is away")
    asked_for = ["torch_device=cuda", "collector_device=cpu"]
    settings = load_settings(repository_root / "config_files" / file, asked_for)
    assert pick_playing_device(settings, race_spaces(settings)) == torch.device("cpu")
    settings = load_settings(repository_root / "config_files" / file, ["collector_device=cuda"])
    with pytest.raises(UserError, match=r'collector_device = "cuda" cannot be used here: it is away'):
        pick_playing_device(settings, race_spaces(settings))


def test_the_gpu_that_is_named_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[torch.device] = []
    monkeypatch.setattr(run_network, "why_unusable", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    pick_device("cuda")
    assert made_current == [torch.device("cuda:1")]


def test_a_gpu_that_torch_finds_but_cannot_use_leaves_the_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run_network, "why_unusable", lambda _: "no kernel image is available")
    assert pick_device("auto") == torch.device("cpu")
    assert "no kernel image is available" in caplog.text
    with pytest.raises(UserError, match=r'torch_device = "cuda" cannot be used here: no kernel image'):
        pick_device("cuda")


def _bytes_of(state: Mapping[str, Any]) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_a_run_resumed_without_its_memory_fills_it_before_it_learns(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, **{"checkpoint_holds_replay": False})
    before = make_run(name="before")
    before.train_on([make_race(60, True), make_race(41, False)])
    assert before.agent.updates > 0
    resumed = make_run(name="resumed")
    resumed.trainer.load_state_dict(torch.load(_bytes_of(before.trainer.state_dict()), weights_only=True))
    resumed.train_on([make_race(31, False)])
    assert resumed.agent.updates == before.agent.updates, "31 states are remembered, 50 are asked for"
    resumed.train_on([make_race(23, False)])
    assert resumed.agent.updates > before.agent.updates


def test_a_memory_smaller_than_what_learning_asks_for_is_learned_from_when_it_is_full(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    smaller = {"memory_size_schedule": ((0, 40),)}  # as later in a run whose schedule shrinks it
    live.current = live.current.model_copy(update={"replay": live.current.replay.model_copy(update=smaller)})
    run = make_run()
    run.train_on([make_race(31, False)])
    assert run.agent.updates == 0
    run.train_on([make_race(23, False)])
    assert run.agent.updates > 0


@pytest.mark.parametrize("interval", [26, 13, 5, 20])
def test_the_target_network_moves_as_often_as_configured_whatever_the_batch(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    edit(live, number_memories_trained_on_between_target_network_updates=interval)
    run = make_run()
    moves: list[int] = []
    monkeypatch.setattr(run.agent.target_updater, "step", moves.append)
    run.train_on([make_race(61, False), make_race(43, False)])
    assert sum(moves) == run.agent.updates * 13 // interval


def test_collectors_explore_with_the_online_weights_and_evaluate_with_averaged_ones(
    live: LiveSettings, layout: ObservationLayout, make_run: MakeRun, make_race: MakeRace
) -> None:
    run = make_run()
    run.train_on([make_race(60, True), make_race(35, True)])
    assert run.agent.updates == 14
    assert run.agent._averaged.n_averaged == 7, "at every second update, the last one among them"
    pulled = [make_network(live.current, race_spaces(live.current), SeedTree(seed)) for seed in (98, 99)]
    for kind, network in zip(WEIGHTS_KINDS, pulled, strict=True):
        run.run_state.pull_weights(kind, network, 0)
    exploring, evaluating = (flatten_parameters(network) for network in pulled)
    assert torch.equal(exploring, flatten_parameters(run.agent.exploration_network))
    assert torch.equal(evaluating, flatten_parameters(run.agent.evaluation_network))
    assert not torch.equal(exploring, evaluating)


def test_errors_become_priorities(live: LiveSettings, make_run: MakeRun, make_race: MakeRace) -> None:
    edit(live, prio_alpha=0.6)
    run = make_run()
    run.train_on([make_race(60, True)])
    assert run.agent.updates > 0
    assert len(run.buffer.storage.priorities.unique()) > 1


def test_without_prioritized_replay_no_errors_are_noted(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(live, prio_alpha=0.0)
    run = make_run()
    noted: list[Any] = []
    monkeypatch.setattr(run.buffer, "update_priority", lambda *arguments: noted.append(arguments))
    run.train_on([make_race(60, True)])
    assert run.agent.updates > 0
    assert not noted


def test_the_test_loss_is_of_transitions_that_are_never_trained_on(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(live, buffer_test_ratio=0.3, buffer_test_side_redraw_probability=1.0)
    run = make_run()
    measured_on: list[int] = []
    forward = run.agent.loss_module.forward

    def note_and_compute(batch: TensorDict) -> TensorDict:
        if not run.agent.loss_module.training:
            measured_on.extend(batch["index"].tolist())
        return forward(batch)

    monkeypatch.setattr(run.agent.loss_module, "forward", note_and_compute)
    run.train_on([make_race(60, True), make_race(41, False)])
    assert len(measured_on) == run.agent.updates // 3 * 13 > 0
    assert set(measured_on) <= set(run.buffer_test.storage.index.tolist())
    assert run.agent.loss_module.training
    assert np.isfinite(run.hook(MeasureTestLoss).test_loss)
