"""The learner in one process: races in, updates and weights out, and resuming to the same bytes."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trackmania_rl.agents import run_network
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.run_network import make_network, pick_device, pick_playing_device
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import WEIGHTS_KINDS
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.rewards import EngineeredRewards, race_rewards
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings, settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.learner import Learning, build_learning

MakeRace = Callable[[int, bool], Any]


def _learning(live: LiveSettings, layout: ObservationLayout, races: Iterable[Any]) -> tuple[Learning, LocalRunState]:
    """A learner that is fed `races` and then stops, and what it publishes."""
    pending = list(races)
    seeds = SeedTree(live.current.run.seed)
    run_state = LocalRunState(live.current)
    learning = build_learning(
        live,
        make_network(live.current, layout, seeds),
        layout,
        seeds,
        run_state=run_state,
        receive=lambda: pending.pop(0),
        should_stop=lambda: not pending,
        on_race=lambda race: None,
        housekeeping=lambda: None,
    )
    return learning, run_state


def _train_on(learning: Learning, races: Iterable[Any]) -> None:
    """One round of the Trainer's loop for each race."""
    trainer = learning.trainer
    for race in races:
        batch = trainer._process_batch_hook(race)
        trainer.collected_frames += batch.numel()
        trainer.optim_steps(batch)
        trainer._post_steps_hook()


def _never_stopping(live: LiveSettings, layout: ObservationLayout) -> Learning:
    learning, _ = _learning(live, layout, [object()])
    return learning


def _edit(live: LiveSettings, **values: Any) -> None:
    """Put settings in force, of whatever group."""
    live.current = settings_from_flat(live.current.flat() | values)


