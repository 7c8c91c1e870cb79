"""torchrl `Trainer` hooks in the training loop. The only module that names torchrl's private attributes."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.trainers import RewardNormalizer, Trainer
from torchrl.trainers.trainers import REWARD_KEY, TrainerHookBase
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.memory import MiniRaceMemory
from trackmania_rl.race.race import Race
from trackmania_rl.race.rewards import as_stored
from trackmania_rl.training.hooks.hook import Hook, RunContext

OF_TENSORDICTS: Final = (
    "batch_process",
    "pre_steps_log",
    "process_optim_batch",
    "post_loss",
    "post_optim_log",
    "post_steps_log",
)
"""Points in torchrl's Trainer at which a hook receives a race or a batch."""


class HookTrainer(Trainer):
    """Trainer for one torchrl hook: it registers the hook's functions, and the training loop calls them.

    Args:
        run: the run's parts.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run
        super().__init__(
            collector=_NoCollector(),
            total_frames=sys.maxsize,
            frame_skip=1,
            optim_steps_per_batch=None,
            loss_module=run.agent.loss_module,
            progress_bar=False,
            auto_log_optim_steps=False,
        )

    @property
    def replay_buffer(self) -> Any:
        """The replay memory's train side, for `UTDRHook`; None for a user's memory."""
        memory = self.run.memory
        return memory.buffer if isinstance(memory, MiniRaceMemory) else None

    @override
    def register_op(self, dest: Any, op: Callable[..., Any], **kwargs: Any) -> None:
        """Register a function at a point in the loop."""
        adapted = op
        if dest in OF_TENSORDICTS:
            adapted = functools.update_wrapper(functools.partial(_call, dest, op), op, updated=())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torchrl may rename points
            super().register_op(dest, adapted, **kwargs)

    @override
    def request_stop(self, reason: str = "") -> None:
        """End the training after this race, with a checkpoint."""
        super().request_stop(reason)
        self.run.request_stop(reason)

    @override
    def _log(self, log_pbar: bool = False, **figures: Any) -> None:
        from trackmania_rl.training.learner import log_figures

        log_figures(self.run, figures | {"log_pbar": log_pbar})


class _NoCollector:
    """Stands in for the collector that a Trainer requires."""

    init_random_frames = 0

    def shutdown(self) -> None: ...


class TorchrlHook(Hook):
    """A torchrl hook as a training loop hook, which makes TensorDicts for it.

    ============================ =================================
    point of the training loop   points of torchrl's Trainer
    ============================ =================================
    ``on_race``, ``on_fragment`` batch_process, pre_steps_log
    ``before_updates``           pre_optim_steps
    ``on_batch``                 process_optim_batch
    ``on_losses``                process_loss
    ``on_update``                post_loss, optimizer, post_optim, post_optim_log
    ``after_updates``            post_optim_complete_log, post_steps, post_steps_log
    ============================ =================================

    A race is a TensorDict (T,), see `race_columns`; a batch has the rewards under the race key.

    Args:
        hook: with `register(trainer)`.
    """

    def __init__(self, hook: TrainerHookBase) -> None:
        self.hook = hook

    @property
    @override
    def name(self) -> str:
        return type(self.hook).__name__

    @override
    def attach(self, run: RunContext) -> None:
        """Register the hook's functions, by its modules' default name."""
        super().attach(run)
        self._trainer = HookTrainer(run)
        self.hook.register(self._trainer)  # type: ignore[call-arg]  # each hook has a default name
        if self._trainer._process_loss_ops:
            self.on_losses = self._on_losses  # type: ignore[method-assign]
        self._race: TensorDictBase | None = None
        self._losses: TensorDictBase | None = None
        self._n_updates = 0

    @property
    def trainer(self) -> HookTrainer:
        """The hook's trainer, with the run's counters and the newest figures."""
        trainer = self._trainer
        trainer.collected_frames = self.run.statistics.frames_total
        trainer._optim_count = self.run.agent.updates
        trainer._log_dict.update((name, [value]) for name, value in self.run.newest_figures.items())
        return trainer

    @override
    def on_race(self, race: Race) -> dict[str, float] | None:
        columns = race_columns(race)
        changed = self.trainer._process_batch_hook(columns)
        if self.trainer._batch_process_ops:
            _write_back(race, changed)
        self._race = changed.exclude("frames", ("next", "frames")).clone()
        self.trainer._pre_steps_log_hook(self._race)
        if not isinstance(self.hook, RewardNormalizer):
            return None
        statistics = self.hook._reward_stats
        return {f"reward_{name}": float(statistics[name]) for name in ("mean", "std")}

    on_fragment = on_race

    @override
    def before_updates(self) -> None:
        self._losses = None
        self._n_updates = 0
        self.trainer._pre_optim_hook()

    @override
    def on_batch(self, batch: TensorDictBase) -> TensorDictBase:
        return self.trainer._process_optim_batch_hook(batch)  # type: ignore[no-any-return]

    def _on_losses(self, batch: TensorDictBase, losses: TensorDictBase) -> TensorDictBase:
        return self.trainer._process_loss_hook(batch, losses)

    @override
    def on_update(self, batch: TensorDictBase, losses: TensorDictBase) -> None:
        self.trainer._post_loss_hook(batch)
        losses = self.trainer._optimizer_hook(losses)
        self.trainer._post_optim_hook()
        self.trainer._post_optim_log(batch)
        if self.trainer._post_optim_complete_log_ops:
            self._n_updates += 1
            self._losses = losses if self._losses is None else self._losses + losses

    @override
    def after_updates(self) -> None:
        mean_losses = None if self._losses is None else self._losses / self._n_updates
        self.trainer._post_optim_complete_log_hook(self.run.agent.updates, mean_losses)
        self.trainer._post_steps_hook()
        if self._race is not None:  # there is none without collectors
            self.trainer._post_steps_log_hook(self._race)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: module.state_dict() for name, module in self.trainer._modules.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, module in self.trainer._modules.items():
            if name in state_dict:
                module.load_state_dict(state_dict[name])


def _call(point: str, op: Callable[..., Any], batch: TensorDictBase, **kwargs: Any) -> Any:
    """Call a hook's function with a race or a batch. Raise `UserError` if the hook asks for a missing key."""
    try:
        if point != "process_optim_batch":
            return op(batch, **kwargs)
        batch = batch.copy().rename_key_("reward", REWARD_KEY)
        result = op(batch, **kwargs)
        changed = result if isinstance(result, TensorDictBase) else batch
        return changed.copy().rename_key_(REWARD_KEY, "reward")
    except (AttributeError, KeyError, TypeError) as error:  # TensorDict.get returns None for a missing key
        owner = getattr(op, "__self__", op)
        name = type(owner).__name__ if isinstance(owner, TrainerHookBase) else getattr(op, "__name__", "")
        keys = ", ".join(sorted(map(str, batch.keys(include_nested=True, leaves_only=True))))
        raise UserError(f"hooks: {name} fails at {point} ({one_line(error)}); the keys are {keys}") from error


