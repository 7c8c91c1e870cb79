"""The parts of a run, made from its settings, and the Trainer with its hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.agents.devices import pick_device
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.experience_replay.memory import Memory, MiniRaceMemory, pick_replay_device
from trackmania_rl.experience_replay.minari_files import DataSet
from trackmania_rl.parts import make_part
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.telemetry.race_record import CommandClock
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.datasets import LearnFromDataSets
from trackmania_rl.training.hooks.diagnostics import DrawDiagnostics
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import RunContext
from trackmania_rl.training.hooks.learning_figures import (
    LayerFigures,
    LearningFigures,
    MeasureQuantileSpread,
    MeasureTestLoss,
)
from trackmania_rl.training.hooks.pipeline_check import CheckPipeline
from trackmania_rl.training.hooks.races import CountRaces, FollowCollectors, WriteRaceLog
from trackmania_rl.training.hooks.recordings import RecordEvaluations
from trackmania_rl.training.hooks.records import KeepDrivers, KeepRecords
from trackmania_rl.training.hooks.replay import SampleAtReplayRatio, StoreRaces
from trackmania_rl.training.hooks.status import ShowInTerminal, TellStatus
from trackmania_rl.training.hooks.updates import (
    FollowSchedules,
    PublishRunState,
    ResetPeriodically,
)
from trackmania_rl.training.trainer import RunTrainer

MakeMemory = Callable[[Settings, Spaces, SeedTree], Memory]
"""The part `memory`: from the settings, the spaces and the seeds to the replay memory."""


def make_memory(settings: Settings, spaces: Spaces, seeds: SeedTree) -> MiniRaceMemory:
    """Make the replay memory, on the training device where it fits there, with the configured transforms.

    Raises:
        SettingsError: if the setting `transforms` names something that cannot be had.
    """
    device = pick_replay_device(
        pick_device(settings.run.torch_device),
        settings.replay.memory_size_schedule,
        spaces.n_own_floats,
        spaces.image_size_px,
        spaces.action_shape,
    )
    buffer, buffer_test = make_buffers(
        settings.replay,
        n_floats=spaces.n_own_floats,
        image_size_px=spaces.image_size_px,
        device=device,
        generator=torch.Generator(device).manual_seed(seeds.integer("replay")),
        views=spaces.views,
        action_shape=spaces.action_shape,
    )
    for part in settings.replay.transforms:
        buffer.append_transform(make_part(part, "transforms"))
    return MiniRaceMemory(buffer, buffer_test, settings)


def make_reward(settings: Settings, spaces: Spaces, seeds: SeedTree) -> Reward:
    """Make what the setting `reward` names.

    Raises:
        SettingsError: if it names something that cannot be had.
    """
    part = settings.reward.reward
    reward = make_part(part, "reward", settings, spaces, seeds, takes="settings, spaces, seeds")
    if not callable(reward):
        raise SettingsError(
            f"reward = {str(part)!r} made a {type(reward).__name__}, which cannot be called: see Reward "
            "(trackmania_rl/race/rewards.py)"
        )
    return reward  # type: ignore[no-any-return]


def make_configured_memory(settings: Settings, spaces: Spaces, seeds: SeedTree) -> Memory:
    """Make what the setting `memory` names.

    Raises:
        SettingsError: if it names something that makes no memory.
    """
    memory = make_part(settings.replay.memory, "memory", settings, spaces, seeds, takes="settings, spaces, seeds")
    if not isinstance(memory, Memory):
        raise SettingsError(
            f"memory = {str(settings.replay.memory)!r} made a {type(memory).__name__}; derive it from Memory "
            "(trackmania_rl/experience_replay/memory.py)"
        )
    return memory


def make_hooks(settings: Settings) -> list[TrainerHookBase]:
    """Make the hooks that the setting `hooks` names.

    Raises:
        SettingsError: if it names something that cannot be had, or that is no hook.
    """
    hooks = []
    for part in settings.run.hooks:
        hook = make_part(part, "hooks")
        if not isinstance(hook, TrainerHookBase):
            raise SettingsError(
                f"hooks = {str(part)!r} makes a {type(hook).__name__}; derive it from Hook "
                "(trackmania_rl/training/hooks/hook.py)"
            )
        hooks.append(hook)
    return hooks


def make_trainer(
    run: RunContext,
    hooks: Sequence[TrainerHookBase] = (),
    *,
    should_stop: Callable[[], bool] = lambda: False,
    clock: CommandClock | None = None,
    view: TerminalView | None = None,
    weights_from: Path | None = None,
    datasets: Sequence[DataSet] = (),
    accepted_changes: Collection[str] = (),
) -> RunTrainer:
    """Make the Trainer with its hooks, and take up the run from its checkpoint, if it has one.

    Args:
        run: what hooks share.
        hooks: a user's. They come after those that ship, but for `StoreRaces`.
        should_stop: whether the run ends.
        clock: seconds since the start of the command.
        view: what the terminal shows.
        weights_from: what a run without a checkpoint begins with, see `SaveCheckpoints`.
        datasets: what the memory holds before the first race, see `open_datasets`.
        accepted_changes: settings that may be others than in the checkpoint, see `SaveCheckpoints`.

    Raises:
        CheckpointError: see `SaveCheckpoints.take_up`.
        UserError: if a data set is damaged.
    """
    settings = run.settings
    trainer = RunTrainer(run, should_stop)
    disk = DiskWatch(run.folder, trainer.checkpoints, lambda: run.settings.run.minimum_free_disk_mb)
    store = StoreRaces()
    # A run that takes turns ends between two of them.
    sampling = SampleAtReplayRatio(store, (lambda: False) if settings.takes_turns else should_stop)
    schedules = FollowSchedules()
    numbers = WatchNumbers()
    races = CountRaces(schedules)
    figures, test_loss = LearningFigures(), MeasureTestLoss()
    loggers = WriteFigures(races, figures, test_loss, disk)
    checkpoints = SaveCheckpoints(numbers, weights_from, accepted_changes)
    trainer.logger = loggers
    in_order: list[TrainerHookBase] = [  # at each point of the loop
        FollowCollectors(),
        races,
        WriteRaceLog(races, clock or CommandClock(), disk),
        KeepRecords(races),
        schedules,
        *([LearnFromDataSets(datasets, store)] if datasets else []),
        ResetPeriodically(sampling),
        sampling,
        numbers,
        PublishRunState(numbers),
        figures,
        LayerFigures(),
        MeasureQuantileSpread(),
        test_loss,
        loggers,
        RecordEvaluations(races, loggers, disk),
        DrawDiagnostics(races, loggers, disk),
        checkpoints,
        KeepDrivers(numbers),
        ShowInTerminal(view or TerminalView()),
        TellStatus(),
        *([CheckPipeline()] if settings.run.crc_debug else []),
        *hooks,
        store,  # a race as all other hooks have left it
    ]
    n_of_name: Counter[str] = Counter()
    for hook in in_order:
        name = type(hook).__name__
        n_of_name[name] += 1
        hook.register(trainer, name if n_of_name[name] == 1 else f"{name} {n_of_name[name]}")
    checkpoints.take_up()
    for hook in trainer.hooks:
        hook.begin()
    return trainer