def _noted_updates(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Batch size and learning rate of each update from now on."""
    update = learning.learner.update
    noted: list[tuple[int, float]] = []

    def note_and_update(batch: Any, learning_rate: float) -> Any:
        noted.append((len(batch), learning_rate))
        return update(batch, learning_rate)

    monkeypatch.setattr(learning.learner, "update", note_and_update)
    return noted


def test_each_transition_is_trained_on_as_often_as_configured(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    learning = _never_stopping(live, layout)
    _train_on(learning, [make_race(31, False)])
    assert learning.learner.updates == 0, "too little stored to learn yet"
    _train_on(learning, [make_race(37, True), make_race(23, False)])
    stored = 31 + 37 + 23
    assert len(learning.buffer) + len(learning.buffer_test) == stored
    assert learning.learner.updates == stored * 2 // 13
    assert learning.trainer.collected_frames == stored


def test_the_trainers_own_loop_runs_until_the_stream_ends(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    races = [make_race(60, True), make_race(41, False), make_race(5, False)]
    released: list[int] = []
    for number, race in enumerate(races):
        race.give_back = functools.partial(released.append, number)
    learning, run_state = _learning(live, layout, races)
    run_state.publish(weights={"exploration": learning.learner.online})
    network = make_network(live.current, layout, SeedTree(99))
    before = run_state.pull_weights("exploration", network, 0)
    learning.trainer.train()
    assert released == [0, 1, 2]
    assert learning.learner.updates > 2
    assert run_state.pull_weights("exploration", network, before) > before
    means = learning.stepper.take_means()
    assert set(means) == {"loss", "grad_norm", "mean_q"}
    assert all(np.isfinite(value) for value in means.values())
    assert learning.stepper.take_means() == {}


def test_races_that_are_not_to_be_learned_from_only_count(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    learning = _never_stopping(live, layout)
    race = make_race(31, True)
    race.end_race_stats["fill_buffer"] = False
    _train_on(learning, [race])
    assert len(learning.buffer) + len(learning.buffer_test) == 0
    assert learning.trainer.collected_frames == 31


def test_a_resumed_learner_goes_on_to_the_same_bytes(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    races = [make_race(n, n % 2 == 0) for n in (60, 41, 38, 52)]
    straight = _never_stopping(live, layout)
    _train_on(straight, races[:2])
    state = straight.trainer.state_dict()
    resumed = _never_stopping(live, layout)
    resumed.load_state_dict(torch.load(_bytes_of(state), weights_only=True))
    for learning in (straight, resumed):
        _train_on(learning, races[2:])
    assert resumed.learner.updates == straight.learner.updates
    assert resumed.trainer.collected_frames == straight.trainer.collected_frames
    for (name, one), other in zip(
        straight.learner.online.state_dict().items(), resumed.learner.online.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_rehearsal_changes_nothing(live: LiveSettings, layout: ObservationLayout) -> None:
    rehearsed, other = _never_stopping(live, layout), _never_stopping(live, layout)
    rehearsed.rehearse()
    states = [_bytes_of(learning.trainer.state_dict()).getvalue() for learning in (rehearsed, other)]
    assert states[0] == states[1]


def test_schedules_follow_the_frame_count(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit(
        live,
        lr_schedule=((0, 1e-3), (100, 1e-5)),
        gamma_schedule=((0, 0.5), (100, 0.9)),
        memory_size_schedule=((0, 80), (100, 500)),
    )
    learning = _never_stopping(live, layout)
    updates = _noted_updates(learning, monkeypatch)
    _train_on(learning, [make_race(50, False)])
    assert learning.schedules.learning_rate == pytest.approx(1e-4)
    assert {learning_rate for _, learning_rate in updates} == {learning.schedules.learning_rate}
    assert learning.buffer.rules.gamma == pytest.approx(0.7)
    assert learning.buffer.ring.capacity == 80
    _train_on(learning, [make_race(20, False), make_race(50, False)])
    assert learning.schedules.learning_rate == pytest.approx(1e-5)
    assert updates[-1] == (13, learning.schedules.learning_rate)
    assert learning.buffer.rules.gamma == pytest.approx(0.9)
    assert learning.buffer.ring.capacity == 500


def test_an_edit_reaches_the_updates_after_the_next_race(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = _never_stopping(live, layout)
    updates = _noted_updates(learning, monkeypatch)
    _train_on(learning, [make_race(60, True)])
    assert {batch_size for batch_size, _ in updates} == {13}
    updates.clear()
    _edit(live, batch_size=7, adam_beta1=0.8)
    _train_on(learning, [make_race(23, False)])
    assert {batch_size for batch_size, _ in updates} == {7}
    assert learning.learner.settings.adam_beta1 == 0.8


def test_rewards_follow_their_schedules_at_the_frames_before_the_race(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    _edit(live, engineered_neoslide_reward_schedule=((0, 0.0), (100, 50.0)))
    learning = _never_stopping(live, layout)
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
    _train_on(learning, races)
    stored = learning.buffer.ring.columns.rewards[: 51 + 37]  # the first race's last state stands between
    np.testing.assert_array_equal(np.delete(stored.numpy(), 50), np.concatenate(expected))


def test_a_memory_that_cannot_grow_stays_as_it_is(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    allocate = torch.empty

    def no_room(size: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        if named.get("dtype") == torch.float32 and isinstance(size, tuple) and size[0] == 500:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")  # at the second column
        return allocate(size, *arguments, **named)

    replay = live.current.replay.model_copy(update={"memory_size_schedule": ((0, 80), (100, 500))})
    live.current = live.current.model_copy(update={"replay": replay})
    learning = _never_stopping(live, layout)
    with monkeypatch.context() as full:
        full.setattr(torch, "empty", no_room)
        _train_on(learning, [make_race(50, False) for _ in range(4)])
    assert learning.buffer.ring.capacity == 80
    assert learning.learner.updates > 0
    assert caplog.text.count("no room for a replay memory of 500 transitions, so it keeps its 80") == 1


def test_a_periodic_reset_changes_the_network_and_adds_training(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit(live, reset_every_n_frames_generated=100, additional_transitions_after_reset=26)
    learning = _never_stopping(live, layout)
    reset_at_frames: list[int] = []
    reset = learning.learner.reset_partially

    def note_and_reset() -> None:
        reset_at_frames.append(learning.trainer.collected_frames)
        reset()

    monkeypatch.setattr(learning.learner, "reset_partially", note_and_reset)
    _train_on(learning, [make_race(n_states, False) for n_states in (61, 43, 60, 43)])
    assert reset_at_frames == [61 + 43, 61 + 43 + 60 + 43]
    assert learning.learner.updates == (2 * (60 + 42 + 59 + 42) + 2 * 26) // 13


def test_resets_that_are_switched_on_late_count_from_then_on(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = _never_stopping(live, layout)
    reset_at_frames: list[int] = []
    monkeypatch.setattr(
        learning.learner, "reset_partially", lambda: reset_at_frames.append(learning.trainer.collected_frames)
    )
    _train_on(learning, [make_race(61, False), make_race(43, False)])
    _edit(live, reset_every_n_frames_generated=100, additional_transitions_after_reset=0)
    _train_on(learning, [make_race(43, False)])
    assert reset_at_frames == [], "43 frames after it was switched on"
    _train_on(learning, [make_race(60, False)])
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
    assert pick_playing_device(without_image) == torch.device("cpu")
    assert pick_playing_device(with_image) == torch.device("cuda")


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


def _bytes_of(state: dict[str, Any]) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_a_run_resumed_without_its_memory_fills_it_before_it_learns(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    run = live.current.run.model_copy(update={"checkpoint_holds_replay": False})
    live.current = live.current.model_copy(update={"run": run})
    before = _never_stopping(live, layout)
    _train_on(before, [make_race(60, True), make_race(41, False)])
    assert before.learner.updates > 0
    resumed = _never_stopping(live, layout)
    resumed.load_state_dict(torch.load(_bytes_of(before.trainer.state_dict()), weights_only=True))
    _train_on(resumed, [make_race(31, False)])
    assert resumed.learner.updates == before.learner.updates, "31 states are remembered, 50 are asked for"
    _train_on(resumed, [make_race(23, False)])
    assert resumed.learner.updates > before.learner.updates


def test_a_memory_smaller_than_what_learning_asks_for_is_learned_from_when_it_is_full(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    replay = live.current.replay.model_copy(
        update={"memory_size_schedule": ((0, 40),), "memory_size_start_learn_schedule": ((0, 50),)}
    )
    live.current = live.current.model_copy(update={"replay": replay})
    learning = _never_stopping(live, layout)
    _train_on(learning, [make_race(31, False)])
    assert learning.learner.updates == 0
    _train_on(learning, [make_race(23, False)])
    assert learning.learner.updates > 0


@pytest.mark.parametrize("interval", [26, 13, 5, 20])
def test_the_target_network_moves_as_often_as_configured_whatever_the_batch(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    update = {"number_memories_trained_on_between_target_network_updates": interval}
    live.current = live.current.model_copy(update={"agent": live.current.agent.model_copy(update=update)})
    learning = _never_stopping(live, layout)
    moves: list[int] = []
    monkeypatch.setattr(learning.learner, "soft_update_target", moves.append)
    _train_on(learning, [make_race(61, False), make_race(43, False)])
    assert sum(moves) == learning.learner.updates * 13 // interval


def test_collectors_explore_with_the_online_weights_and_evaluate_with_averaged_ones(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace
) -> None:
    learning, run_state = _learning(live, layout, [object()])
    learner = learning.learner
    _train_on(learning, [make_race(60, True), make_race(35, True)])
    assert learner.updates == 14
    assert learner._n_averaged == 7, "at every second update, the last one among them"
    pulled = [make_network(live.current, layout, SeedTree(seed)) for seed in (98, 99)]
    for kind, network in zip(WEIGHTS_KINDS, pulled, strict=True):
        run_state.pull_weights(kind, network, 0)
    exploring, evaluating = (flatten_parameters(network) for network in pulled)
    assert torch.equal(exploring, flatten_parameters(learner.online))
    assert torch.equal(evaluating, flatten_parameters(learner.evaluation_network))
    assert not torch.equal(exploring, evaluating)


def test_errors_become_priorities(live: LiveSettings, layout: ObservationLayout, make_race: MakeRace) -> None:
    _edit(live, prio_alpha=0.6)
    learning = _never_stopping(live, layout)
    _train_on(learning, [make_race(60, True)])
    assert learning.learner.updates > 0
    assert len(learning.buffer.storage.priorities.unique()) > 1


def test_without_prioritized_replay_no_errors_are_noted(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit(live, prio_alpha=0.0)
    learning = _never_stopping(live, layout)
    noted: list[Any] = []
    monkeypatch.setattr(learning.buffer, "update_priority", lambda *arguments: noted.append(arguments))
    _train_on(learning, [make_race(60, True)])
    assert learning.learner.updates > 0
    assert not noted


def test_the_test_loss_is_of_transitions_that_are_never_trained_on(
    live: LiveSettings, layout: ObservationLayout, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit(live, buffer_test_ratio=0.3, buffer_test_side_redraw_probability=1.0)
    learning = _never_stopping(live, layout)
    evaluate = learning.learner.evaluate
    measured_on: list[int] = []

    def note_and_evaluate(batch: Any) -> torch.Tensor:
        measured_on.extend(batch["index"].tolist())
        return evaluate(batch)

    monkeypatch.setattr(learning.learner, "evaluate", note_and_evaluate)
    _train_on(learning, [make_race(60, True), make_race(41, False)])
    assert len(measured_on) == learning.learner.updates // 3 * 13 > 0
    assert set(measured_on) <= set(learning.buffer_test.storage.index.tolist())
