"""Training as a call, with parts of your own.

A whole program::

    from trackmania_rl import train
    from trackmania_rl.training.hooks.hook import Hook


    class LogMeters(Hook):
        def on_race(self, race):
            return {"mine/meters": race.facts.meters}


    if __name__ == "__main__":  # collectors are processes that import this file again
        train("config_files/config.py", hooks=[LogMeters()], max_wall_s=600)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import logging
import math
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from typing_extensions import override

from trackmania_rl.agents.builder import AgentBuilder, MakeAgentBuilder, check_decision, make_agent_builder
from trackmania_rl.agents.devices import keep_freed_memory, pick_device, pick_learner_threads
from trackmania_rl.channels.run_state import WEIGHTS_KINDS, open_channels
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.experience_replay.minari_files import DataSet
from trackmania_rl.files import require_regular
from trackmania_rl.games.race_games import MakeGamesBuilder, check_edited_maps, make_games_builder
from trackmania_rl.multiprocess.collectors import CollectorSetup, CollectorSupervisor
from trackmania_rl.multiprocess.learner_process import RunCollectors, StopConditions, learner_process_fn
from trackmania_rl.multiprocess.run_setup import check_machine, count_session, joined, new_run_folder, require_races
from trackmania_rl.paths import PROJECT_FOLDER, WORKING_FOLDER
from trackmania_rl.processes import end_if_program_has_no_guard
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import CommandClock, MessageHandler, RunLog
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.runs.snapshot import LiveSettings, RunConfiguration, require_known
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, parse_override
from trackmania_rl.settings.groups import Until
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.terminal_view import TerminalView, open_terminal_view
from trackmania_rl.track.game_map import load_reference_lines, load_reference_times
from trackmania_rl.track.map_sources import check_map_sources
from trackmania_rl.training.building import (
    MakeMemory,
    as_hook,
    begin_run,
    make_configured_memory,
    make_hooks,
    make_reward,
)
from trackmania_rl.training.datasets import open_datasets
from trackmania_rl.training.demonstrations import Demonstration, load_demonstrations
from trackmania_rl.training.hooks.hook import Hook, RunContext

if TYPE_CHECKING:
    from trackmania_rl.channels.over_grpc import WorkerAccess
    from trackmania_rl.multiprocess.serving import ServeWorkers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A stage's run; without the setting `stages`, the whole training.

    Attributes:
        configuration: run configuration.
        weights_from: run folder, checkpoint or driver file with a new run's first networks; None for random ones.
        until: the stage's limits.
    """

    configuration: RunConfiguration
    weights_from: Path | None
    until: Until

    @property
    def saved(self) -> tuple[int, int]:
        """Frames and updates in the run's newest checkpoint."""
        manifests = find_manifests(self.configuration.folder.path).values()
        return next(((manifest.frames, manifest.updates) for manifest in manifests), (0, 0))


def stages_of(
    settings: Settings | Path,
    output_folder: Path,
    overrides: Sequence[str] = (),
    update_config: bool = False,
    weights_from: Path | None = None,
) -> list[Stage]:
    """List a training's stages: runs save/{run_name}_{stage}, and save/{run_name} for the last one.

    Each stage but the first begins with the previous stage's networks. Stage settings are applied after `overrides`.
    Arguments as for `train`.

    Raises:
        SettingsError: if a stage's settings cannot be used.
    """
    whole = RunConfiguration(settings, output_folder, overrides, update_config)
    asked_for = whole.asked_for.run
    stages: list[Stage] = []
    for index, (name, values, until) in enumerate(asked_for.stages, 1):
        run_name = asked_for.run_name if index == len(asked_for.stages) else f"{asked_for.run_name}_{name}"
        values = dict(map(parse_override, overrides)) | values | {"run_name": run_name, "stages": ()}
        configuration = RunConfiguration(settings, output_folder, values, update_config)
        if stages:
            resumes = bool(find_manifests(configuration.folder.path))
            weights_from = None if resumes else stages[-1].configuration.folder.path
        stages.append(Stage(configuration, weights_from, until))
    return stages or [Stage(whole, weights_from, Until())]


