"""Process of a collector: it makes the collector and its games, and plays until the run ends."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import psutil
import torch
from numba.core import event
from typing_extensions import override

from trackmania_rl.agents.builder import MakeAgentBuilder
from trackmania_rl.agents.devices import pick_playing_device
from trackmania_rl.channels.heartbeat import BEAT_EVERY_S, beating
from trackmania_rl.channels.rollouts import RolloutSink
from trackmania_rl.channels.run_state import LearnerFaultError, RunState, WeightsKind
from trackmania_rl.errors import ExitCode, PlainError
from trackmania_rl.games.race_games import MakeGamesBuilder
from trackmania_rl.games.stepped_envs import EnvironmentFaultError
from trackmania_rl.processes import end_processes, end_with_parent
from trackmania_rl.race.race import CollectorProgress, set_stream_state
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.telemetry.live.feed import LiveMirror
from trackmania_rl.track.game_map import line_begins_m
from trackmania_rl.track.map_sources import GeneratedMaps
from trackmania_rl.training.collector import (
    BeginTurn,
    Collector,
    CollectorParts,
    Evaluators,
    TurnTakingCollector,
    WeightPuller,
)
from trackmania_rl.training.demonstrations import Demonstration, drive_demonstrations

log = logging.getLogger(__name__)

COMPILING: Final = "numba:compile"
"""numba's name for compiling a function, or loading one from its cache."""


@dataclass(frozen=True)
class CollectorTask:
    """Arguments of one collector process."""

    index: int  # number of the collector, from 0
    name: str  # its name in the seed tree, a new one at each start; its games share its streams
    maps_folder: Path  # holds tracks and reference lines
    tracks_folder: Path  # receives the tracks that it generates
    live_folder: Path  # receives the state of its games for the live page
    rollouts: RolloutSink  # receives its races
    run_state: RunState  # published by the learner
    make_games_builder: MakeGamesBuilder  # called with the settings; a function that can be pickled
    make_agent_builder: MakeAgentBuilder  # called with settings, spaces and seeds; likewise
    demonstrations: tuple[Demonstration, ...] = ()  # races to drive first
    progress: CollectorProgress = field(default_factory=CollectorProgress)  # place at which it resumes
    n_starts_before: int = 0  # starts in this session since its last race came in


class LogPipe(Protocol):
    """Destination of log records."""

    def send(self, record: Any, /) -> None:
        """Send a record."""
        ...


class _PipeHandler(QueueHandler):
    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the main process is gone
            self.queue.send(record)  # type: ignore[attr-defined]


def send_logs_to(pipe: LogPipe) -> None:
    """Send this process's log records to the main process from now on."""
    root = logging.getLogger()
    root.handlers = [_PipeHandler(pipe)]  # type: ignore[arg-type]
    root.setLevel(logging.INFO)


def collector_process_fn(task: CollectorTask, log_pipe: LogPipe) -> None:
    """Play races until the learner publishes the end of the run. Game instances end with this process in any case.

    Raises:
        SystemExit: after an error that its log record names.
    """
    signal.signal(signal.SIGTERM, end_at_once)
    end_with_parent(end_at_once)
    gc.freeze()  # garbage collections skip the modules, whose objects are many
    gc.enable()
    send_logs_to(log_pipe)
    with beating_until_it_plays(task.rollouts.beat) as beat:
        torch.set_num_threads(1)
        try:
            task.run_state.pull()
            if (progress := task.run_state.progress) is not None:
                task = replace(task, progress=progress)
            if not task.run_state.stop_requested:
                _play(task, beat)
        except PlainError as error:
            log.error("collector %d: %s", task.index, error)
            needs_a_person = isinstance(error, EnvironmentFaultError | LearnerFaultError)
            raise SystemExit(ExitCode.NEEDS_A_PERSON if needs_a_person else ExitCode.FAILED) from None
        finally:
            gc.freeze()  # skips the garbage collector's last pass over torch's objects, which takes seconds


