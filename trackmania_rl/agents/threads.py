"""How many processor threads the learner shall use, found by trying."""

from __future__ import annotations

import os
import time

import torch
from gymnasium.spaces import Discrete
from tensordict import TensorDict

from trackmania_rl.agents.agent import Agent
from trackmania_rl.agents.builder import MakeAgentBuilder
from trackmania_rl.agents.iqn import IMAGES_AT_ONCE
from trackmania_rl.agents.run_network import pick_device
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

TRIAL_S = 0.5
"""How long each number of threads is tried; one update at least."""
LEAST_GAIN = 1.1
"""Threads that make updates faster by less than this are better left to others."""


def usable_cores() -> int:
    """Count the processor's cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_learner_threads(settings: Settings, spaces: Spaces, seeds: SeedTree, make_builder: MakeAgentBuilder) -> int:
    """The setting `learner_threads`; for "auto", the faster of one thread and all that collectors leave.

    Several threads wait for the slowest of them at each operation. On small networks, or where others use the
    processor too, that costs more than it brings, by a factor of ten at worst: so both are tried, on updates of a copy
    of the network. Collectors are not running yet at that time, so each is counted as one core in use.

    Args:
        settings: of the run.
        spaces: of its games.
        seeds: of the run.
        make_builder: makes the agent's builder.
    """
    configured = settings.run.learner_threads
    if configured != "auto":
        return configured
    if settings.sync.is_synchronous:  # sums of several threads are others to the last bit, and trying is chance
        return 1
    most = usable_cores() - settings.game.n_collectors
    if pick_device(settings.run.torch_device).type != "cpu" or most <= 1:  # with a GPU there is little to do here
        return 1
    plain = settings.model_copy(update={"run": settings.run.model_copy(update={"use_torch_compile": False})})
    builder = make_builder(plain, spaces, SeedTree(seeds.seed))  # the copy begins with the same weights
    agent = builder.make_learner(builder.make_network())
    one_s, most_s = _seconds_per_update(agent, _random_batch(settings, spaces), (1, most))
    return most if one_s > LEAST_GAIN * most_s else 1


def _seconds_per_update(agent: Agent, batch: TensorDict, thread_counts: tuple[int, ...]) -> list[float]:
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


def _random_batch(settings: Settings, spaces: Spaces) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    n = min(settings.replay.batch_size, IMAGES_AT_ONCE) if spaces.has_image else settings.replay.batch_size
    image = torch.randint(256, (n, *spaces.image_shape), generator=generator, dtype=torch.uint8)
    noise = torch.randn((n, spaces.n_floats), generator=generator)
    floats = noise * torch.tensor(spaces.float_std) + torch.tensor(spaces.float_mean)
    if isinstance(spaces.action, Discrete):
        action = torch.randint(spaces.n_values, (n,), generator=generator)
    else:
        action = torch.rand((n, *spaces.action_shape), generator=generator)
    ones = torch.ones(n)
    batch = {"state_img": image, "state_float": floats, "action": action, "reward": -ones, "gamma_n": ones}
    batch |= {"next_state_img": image, "next_state_float": floats, "weight": ones, "n_steps": ones.long()}
    return TensorDict(batch, batch_size=[n])