def race_columns(race: Race) -> TensorDict:
    """Return a rewarded race with T actions in torchrl's form, a TensorDict (T,).

    ===================================== ============================================================================
    entry                                 content
    ===================================== ============================================================================
    name                                  column `name` of the race, such as `state_float`, without the last of T + 1
                                          states; a view of the race's memory
    ("next", name)                        columns of states without the first; a view of the same memory
    ("next", "reward")                    (T, 1) float32, see `Reward`
    "potential", ("next", "potential")    (T,) float32, shaping potential of the states
    ("next", "done")                      (T, 1) bool: whether the race ended with the action
    ("next", "terminated")                (T, 1) bool: whether it ended in a terminal state
    ("collector", "mask")                 (T,) bool, False for actions of earlier fragments; absent if all are new
    ===================================== ============================================================================

    """
    assert race.rewards is not None, "the race is not rewarded"
    n_actions = race.n_actions
    columns: dict[str, Any] = {}
    following: dict[str, torch.Tensor] = {}
    for name, column in race.columns.items():
        if len(column) in (n_actions, n_actions + 1) and column.dtype != object:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                tensor = torch.from_numpy(column)
            columns[name] = tensor[:n_actions]
            if len(column) == n_actions + 1:
                following[name] = tensor[1:]
    potentials = torch.tensor(race.potentials)
    columns["potential"] = potentials[:-1]
    following["potential"] = potentials[1:]
    following["reward"] = torch.tensor(race.rewards).unsqueeze(1)
    following["done"] = torch.zeros((n_actions, 1), dtype=torch.bool)
    following["terminated"] = torch.zeros((n_actions, 1), dtype=torch.bool)
    following["done"][-1:] = not race.facts.is_under_way
    following["terminated"][-1:] = race.facts.terminated
    n_actions_before = race.facts.new.n_actions_before
    if n_actions_before > 0:
        columns["collector"] = {"mask": torch.arange(n_actions) >= n_actions_before}
    return TensorDict(columns | {"next": following}, batch_size=[n_actions])


def _write_back(race: Race, batch: TensorDictBase) -> None:
    """Take a race's columns, rewards and potentials from what a hook returned at `batch_process`."""
    if len(batch) != race.n_actions:
        raise UserError(
            f"hooks: a hook at batch_process returned {len(batch)} actions of a race of {race.n_actions}, which is "
            "stored as a whole"
        )
    try:
        for name in ("frames", "state_float"):
            race.columns[name] = _of_states(batch, name)
        for name in ("actions", "action_was_greedy"):
            race.columns[name] = batch[name].numpy()
        race.rewards = as_stored(batch["next", "reward"].reshape(-1))
        race.potentials = as_stored(_of_states(batch, "potential"))
        terminated = bool(batch["next", "terminated"][-1:].any())
    except KeyError as error:
        raise UserError(
            f"hooks: a hook at batch_process returned a race without a column that is stored: {one_line(error)}"
        ) from error
    race.facts = race.facts.with_changes(terminated=terminated)


def _of_states(batch: TensorDictBase, name: str) -> npt.NDArray[np.generic]:
    of_states: npt.NDArray[np.generic] = torch.cat((batch[name], batch["next", name][-1:])).numpy()
    return of_states
