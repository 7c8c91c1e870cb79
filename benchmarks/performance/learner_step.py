"""One update of the learner, full-size and default network, the target's soft update included."""

from __future__ import annotations

import copy
import os
import shutil
from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.performance.classic_agent import ClassicNetwork, ClassicUpdate
from benchmarks.performance.machine import GEMM_SIDE, Machine, matrix_product
from benchmarks.performance.measuring import (
    DEFAULT_SIZE,
    FULL_SIZE,
    Figure,
    Options,
    settings_for,
    times_in_turns,
)
from benchmarks.performance.races import N_FLOATS
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.settings import Settings

PART = "learner step"
LEARNING_RATE = 1e-4
FULL_SIZE_RATIO = 1.4
BYTES_PER_WEIGHT_AND_UPDATE = 4 * 12
"""Of each weight, an update must read gradient, weight, two moments, target, and write all but the gradient's reading;
with zeroing and decay about twelve passes of four bytes. A floor for networks too small to be bound by arithmetic."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure the update eagerly, and compiled where a compiler is there and time allows."""
    figures = []
    for name, config, ratio in (("full size", FULL_SIZE, FULL_SIZE_RATIO), ("default", DEFAULT_SIZE, None)):
        settings = settings_for(config, options)
        batch_size = options.learner_batch_size or settings.replay.batch_size
        figures.append(_measure(options, machine, settings, f"{name}, batch {batch_size}", batch_size, ratio, False))
        if options.compiled and has_compiler(options.device):
            title = f"{name}, batch {batch_size}, compiled"
            figures.append(_measure(options, machine, settings, title, batch_size, ratio, True))
    return figures


def has_compiler(device: str) -> bool:
    """Whether torch.compile can work: on a processor it needs a C++ compiler."""
    return device.startswith("cuda") or shutil.which(os.environ.get("CXX", "g++")) is not None


def _measure(
    options: Options,
    machine: Machine,
    settings: Settings,
    name: str,
    batch_size: int,
    required_ratio: float | None,
    compiled: bool,
) -> Figure:
    device = torch.device(options.device)
    batch = random_batch(settings, batch_size, device)
    network = make_network(settings)
    classic_network = ClassicNetwork(settings, N_FLOATS)
    classic_network.load_state_dict(network.state_dict())
    classic = ClassicUpdate(classic_network.to(device), settings.agent)
    learner = IQNLearner(network, settings.agent, device=device, seed=0, use_torch_compile=compiled)
    n_weights = sum(parameter.numel() for parameter in network.parameters())
    # Counted on a copy: the classic way spells the algorithm's arithmetic out.
    with FlopCounterMode(display=False) as counter:
        copy.deepcopy(classic).update(batch, LEARNING_RATE)

    def update() -> None:
        learner.update(batch, LEARNING_RATE)
        learner.soft_update_target()

    update()  # compiles
    times = times_in_turns(
        options,
        ours=update,
        classic=lambda: classic.update(batch, LEARNING_RATE),
        product=matrix_product(device),
    )
    # The product's rate in turns with the update: a processor that others use too is not always equally fast.
    flop = counter.get_total_flops()
    arithmetic_ms = times["product"].processor_ms * flop / (2 * GEMM_SIDE**3)
    measured_ms = times["ours"].processor_ms
    if device.type == "cuda":
        arithmetic_ms, measured_ms = machine.compute_ms(flop), times["ours"].wall_ms
    return Figure.of_times(
        PART,
        name,
        times["ours"],
        times["classic"],
        floor=arithmetic_ms + machine.copy_ms(n_weights * BYTES_PER_WEIGHT_AND_UPDATE / 2),
        floor_is=f"{flop / 1e9:.3g} GFLOP as the algorithm is written, and the weights' passes; "
        f"{100 * arithmetic_ms / measured_ms:.0f} % of the matrix product's rate is reached",
        required_ratio=required_ratio,
    )


def make_network(settings: Settings) -> IQN_Network:
    """A network that sees the floats as they are, as the classic one does: neither normalized nor as waves."""
    return IQN_Network(
        settings.agent,
        float_mean=[0.0] * N_FLOATS,
        float_std=[1.0] * N_FLOATS,
        n_actions=len(settings.game.inputs),
        image_height_px=settings.game.image_height_px,
        image_width_px=settings.game.image_width_px,
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
        generator=torch.Generator().manual_seed(0),
    )


def random_batch(settings: Settings, batch_size: int, device: torch.device) -> SimpleNamespace:
    """A batch as the replay memory gives it."""
    generator = torch.Generator().manual_seed(0)
    image = (batch_size, 1, settings.game.image_height_px, settings.game.image_width_px)
    columns = {
        "state_img": torch.randint(256, image, generator=generator, dtype=torch.uint8),
        "state_float": torch.randn(batch_size, N_FLOATS, generator=generator),
        "action": torch.randint(len(settings.game.inputs), (batch_size,), generator=generator),
        "reward": torch.randn(batch_size, generator=generator),
        "next_state_img": torch.randint(256, image, generator=generator, dtype=torch.uint8),
        "next_state_float": torch.randn(batch_size, N_FLOATS, generator=generator),
        "gamma_n": torch.full((batch_size,), 0.997),
        "weight": torch.ones(batch_size),
    }
    return SimpleNamespace(**{name: column.to(device) for name, column in columns.items()})
