"""Epochs, rounds and steps: what is written of each round, who is called, and when the training ends."""

import csv

import pytest

from trackmania_rl.agents.agent import Agent
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.rounds import TABLE, Rounds

from .conftest import LocalRun, MakeRace, MakeRun, edit


def _table(run: LocalRun) -> list[dict[str, str]]:
    with (run.context.folder.path / TABLE).open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_round_has_a_row_of_its_races_and_losses(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    run = make_run([Rounds(steps=5, rounds=2)])
    run.train_on([make_race(50, True, meters=300.0), make_race(50, False, meters=100.0)])
    run.train_on([make_race(50, True, meters=900.0, is_explo=False)])
    first, second, third = _table(run)
    assert [(row["epoch"], row["round"], row["updates"]) for row in (first, second, third)] == [
        ("0", "0", "5"),
        ("0", "1", "10"),
        ("1", "0", "15"),
    ]
    assert [row["frames"] for row in (first, second, third)] == ["50", "100", "150"]
    assert (first["explored_races"], first["explored_finished"], first["explored_meters"]) == ("1", "1", "300")
    assert (first["explored_time_s"], second["explored_time_s"]) == ("2.5", "")
    assert (third["explored_races"], third["evaluated_races"], third["evaluated_meters"]) == ("0", "1", "900")
    assert all(float(row["loss"]) > 0 and float(row["grad_norm"]) > 0 for row in (first, second, third))


def test_a_scheduler_is_called_with_each_epoch_and_the_training_ends_after_the_last(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    epochs: list[tuple[Agent, int]] = []
    hooks = [Rounds(steps=3, rounds=1, epochs=3, agent_scheduler=lambda agent, epoch: epochs.append((agent, epoch)))]
    run = make_run(hooks)
    for _ in range(3):
        run.put(make_race(50, False))
    run.train()
    assert [epoch for _, epoch in epochs] == [0, 1, 2]
    assert epochs[0][0] is run.agent
    assert run.agent.updates == 10, "the ninth was the last of the third epoch"


def test_a_resumed_run_goes_on_with_the_table_of_its_checkpoint(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    run = make_run([Rounds(steps=5, rounds=2)])
    run.train_on([make_race(50, False), make_race(50, False)])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.train_on([make_race(50, False)])
    run.close_files()
    epochs: list[int] = []
    resumed = make_run([Rounds(steps=5, rounds=2, agent_scheduler=lambda _, epoch: epochs.append(epoch))])
    resumed.train_on([make_race(70, False)])
    assert [row["frames"] for row in _table(resumed)] == ["50", "100", "170"]
    assert epochs == [1]


def test_a_round_goes_on_in_a_resumed_run(live: LiveSettings, make_run: MakeRun, make_race: MakeRace) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    races = [make_race(50, True, meters=300.0), make_race(50, True, meters=500.0)]
    once = make_run([Rounds(steps=10, rounds=2)], name="once")
    once.train_on(races)
    run = make_run([Rounds(steps=10, rounds=2)])
    run.train_on(races[:1])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.close_files()
    resumed = make_run([Rounds(steps=10, rounds=2)])
    resumed.train_on(races[1:])
    (row,), (expected,) = _table(resumed), _table(once)
    assert (row["explored_races"], row["explored_meters"]) == ("2", "400")
    assert {**row, "training_s": ""} == {**expected, "training_s": ""}


def test_rounds_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Rounds\(steps=0, rounds=50, epochs=None\): each is at least 1"):
        Rounds(steps=0)


def test_races_that_are_never_trained_on_are_reported_as_evaluations(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(30, True, is_explo=False, fill_buffer=False)])
    assert len(run.context.memory.buffer) + len(run.context.memory.buffer_test) == 0
    evaluated, explored = (run.context.statistics.maps["valley"].history(is_explo) for is_explo in (False, True))
    assert (evaluated.n_races, evaluated.n_finished, explored.n_races) == (1, 1, 0)
