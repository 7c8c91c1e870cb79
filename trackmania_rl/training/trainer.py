"""torchrl's Trainer over races: a batch of its loop is a race, and hooks do everything else.

For each race: `batch_process`, `pre_optim_steps`, the agent's update for each batch that is due, `post_steps`.
`hooks.hook.Hook` documents the points.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tensordict import TensorDictBase
from torchrl.trainers import Trainer
from torchrl.trainers.trainers import REWARD_KEY, OptimizationStepper, TrainerHookBase

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.runs import CheckpointFacts, CheckpointStore
from trackmania_rl.settings.loading import stored_settings
from trackmania_rl.settings.run_folder import KEPT_CHECKPOINTS
from trackmania_rl.telemetry.statistics import RECENT_RACES, TrainingStatistics
from trackmania_rl.training.hooks.hook import OF_RACES, Hook, Interval, RunContext
from trackmania_rl.training.race_stream import POLL_S, RaceStream

log = logging.getLogger(__name__)

ENOUGH_RACES: Final = RECENT_RACES // 2
"""Evaluation races of a map that a score needs."""
DISK_ERROR_EVERY_S: Final = 60.0
"""Shortest time between two messages about a disk that fails."""
OF_TENSORDICTS: Final = (*OF_RACES, "process_optim_batch", "post_loss", "post_optim_log")
"""Points at which hooks receive a race or a batch."""


class RunTrainer(Trainer):
    """The Trainer of one run, made for torchrl 0.13.

    Attributes:
        hooks: registered hooks, in their order.
        logger: the hook `WriteFigures`.
        compilation: thread that compiles the update, for whose end the first update waits.
        is_within_turn: whether an error or a second Ctrl-C ended the run within a turn of synchronous sampling.
    """

    logger: Any

    def __init__(self, run: RunContext, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.run = run
        self.hooks: list[Hook] = []
        self.checkpoints = CheckpointStore(run.folder.path)
        self._disk_error_due = Interval(is_due_at_first=True)
        self.is_within_turn = False
        self.n_turns = 0
        self.compilation = threading.Thread()  # never started: ended
        self._ticks = Interval()
        self._logs: dict[str, Interval] = {}
        super().__init__(
            collector=RaceStream(self, should_stop),
            total_frames=sys.maxsize,
            frame_skip=1,
            optim_steps_per_batch=None,  # SampleAtReplayRatio ends each round
            loss_module=run.agent.loss_module,
            progress_bar=False,
            auto_log_optim_steps=False,
        )
        self.optimization_stepper = AgentUpdates()
        self.register_op("post_optim", self.tick)

    def register_op(self, dest: Any, op: Callable[..., Any], **kwargs: Any) -> None:
        """Register a function at a point of the loop."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torchrl may rename points; 0.13 has them
            super().register_op(dest, self._adapted(dest, op) if dest in OF_TENSORDICTS else op, **kwargs)

    def _adapted(self, point: str, op: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of races or batches.

        It is called only if there is a race, and for a fragment only if the hook takes fragments. A hook of torchrl's
        finds the rewards of batches under the key of races.
        """
        owner: Any = getattr(op, "__self__", op)
        is_own = isinstance(owner, Hook)
        takes_fragments = not is_own or owner.takes_fragments
        adapted = op if is_own else functools.partial(_call_torchrl_hook, point, owner, op)

        @functools.wraps(op, updated=())
        def act(batch: TensorDictBase, **kwargs: Any) -> Any:
            if point in OF_RACES and (
                not self.run.has_collectors or (self.run.race.is_under_way and not takes_fragments)
            ):
                return None
            return adapted(batch, **kwargs)

        return act

    def tick(self) -> None:
        """Call the hooks' `tick`, at most every `POLL_S`."""
        if self._ticks.is_due(POLL_S):
            for hook in self.hooks:
                hook.tick()

    @contextlib.contextmanager
    def surviving_disk(self) -> Iterator[None]:
        """Log I/O errors of the block, at most one a minute."""
        try:
            yield
        except OSError as error:
            if self._disk_error_due.is_due(DISK_ERROR_EVERY_S):
                log.error("races.jsonl or another file cannot be written: %s; the run goes on", error.strerror)

    def train(self) -> None:
        """Train until the run ends."""
        super().train()
        self.is_within_turn = False

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return the state that a resumed run needs, in plain values and tensors.

        In place of the replay memory's rows is the `RingBuffer`, so that they are not copied.
        """
        return OrderedDict(
            agent=self.run.agent.state_dict(),
            frames=self.collected_frames,
            optim_count=self._optim_count,
            n_turns=self.n_turns,
            hooks={name: hook.state_dict() for name, hook in self._modules.items()},
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state. Log a warning for a hook without one."""
        self.run.agent.load_state_dict(state_dict["agent"])
        self.collected_frames = state_dict["frames"]
        self._optim_count = state_dict["optim_count"]
        self.n_turns = state_dict["n_turns"]
        for name, hook in self._modules.items():
            if name in state_dict["hooks"]:
                hook.load_state_dict(state_dict["hooks"][name])
            elif hook.state_dict():
                log.warning("the checkpoint has no hook %s, which starts with an empty state", name)

    def save_checkpoint(self, state: Mapping[str, Any] | None = None) -> Path:
        """Write `state_dict()`, or a changed form of it, as a checkpoint; return its folder."""
        run, settings = self.run, self.run.settings
        facts = CheckpointFacts(
            session=run.session,
            frames=self.collected_frames,
            updates=run.agent.updates,
            score=score_of(run.statistics),
            settings=stored_settings(settings),
        )
        state = self.state_dict() if state is None else state
        return self.checkpoints.save(state, settings.run.minimum_free_disk_mb, facts, KEPT_CHECKPOINTS)

    def save_trainer(self, force_save: bool = False) -> None:
        """Write a checkpoint if `force_save`. `SaveCheckpoints` writes the others by the clock."""
        if force_save:
            self.save_checkpoint()

    def _log(self, log_pbar: bool = False, **figures: Any) -> None:
        """Log figures, each at most every `tensorboard_interval_s`, and show them in the terminal by `log_pbar`.

        torchrl logs by frames and keeps all values. Here only the newest one stays in `_log_dict`, for `EarlyStopping`.
        """
        for name, value in figures.items():
            self._log_dict[name] = [value]
            interval = self._logs.setdefault(name, Interval(is_due_at_first=True))
            if self.logger is not None and interval.is_due(self.run.settings.telemetry.tensorboard_interval_s):
                self.logger.log_scalar(name, float(value), step=self.collected_frames)
        if log_pbar:
            self.run.statistics.hook_figures |= {name: float(value) for name, value in figures.items()}


class AgentUpdates(OptimizationStepper):
    """Makes each update by the agent's `update`."""

    def step(self, trainer: RunTrainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """Make one update with a batch, call the hooks of its points, and return its losses."""
        process_losses = functools.partial(trainer._process_loss_hook, sub_batch) if trainer._process_loss_ops else None
        losses = trainer.run.agent.update(sub_batch, process_losses)
        trainer._post_loss_hook(sub_batch)
        return trainer._optimizer_hook(losses)  # type: ignore[no-any-return]


def _call_torchrl_hook(
    point: str, owner: Any, op: Callable[..., Any], batch: TensorDictBase, **kwargs: Any
) -> TensorDictBase | Any:
    try:
        if point != "process_optim_batch":
            return op(batch, **kwargs)
        batch = batch.copy().rename_key_("reward", REWARD_KEY)
        result = op(batch, **kwargs)
        changed = result if isinstance(result, TensorDictBase) else batch
        return changed.copy().rename_key_(REWARD_KEY, "reward")
    except (AttributeError, KeyError, TypeError) as error:  # TensorDict.get returns None for a missing key
        name = type(owner).__name__ if isinstance(owner, TrainerHookBase) else getattr(op, "__name__", "")
        keys = ", ".join(sorted(map(str, batch.keys(include_nested=True, leaves_only=True))))
        raise UserError(f"hooks: {name} fails at {point} ({one_line(error)}); the keys are {keys}") from error


def score_of(figures: TrainingStatistics) -> tuple[float, ...] | None:
    """Return a comparable score of the run's recent evaluation races; larger is better.

    Returns:
        The share that finished, the negative mean of the maps' median times (s; 0 for a map without one), and the mean
        of the last distances (m). None before each map has `ENOUGH_RACES`.
    """
    histories = [of_map.evaluated for of_map in figures.maps.values() if of_map.evaluated.n_races > 0]
    if not histories or any(history.n_recent < ENOUGH_RACES for history in histories):
        return None
    return (
        statistics.fmean(history.recent_finish_rate or 0.0 for history in histories),
        -statistics.fmean((history.median_time_ms or 0) / 1000 for history in histories),
        statistics.fmean(history.last_m for history in histories),
    )
