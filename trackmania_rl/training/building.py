"""Parts of a run, made from its settings, and the Trainer with its hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import torch
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.agents.devices import pick_device
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.experience_replay.memory import Memory, MiniRaceMemory, pick_replay_device
from trackmania_rl.experience_replay.minari_files import DataSet
from trackmania_rl.experience_replay.rollout_store import RolloutStore
from trackmania_rl.parts import make_part
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.telemetry.race_record import CommandClock
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.hooks.checkpoints import KeepDrivers, KeepRecords, SaveCheckpoints
from trackmania_rl.training.hooks.figures import LearningFigures, WriteFigures
from trackmania_rl.training.hooks.hook import Hook, RunContext
from trackmania_rl.training.hooks.races import CountRaces, FollowCollectors, WriteRaceLog
from trackmania_rl.training.hooks.recordings import DrawDiagnostics, RecordEvaluations
from trackmania_rl.training.hooks.replay import LearnFromDataSets, SampleAtReplayRatio, StoreRaces
from trackmania_rl.training.hooks.status import ProfileRounds, ShowInTerminal, TellStatus
from trackmania_rl.training.hooks.updates import FollowSchedules, PublishRunState, ResetPeriodically, WatchNumbers
from trackmania_rl.training.trainer import RunTrainer

MakeMemory = Callable[[Settings, Spaces, SeedTree], Memory]
"""The part `memory`."""
_TAKES: Final = "settings, spaces, seeds"


def make_memory(settings: Settings, spaces: Spaces, seeds: SeedTree) -> MiniRaceMemory:
    """Make the replay memory with the configured transforms, on the training device if it fits there."""
    device = torch.device("cpu")
    if settings.replay.replay_storage == "ram":
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
    """Make the part of the setting `reward`, or raise a `SettingsError`."""
    part = settings.reward.reward
    reward: Reward = make_part(part, "reward", settings, spaces, seeds, takes=_TAKES, kinds=(Reward,))
    return reward


def make_configured_memory(settings: Settings, spaces: Spaces, seeds: SeedTree) -> Memory:
    """Make the part of the setting `memory`, or raise a `SettingsError`."""
    part = settings.replay.memory
    memory: Memory = make_part(part, "memory", settings, spaces, seeds, takes=_TAKES, kinds=(Memory,))
    return memory


def make_hooks(settings: Settings) -> list[TrainerHookBase]:
    """Make the hooks of the setting `hooks`, or raise a `SettingsError`."""
    return [make_part(part, "hooks", kinds=(Hook, TrainerHookBase)) for part in settings.run.hooks]


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
    """Make the Trainer with its hooks, and load the run's checkpoint, if it has one.

    Args:
        run: parts of the run.
        hooks: a user's hooks. They come after those that ship, except `StoreRaces`.
        should_stop: returns whether the run ends.
        clock: seconds since the start of the command.
        view: the view in the terminal.
        weights_from: see `SaveCheckpoints`.
        datasets: races in the memory before the first race, see `open_datasets`.
        accepted_changes: see `SaveCheckpoints`.

    Raises:
        CheckpointError: see `SaveCheckpoints.take_up`.
        UserError: if a data set is damaged, or the memory does not fit the agent.
    """
    settings = run.settings
    _connect(run)
    trainer = RunTrainer(run, should_stop)
    store = StoreRaces()
    # A run that takes turns ends between two of them.
    sampling = SampleAtReplayRatio(store, (lambda: False) if settings.takes_turns else should_stop)
    numbers = WatchNumbers()
    figures = LearningFigures()
    trainer.logger = loggers = WriteFigures(figures)
    checkpoints = SaveCheckpoints(numbers, weights_from, accepted_changes)
    in_order: list[TrainerHookBase] = [  # at each point of the loop
        FollowCollectors(),
        CountRaces(),
        WriteRaceLog(clock or CommandClock()),
        KeepRecords(),
        FollowSchedules(),
        *([LearnFromDataSets(datasets, store)] if datasets else []),
        ResetPeriodically(sampling),
        sampling,
        numbers,
        PublishRunState(numbers),
        figures,
        loggers,
        RecordEvaluations(),
        DrawDiagnostics(),
        checkpoints,
        KeepDrivers(numbers),
        ShowInTerminal(view or TerminalView()),
        *([ProfileRounds()] if settings.run.profile else []),
        TellStatus(),
        *hooks,
        store,  # stores a race as all other hooks returned it
    ]
    n_of_name: Counter[str] = Counter()
    for hook in in_order:
        name = type(hook).__name__
        n_of_name[name] += 1
        hook.register(trainer, name if n_of_name[name] == 1 else f"{name} {n_of_name[name]}")
    run.memory.keep_in(run.folder.replay)
    checkpoints.take_up()
    for hook in trainer.hooks:
        hook.begin()
    return trainer


def _connect(run: RunContext) -> None:
    """Let the memory of an on-policy agent estimate advantages by the agent."""
    if run.agent.is_on_policy != isinstance(run.memory, RolloutStore):
        raise SettingsError(
            f"memory = {str(run.settings.replay.memory)!r} does not fit agent = {str(run.settings.agent.agent)!r}: "
            f'"{RolloutStore.__module__}:{RolloutStore.__name__}" is the memory of on-policy agents (PPO, A2C), and of '
            "no others"
        )
    if isinstance(run.memory, RolloutStore):
        run.memory.estimate_advantages = run.agent.estimate_advantages
