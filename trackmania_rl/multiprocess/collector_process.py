"""A collector's process: it builds a collector, on games of its own or on game instances, and plays on and on."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process

import numpy as np
import psutil
import torch

from trackmania_rl.agents.devices import pick_playing_device
from trackmania_rl.channels.protocols import WeightsKind
from trackmania_rl.errors import ExitCode, PlainError
from trackmania_rl.games.gymnasium_games import EnvironmentFaultError
from trackmania_rl.games.protocol import Listener
from trackmania_rl.multiprocess.beat_keeper import BeatKeeper
from trackmania_rl.multiprocess.collector_logs import sending_logs_to
from trackmania_rl.multiprocess.collector_task import CollectorTask
from trackmania_rl.multiprocess.signals import OF_THE_TERMINAL, release_ctrl_c
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree, set_stream_state
from trackmania_rl.telemetry.live.mirror import LiveMirror
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords
from trackmania_rl.track.generated_maps import GeneratedMaps
from trackmania_rl.training.collector import BeginTurn, Collector, CollectorParts, TurnTakingCollector, WeightPuller
from trackmania_rl.training.demonstrations import drive_demonstrations

log = logging.getLogger(__name__)


def collector_process_fn(task: CollectorTask) -> None:
    """Play races until the learner publishes the run's end; game instances end with this process, however it ends."""
    for number in OF_THE_TERMINAL:  # which reach every process; the main one ends the run in order
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_at_once)
    release_ctrl_c()
    _end_when_the_parent_is_gone()
    with sending_logs_to(task.log_pipe), BeatKeeper(task.rollouts.beat) as beats:
        task.run_state.pull()
        torch.set_num_threads(1)
        try:
            _play(task, beats)
        except PlainError as error:
            log.error("collector %d: %s", task.index, error)
            needs_a_person = isinstance(error, EnvironmentFaultError)
            raise SystemExit(ExitCode.NEEDS_A_PERSON if needs_a_person else ExitCode.FAILED) from None
        finally:
            task.rollouts.close()
            gc.freeze()  # skips the garbage collector's last pass over torch's objects, which takes seconds


def make_parts(task: CollectorTask, spaces: Spaces, beat: Callable[[], object] = lambda: None) -> CollectorParts:
    """Make what the collector needs besides its games: networks kept at the newest weights, and the channels."""
    settings = task.run_state.settings
    seeds = SeedTree(settings.run.seed)
    builder, device = task.make_agent_builder(settings, spaces, seeds), pick_playing_device(settings, spaces)

    streams: dict[str, np.random.Generator] = {}

    def puller(kind: WeightsKind, name: str) -> WeightPuller:
        streams[name] = seeds.rng(f"{task.name}/{name}")
        if name in task.progress.streams:  # it goes on where an earlier session was
            set_stream_state(streams[name], task.progress.streams[name])
        return WeightPuller(builder.make_actor(builder.make_network(), device, streams[name]), task.run_state, kind)

    tracks = seeds.sequence(f"collector-{task.index}/tracks")
    return CollectorParts(
        run_state=task.run_state,
        rollouts=task.rollouts,
        explorer=puller("exploration", "explorer"),
        evaluator=puller("evaluation", "evaluator"),
        generated_maps=GeneratedMaps(task.tracks_folder, tracks, n_begun=task.progress.of_generators),
        progress=task.progress,
        n_entries_left_out=task.n_starts_before,
        streams={} if settings.sync.is_synchronous else streams,  # a turn has its own
        beat=beat,
    )


def make_begin_turn(task: CollectorTask, spaces: Spaces, parts: CollectorParts) -> BeginTurn:
    """Make what gives a collector that takes turns the random numbers of each turn; its name says nothing else."""
    settings = task.run_state.settings
    seeds = SeedTree(settings.run.seed)
    builder, device = task.make_agent_builder(settings, spaces, seeds), pick_playing_device(settings, spaces)

    def begin_turn(number: int) -> None:
        for name, puller in (("explorer", parts.explorer), ("evaluator", parts.evaluator)):
            rng = seeds.rng(f"collector-{task.index}/turn-{number}/{name}")
            puller.actor = builder.make_actor(puller.actor.network, device, rng)

    return begin_turn


def _play(task: CollectorTask, beats: BeatKeeper) -> None:
    settings = task.run_state.settings
    builder = task.make_games_builder(settings)
    rng = SeedTree(settings.run.seed).rng(f"{task.name}/games")
    parts = make_parts(task, builder.spaces, beats.beat)
    games = builder.make_games(task.index, task.maps_folder, rng)
    mirror = LiveMirror(games, task.live_folder, task.index, task.maps_folder, builder.spaces.has_image)
    listeners: list[Listener] = [mirror]
    if settings.run.crc_debug:
        from trackmania_rl.training.hooks.pipeline_check import CheckSums  # imports torchrl, in two seconds

        listeners.append(CheckSums())
    parts = replace(parts, listeners=listeners)
    demonstrate = functools.partial(drive_demonstrations, task.demonstrations, games, parts)
    try:
        if settings.sync.is_synchronous:
            TurnTakingCollector(parts, games, make_begin_turn(task, builder.spaces, parts), demonstrate).run()
        else:
            demonstrate()
            Collector(parts, games).run()
    finally:
        mirror.close()
        if not games.close():  # such as one that hangs, and whose thread waits for it
            _kill_children()


def end_at_once(*_: object) -> None:
    """End with the game instances, wherever the process stands: an exception would get lost while numba compiles."""
    _kill_children()
    os._exit(1)


def _kill_children() -> None:
    """End the game instances: the simulated ones are children, and the real ones are on record."""
    GameRecords().end_own()
    for game in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            game.kill()


def _end_when_the_parent_is_gone() -> None:
    """Watch the main process, which cannot say goodbye if it is killed; without it nobody reads races any more."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            end_at_once()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