def train(
    settings: Settings | Path | str,
    *,
    overrides: Sequence[str] = (),
    output_folder: Path | str = WORKING_FOLDER,
    project_folder: Path | str = PROJECT_FOLDER,
    update_config: bool = False,
    weights_from: Path | str | None = None,
    accept_change: Collection[str] = (),
    max_wall_s: float = math.inf,
    max_frames: int = sys.maxsize,
    max_updates: int = sys.maxsize,
    cluster: str | None = None,
    workers: WorkerAccess | None = None,
    agent: MakeAgentBuilder = make_agent_builder,
    games: MakeGamesBuilder = make_games_builder,
    memory: MakeMemory = make_configured_memory,
    hooks: Sequence[Hook | Any] = (),
    view: TerminalView | None = None,
) -> TrainingStatistics:
    """Train a run until it is stopped (Ctrl-C, SIGTERM) or a limit is reached; the same call resumes it.

    With the setting `stages`, train one run after the other, see `stages_of`; the limits hold for each one.
    Call it in a program's main thread, below `if __name__ == "__main__"`.

    Args:
        settings: a configuration file or settings; an existing run keeps its settings.toml.
        overrides: `name=value` texts that replace single settings.
        output_folder: for save/ and tensorboard/.
        project_folder: base of a relative `maps_folder` and of demonstration and data set files.
        update_config: whether `settings` replaces the settings of an existing run.
        weights_from: a run folder, checkpoint or driver file with a new run's first networks.
        accept_change: names of settings for actions, observation, mini-races, rewards and maps that may differ from the
            run's checkpoint.
        max_wall_s: limit in seconds.
        max_frames: limit on the run's actions.
        max_updates: limit on the run's updates.
        cluster: the collectors' Ray cluster, "auto", HOST:PORT or "local:N"; None for this machine.
        workers: where workers on other machines connect; None for none.
        agent: called with settings, spaces and seeds, makes the `AgentBuilder`; picklable, as collectors call it too.
            This and the next two replace the settings with these names. With `cluster`, a function of a module there.
        games: called with the settings, makes the `GamesBuilder`; likewise.
        memory: called with settings, spaces and seeds, makes the replay memory.
        hooks: for the training loop, after the shipped ones and those in the setting `hooks`.
        view: shows the run; entered by the caller. None for the setting `terminal_view`'s view.

    Returns:
        The run's figures; with stages, the figures for the stage trained last.

    Raises:
        UserError: for errors that the caller can correct.
    """
    end_if_program_has_no_guard()
    keep_freed_memory()
    clock = CommandClock()
    require_known(accept_change)
    source = Path(settings) if isinstance(settings, str) else settings
    first_weights = None if weights_from is None else Path(weights_from)
    if first_weights is not None and not first_weights.exists():
        raise UserError(f"--weights-from {first_weights}: there is no such run folder or checkpoint")
    stages = stages_of(source, Path(output_folder), overrides, update_config, first_weights)
    order = _Order(Path(project_folder), accept_change, cluster, workers, agent, games, memory, hooks, view, clock)
    n_saved_before = 0
    for stage in stages:
        until = stage.until
        if stage is not stages[-1] and until.is_reached(*stage.saved):
            log.info("%s is complete", stage.configuration.folder.path)
            n_saved_before += sum(stage.saved)
            continue
        statistics = TrainingStatistics(clock, ends_at_s=max_wall_s)
        frames = min(max_frames, until.max_frames)
        updates = min(max_updates, until.max_updates)
        should_stop = StopConditions(max_wall_s, frames, clock, statistics, updates)
        _train_stage(stage, order, statistics, should_stop, n_saved_before)
        n_saved_before += sum(stage.saved)
        if should_stop.is_requested or not until.is_reached(statistics.frames_total, statistics.updates_total):
            break
    return statistics