def make_parts(task: CollectorTask, spaces: Spaces, beat: Callable[[], object] = lambda: None) -> CollectorParts:
    """Make the collector's parts besides its games: networks with the newest weights, and the channels."""
    settings = task.run_state.settings
    seeds = SeedTree(settings.run.seed)
    builder, device = task.make_agent_builder(settings, spaces, seeds), pick_playing_device(settings, spaces)

    streams: dict[str, np.random.Generator] = {}

    for name in ("explorer", "evaluator"):
        streams[name] = seeds.rng(f"{task.name}/{name}")
        if name in task.progress.streams:  # resumed from an earlier session
            set_stream_state(streams[name], task.progress.streams[name])

    def puller(kind: WeightsKind, name: str) -> WeightPuller:
        return WeightPuller(builder.make_actor(builder.make_network(), device, streams[name]), task.run_state, kind)

    tracks = seeds.sequence(f"collector-{task.index}/tracks")
    return CollectorParts(
        run_state=task.run_state,
        rollouts=task.rollouts,
        explorer=puller("exploration", "explorer"),
        evaluators=Evaluators(lambda: puller("evaluation", "evaluator")),
        generated_maps=GeneratedMaps(task.tracks_folder, tracks, n_begun=task.progress.of_generators),
        progress=task.progress,
        n_entries_left_out=task.n_starts_before,
        streams={} if settings.sync.is_synchronous else streams,  # a turn has its own
        beat=beat,
    )


def make_begin_turn(task: CollectorTask, spaces: Spaces, parts: CollectorParts) -> BeginTurn:
    """Make the function that reseeds the actors of `parts` for a turn, by the turn's number alone."""
    settings = task.run_state.settings
    seeds = SeedTree(settings.run.seed)
    builder, device = task.make_agent_builder(settings, spaces, seeds), pick_playing_device(settings, spaces)

    def begin_turn(number: int) -> None:
        pullers = [("explorer", parts.explorer), *(("evaluator", one) for one in parts.evaluators.made)]
        for name, puller in pullers:
            rng = seeds.rng(f"collector-{task.index}/turn-{number}/{name}")
            puller.actor = builder.make_actor(puller.actor.network, device, rng)

    return begin_turn


def _play(task: CollectorTask, beat: Callable[[], None]) -> None:
    settings = task.run_state.settings
    builder = task.make_games_builder(settings)
    rng = SeedTree(settings.run.seed).rng(f"{task.name}/games")
    parts = make_parts(task, builder.spaces, beat)
    games = builder.make_games(task.index, task.maps_folder, rng)
    begins_m = line_begins_m(settings.observation)
    mirror = LiveMirror(games, task.live_folder, task.index, task.maps_folder, builder.spaces.has_image, begins_m)
    parts = replace(parts, listeners=[mirror])
    demonstrate = functools.partial(drive_demonstrations, task.demonstrations, games, parts)
    try:
        if settings.sync.is_synchronous:
            TurnTakingCollector(parts, games, make_begin_turn(task, builder.spaces, parts), demonstrate).run()
        else:
            demonstrate()
            Collector(parts, games).run()
    finally:
        mirror.close()
        if not games.close():  # a game hangs, and a thread waits for it
            _kill_children()


class _Compilations(event.Listener):
    """Count of the functions that are being compiled. One thread compiles at a time, under numba's lock.

    Compiling takes an eighth less time without garbage collections.
    """

    n_under_way = 0

    def on_start(self, event: Any) -> None:
        self.n_under_way += 1
        gc.disable()

    def on_end(self, event: Any) -> None:
        self.n_under_way -= 1
        if self.n_under_way == 0:
            gc.enable()


@contextlib.contextmanager
def beating_until_it_plays(beat: Callable[[], None], every_s: float = BEAT_EVERY_S) -> Iterator[Callable[[], None]]:
    """Beat from a thread until the first call of the yielded function, and while numba compiles.

    A main thread that hangs later is silent.
    """
    compilations = _Compilations()
    plays = threading.Event()

    def beat_from_main_thread() -> None:
        plays.set()
        beat()

    event.register(COMPILING, compilations)
    try:
        with beating(beat, lambda: not plays.is_set() or compilations.n_under_way > 0, every_s):
            yield beat_from_main_thread
    finally:
        event.unregister(COMPILING, compilations)


def end_at_once(*_: object) -> None:
    """Kill the game instances and exit, whatever fails. An exception would be lost while numba compiles."""
    try:
        _kill_children()
    finally:
        os._exit(1)


def _kill_children() -> None:
    """Kill the game instances: simulated ones are children, real ones are on record."""
    from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords  # loaded if there are such games

    GameRecords().end_games_of(os.getpid())
    end_processes(psutil.Process().children(), within_s=0.0)
