"""A run's parts, made from the settings, and the run's beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

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
from trackmania_rl.telemetry.terminal_view import TerminalView
from trackmania_rl.training.datasets import LearnFromDataSets
from trackmania_rl.training.hooks.checkpoints import KeepDrivers, KeepRecords, SaveCheckpoints
from trackmania_rl.training.hooks.figures import LearningFigures, WriteFigures
from trackmania_rl.training.hooks.hook import Hook, RunContext
from trackmania_rl.training.hooks.recordings import DrawDiagnostics, RecordEvaluations
from trackmania_rl.training.hooks.status import ProfileRounds, ShowInTerminal, WriteLog, WriteStatus
from trackmania_rl.training.updates import (
    NumbersWatch,
    PartialResets,
    Replay,
    apply_schedules,
    publish_settings,
    publish_weights,
)

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
            spaces.n_row_floats,
            spaces.image_size_px,
            spaces.action_shape,
        )
    buffer, buffer_test = make_buffers(
        settings.replay,
        n_floats=spaces.n_row_floats,
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
    """Make the part for the setting `reward`, or raise a `SettingsError`."""
    part = settings.reward.reward
    reward: Reward = make_part(part, "reward", settings, spaces, seeds, takes=_TAKES, kinds=(Reward,))
    return reward


def make_configured_memory(settings: Settings, spaces: Spaces, seeds: SeedTree) -> Memory:
    """Make the part for the setting `memory`, or raise a `SettingsError`."""
    part = settings.replay.memory
    memory: Memory = make_part(part, "memory", settings, spaces, seeds, takes=_TAKES, kinds=(Memory,))
    return memory


def make_hooks(settings: Settings) -> list[Hook]:
    """Make the hooks for the setting `hooks`, or raise a `SettingsError`."""
    return [as_hook(make_part(part, "hooks")) for part in settings.run.hooks]


def as_hook(hook: Any) -> Hook:
    """Return a training loop hook; a torchrl hook is adapted. Raise `SettingsError` for anything else."""
    if isinstance(hook, Hook):
        return hook
    if not hasattr(hook, "register"):
        raise SettingsError(
            f"hooks: a {type(hook).__name__} is no hook; derive it from Hook (trackmania_rl/training/hooks/hook.py) or "
            "from torchrl's TrainerHookBase"
        )
    from trackmania_rl.training.torchrl_hooks import TorchrlHook  # few runs have any

    return TorchrlHook(hook)


def begin_run(
    run: RunContext,
    hooks: Sequence[Hook] = (),
    *,
    view: TerminalView | None = None,
    weights_from: Path | None = None,
    datasets: Sequence[DataSet] = (),
    accepted_changes: Collection[str] = (),
) -> list[Hook]:
    """Make all hooks for a run, load the run's checkpoint (if any), and begin.

    Args:
        run: the run's parts.
        hooks: a user's hooks, which come after the shipped ones.
        view: the terminal view.
        weights_from: see `SaveCheckpoints`.
        datasets: races in the memory before the first race, see `open_datasets`.
        accepted_changes: see `SaveCheckpoints`.

    Returns:
        The hooks in order.

    Raises:
        CheckpointError: see `SaveCheckpoints.load_newest`.
        UserError: if a data set is damaged, or the memory does not fit the agent.
    """
    _connect(run)
    run.replay = Replay(run)
    run.numbers = NumbersWatch(run)
    run.resets = PartialResets(run)
    run.statistics.agent = run.agent
    in_order: list[Hook] = []  # at each point in the loop
    learning = LearningFigures()
    run.figures = WriteFigures(learning, in_order)
    checkpoints = SaveCheckpoints(weights_from, accepted_changes)
    in_order += [
        WriteLog(),
        KeepRecords(),
        *([LearnFromDataSets(datasets)] if datasets else []),
        learning,
        run.figures,
        RecordEvaluations(),
        DrawDiagnostics(),
        checkpoints,
        KeepDrivers(),
        ShowInTerminal(view or TerminalView()),
        *([ProfileRounds()] if run.settings.run.profile else []),
        WriteStatus(),
        *hooks,
    ]
    run.sections = {
        "statistics": run.statistics,
        "collectors": run.progress,
        "replay": run.replay,
        "resets": run.resets,
    }
    for hook in in_order:
        hook.attach(run)
        if hook.section:
            run.sections[hook.section] = hook
    run.user_hooks = _by_name(hook for hook in hooks if not hook.section)
    run.memory.use_folder(run.folder.replay)
    checkpoints.load_newest()
    apply_schedules(run)
    for hook in in_order:
        hook.begin()
    publish_weights(run)
    publish_settings(run)
    return in_order


def _by_name(hooks: Iterable[Hook]) -> dict[str, Hook]:
    """Return hooks by class name, with numbers from a class's second hook on."""
    by_name: dict[str, Hook] = {}
    n_of_name: Counter[str] = Counter()
    for hook in hooks:
        n_of_name[hook.name] += 1
        by_name[hook.name if n_of_name[hook.name] == 1 else f"{hook.name} {n_of_name[hook.name]}"] = hook
    return by_name


def _connect(run: RunContext) -> None:
    """Let an on-policy agent's memory estimate advantages by the agent."""
    if run.agent.is_on_policy != isinstance(run.memory, RolloutStore):
        raise SettingsError(
            f"memory = {str(run.settings.replay.memory)!r} does not fit agent = {str(run.settings.agent.agent)!r}: "
            f'"{RolloutStore.__module__}:{RolloutStore.__name__}" is the memory of on-policy agents (PPO, A2C), and of '
            "no others"
        )
    if isinstance(run.memory, RolloutStore):
        run.memory.estimate_advantages = run.agent.estimate_advantages