@dataclass(frozen=True)
class _Order:
    """`train` arguments that hold for each stage."""

    project_folder: Path
    accept_change: Collection[str]
    cluster: str | None
    workers: WorkerAccess | None
    agent: MakeAgentBuilder
    games: MakeGamesBuilder
    memory: MakeMemory
    hooks: Sequence[Hook | Any]
    view: TerminalView | None
    clock: CommandClock


def _train_stage(
    stage: Stage, order: _Order, statistics: TrainingStatistics, should_stop: StopConditions, n_saved_before: int
) -> None:
    if n_saved_before:
        gc.collect()  # the previous stage's replay memory, to which hooks refer
    configuration = stage.configuration
    folder = configuration.folder
    with new_run_folder(folder) as begin, contextlib.ExitStack() as closing:
        settings = configuration.read()
        parts = _checked_parts(settings, folder, order)  # before writing and before starting processes
        statistics.reference_times = load_reference_times(settings.game.map_cycle, parts.maps_folder)
        view = order.view or closing.enter_context(
            open_terminal_view(settings.telemetry.terminal_view, settings.run.run_name)
        )
        session = count_session(folder)
        run_log = RunLog(folder.run_log, order.clock, session)
        closing.callback(run_log.close)
        closing.enter_context(_logging_to(folder.log, run_log))

        network = parts.agent_builder.make_network()
        _log_beginning(folder, settings, network)
        networks = {kind: copy.deepcopy(network) for kind in WEIGHTS_KINDS}  # on the processor
        access = order.workers if order.cluster is None else closing.enter_context(joined(order.cluster))
        serving = None if access is None else _serve(access, networks["exploration"])
        channels = open_channels(settings, parts.spaces, networks)
        check_edited = functools.partial(check_edited_maps, maps_folder=parts.maps_folder)
        run = RunContext(
            live=LiveSettings(folder.settings, settings, check_edited, configuration.read_from),
            spaces=parts.spaces,
            reward=parts.reward,
            agent=parts.agent_builder.make_learner(network),
            memory=order.memory(settings, parts.spaces, parts.seeds),
            channels=channels,
            folder=folder,
            run_log=run_log,
            statistics=statistics,
            session=session,
            reference_lines_m=parts.reference_lines_m,
            maps_folder=parts.maps_folder,
            n_workers=None if serving is None else 0,
            n_saved_before=n_saved_before,
        )
        all_hooks = begin_run(
            run,
            [*parts.hooks, *map(as_hook, order.hooks), *([] if serving is None else [serving])],
            view=view,
            weights_from=stage.weights_from,
            datasets=parts.datasets,
            accepted_changes=order.accept_change,
        )
        collectors = _collectors(run, parts, order, settings, serving)
        configuration.write()
        begin()
        with contextlib.suppress(OSError):  # logged elsewhere
            parts.seeds.write_json(folder.seeds)  # the learner's parts have drawn their seeds
        learner_process_fn(run, all_hooks, collectors, should_stop)


@dataclass(frozen=True)
class _Parts:
    """Run parts that the settings name."""

    maps_folder: Path
    reference_lines_m: dict[str, npt.NDArray[np.float64]]
    demonstrations: tuple[Demonstration, ...]
    seeds: SeedTree
    spaces: Spaces
    agent_builder: AgentBuilder
    reward: Reward
    hooks: Sequence[Hook]
    datasets: Sequence[DataSet]


def _checked_parts(settings: Settings, folder: RunFolder, order: _Order) -> _Parts:
    """Make the parts, which checks the settings, and check the machine.

    Raises:
        UserError: if the run cannot begin.
    """
    require_races(settings, order.cluster is not None, order.workers is not None)
    maps_folder = order.project_folder / settings.game.maps_folder
    reference_lines_m = load_reference_lines(settings, maps_folder)
    check_map_sources(settings)
    demonstrations = load_demonstrations(settings.game, order.project_folder)
    seeds = SeedTree(settings.run.seed)
    spaces = order.games(settings).spaces
    torch.set_num_threads(pick_learner_threads(settings, spaces))  # threads make small operations slower
    torch.backends.cudnn.benchmark = not settings.sync.is_synchronous  # the fastest may not be the same again
    parts = _Parts(
        maps_folder=maps_folder,
        reference_lines_m=reference_lines_m,
        demonstrations=demonstrations,
        seeds=seeds,
        spaces=spaces,
        agent_builder=_agent_builder(order.agent, settings, spaces, seeds),
        reward=make_reward(settings, spaces, seeds),
        hooks=make_hooks(settings),
        datasets=open_datasets(settings, spaces, order.project_folder),
    )
    check_machine(settings, folder.path)
    return parts


