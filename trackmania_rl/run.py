"""Training, as a call: everything that scripts/train.py does, with parts of your own where you hand them in.

from pathlib import Path

if __name__ == "__main__":  # collectors are processes of their own, which import this file again
train(Path("config_files/config.py"), hooks=[LogSpeed()], max_wall_s=600)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from logging.handlers import WatchedFileHandler
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.agents.builder import AgentBuilder, MakeAgentBuilder, check_decision, make_agent_builder
from trackmania_rl.agents.run_network import keep_freed_memory, pick_device
from trackmania_rl.agents.threads import pick_learner_threads
from trackmania_rl.doctor.run_checks import check_edited_maps, load_reference_lines
from trackmania_rl.errors import PassingError, UserError, one_line
from trackmania_rl.files import require_short_paths, require_utf8
from trackmania_rl.games.gymnasium_games import GymnasiumGames
from trackmania_rl.games.race_games import MakeGamesBuilder, make_games_builder
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.multiprocess.learner_process import learner_process_fn
from trackmania_rl.multiprocess.run_setup import (
    check_machine,
    count_session,
    make_supervisor,
    own_folder,
    placed,
)
from trackmania_rl.multiprocess.stop_conditions import StopConditions
from trackmania_rl.places import PROJECT_FOLDER, WORKING_FOLDER
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import RunFolder
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.settings.live import LiveSettings, SnapshotKeeper
from trackmania_rl.settings.of_run import AskedFor, RunConfiguration
from trackmania_rl.settings.reading import ReadInProcess
from trackmania_rl.settings.since_checkpoint import require_known
from trackmania_rl.telemetry.race_record import CommandClock
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.terminal_view import TerminalView, open_terminal_view
from trackmania_rl.track.reference_times import load_reference_times
from trackmania_rl.training.building import MakeMemory, make_configured_memory, make_hooks, make_reward, make_trainer
from trackmania_rl.training.context import RunContext
from trackmania_rl.training.demonstrations import load_demonstrations
from trackmania_rl.training.hooks.datasets import open_datasets

log = logging.getLogger(__name__)


def train(
    settings: Settings | Path,
    *,
    overrides: Sequence[str] = (),
    output_folder: Path = WORKING_FOLDER,
    project_folder: Path = PROJECT_FOLDER,
    update_config: bool = False,
    weights_from: Path | None = None,
    accept_change: Collection[str] = (),
    max_wall_s: float = math.inf,
    max_frames: int = sys.maxsize,
    max_updates: int = sys.maxsize,
    cluster: str | None = None,
    agent: MakeAgentBuilder = make_agent_builder,
    games: MakeGamesBuilder = make_games_builder,
    memory: MakeMemory = make_configured_memory,
    hooks: Sequence[TrainerHookBase] = (),
    view: TerminalView | None = None,
) -> TrainingStatistics:
    """Train a run until it is stopped (Ctrl-C, SIGTERM) or a limit is reached; the same call goes on from there.

    Call it in the main thread of a program, below `if __name__ == "__main__"`.

    Args:
        settings: a configuration file, or settings. A run that exists goes on with its own copy in its folder.
        overrides: `name=value` texts that win over it.
        output_folder: holds save/ and tensorboard/.
        project_folder: where a relative `maps_folder`, the files of demonstrations and data sets begin.
        update_config: whether a run that exists takes `settings` anew.
        weights_from: a run folder, checkpoint or driver's file whose networks a new run begins with.
        accept_change: names of settings that may be others than in the run's checkpoint, though what it has learned
            then means something else: those of actions, observation, mini-races, rewards and maps.
        max_wall_s: seconds after which it ends.
        max_frames: actions of the run after which it ends.
        max_updates: updates of the run after which it ends.
        cluster: the Ray cluster that collectors play on: "auto", HOST:PORT or "local:N"; None for this machine alone.
            It belongs to the call and not to the run, which goes on with it or without.
        agent: called with settings, spaces and seeds, makes what decides and learns; a function that can be pickled, as
            collectors call it too. This and the next two win over the settings of their names.
        games: called with the settings, makes what is played; likewise.
        memory: called with settings, spaces and seeds, makes the replay memory.
        hooks: act at points of the training loop, after those that ship and those that the setting `hooks` names.
        view: shows the run; entered by the caller. None for the view that the setting `terminal_view` names.

    Returns:
        The run's figures.

    Raises:
        UserError: for anything that its caller can mend; the text says what.
    """
    keep_freed_memory()
    statistics = TrainingStatistics(clock := CommandClock(), ends_at_s=max_wall_s)
    should_stop = StopConditions(max_wall_s, max_frames, clock, statistics, max_updates)
    asked_for = AskedFor(settings, overrides, update_config)
    folder = _folder_of(asked_for, output_folder, weights_from, accept_change)
    with own_folder(folder) as begin, contextlib.ExitStack() as closing:
        configuration = RunConfiguration(asked_for, folder.config)
        with configuration.telling_which():
            settings = configuration.read()
            maps_folder = project_folder / settings.game.maps_folder
            reference_lines_m, statistics.reference_times = _lines_and_times(settings, maps_folder)
            seeds, demonstrations = SeedTree(settings.run.seed), load_demonstrations(settings.game, project_folder)
            spaces, builder, reward = _parts(settings, seeds, games, agent)
            datasets, own = open_datasets(settings, spaces, project_folder), [*make_hooks(settings), *hooks]
            check_machine(settings, folder.path)
        view = closing.enter_context(_shown_and_logged(settings, folder, view))
        snapshot = closing.enter_context(SnapshotKeeper(folder.config))
        settings = configuration.write()
        _tell(folder, settings, network := builder.make_network())
        channels, placement = closing.enter_context(placed(cluster, settings, spaces, builder))
        torch.set_num_threads(pick_learner_threads(settings, spaces, seeds, agent))
        run = RunContext(
            live=closing.enter_context(_live_settings(configuration, settings, maps_folder)),
            spaces=spaces,
            reward=reward,
            agent=builder.make_learner(network),
            memory=memory(settings, spaces, seeds),
            channels=channels,
            folder=folder,
            statistics=statistics,
            session=count_session(folder),
            reference_lines_m=reference_lines_m,
            maps_folder=maps_folder,
        )
        taken_up = functools.partial(make_trainer, weights_from=weights_from, accepted_changes=accept_change)
        trainer = taken_up(run, own, should_stop=should_stop, clock=clock, view=view, datasets=datasets)
        parts = demonstrations, games, agent
        supervisor = make_supervisor(channels, placement, folder, maps_folder, run.session, *parts, run.progress)
        _keep(snapshot, begin, seeds, folder)
        learner_process_fn(trainer, supervisor, placement.logs, should_stop.interruptibly)
    return statistics


def _folder_of(
    asked_for: AskedFor, output_folder: Path, weights_from: Path | None, accept_change: Collection[str]
) -> RunFolder:
    """Say where the run lies, once what can be told at once is right: its settings, and what it is to begin with."""
    require_known(accept_change)
    settings = asked_for.settings()
    if weights_from is not None and not weights_from.exists():
        raise UserError(f"--weights-from {weights_from}: there is no such run folder or checkpoint")
    require_utf8(output_folder)
    folder = RunFolder.below(output_folder, settings.run.run_name)
    require_short_paths((folder.path, folder.tensorboard), [entry.map_name for entry in settings.game.map_cycle])
    return folder


@contextlib.contextmanager
def _live_settings(configuration: RunConfiguration, settings: Settings, maps_folder: Path) -> Iterator[LiveSettings]:
    """Follow the run's configuration; edits that name maps which are not there are refused."""
    check = functools.partial(check_edited_maps, maps_folder=maps_folder)
    live = LiveSettings(configuration.snapshot_file, settings, check, ReadInProcess, configuration.written)
    with contextlib.closing(live):
        yield live


