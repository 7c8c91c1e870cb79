"""Resident memory that a filled replay memory takes."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import psutil

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import Figure, Options
from benchmarks.performance.races import N_FLOATS, as_lists, random_race
from benchmarks.performance.replay import Replays, replay_settings

PART = "memory"
MOST_KB_PER_TRANSITION = 20.0


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Resident memory that a filled memory takes, in fresh processes: a used one has freed memory to fill first."""
    options = replace(options, memory_rows=3 * options.memory_rows)  # what is not the memory's weighs less
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        ours_kb, classic_kb = pool.starmap(kb_per_transition, [(options, False), (options, True)], chunksize=1)
        pool.close()
        pool.join()
    height_px, width_px = options.image_size_px
    figure = Figure(
        PART,
        f"a transition, {width_px} x {height_px}",
        ours_kb,
        "kB",
        classic=classic_kb,
        floor=(height_px * width_px + 4 * N_FLOATS) / 1e3,
        floor_is=f"one frame and one state's floats; at most {MOST_KB_PER_TRANSITION} kB is asked for",
    )
    return [figure]


def kb_per_transition(options: Options, is_classic: bool) -> float:
    """Fill a memory until races overwrite others; by how much this process has grown, for each transition in it."""
    replays = Replays(options, replay_settings(options), options.image_size_px)
    memory = replays.classic if is_classic else replays
    race = random_race(options.n_frames, options.image_size_px, seed=0)
    replays.fill(random_race(2, options.image_size_px, seed=1))  # what is loaded at the first call
    before_bytes = psutil.Process().memory_info().rss
    for _ in range(2 + options.memory_rows // options.n_frames):
        if is_classic:
            replays.fill_classic(as_lists(race))
        else:
            replays.fill(race)
    return (psutil.Process().memory_info().rss - before_bytes) / 1e3 / (len(memory.buffer) + len(memory.buffer_test))
