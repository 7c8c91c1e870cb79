"""torchrl's Trainer over races: what its loop calls batches are finished races, and hooks do everything else.

`for each race: batch_process; pre_optim_steps; for each batch that is due: the agent's update; post_steps`: see
`torchrl.trainers.Trainer.train`, and `hooks.hook.Hook` for what is called when.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tensordict import TensorDictBase
from torchrl.trainers import Trainer
from torchrl.trainers.trainers import OptimizationStepper, TrainerHookBase

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.runs import CheckpointFacts, CheckpointStore, read_checkpoint
from trackmania_rl.settings.of_run import shaping_settings
from trackmania_rl.settings.since_checkpoint import stored_settings
from trackmania_rl.training.context import RunContext
from trackmania_rl.training.hooks.hook import OF_RACES, Hook, Interval
from trackmania_rl.training.race_stream import POLL_S, RaceStream, RoundsWithoutRaces
from trackmania_rl.training.scores import score_of

log = logging.getLogger(__name__)

OF_TENSORDICTS: Final = (*OF_RACES, "process_optim_batch", "post_loss", "post_optim_log")
"""The points at which hooks are given a race, or a batch."""


class RunTrainer(Trainer):
    """The Trainer of one run.

    Args:
        run: what its hooks share.
        should_stop: whether the run ends.

    Attributes:
        hooks: those that are registered, in their order.
        checkpoints: of the run.
    """

    def __init__(self, run: RunContext, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.run = run
        self.hooks: list[Hook] = []
        self.checkpoints = CheckpointStore(run.folder.path)
        self._ticks = Interval()
        self._logs: dict[str, Interval] = {}
        self._broke_off = False
        self._told_of_log_pbar = False
        self._stream = RaceStream(run, should_stop, self.tick, self._begin_turn)
        has_collectors = run.settings.game.n_collectors > 0
        super().__init__(
            collector=self._stream if has_collectors else RoundsWithoutRaces(should_stop),
            total_frames=sys.maxsize,
            frame_skip=1,
            optim_steps_per_batch=None,  # SampleAtReplayRatio ends each round
            loss_module=run.agent.loss_module,
            progress_bar=False,
            auto_log_optim_steps=False,
            save_trainer_file=run.folder.checkpoints,
            save_trainer_interval=sys.maxsize,  # checkpoints are a hook's, by the clock
        )
        self.optimization_stepper = AgentUpdates()
        self.register_op("post_optim", self.tick)

    def register_op(self, dest: Any, op: Callable[..., Any], **kwargs: Any) -> None:
        """Register what acts at a point of the loop; what it cannot do there ends the run in one line."""
        super().register_op(dest, _within_limits(dest, op) if dest in OF_TENSORDICTS else op, **kwargs)

    def tick(self) -> None:
        """Let the hooks tick, if it is time."""
        if self._ticks.is_due(POLL_S):
            for hook in self.hooks:
                hook.tick()

    @property
    def broke_off_within_turn(self) -> bool:
        """Whether an error or a second Ctrl-C ended a run that takes turns while one was under way."""
        return self._broke_off and not self._stream.is_between_turns

    def train(self) -> None:
        """Train until the run ends."""
        self._broke_off = True
        super().train()
        self._broke_off = False

    def _begin_turn(self) -> None:
        for hook in self.hooks:
            hook.begin_turn()

    def state_dict(self) -> OrderedDict[str, Any]:
        """All that a resumed run needs, in plain values and tensors."""
        return self._state(lambda hook: hook.state_dict())

    def state_to_write(self) -> OrderedDict[str, Any]:
        """The same as a checkpoint writes it: the replay memory's rows are not copied, see `RingRows`."""
        return self._state(lambda hook: hook.state_to_write() if isinstance(hook, Hook) else hook.state_dict())

    def _state(self, state_of: Callable[[Any], dict[str, Any]]) -> OrderedDict[str, Any]:
        return OrderedDict(
            agent=self.run.agent.state_dict(),
            frames=self.collected_frames,
            optim_count=self._optim_count,
            n_turns=self._stream.n_turns,
            hooks={name: state_of(hook) for name, hook in self._modules.items()},
            settings=shaping_settings(self.run.settings),  # for whom it does not fit
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken. A hook that the state does not know begins afresh, which is said.

        Raises:
            KeyError, RuntimeError or ValueError: if the state does not fit this run's agent or hooks.
        """
        self.run.agent.load_state_dict(state_dict["agent"])
        self.collected_frames = state_dict["frames"]
        self._optim_count = state_dict["optim_count"]
        self._stream.n_turns = state_dict["n_turns"]
        for name, hook in self._modules.items():
            if name in state_dict["hooks"]:
                hook.load_state_dict(state_dict["hooks"][name])
            elif hook.state_dict():  # else it has nothing to begin with
                log.warning("the checkpoint knows no hook %s: it begins afresh", name)

    def load_from_file(self, file: str | Path, **_: Any) -> RunTrainer:
        """Go on from a checkpoint's folder.

        Raises:
            CheckpointError: if it cannot be read.
            KeyError, RuntimeError or ValueError: if it does not fit.
        """
        self.load_state_dict(read_checkpoint(Path(file)))
        return self

    def save_checkpoint(self, state: Mapping[str, Any] | None = None) -> Path:
        """Write a checkpoint.

        Args:
            state: as `state_to_write` gives it; None for that of now.

        Returns:
            Its folder.

        Raises:
            CheckpointError, TypeError: see `CheckpointStore.save`.
        """
        run = self.run
        facts = CheckpointFacts(
            session=run.session,
            frames=self.collected_frames,
            updates=run.agent.updates,
            score=score_of(run.statistics),
            settings=stored_settings(run.settings),
        )
        settings = run.settings.run
        state = self.state_to_write() if state is None else state
        return self.checkpoints.save(state, settings.minimum_free_disk_mb, facts, settings.keep_checkpoints)

    def _save_trainer(self) -> None:
        self.save_checkpoint()

    def _process_batch_hook(self, batch: TensorDictBase) -> TensorDictBase:
        """Show a race to the hooks while its memory is valid; what comes after sees copies."""
        race = self.run.race
        if race is None:  # a round without one
            return batch
        with race:
            batch = super()._process_batch_hook(batch)
            return batch.exclude("frames", ("next", "frames")).clone()

    def _pre_steps_log_hook(self, batch: TensorDictBase) -> None:
        if self.run.race is not None:
            super()._pre_steps_log_hook(batch)

    def _post_steps_log_hook(self, batch: TensorDictBase) -> None:
        if self.run.race is not None:
            super()._post_steps_log_hook(batch)

    def _post_steps_hook(self) -> None:
        super()._post_steps_hook()
        self.tick()

    def _log(self, log_pbar: bool = False, **figures: Any) -> None:
        """Hand figures to the logger, each at most every `tensorboard_interval_s`; the last of each is kept."""
        if log_pbar and not self._told_of_log_pbar:
            self._told_of_log_pbar = True
            log.warning(
                "log_pbar has no effect: %s are written by the loggers, and not shown in the terminal",
                ", ".join(figures),
            )
        for name, value in figures.items():
            self._log_dict[name] = [value]  # where torchrl's EarlyStopping looks; a list of all would grow for weeks
            interval = self._logs.setdefault(name, Interval(is_due_at_first=True))
            if self.logger is not None and interval.is_due(self.run.settings.telemetry.tensorboard_interval_s):
                self.logger.log_scalar(name, float(value), step=self.collected_frames)


class AgentUpdates(OptimizationStepper):
    """Makes each update by the agent's `update`, and calls the hooks of an update's points."""

    def step(self, trainer: RunTrainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """Make one update with a batch; return its losses."""
        process_losses = functools.partial(trainer._process_loss_hook, sub_batch) if trainer._process_loss_ops else None
        losses = trainer.run.agent.update(sub_batch, process_losses)
        trainer._post_loss_hook(sub_batch)
        return trainer._optimizer_hook(losses)  # type: ignore[no-any-return]


def _within_limits(point: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what acts at a point: end the run by one line where a library's hook finds no key, or its result is lost."""
    owner = getattr(op, "__self__", op)
    hook = type(owner).__name__ if isinstance(owner, TrainerHookBase) else getattr(op, "__name__", "")

    @functools.wraps(op, updated=())
    def act(batch: TensorDictBase, **kwargs: Any) -> Any:
        try:
            result = op(batch, **kwargs)
        except (AttributeError, KeyError, TypeError) as error:  # TensorDict.get gives None for a key that is not there
            if isinstance(owner, Hook):
                raise
            keys = ", ".join(sorted(map(str, batch.keys(include_nested=True, leaves_only=True))))
            raise UserError(f"hooks: {hook} fails at {point} ({one_line(error)}); the keys are {keys}") from error
        if point == "batch_process" and isinstance(result, TensorDictBase) and result is not batch:
            raise UserError(
                f"hooks: {hook} returns another race at batch_process, but the replay memory holds the race by then: "
                "change rewards by the setting reward, and batches by transforms or at process_optim_batch"
            )
        return result

    return act
