"""torchrl's Trainer over races: `batch`es of its loop are finished races, and hooks do everything else.

`for each race: batch_process; pre_optim_steps; for each batch that is due: loss_module, optimizer; post_steps`: see
`torchrl.trainers.Trainer.train`, and `hooks.hook.Hook` for what is called when.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.trainers import Trainer

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.checkpoints import read_checkpoint, save_checkpoint
from trackmania_rl.training.context import RunContext
from trackmania_rl.training.hooks.hook import Hook, Interval

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
"""How long the learner waits for a race before it looks after the run; hooks tick as often."""
FRAMES_PER_ROUND: Final = 500
"""Where nobody drives, the loop goes round once for so many frames."""


class RaceStream:
    """The Trainer's `collector`: an iterator over finished races, whoever drove them.

    Args:
        run: what races come from; the one that has come in last is its `race`.
        should_stop: whether the run ends; looked at before each race.
        on_idle: called whenever no race was there.
    """

    init_random_frames = 0

    def __init__(self, run: RunContext, should_stop: Callable[[], bool], on_idle: Callable[[], None]) -> None:
        self._run = run
        self._should_stop = should_stop
        self._on_idle = on_idle

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield races until the run ends."""
        while not self._should_stop():
            race = self._run.channels.rollouts.get(POLL_S)
            if race is None:
                self._on_idle()
                continue
            self._run.race = race
            yield race_columns(race)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: collectors begin new races when a run is resumed."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over nothing."""

    def shutdown(self) -> None:
        """End nothing: the collectors belong to others."""


class RoundsWithoutRaces:
    """The Trainer's `collector` where nobody drives: rounds of `FRAMES_PER_ROUND` frames that hold nothing.

    The first one is of no frames: in it, a run that goes on makes the updates that it had left.

    Args:
        should_stop: whether the run ends; looked at before each round.
    """

    init_random_frames = 0

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield rounds until the run ends."""
        counts = False
        while not self._should_stop():
            # An empty batch would count as one frame; what the mask leaves out, as none.
            mask = torch.full((FRAMES_PER_ROUND,), counts)
            yield TensorDict({("collector", "mask"): mask}, batch_size=[FRAMES_PER_ROUND])
            counts = True

    def shutdown(self) -> None:
        """End nothing."""


def race_columns(race: ReceivedRollout) -> TensorDict:
    """View the columns of a race of T actions as a TensorDict (T,); of T + 1 states, all but the last.

    Its entries are the arrays of `rollout_results`, and ("next", name) for those with a row for the last state.
    """
    n_actions = len(race.rollout_results["actions"])
    columns: dict[str, Any] = {}
    following: dict[str, torch.Tensor] = {}
    for name, value in race.rollout_results.items():
        if isinstance(value, np.ndarray) and len(value) in (n_actions, n_actions + 1) and value.dtype != object:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to a race
                tensor = torch.from_numpy(value)
            columns[name] = tensor[:n_actions]
            if len(value) == n_actions + 1:
                following[name] = tensor[1:]
    return TensorDict(columns | {"next": following}, batch_size=[n_actions])


class RunTrainer(Trainer):
    """The Trainer of one run.

    Args:
        run: what its hooks share.
        should_stop: whether the run ends.

    Attributes:
        hooks: those that are registered, in their order.
    """

    def __init__(self, run: RunContext, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.run = run
        self.hooks: list[Hook] = []
        self._ticks = Interval()
        self._logs: dict[str, Interval] = {}
        has_collectors = run.settings.game.n_collectors > 0
        super().__init__(
            collector=RaceStream(run, should_stop, self.tick) if has_collectors else RoundsWithoutRaces(should_stop),
            total_frames=sys.maxsize,
            frame_skip=1,
            optim_steps_per_batch=None,  # SampleAtReplayRatio ends each round
            loss_module=run.agent.loss_module,
            progress_bar=False,
            auto_log_optim_steps=False,
            save_trainer_file=run.folder.checkpoint,
            save_trainer_interval=sys.maxsize,  # checkpoints are a hook's, by the clock
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # see `Hook.register`
            self.register_op("optimizer", run.agent.optimizer_step)
        self.register_op("post_optim", self._count_update)

    def tick(self) -> None:
        """Let the hooks tick, if it is time."""
        if self._ticks.is_due(POLL_S):
            for hook in self.hooks:
                hook.tick()

    def state_dict(self) -> OrderedDict[str, Any]:
        """All that a resumed run needs, in plain values and tensors."""
        return OrderedDict(
            agent=self.run.agent.state_dict(),
            frames=self.collected_frames,
            optim_count=self._optim_count,
            hooks={name: hook.state_dict() for name, hook in self._modules.items()},
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken. A hook that the state does not know begins afresh, which is said.

        Raises:
            KeyError, RuntimeError or ValueError: if the state does not fit this run's agent or hooks.
        """
        self.run.agent.load_state_dict(state_dict["agent"])
        self.collected_frames = state_dict["frames"]
        self._optim_count = state_dict["optim_count"]
        for name, hook in self._modules.items():
            if name in state_dict["hooks"]:
                hook.load_state_dict(state_dict["hooks"][name])
            elif hook.state_dict():  # else it has nothing to begin with
                log.warning("the checkpoint knows no hook %s: it begins afresh", name)

    def load_from_file(self, file: str | Path, **_: Any) -> RunTrainer:
        """Go on from a checkpoint file.

        Raises:
            CheckpointError: if it cannot be read.
            KeyError, RuntimeError or ValueError: if it does not fit.
        """
        self.load_state_dict(read_checkpoint(Path(file)))
        return self

    def _save_trainer(self) -> None:
        save_checkpoint(
            Path(self.save_trainer_file).parent, self.state_dict(), self.run.settings.run.minimum_free_disk_mb
        )

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

    def _count_update(self) -> None:
        self.run.agent.updates += 1
        self.tick()

    def _log(self, log_pbar: bool = False, **figures: Any) -> None:
        """Hand figures to the logger, each at most every `tensorboard_interval_s`; the last of each is kept."""
        for name, value in figures.items():
            self._log_dict[name] = [value]  # where torchrl's EarlyStopping looks; a list of all would grow for weeks
            interval = self._logs.setdefault(name, Interval(is_due_at_first=True))
            if self.logger is not None and interval.is_due(self.run.settings.telemetry.tensorboard_interval_s):
                self.logger.log_scalar(name, float(value), step=self.collected_frames)
