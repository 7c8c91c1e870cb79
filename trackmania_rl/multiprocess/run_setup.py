"""What stands before a run: the machine and the maps are checked, and what the processes share is made."""

from __future__ import annotations

import os
import shutil
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.agents.shared_weights import SharedWeights
from trackmania_rl.checkpoints import RunFolder
from trackmania_rl.errors import UserError
from trackmania_rl.features import ObservationLayout
from trackmania_rl.multiprocess.collector_process import collector_process_fn
from trackmania_rl.multiprocess.demonstrations import Demonstration
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.multiprocess.rollout_transport import RolloutReceiver
from trackmania_rl.multiprocess.run_network import make_network, pick_device
from trackmania_rl.multiprocess.shared_run import CollectorTask, SharedRun, hold_back_ctrl_c, spawn_context
from trackmania_rl.multiprocess.supervisor import CollectorSupervisor
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.simulator.track_file import load_track
from trackmania_rl.tmi_interaction.launchers import check_port_is_free
from trackmania_rl.track.reference_line import load_reference_line


def load_reference_lines(settings: Settings, maps_folder: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Read every map of the map cycle, so that a bad one stops the run before it starts; generators have no files yet.

    Returns:
        (N, 3) points of the reference line by map name.

    Raises:
        UserError: if a reference line, or a track of the simulated game, is missing or damaged.
    """
    lines_m = {}
    for entry in settings.game.map_cycle:
        if entry.generator is not None:
            continue
        if settings.game.game == "simulated":
            load_track(maps_folder / entry.map_path)
        lines_m[entry.map_name] = load_reference_line(
            maps_folder / entry.reference_line, settings.observation.distance_between_zone_centers_m
        )
    return lines_m


def check_machine(settings: Settings, folder: Path) -> None:
    """Look at what the run needs of the machine.

    Raises:
        UserError: if the folder cannot be written to, the disk is full, the device or the game cannot be used, or a
            port that a game instance needs is taken.
    """
    if not os.access(folder, os.W_OK):
        raise UserError(f"the folder {folder} cannot be written to; choose another one with --output-folder")
    free_mb = shutil.disk_usage(folder).free >> 20
    if free_mb < settings.run.minimum_free_disk_mb:
        raise UserError(
            f"the disk of {folder} has {free_mb} MB free, less than minimum_free_disk_mb = "
            f"{settings.run.minimum_free_disk_mb}: no checkpoint could be written; free some space"
        )
    pick_device(settings.run.torch_device)
    if settings.game.game != "simulated":
        raise UserError(
            f'game = "{settings.game.game}": the launcher of the real game is not part of this version yet; '
            'set game = "simulated"'
        )
    for port in settings.game.tmi_ports:
        check_port_is_free(port)


def share_run(settings: Settings, layout: ObservationLayout, seeds: SeedTree, snapshot_file: Path) -> SharedRun:
    """Make what the processes of a run share; the `uncompiled_shared_network`s hold the weights."""
    context = spawn_context()
    uncompiled_shared_network = make_network(settings, layout, seeds)
    uncompiled_shared_evaluation_network = make_network(settings, layout, seeds)
    return SharedRun(
        snapshot_file=snapshot_file,
        exploration_weights=SharedWeights(uncompiled_shared_network, context),
        evaluation_weights=SharedWeights(uncompiled_shared_evaluation_network, context),
        frames_total=context.Value("q", 0, lock=False),  # one writer; a lock could die with a killed reader
        stop_requested=context.Event(),
        log_queue=context.Queue(),
    )


def make_supervisor(
    live: LiveSettings,
    shared: SharedRun,
    receiver: RolloutReceiver,
    maps_folder: Path,
    folder: RunFolder,
    demonstrations: tuple[Demonstration, ...] = (),
) -> CollectorSupervisor:
    """The supervisor of this run's collectors, which spawns each as a process of its own.

    In a run that has no race yet, the collectors share the demonstrations among themselves.
    """
    context = spawn_context()
    session = _count_session(folder)
    n_starts: dict[int, int] = {}

    def spawn(index: int) -> BaseProcess:
        n_starts[index] = n_starts.get(index, 0) + 1
        is_new = shared.frames_total.value == 0
        task = CollectorTask(
            index=index,
            name=f"collector-{index}/session-{session}/start-{n_starts[index]}",
            settings=live.current,
            maps_folder=maps_folder,
            sender=receiver.open_collector(index),
            demonstrations=demonstrations[index :: live.current.game.n_collectors] if is_new else (),
        )
        process = context.Process(
            target=collector_process_fn, args=(task, shared), name=f"collector {index}", daemon=False
        )
        with hold_back_ctrl_c():
            process.start()
        return process

    return CollectorSupervisor(spawn, receiver.close_collector, live.current.game.n_collectors, shared.stop_requested)


def _count_session(folder: RunFolder) -> int:
    """How often this run was started, this time included: a resumed run must not draw its old random numbers again."""
    file = folder.path / "sessions.txt"
    session = 1 + (int(file.read_text()) if file.is_file() else 0)
    file.write_text(f"{session}\n")
    return session
