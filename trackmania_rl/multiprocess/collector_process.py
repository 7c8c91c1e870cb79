"""A collector's process: it builds a collector, on games of its own or on game instances, and plays on and on."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing import parent_process
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from trackmania_rl.agents.run_network import make_inferer, make_network, pick_playing_device
from trackmania_rl.channels.rollout_slot import RolloutSlot
from trackmania_rl.channels.rollout_transport import RolloutSender
from trackmania_rl.channels.shared_weights import SharedWeights
from trackmania_rl.doctor.run_checks import check_edited_maps
from trackmania_rl.errors import PlainError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.multiprocess.shared_run import CollectorTask, SharedRun, StopFlag, release_ctrl_c, send_logs_to
from trackmania_rl.multiprocess.stop_conditions import OF_THE_TERMINAL
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.choice import make_launcher
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.track.generated_maps import GeneratedMaps
from trackmania_rl.training.batch_collector import BatchCollector
from trackmania_rl.training.collector import Collector, CollectorParts, WeightsFollower
from trackmania_rl.training.demonstrations import drive_demonstrations

log = logging.getLogger(__name__)


def collector_process_fn(task: CollectorTask, shared: SharedRun) -> None:
    """Play races until `shared.stop_requested`; game instances end with this process, however it ends."""
    for number in OF_THE_TERMINAL:  # which reach every process; the main one ends the run in order
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_at_once)
    release_ctrl_c()
    _end_when_the_parent_is_gone()
    send_logs_to(shared.log_queue)
    torch.set_num_threads(task.settings.run.collector_threads)
    try:
        if task.settings.game.is_in_process:
            log.info("collector %d prepares its games; the first time, compiling takes half a minute", task.index)
            parts, games = make_parts(task, shared), make_games(task)
            drive_demonstrations(task.demonstrations, games, parts)
            BatchCollector(parts, games).run()
        else:
            _play_on_game_instances(task, shared)
    except PlainError as error:
        log.error("collector %d: %s", task.index, error)
        raise SystemExit(1) from None
    finally:
        task.sender.close()
        gc.freeze()  # skips the garbage collector's last pass over torch's objects, which takes seconds


def make_parts(task: CollectorTask, shared: SharedRun) -> CollectorParts:
    """What the collector needs besides its games: networks that follow the shared weights, and a way to the learner."""
    settings, seeds = task.settings, SeedTree(task.settings.run.seed)
    layout = ObservationLayout.from_settings(settings.observation)
    device = pick_playing_device(settings)

    def follow(weights: SharedWeights, name: str) -> WeightsFollower:
        network = make_network(settings, layout, seeds)
        return WeightsFollower(make_inferer(network, settings, device, seeds.rng(f"{task.name}/{name}")), weights)

    def frames_total() -> int:
        return shared.frames_total.value

    return CollectorParts(
        live=LiveSettings(
            shared.snapshot_file,
            settings,
            check=functools.partial(check_edited_maps, maps_folder=task.maps_folder),
        ),
        explorer=follow(shared.exploration_weights, "explorer"),
        evaluator=follow(shared.evaluation_weights, "evaluator"),
        frames_total=frames_total,
        stop_requested=shared.stop_requested.is_set,
        outbox=_SlotOutbox(task.sender, shared.stop_requested),
        generated_maps=GeneratedMaps(
            shared.snapshot_file.parent.parent / "generated_tracks" / f"collector-{task.index}",
            seeds.rng(f"{task.name}/tracks"),
        ),
        first_entry=task.n_starts_before,
    )


def make_games(task: CollectorTask) -> InProcessGames:
    """The games that this collector plays in its own process."""
    settings = task.settings
    return InProcessGames(settings.game.games_per_collector, settings.game, settings.observation, task.maps_folder)


def make_managers(task: CollectorTask) -> list[GameInstanceManager]:
    """The managers of this collector's game instances."""
    settings = task.settings
    return [
        GameInstanceManager(
            settings.game, settings.observation, make_launcher(settings.game, settings.user, port, task.maps_folder)
        )
        for port in settings.game.tmi_ports_of(task.index)
    ]


def _play_on_game_instances(task: CollectorTask, shared: SharedRun) -> None:
    parts, managers = make_parts(task, shared), make_managers(task)
    collector = Collector(parts, managers)
    try:
        drive_demonstrations(task.demonstrations, managers[0], parts)
        collector.run()
    finally:
        if not collector.games_have_ended:  # such as one that hangs, and whose thread waits for it
            _kill_children()


class _SlotOutbox:
    """Races go to the learner through slots of shared memory; frames are written there in the first place."""

    def __init__(self, sender: RolloutSender, stop_requested: StopFlag) -> None:
        self._sender = sender
        self._stop_requested = stop_requested
        self._slots: dict[int, RolloutSlot] = {}

    def acquire_frames(self, game: int) -> npt.NDArray[np.uint8] | None:
        slot = None
        while slot is None and not self._stop_requested.is_set():
            slot = self._sender.acquire(timeout_s=0.5, game=game)
        if slot is None:
            return None
        self._slots[game] = slot
        return slot.frames

    def send(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        self._sender.send(self._slots.pop(game), rollout_results, end_race_stats)


def _end_at_once(*_: object) -> None:
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
    """A killed main process cannot say goodbye; without it nobody reads races any more."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            _end_at_once()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
