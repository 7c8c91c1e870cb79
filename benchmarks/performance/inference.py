"""Decisions: one state at a time, and several states together."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.performance.classic_agent import ClassicNetwork
from benchmarks.performance.learner_step import make_network
from benchmarks.performance.measuring import (
    DEFAULT_SIZE,
    FULL_SIZE,
    Figure,
    Machine,
    Options,
    settings_for,
    times_in_turns,
)
from benchmarks.performance.senders import N_FLOATS
from trackmania_rl.agents.devices import arithmetic_dtype
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import Settings

PART = "inference"
BATCH = 32


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure both networks, single and batched: in float32, and in bfloat16 where collectors would compute in it."""
    figures = []
    for name, config in (("full size", FULL_SIZE), ("default", DEFAULT_SIZE)):
        settings = settings_for(config, options)
        figures += _measure(options, machine, settings, name, torch.float32)
        in_bfloat16 = settings_for(config, options, "autocast_dtype=bfloat16")
        dtype = arithmetic_dtype(torch.device(options.device), in_bfloat16.agent, make_network(in_bfloat16))
        if dtype != torch.float32:
            figures += _measure(options, machine, settings, f"{name}, {str(dtype).removeprefix('torch.')}", dtype)
    return figures


def _measure(options: Options, machine: Machine, settings: Settings, name: str, dtype: torch.dtype) -> list[Figure]:
    device = torch.device(options.device)
    network = make_network(settings).to(device).eval()
    classic = ClassicNetwork(settings, N_FLOATS).to(device)
    classic.load_state_dict(network.state_dict())
    inferer = Inferer(
        network,
        n_quantiles=settings.agent.iqn_k,
        throttle_actions=race_spaces(settings).throttle_actions,
        exploration_settings=settings.exploration,
        rng=np.random.default_rng(0),
        dtype=dtype,
    )
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (BATCH, 1, settings.game.image_height_px, settings.game.image_width_px), np.uint8)
    floats = rng.normal(size=(BATCH, N_FLOATS)).astype(np.float32)
    k = settings.agent.iqn_k
    tau = ((torch.arange(k, device=device) + 0.5) / k)[None]

    def act_classic(n: int) -> int:
        with torch.no_grad():
            img, state = torch.from_numpy(frames[:n]).to(device), torch.from_numpy(floats[:n]).to(device)
            return int(classic(img, state, tau.expand(n, -1)).mean(dim=1).cpu().numpy().argmax(axis=1)[0])

    figures = []
    for title, n, act in (
        ("one state", 1, lambda: inferer.act(frames[0], floats[0])),
        (f"{BATCH} states", BATCH, lambda: inferer.act_batch(frames, floats)),
    ):
        times = times_in_turns(options, ours=act, classic=partial(act_classic, n))
        with FlopCounterMode(display=False) as counter:
            act()
        arithmetic_ms = machine.compute_ms(counter.get_total_flops())
        weights_bytes = dtype.itemsize * sum(parameter.numel() for parameter in network.parameters())
        reading_ms = machine.copy_ms(weights_bytes) / 2
        is_rate_known = dtype == torch.float32 or device.type == "cuda"  # the machine's, of large products
        floor = max(arithmetic_ms, reading_ms) if is_rate_known else reading_ms
        note = "floor: reading the weights once" + (", or its arithmetic" if is_rate_known else "")
        figures.append(Figure.of_times(PART, f"{name}, {title}", times["ours"], times["classic"], floor, note))
    return figures
