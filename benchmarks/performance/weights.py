"""The learner's weights on their way to a collector's network: published, and pulled."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from benchmarks.performance.classic_agent import ClassicNetwork
from benchmarks.performance.learner_step import make_network
from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import FULL_SIZE, Figure, Options, settings_for, times_in_turns
from benchmarks.performance.races import N_FLOATS
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels.shared_memory.run_state import SharedWeights

PART = "weights"
MOST_COPIES = 1.1


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure each way against one copy of one vector of the same size, taken in turns."""
    settings = settings_for(FULL_SIZE, options)
    context = multiprocessing.get_context("spawn")
    shared = SharedWeights(make_network(settings))
    learned, played = (make_network(settings).to(options.device) for _ in range(2))
    classic_shared = ClassicNetwork(settings, N_FLOATS).share_memory()
    classic_learned, classic_played = (ClassicNetwork(settings, N_FLOATS).to(options.device) for _ in range(2))
    lock = context.Lock()
    source, target = flatten_parameters(learned), torch.empty_like(flatten_parameters(learned))

    def load(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
        with lock:
            network.load_state_dict(weights)

    times = times_in_turns(
        options,
        publish=lambda: shared.publish(learned),
        pull=lambda: shared.pull_if_newer(played, 0),
        classic_publish=lambda: load(classic_shared, classic_learned.state_dict()),
        classic_pull=lambda: load(classic_played, classic_shared.state_dict()),
        one_copy=lambda: target.copy_(source),
    )
    one_copy_ms = times["one_copy"].wall_ms
    return [
        Figure.of_times(
            PART,
            f"{name}, {source.numel():,} weights",
            times[name],
            times[f"classic_{name}"],
            floor=one_copy_ms,
            floor_is=f"one copy of one vector, measured in turns; {times[name].wall_ms / one_copy_ms:.2f} of it here, "
            f"{MOST_COPIES} allowed",
        )
        for name in ("publish", "pull")
    ]