def _log_beginning(folder: RunFolder, settings: Settings, network: nn.Module) -> None:
    log.info(
        "%s: seed %d, a network of %s parameters on %s, maps %s",
        folder.path,
        settings.run.seed,
        f"{sum(parameter.numel() for parameter in network.parameters()):,}",
        pick_device(settings.run.torch_device),
        ", ".join(dict.fromkeys(entry.map_name for entry in settings.game.map_cycle)),
    )


def _collectors(
    run: RunContext, parts: _Parts, order: _Order, settings: Settings, serving: ServeWorkers | None
) -> RunCollectors:
    setup = CollectorSetup(
        n_collectors=settings.game.n_collectors,
        session=f"session-{run.session}",
        open_collector=run.channels.open_collector,
        close_collector=run.channels.rollouts.close_collector,
        progress=run.progress,
        maps_folder=parts.maps_folder,
        folder=run.folder.path,
        games=order.games,
        agent=order.agent,
        demonstrations=parts.demonstrations,
    )
    if order.cluster is None or serving is None:
        return CollectorSupervisor(setup)
    return _on_cluster(serving, setup, settings)


def _serve(access: WorkerAccess, network: nn.Module) -> ServeWorkers:
    from trackmania_rl.multiprocess.serving import ServeWorkers  # needs an extra

    return ServeWorkers(access, network)


def _on_cluster(serving: ServeWorkers, setup: CollectorSetup, settings: Settings) -> RunCollectors:
    from trackmania_rl.multiprocess.cluster import ClusterWorkers  # needs an extra

    return ClusterWorkers(serving, setup, settings)


def _agent_builder(agent: MakeAgentBuilder, settings: Settings, spaces: Spaces, seeds: SeedTree) -> AgentBuilder:
    builder = agent(settings, spaces, seeds)
    actor = builder.make_actor(builder.make_network(), torch.device("cpu"), seeds.rng("check"))
    check_decision(actor, spaces)
    return builder


class _LogFile(WatchedFileHandler):
    """Log file that is made again after deletion or rotation; without the folder, records are lost."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)


def _log_failed_thread(failed: threading.ExceptHookArgs) -> None:
    """Log in one line the I/O error that ended a library's thread, such as tensorboard's writer."""
    if isinstance(failed.exc_value, OSError):
        log.error("a thread that writes files has ended: %s", one_line(failed.exc_value))
    else:
        threading.__excepthook__(failed)


@contextlib.contextmanager
def _logging_to(file: Path, run_log: RunLog) -> Iterator[None]:
    """Log to the run's text file, with dates, and to the run log, including thread errors and the run's last error.

    Raises:
        PassingError: instead of an `OutOfMemoryError`.
    """
    require_regular(file)
    try:
        handler = _LogFile(file, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    handlers = (handler, MessageHandler(run_log))
    root = logging.getLogger()
    for each in handlers:
        root.addHandler(each)
    threading.excepthook = _log_failed_thread
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PassingError(
            f"the GPU's memory is full: {one_line(error)}; end other programs that use it, or lower n_collectors, "
            "batch_size or memory_size_schedule"
        ) from error
    except UserError as error:  # the terminal may be closed
        record = log.makeRecord(log.name, logging.ERROR, __file__, 0, "the training ends: %s", (error,), None)
        for each in handlers:
            each.handle(record)
        raise
    finally:
        threading.excepthook = threading.__excepthook__
        for each in handlers:
            root.removeHandler(each)
            each.close()
