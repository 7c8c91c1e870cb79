"""The benchmarks run, and their yardstick computes the same as what it is held against."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch


@pytest.fixture
def options():
    from benchmarks.performance.measuring import Options

    return Options(
        repetitions=3,
        seconds_per_figure=0.01,
        n_frames=12,
        image_size_px=(36, 48),
        batch_sizes=(4,),
        learner_batch_size=2,
        memory_rows=30,
        client_actions=16,
        ticks=400,
        training_s=0,
        compiled=False,
    )


@pytest.fixture
def machine():
    from benchmarks.performance.machine import Machine

    return Machine("a machine", threads=1, flop_per_s=1e11, copied_bytes_per_s=1e10, load=0.0)


@pytest.mark.parametrize("part", ["replay", "transport", "weights", "inference", "learner_step"])
def test_a_part_measures_both_ways(options, machine, part):
    from benchmarks.performance.__main__ import PARTS

    for figure in PARTS[part](options, machine):
        assert figure.value > 0
        assert figure.ratio > 0
        assert figure.floor is not None


@pytest.mark.parametrize("part", ["simulation", "client", "in_process", "environments", "generated_tracks"])
def test_a_part_of_the_game_runs(options, machine, part):
    from benchmarks.performance.__main__ import PARTS

    figures = PARTS[part](options, machine)
    assert figures
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.slow
def test_a_training_is_measured(options, machine):
    from benchmarks.performance import training

    figures = training.measure(replace(options, training_s=40.0), machine)
    assert [figure.unit for figure in figures] == ["frames/s", "batches/s"]
    assert all(figure.value > 0 for figure in figures)


def test_what_was_measured_until_a_part_failed_is_reported(monkeypatch, machine, tmp_path):
    from benchmarks.performance import __main__ as command
    from benchmarks.performance.measuring import Figure

    def fails(options, machine):
        raise RuntimeError("no race was over")

    parts = {"replay": lambda options, machine: [Figure("replay", "a batch", 2.0)], "training": fails}
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "measure_machine", lambda device: machine)
    monkeypatch.setattr("sys.argv", ["performance", "--json", str(tmp_path / "figures.json")])
    with pytest.raises(RuntimeError):
        command.main()
    assert [figure["name"] for figure in json.loads((tmp_path / "figures.json").read_text())["figures"]] == ["a batch"]


@pytest.mark.slow
def test_scaling_watches_a_training_without_and_with_learning(options):
    from benchmarks.performance.scaling import measure_point

    options = replace(options, scaling_s=3.0, scaling_learning_s=8.0)
    collecting, learning = measure_point(options, "in_process", 1)
    assert (collecting.is_learning, learning.is_learning) == (False, True)
    assert collecting.batches_per_s == 0
    assert learning.batches_per_s > 0
    assert collecting.cores["collectors"] > collecting.cores["games"] == 0


@pytest.mark.slow
def test_collectors_with_several_games_are_measured(options, machine, monkeypatch):
    from benchmarks.performance import collector_games

    monkeypatch.setattr(collector_games, "NUMBERS_OF_GAMES", (1, 2))
    figures = collector_games.measure(options, machine)
    assert len(figures) == 4
    assert all(figure.value > 0 and figure.ratio > 0 for figure in figures)


@pytest.mark.slow
def test_memory_of_a_transition_is_that_of_its_row(options, machine):
    from benchmarks.performance import memory

    (figure,) = memory.measure(replace(options, memory_rows=5000, n_frames=200), machine)  # 38 MB of rows
    assert 0.8 < figure.value / figure.floor < 1.5
    assert figure.classic > figure.value


def test_the_report_holds_every_figure(options, machine, tmp_path, capsys):
    from rich.console import Console

    from benchmarks.performance.measuring import Figure
    from benchmarks.performance.report import print_report, write_json

    faster = Figure("part", "time", 2.0, classic=10.0, floor=1.0, floor_is="a reason")
    more = Figure("part", "rate", 30.0, "actions/s", classic=10.0, note="a remark")
    print_report([faster, more], machine, Console(width=200))
    printed = capsys.readouterr().out
    assert "a reason" in printed
    assert "a remark" in printed
    write_json(tmp_path / "figures.json", [faster, more], machine, options)
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [figure["ratio"] for figure in written["figures"]] == [5.0, 3.0]


@pytest.mark.parametrize("size", ["FULL_SIZE", "DEFAULT_SIZE"])
def test_the_classic_network_is_the_same_function(options, size):
    from benchmarks.performance import measuring
    from benchmarks.performance.classic_agent import ClassicNetwork
    from benchmarks.performance.learner_step import make_network, random_batch
    from benchmarks.performance.races import N_FLOATS

    settings = measuring.settings_for(getattr(measuring, size), options)
    network, batch = make_network(settings), random_batch(settings, 3, torch.device("cpu"))
    classic = ClassicNetwork(settings, N_FLOATS)
    classic.load_state_dict(network.state_dict())
    state, tau = (batch["state_img"], batch["state_float"]), torch.rand(1, 8)
    torch.testing.assert_close(classic(*state, tau.expand(3, -1)), network(*state, tau))


def test_the_classic_replay_stores_the_same_transitions(options):
    from benchmarks.performance.races import as_lists, random_race
    from benchmarks.performance.replay import Replays, replay_settings

    options = replace(options, memory_rows=40 * options.n_frames)  # either side could hold the whole race
    replays = Replays(options, replay_settings(options), options.image_size_px)
    race = random_race(options.n_frames, options.image_size_px, seed=0)
    replays.fill(race)
    replays.fill_classic(as_lists(race))

    def by_first_float(*sides):
        experiences = [side[i] for side in sides for i in range(len(side))]
        return sorted(experiences, key=lambda experience: experience.state_float[1])

    ours = by_first_float(replays.buffer, replays.buffer_test)
    classic = by_first_float(replays.classic.buffer.storage, replays.classic.buffer_test.storage)
    assert len(ours) == len(classic) == options.n_frames - 1
    for mine, theirs in zip(ours, classic, strict=True):
        assert (mine.action, mine.n_steps) == (theirs.action, theirs.n_steps)
        np.testing.assert_array_equal(mine.state_img, theirs.state_img)
        np.testing.assert_array_equal(mine.next_state_img, theirs.next_state_img)
        np.testing.assert_array_equal(mine.next_state_float, theirs.next_state_float)
        np.testing.assert_allclose(mine.rewards[: mine.n_steps], theirs.rewards[: mine.n_steps], rtol=1e-5)
        np.testing.assert_allclose(mine.next_state_potential, theirs.next_state_potential, rtol=1e-5)


def test_the_classic_client_reads_the_same_floats(options, repository_root):
    from benchmarks.performance.classic_client import read_floats
    from benchmarks.performance.client import StateReading

    reading = StateReading(options)
    ours = reading.builder.build(reading.state).floats
    classic = read_floats(reading.blob, reading.keys, reading.zone_centers_m)
    same = np.ones(len(ours), dtype=bool)
    for memory in ("previous_actions", "actions_since_gear_change", "distance_to_finish_m"):
        same[reading.layout[memory]] = False  # the classic way is not given a race to remember
    np.testing.assert_allclose(ours[same], classic[same], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_is_measured_with_tls_and_without(options, machine):
    pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-cluster.txt")
    from benchmarks.performance import cluster

    figures = cluster.measure(options, machine)
    assert len(figures) == 18
    assert all(figure.value > 0 for figure in figures)
    assert sum("TLS" in figure.name for figure in figures) == 9
