"""The performance benchmark runs, and its yardstick computes the same as the project."""

import json

import numpy as np
import pytest
import torch

from benchmarks.performance import __main__ as performance
from benchmarks.performance.measuring import Machine, Options


@pytest.fixture
def options():
    return Options(
        repetitions=3,
        seconds_per_figure=0.01,
        n_frames=12,
        image_size_px=(36, 48),
        batch_sizes=(4,),
        learner_batch_size=2,
        memory_rows=600,  # at least the published batch size
        client_actions=16,
        ticks=400,
        training_s=0,
        compiled=False,
    )


@pytest.fixture
def machine():
    return Machine("a machine", threads=1, flop_per_s=1e11, copied_bytes_per_s=1e10, load=0.0)


def test_the_command_measures_parts_of_both_kinds(options, machine, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(performance, "QUICK", options)
    monkeypatch.setattr(performance, "measure_machine", lambda device: machine)
    file = tmp_path / "figures.json"
    words = ["--quick", "--only", "replay", "in_process", "--games", "2"]
    monkeypatch.setattr("sys.argv", ["performance", *words, "--json", str(file)])
    performance.main()
    figures = json.loads(file.read_text())["figures"]
    assert "replay" in {figure["part"] for figure in figures}
    assert all(figure["value"] > 0 for figure in figures)
    assert figures[0]["name"] in capsys.readouterr().out


@pytest.mark.parametrize("size", ["FULL_SIZE", "DEFAULT_SIZE"])
def test_the_classic_network_is_the_same_function(options, size):
    from benchmarks.performance import measuring
    from benchmarks.performance.classic_agent import ClassicNetwork
    from benchmarks.performance.learner_step import make_network, random_batch
    from benchmarks.performance.senders import N_FLOATS

    settings = measuring.settings_for(getattr(measuring, size), options)
    network, batch = make_network(settings), random_batch(settings, 3, torch.device("cpu"))
    classic = ClassicNetwork(settings, N_FLOATS)
    classic.load_state_dict(network.state_dict())
    state, tau = (batch["state_img"], batch["state_float"]), torch.rand(1, 8)
    torch.testing.assert_close(classic(*state, tau.expand(3, -1)), network(*state, tau))


def test_the_classic_client_reads_the_same_floats(options, repository_root):
    from benchmarks.performance.classic_client import read_floats
    from benchmarks.performance.client import StateReading

    reading = StateReading(options)
    ours = reading.races.newest(0).floats
    classic = read_floats(reading.blob, reading.keys, reading.zone_centers_m)
    same = np.ones(len(ours), dtype=bool)
    for memory in ("previous_actions", "actions_since_gear_change", "distance_to_finish_m"):
        same[reading.layout[memory]] = False  # the classic way is not given a race to remember
    np.testing.assert_allclose(ours[same], classic[same], rtol=1e-4, atol=1e-3)