def _lines_and_times(
    settings: Settings, maps_folder: Path
) -> tuple[dict[str, npt.NDArray[np.float64]], dict[str, MedalTimes]]:
    """Read each map's reference line and the times to beat there."""
    return load_reference_lines(settings, maps_folder), load_reference_times(settings.game.map_cycle, maps_folder)


def _keep(snapshot: SnapshotKeeper, begin: Callable[[], None], seeds: SeedTree, folder: RunFolder) -> None:
    """Let the configuration be the run's, as nothing stands in the way of learning any more, and write the seeds."""
    snapshot.keep()
    begin()
    with contextlib.suppress(OSError):  # a disk that fails is told where it matters
        seeds.write_json(folder.seeds)  # by now the learner's parts have drawn theirs


def _parts(
    settings: Settings, seeds: SeedTree, games: MakeGamesBuilder, agent: MakeAgentBuilder
) -> tuple[Spaces, AgentBuilder, Reward]:
    """Make what the run is made of and see that the agent fits the games, before anything is spawned."""
    builder_of_games = games(settings)
    if isinstance(builder_of_games, GymnasiumGames):
        builder_of_games.check()
    spaces = builder_of_games.spaces
    builder = agent(settings, spaces, seeds)
    check_decision(builder.make_actor(builder.make_network(), torch.device("cpu"), seeds.rng("check")), spaces)
    return spaces, builder, make_reward(settings, spaces, seeds)


def _tell(folder: RunFolder, settings: Settings, network: nn.Module) -> None:
    log.info(
        "%s: seed %d, a network of %s parameters on %s, maps %s",
        folder.path,
        settings.run.seed,
        f"{sum(parameter.numel() for parameter in network.parameters()):,}",
        pick_device(settings.run.torch_device),
        ", ".join(dict.fromkeys(entry.map_name for entry in settings.game.map_cycle)),
    )


@contextlib.contextmanager
def _shown_and_logged(settings: Settings, folder: RunFolder, view: TerminalView | None) -> Iterator[TerminalView]:
    """Log to the run's file; open the configured view, unless the caller has opened one."""
    with contextlib.ExitStack() as closing:
        if view is None:
            view = closing.enter_context(open_terminal_view(settings.telemetry.terminal_view, settings.run.run_name))
        closing.enter_context(_logging_to(folder.log))
        yield view


@contextlib.contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Log to the run's file as well, with the date: a run may take weeks; the end by an error is written there."""
    handler = WatchedFileHandler(file, encoding="utf-8")  # makes a file again that was deleted or rotated
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PassingError(
            f"the GPU's memory is full: {one_line(error)}; end other programs that use it, or lower n_collectors, "
            "batch_size or memory_size_schedule"
        ) from error
    except UserError as error:  # the terminal, where it is told, may be gone when somebody looks
        handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, "the training ends: %s", (error,), None))
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
