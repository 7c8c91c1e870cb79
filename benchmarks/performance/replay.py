"""Filling the replay memory with a race, and drawing batches from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.performance.classic_replay import ClassicReplay
from benchmarks.performance.measuring import (
    FULL_SIZE,
    MS_PER_ACTION,
    Figure,
    Machine,
    Options,
    settings_for,
    times_in_turns,
)
from benchmarks.performance.senders import N_FLOATS, as_lists, race_of, random_race
from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.race import Race
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

PART = "replay"
GAMMA = 0.999
N_RACES = 3
"""Different races, stored in turns, so that a race's arrays are not always warm in the cache."""


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure with frames and without."""
    figures = []
    for image_size_px in (options.image_size_px, (0, 0)):
        figures += _measure_fill_and_sample(options, machine, image_size_px)
    return figures


class Replays:
    """This project's replay memory and the classic one, for the same races."""

    def __init__(self, options: Options, settings: Settings, image_size_px: tuple[int, int]) -> None:
        self.settings = settings
        self.layout = ObservationLayout(settings.observation, settings.game.actions)
        self.buffer, self.buffer_test = make_buffers(
            settings.replay,
            n_floats=N_FLOATS,
            image_size_px=image_size_px,
            device=options.device,
            generator=torch.Generator(options.device).manual_seed(1),
            gamma=GAMMA,
        )
        self.reward = RaceReward(settings, race_spaces(settings), SeedTree(0))
        self.classic = ClassicReplay(options.memory_rows, settings.replay, settings.reward, GAMMA)

    def fill(self, race: Race) -> None:
        """Store a race of arrays."""
        race.rewards, race.potentials = self.reward(race.rollout_results(), self.settings, frames_total=0)
        fill_buffer_from_rollout_with_n_steps_rule(self.buffer, self.buffer_test, race, self.settings)

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
    next_race = itertools.cycle([race_of(race) for race in races])
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
    note = "floor: one copy of the race"
    if image_size_px[0]:
        note += "; the classic way keeps the frames it was sent, here they are copied out of the slot"
    floor = machine.copy_ms(options.n_frames * row_bytes)
    name = f"fill with {options.n_frames} rows, {frames}"
    figures = [Figure.of_times(PART, name, times["ours"], times["classic"], floor, note)]
    for batch_size in options.batch_sizes:
        batch_bytes = 2 * batch_size * row_bytes
        figures.append(_measure_sample(options, machine, replays, batch_size, frames, batch_bytes))
    return figures


def _measure_sample(
    options: Options, machine: Machine, replays: Replays, batch_size: int, frames: str, batch_bytes: int
) -> Figure:
    classic = replays.classic
    replays.buffer._batch_size = batch_size
    has_frames = replays.buffer.ring.columns.frames.numel() > 0

    def sample_classic(images_as_floats: bool) -> None:
        classic.images_as_floats = images_as_floats
        batch = classic.buffer.sample(batch_size)
        for tensor in batch:
            tensor.to(options.device)

    times = times_in_turns(
        options,
        ours=replays.buffer.sample,
        classic=lambda: sample_classic(True),
        classic_bytes=lambda: sample_classic(False),
    )
    note = "floor: one copy of the batch's states and next states"
    if has_frames:
        bytes_ms = times["classic_bytes"].wall_ms
        note += f"; without making floats of the images, the classic way takes {bytes_ms:.2f} ms"
    name = f"sample and collate {batch_size}, {frames}"
    return Figure.of_times(PART, name, times["ours"], times["classic"], machine.copy_ms(batch_bytes), note)
