"""A collector's process: it builds a collector, on games of its own or on one game instance, and plays on and on."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing import parent_process
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.precision import arithmetic_dtype
from trackmania_rl.errors import UserError
from trackmania_rl.features import ObservationLayout
from trackmania_rl.in_process.games import InProcessGames
from trackmania_rl.multiprocess.batch_collector import BatchCollector
from trackmania_rl.multiprocess.collector import Collector, WeightsFollower
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.multiprocess.rollout_slot import RolloutSlot
from trackmania_rl.multiprocess.rollout_transport import RolloutSender
from trackmania_rl.multiprocess.run_network import make_network, pick_device
from trackmania_rl.multiprocess.shared_run import CollectorTask, SharedRun, release_ctrl_c, send_logs_to
from trackmania_rl.seeds import SeedTree
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers import SimulatedGameLauncher

log = logging.getLogger(__name__)


def collector_process_fn(task: CollectorTask, shared: SharedRun) -> None:
    """Play races until `shared.stop_requested`; the game instance ends with this process, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the main one ends the run in order
    signal.signal(signal.SIGTERM, _end_at_once)
    release_ctrl_c()
    _end_when_the_parent_is_gone()
    send_logs_to(shared.log_queue)
    torch.set_num_threads(task.settings.run.collector_threads)
    try:
        if task.settings.game.is_in_process:
            log.info("collector %d prepares its games; the first time, compiling takes half a minute", task.index)
            make_collector(task, shared, make_games(task)).run()
        else:
            with contextlib.closing(make_manager(task)) as manager:
                make_collector(task, shared, manager).run()
    except UserError as error:
        log.error("collector %d: %s", task.index, error)
        raise SystemExit(1) from None
    finally:
        task.sender.close()
        gc.freeze()  # else the interpreter's last act is to look at each of torch's objects, for seconds


def make_collector(
    task: CollectorTask, shared: SharedRun, game: GameInstanceManager | InProcessGames
) -> Collector | BatchCollector:
    """Assemble the collector: two networks that follow the shared weights, and the way of its races to the learner."""
    live = LiveSettings(shared.snapshot_file, task.settings)

    def follow(weights: Any, name: str) -> WeightsFollower:
        seeds = SeedTree(task.settings.run.seed)
        layout = ObservationLayout.from_settings(task.settings.observation)
        device = pick_device(task.settings.run.torch_device)
        inferer = Inferer(
            make_network(task.settings, layout, seeds).to(device).eval(),
            n_quantiles=task.settings.agent.iqn_k,
            inputs=task.settings.game.inputs,
            exploration_settings=task.settings.exploration,
            rng=seeds.rng(f"{task.name}/{name}"),
            dtype=arithmetic_dtype(device, task.settings.agent),
        )
        return WeightsFollower(inferer, weights)

    def frames_total() -> int:
        return shared.frames_total.value

    surroundings = (
        follow(shared.exploration_weights, "explorer"),
        follow(shared.evaluation_weights, "evaluator"),
        frames_total,
        shared.stop_requested.is_set,
        _SlotOutbox(task.sender, shared.stop_requested),
    )
    if isinstance(game, InProcessGames):
        return BatchCollector(live, game, *surroundings)
    return Collector(live, game, *surroundings)


def make_games(task: CollectorTask) -> InProcessGames:
    """The games that this collector plays in its own process."""
    settings = task.settings
    return InProcessGames(settings.game.games_per_collector, settings.game, settings.observation, task.maps_folder)


def make_manager(task: CollectorTask) -> GameInstanceManager:
    """The manager of this collector's game instance."""
    game = task.settings.game
    launcher = SimulatedGameLauncher(game.base_tmi_port + task.index, task.maps_folder)
    return GameInstanceManager(game, task.settings.observation, launcher)


class _SlotOutbox:
    """Races go to the learner through slots of shared memory; frames are written there in the first place."""

    def __init__(self, sender: RolloutSender, stop_requested: Event) -> None:
        self._sender = sender
        self._stop_requested = stop_requested
        self._slot: RolloutSlot | None = None

    def frames(self) -> npt.NDArray[np.uint8] | None:
        self._slot = None
        while self._slot is None and not self._stop_requested.is_set():
            self._slot = self._sender.acquire(timeout_s=0.5)
        return None if self._slot is None else self._slot.frames

    def send(self, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        assert self._slot is not None
        self._sender.send(self._slot, rollout_results, end_race_stats)


def _end_at_once(*_: object) -> None:
    """End with the game instance, wherever the process stands: an exception would get lost while numba compiles."""
    for game in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            game.kill()
    os._exit(1)


def _end_when_the_parent_is_gone() -> None:
    """A killed main process cannot say goodbye; without it nobody reads races any more."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            _end_at_once()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
