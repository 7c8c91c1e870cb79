"""Epochs, rounds and steps: what is written of each round, who is called, and when the training ends."""

import csv

from trackmania_rl.agents.agent import Agent
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.rounds import TABLE, Rounds

from .conftest import LocalRun, MakeRace, MakeRun, edit


def _table(run: LocalRun) -> list[dict[str, str]]:
    with (run.context.folder.path / TABLE).open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_round_has_a_row_and_the_training_ends_after_the_last_epoch(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    epochs: list[tuple[Agent, int]] = []
    hook = Rounds(steps=5, rounds=2, epochs=2, agent_scheduler=lambda agent, epoch: epochs.append((agent, epoch)))
    run = make_run([hook])
    run.train_on([make_race(50, True, meters=300.0), make_race(50, False, meters=100.0)])
    run.train_on([make_race(50, True, meters=900.0, is_explo=False)])
    rows = first, second, third = _table(run)
    counted = [[row[name] for name in ("epoch", "round", "updates", "frames")] for row in rows]
    assert counted == [["0", "0", "5", "50"], ["0", "1", "10", "100"], ["1", "0", "15", "150"]]
    assert (first["explored_races"], first["explored_finished"], first["explored_meters"]) == ("1", "1", "300")
    assert (first["explored_time_s"], second["explored_time_s"]) == ("2.5", "")
    assert (third["explored_races"], third["evaluated_races"], third["evaluated_meters"]) == ("0", "1", "900")
    assert all(float(row["loss"]) > 0 and float(row["grad_norm"]) > 0 for row in rows)
    for _ in range(2):
        run.put(make_race(50, False))
    run.train()
    assert epochs == [(run.agent, 0), (run.agent, 1)]
    assert run.agent.updates == 21, "the 20th was the last of the second epoch"


def test_a_round_and_its_table_continue_in_a_resumed_run(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace
) -> None:
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    races = [make_race(50, True, meters=300.0), make_race(50, True, meters=500.0), make_race(70, False)]
    epochs: list[int] = []

    def rounds() -> list[Rounds]:
        return [Rounds(steps=10, rounds=1, agent_scheduler=lambda _, epoch: epochs.append(epoch))]

    once = make_run(rounds(), name="once")
    once.train_on(races)
    run = make_run(rounds())
    run.train_on(races[:1])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.train_on(races[1:2])  # which is lost with its row
    run.close_files()
    assert len(_table(run)) == 1
    epochs.clear()
    resumed = make_run(rounds())
    resumed.train_on(races[1:])
    assert epochs == [0, 1]
    rows, expected = ([{**row, "training_s": ""} for row in _table(one)] for one in (resumed, once))
    assert rows == expected
    assert [(row["explored_races"], row["explored_meters"]) for row in rows] == [("2", "400")]
