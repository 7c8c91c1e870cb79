"""Filling the replay memory with a race, drawing batches from it, and the memory it takes."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.performance.classic_replay import ClassicReplay, as_lists
from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import (
    FULL_SIZE,
    MS_PER_ACTION,
    N_FLOATS,
    Figure,
    Options,
    settings_for,
    times_in_turns,
)
from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.features import ObservationLayout
from trackmania_rl.settings import Settings

PART = "replay"
GAMMA = 0.999
FILL_RATIO = 20.0
SAMPLE_RATIO = 10.0
MOST_KB_PER_TRANSITION = 20.0
N_RACES = 3
"""Different races, stored in turns, so that a race's arrays are not always warm in the cache."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure with frames and without."""
    figures = []
    for image_size_px in (options.image_size_px, (0, 0)):
        figures += _measure_fill_and_sample(options, machine, image_size_px)
    return [*figures, _measure_memory(options)]


def random_race(n_frames: int, image_size_px: tuple[int, int], seed: int) -> dict[str, Any]:
    """The part of `rollout_results` that replay reads, of a race that was cut off."""
    rng = np.random.default_rng(seed)
    return {
        "frames": rng.integers(0, 256, (n_frames, 1, *image_size_px), dtype=np.uint8),
        "state_float": rng.normal(size=(n_frames, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, 12, n_frames),
        "action_was_greedy": rng.random(n_frames) < 0.9,
        "meters_advanced_along_centerline": rng.random(n_frames).cumsum(),
    }


class Replays:
    """This project's replay memory and the classic one, for the same races."""

    def __init__(self, options: Options, settings: Settings, image_size_px: tuple[int, int]) -> None:
        self.settings = settings
        self.layout = ObservationLayout.from_settings(settings.observation)
        self.buffer, self.buffer_test = make_buffers(
            settings.replay,
            n_floats=N_FLOATS,
            image_size_px=image_size_px,
            device=options.device,
            generator=torch.Generator(options.device).manual_seed(1),
            gamma=GAMMA,
        )
        self.classic = ClassicReplay(options.memory_rows, settings.replay, settings.reward, GAMMA)

    def fill(self, race: Mapping[str, Any]) -> None:
        """Store a race of arrays."""
        fill_buffer_from_rollout_with_n_steps_rule(
            self.buffer,
            self.buffer_test,
            race,
            places=self.layout,
            reward_settings=self.settings.reward,
            replay_settings=self.settings.replay,
            ms_per_action=MS_PER_ACTION,
        )

    def fill_classic(self, race: Mapping[str, list[Any]]) -> None:
        """Store a race of lists."""
        self.classic.fill(race, MS_PER_ACTION, self.layout["zone_centers_m"])


def replay_settings(options: Options) -> Settings:
    """The full-size configuration with the options' memory size."""
    size = (f"memory_size_schedule=((0, {options.memory_rows}),)", "memory_size_start_learn_schedule=((0, 1),)")
    return settings_for(FULL_SIZE, options, *size)


def _measure_fill_and_sample(options: Options, machine: Machine, image_size_px: tuple[int, int]) -> list[Figure]:
    replays = Replays(options, replay_settings(options), image_size_px)
    races = [random_race(options.n_frames, image_size_px, seed) for seed in range(N_RACES)]
    next_race: Iterator[dict[str, Any]] = itertools.cycle(races)
    next_lists = itertools.cycle([as_lists(race) for race in races])
    for _ in range(2 + options.memory_rows // options.n_frames):  # from here on, every race overwrites another
        replays.fill(next(next_race))
        replays.fill_classic(next(next_lists))

    row_bytes = image_size_px[0] * image_size_px[1] + 4 * N_FLOATS
    frames = f"{image_size_px[1]} x {image_size_px[0]} frames" if image_size_px[0] else "floats only"
    times = times_in_turns(
        options,
        ours=lambda: replays.fill(next(next_race)),
        classic=lambda: replays.fill_classic(next(next_lists)),
    )
    figures = [
        Figure.of_times(
            PART,
            f"fill with {options.n_frames} rows, {frames}",
            times["ours"],
            times["classic"],
            floor=machine.copy_ms(options.n_frames * row_bytes),
            floor_is="one copy of the race",
            required_ratio=FILL_RATIO,
            note="the classic way refers to the frames it was sent; here they are copied out of the slot, which "
            "'transport and fill' counts on both sides"
            if image_size_px[0]
            else "",
        )
    ]
    for batch_size in options.batch_sizes:
        figures += _measure_sample(options, machine, replays, batch_size, frames, 2 * batch_size * row_bytes)
    return figures


def _measure_sample(
    options: Options, machine: Machine, replays: Replays, batch_size: int, frames: str, batch_bytes: int
) -> list[Figure]:
    classic = replays.classic
    has_frames = replays.buffer.ring.columns.frames.numel() > 0

    def sample_classic(images_as_floats: bool) -> None:
        classic.images_as_floats = images_as_floats
        batch = classic.buffer.sample(batch_size)
        for tensor in batch:
            tensor.to(options.device)

    times = times_in_turns(
        options,
        ours=lambda: replays.buffer.sample(batch_size),
        classic=lambda: sample_classic(True),
        classic_bytes=lambda: sample_classic(False),
    )
    return [
        Figure.of_times(
            PART,
            f"sample and collate {batch_size}, {frames}",
            times["ours"],
            times["classic"],
            floor=machine.copy_ms(batch_bytes),
            floor_is="one copy of the batch's states and next states",
            required_ratio=SAMPLE_RATIO if batch_size >= 512 and has_frames else None,
            note=f"without making floats of the images, the classic way takes {times['classic_bytes'].wall_ms:.2f} ms: "
            f"{times['classic_bytes'].wall_ms / times['ours'].wall_ms:.1f} times as long"
            if has_frames
            else "",
        )
    ]


def _measure_memory(options: Options) -> Figure:
    """Resident memory that a filled memory takes, in fresh processes: a used one has freed memory to fill first."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        ours_kb, classic_kb = pool.starmap(kb_per_transition, [(options, False), (options, True)], chunksize=1)
    height_px, width_px = options.image_size_px
    return Figure(
        PART,
        f"memory of a transition, {width_px} x {height_px}",
        ours_kb,
        "kB",
        classic=classic_kb,
        floor=(height_px * width_px + 4 * N_FLOATS) / 1e3,
        floor_is=f"one frame and one state's floats; at most {MOST_KB_PER_TRANSITION} kB is asked for",
    )


def kb_per_transition(options: Options, is_classic: bool) -> float:
    """Fill a memory until races overwrite others; by how much this process has grown, for each transition in it."""
    replays = Replays(options, replay_settings(options), options.image_size_px)
    memory = replays.classic if is_classic else replays
    race = random_race(options.n_frames, options.image_size_px, seed=0)
    replays.fill({name: column[:2] for name, column in race.items()})  # what is loaded at the first call
    before_bytes = psutil.Process().memory_info().rss
    for _ in range(2 + options.memory_rows // options.n_frames):
        if is_classic:
            replays.fill_classic(as_lists(race))
        else:
            replays.fill(race)
    return (psutil.Process().memory_info().rss - before_bytes) / 1e3 / (len(memory.buffer) + len(memory.buffer_test))
