"""How many processor threads the learner shall use, found by trying."""

from __future__ import annotations

import copy
import os
import time

import torch
from tensordict import TensorDict

from trackmania_rl.agents.agent import IQNAgent
from trackmania_rl.agents.iqn import IMAGES_AT_ONCE, QuantileNetwork
from trackmania_rl.settings import Settings

TRIAL_S = 0.5
"""How long each number of threads is tried; one update at least."""
LEAST_GAIN = 1.1
"""Threads that make updates faster by less than this are better left to others."""


def pick_learner_threads(settings: Settings, network: QuantileNetwork, device: torch.device) -> int:
    """The setting `learner_threads`; for "auto", the faster of one thread and all that collectors leave.

    Several threads wait for the slowest of them at each operation. On small networks, or where others use the
    processor too, that costs more than it brings, by a factor of ten at worst: so both are tried, on updates of a copy
    of the network. Collectors are not running yet at that time, so each is counted as one core in use.

    Args:
        settings: of the run.
        network: of the run; stays as it is.
        device: of the learner; with a GPU there is little for the processor to do, so the answer is 1.
    """
    configured = settings.run.learner_threads
    if configured != "auto":
        return configured
    free_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = free_cores - settings.game.n_collectors
    if device.type != "cpu" or most <= 1:
        return 1
    one_s, most_s = _seconds_per_update(settings, network, (1, most))
    return most if one_s > LEAST_GAIN * most_s else 1


def _seconds_per_update(settings: Settings, network: QuantileNetwork, thread_counts: tuple[int, ...]) -> list[float]:
    device = torch.device("cpu")
    agent = IQNAgent(copy.deepcopy(network), settings.agent, device=device, seed=0)
    batch = _random_batch(settings, network)
    threads_before = torch.get_num_threads()
    seconds = []
    for thread_count in thread_counts:
        torch.set_num_threads(thread_count)
        agent.update(batch)  # starts the threads
        n_updates, start = 0, time.perf_counter()
        while n_updates == 0 or time.perf_counter() - start < TRIAL_S:
            agent.update(batch)
            n_updates += 1
        seconds.append((time.perf_counter() - start) / n_updates)
    torch.set_num_threads(threads_before)
    return seconds


def _random_batch(settings: Settings, network: QuantileNetwork) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    n = min(settings.replay.batch_size, IMAGES_AT_ONCE) if settings.game.has_image else settings.replay.batch_size
    image_shape = (n, settings.game.frames_per_state, settings.game.image_height_px, settings.game.image_width_px)
    image = torch.randint(256, image_shape, generator=generator, dtype=torch.uint8)
    noise = torch.randn((n, len(network.float_mean)), generator=generator)
    floats = noise * network.float_std + network.float_mean
    action = torch.randint(network.n_actions, (n,), generator=generator)
    ones = torch.ones(n)
    batch = {"state_img": image, "state_float": floats, "action": action, "reward": -ones, "gamma_n": ones}
    return TensorDict(batch | {"next_state_img": image, "next_state_float": floats, "weight": ones}, batch_size=[n])
