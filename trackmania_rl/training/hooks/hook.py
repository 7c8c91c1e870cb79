"""Base class of the hooks of the training loop, and the parts of a run that hooks share."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from torchrl.trainers.trainers import TrainerHookBase

from trackmania_rl.agents.agent import Agent
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.rollouts import ReceivedRollout
from trackmania_rl.channels.run_state import Channels
from trackmania_rl.experience_replay.memory import Memory
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import RunFolder
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.settings.snapshot import LiveSettings
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import TrainingStatistics

if TYPE_CHECKING:
    from trackmania_rl.training.trainer import RunTrainer

POINTS: Final = {
    "batch_process": ("race",),
    "pre_steps_log": ("race",),
    "pre_optim_steps": (),
    "process_optim_batch": ("batch",),
    "process_loss": ("batch", "losses"),
    "post_loss": ("batch",),
    "optimizer": ("losses", "clip_grad_norm", "clip_norm", "number"),
    "post_optim": (),
    "post_optim_log": ("batch",),
    "post_optim_complete_log": ("updates", "mean_losses"),
    "post_steps": (),
    "post_steps_log": ("race",),
}
"""Points of torchrl's Trainer at which a hook may act, in the order of one race, with their arguments."""
OF_RACES: Final = ("batch_process", "pre_steps_log", "post_steps_log")
"""Points at which a hook receives a race."""


@dataclass
class RunContext:
    """Parts of one run."""

    live: LiveSettings
    spaces: Spaces
    reward: Reward
    agent: Agent
    memory: Memory
    channels: Channels  #: the learner's ends of the channels to the collectors
    folder: RunFolder
    statistics: TrainingStatistics
    session: int = 1  #: number of this start of the run
    n_saved_before: int = 0  #: frames and updates of earlier stages
    n_workers: int | None = None  #: connected workers on other machines; None if none may connect
    #: (N, 3) points of each map's reference line, for pictures; none for generators
    reference_lines_m: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    maps_folder: Path = Path("maps")
    progress: dict[int, CollectorProgress] = field(default_factory=dict)  #: by the collector's number
    heartbeat: Heartbeat = field(default_factory=Heartbeat)  #: of this process
    #: the newest race, whose arrays are valid at the point `batch_process` only; missing without collectors
    race: ReceivedRollout = field(init=False, repr=False)
    record: RaceRecord = field(init=False, repr=False)  #: the newest race that has ended, in figures

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.live.current

    @property
    def has_collectors(self) -> bool:
        """True if races arrive: from collectors or from workers."""
        return self.n_workers is not None or self.settings.game.n_collectors > 0


class Hook(TrainerHookBase):
    """Piece of the learner. A subclass defines a method for each point at which it acts.

    ==================================== ===============================================================================
    method                               called
    ==================================== ===============================================================================
    ``batch_process(race)``              for each race: columns and rewards as a TensorDict (T,), see `race_columns`.
                                         The hook may change it or return another one. The replay memory stores what
                                         the last hook returns. ``self.run.race`` holds the whole race
    ``pre_steps_log(race)``              then, with copies of the columns (without frames); returns figures to log
    ``pre_optim_steps()``                before the race's updates
    ``process_optim_batch(_)``           before each update; may return another batch
    ``process_loss(batch, losses)``      within the update, which is not compiled then; may return other losses, whose
                                         ``loss...`` entries are summed up
    ``post_loss(batch)``                 after the update, which has written ``td_error`` (B,) into the batch
    ``optimizer(losses, *_)``            then, with the update's losses and ``grad_norm``
    ``post_optim()``                     after each update
    ``post_optim_log(batch)``            then; returns figures to log, such as ``{"mine/name": 0.5}``, also in the
                                         terminal with ``"log_pbar": True``
    ``post_optim_complete_log(n, mean)`` after the race's updates, with the run's number of updates and the mean losses
                                         of these (None without an update); returns figures to log
    ``post_steps()``                     after them
    ``post_steps_log(race)``             then, as ``pre_steps_log``
    ``begin()``                          once, after the run's checkpoint was loaded
    ``begin_turn()``                     with ``sampling = "synchronous"``, before the collectors' next turn
    ``interval_figures()``               every ``tensorboard_interval_s``; returns figures to log
    ``rare_figures()``                   every two minutes, for figures that are many or slow
    ``tick()``                           several times a second, also while no race arrives; must be fast
    ``end()``                            once, at the end, also after an error
    ==================================== ===============================================================================

    With ``batch_mode = "truncate_episodes"`` fragments of a race arrive before it ends. A hook receives the whole race
    at its end, unless the class sets ``takes_fragments = True``. ``("collector", "mask")`` is False for actions that
    an earlier fragment held.

    Checkpoints hold what ``state_dict`` returns (tensors, numbers, texts, lists, dicts). If a checkpoint has no state
    of this hook, the run resumes with a warning.

    Attributes:
        run: parts of the run.
        trainer: torchrl's Trainer, with `collected_frames`.
    """

    run: RunContext
    trainer: RunTrainer
    takes_fragments: ClassVar[bool] = False

    def register(self, trainer: RunTrainer, name: str = "") -> None:
        """Register the methods of points, by default under the class's name.

        Raises:
            SettingsError: if a method takes other arguments than those of its point.
        """
        self.trainer, self.run = trainer, trainer.run
        for point, arguments in POINTS.items():
            if (method := getattr(self, point, None)) is None:
                continue
            try:
                inspect.signature(method).bind(*arguments)
            except TypeError as error:
                raise SettingsError(
                    f"hooks: {type(self).__name__}.{point} cannot be called with ({', '.join(arguments)}): {error}"
                ) from error
            trainer.register_op(point, method)
        trainer.register_module(name or type(self).__name__, self)
        trainer.hooks.append(self)

    def begin(self) -> None: ...

    def begin_turn(self) -> None: ...

    def interval_figures(self) -> dict[str, float]:
        return {}

    def rare_figures(self) -> dict[str, float]:
        return {}

    def tick(self) -> None: ...

    def end(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Interval:
    """Clock of a repeated action."""

    def __init__(self, *, is_due_at_first: bool = False) -> None:
        self._last_s = -math.inf if is_due_at_first else time.monotonic()
        self._gap_s = math.inf

    def hurry(self, first_s: float) -> None:
        """Be due `first_s` from now, and then at distances that double up to the interval itself."""
        self._last_s, self._gap_s = time.monotonic(), first_s

    def is_due(self, every_s: float) -> bool:
        """Return whether `every_s` seconds have passed since it was due last, or since it was made."""
        now_s = time.monotonic()
        if now_s - self._last_s < min(every_s, self._gap_s):
            return False
        self._last_s, self._gap_s = now_s, 2 * self._gap_s
        return True
