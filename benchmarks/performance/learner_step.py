"""One update of the learner with the default-size and the full-size network, soft update included."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import torch
from tensordict import TensorDict
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.performance.classic_agent import ClassicNetwork, ClassicUpdate
from benchmarks.performance.measuring import (
    DEFAULT_SIZE,
    FULL_SIZE,
    GEMM_SIDE,
    Figure,
    Machine,
    Options,
    matrix_product,
    settings_for,
    times_in_turns,
)
from benchmarks.performance.senders import N_FLOATS
from trackmania_rl.agents.devices import arithmetic_dtype
from trackmania_rl.agents.iqn import IQN_Network, IQNAgent
from trackmania_rl.agents.networks import Sizes
from trackmania_rl.settings import Settings

PART = "learner step"
LEARNING_RATE = 1e-4
BYTES_PER_WEIGHT_AND_UPDATE = 4 * 12
"""Of each weight, an update reads and writes gradient, weight, two moments and target; with zeroing and decay about
twelve passes of four bytes. A floor for networks too small to be bound by arithmetic."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure the update beside the classic one: both eager, and both compiled where possible."""
    torch.backends.cudnn.benchmark = True  # as in a training
    is_compiled = options.compiled and has_compiler(options.device)
    figures = []
    for name, config, overrides in (
        ("default size", DEFAULT_SIZE, ()),
        ("full size", FULL_SIZE, ("autocast_dtype=float32",)),
        ("full size", FULL_SIZE, ("autocast_dtype=bfloat16",)),
    ):
        settings = settings_for(config, options, *overrides)
        dtype = arithmetic_dtype(torch.device(options.device), settings.agent, make_network(settings))
        if overrides == ("autocast_dtype=bfloat16",) and dtype == torch.float32:
            continue  # a processor without matrix instructions: it would be the same again
        figures += _measure(options, machine, settings, name, dtype, is_compiled)
    return figures


def has_compiler(device: str) -> bool:
    """Return whether torch.compile can work: on a processor it needs a C++ compiler."""
    return device.startswith("cuda") or shutil.which(os.environ.get("CXX", "g++")) is not None


def _measure(
    options: Options, machine: Machine, settings: Settings, size: str, dtype: torch.dtype, is_compiled: bool
) -> list[Figure]:
    device = torch.device(options.device)
    batch_size = options.learner_batch_size or settings.replay.batch_size
    batch = random_batch(settings, batch_size, device)
    network = make_network(settings)
    updates = {}
    for form in ("eager", "compiled")[: 1 + is_compiled]:
        updates[f"ours {form}"] = _ours(settings, network, batch, device, form == "compiled")
        updates[f"classic {form}"] = _classic(settings, network, batch, device, dtype, form == "compiled")
        for update in updates.values():
            update()  # compiles
    # Counted on a network of its own: the classic way spells the algorithm's arithmetic out.
    with FlopCounterMode(display=False) as counter:
        _classic(settings, network, batch, device, torch.float32, False)()
    # The product's rate in turns with the update: a processor that others use too is not always equally fast.
    times = times_in_turns(options, **updates, product=matrix_product(device))
    flop = counter.get_total_flops()
    arithmetic_ms = times["product"].processor_ms * flop / (2 * GEMM_SIDE**3)
    if device.type == "cuda":
        arithmetic_ms = machine.compute_ms(flop)
    passes_ms = machine.copy_ms(sum(p.numel() for p in network.parameters()) * BYTES_PER_WEIGHT_AND_UPDATE / 2)
    is_rate_known = dtype == torch.float32 or device.type == "cuda"  # the machine's, of large products
    floor = arithmetic_ms + passes_ms if is_rate_known else passes_ms
    note = "floor: " + (f"{flop / 1e9:.3g} GFLOP as the algorithm is written, and " if is_rate_known else "")
    note += "the weights' passes"
    return [
        Figure.of_times(
            PART,
            f"{size}, {str(dtype).removeprefix('torch.')}, batch {batch_size}, {form}",
            times[f"ours {form}"],
            times[f"classic {form}"],
            floor,
            note,
        )
        for form in ("eager", "compiled")[: 1 + is_compiled]
    ]


def _ours(
    settings: Settings, network: IQN_Network, batch: TensorDict, device: torch.device, is_compiled: bool
) -> Callable[[], object]:
    """Return the update of a training, on a copy of the network."""
    agent = IQNAgent(copy.deepcopy(network), settings.agent, device=device, seed=0, use_torch_compile=is_compiled)
    agent.apply_settings(settings.agent, LEARNING_RATE)

    return lambda: agent.update(batch)


def _classic(
    settings: Settings,
    network: IQN_Network,
    batch: TensorDict,
    device: torch.device,
    dtype: torch.dtype,
    is_compiled: bool,
) -> Callable[[], None]:
    """Return the classic update, with the network's weights."""
    classic = ClassicNetwork(settings, N_FLOATS)
    classic.load_state_dict(network.state_dict())
    update = ClassicUpdate(classic.to(device), settings.agent, dtype, use_torch_compile=is_compiled)
    columns = SimpleNamespace(**dict(batch.items()))
    return lambda: update.update(columns, LEARNING_RATE)


def make_network(settings: Settings) -> IQN_Network:
    """Return a network without normalization and Fourier features, like the classic one."""
    sizes = Sizes(
        float_mean=[0.0] * N_FLOATS,
        float_std=[1.0] * N_FLOATS,
        n_actions=len(settings.game.inputs),
        image_shape=(1, settings.game.image_height_px, settings.game.image_width_px),
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
    )
    return IQN_Network(settings.agent, sizes, torch.Generator().manual_seed(0))


def random_batch(settings: Settings, batch_size: int, device: torch.device) -> TensorDict:
    """Return a random batch with the replay memory's columns."""
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
    return TensorDict({name: column.to(device) for name, column in columns.items()}, batch_size=[batch_size])
