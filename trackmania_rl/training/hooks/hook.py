"""Hooks: pieces of the learner that act at points of torchrl's training loop, and what they share."""

from __future__ import annotations

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
from trackmania_rl.channels.protocols import Channels, ReceivedRollout
from trackmania_rl.experience_replay.memory import Memory
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import RunFolder
from trackmania_rl.settings import Settings
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.statistics import TrainingStatistics

if TYPE_CHECKING:
    from trackmania_rl.training.trainer import RunTrainer

POINTS: Final = (
    "batch_process",
    "pre_steps_log",
    "pre_optim_steps",
    "process_optim_batch",
    "process_loss",
    "post_loss",
    "optimizer",
    "post_optim",
    "post_optim_log",
    "post_optim_complete_log",
    "post_steps",
    "post_steps_log",
)
"""The points of torchrl's Trainer at which a hook may act, in the order of one race."""
OF_RACES: Final = ("batch_process", "pre_steps_log", "post_steps_log")
"""The points at which a hook is given a race."""


@dataclass
class RunContext:
    """Parts of one run, which all hooks share.

    Attributes:
        live: the configuration, which may be edited.
        spaces: of states and actions.
        reward: of races.
        agent: the learner's.
        memory: the replay memory.
        channels: the learner's ends of the channels to the collectors.
        folder: of the run.
        statistics: the run's figures.
        session: number of this start of the run, from 1.
        reference_lines_m: (N, 3) points of each map's reference line, for pictures; none for generators.
        maps_folder: folder of the tracks.
        progress: of each collector, by its number.
        race: the newest race; its arrays are valid at the point `batch_process` only.
    """

    live: LiveSettings
    spaces: Spaces
    reward: Reward
    agent: Agent
    memory: Memory
    channels: Channels
    folder: RunFolder
    statistics: TrainingStatistics
    session: int = 1
    reference_lines_m: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    maps_folder: Path = Path("maps")
    progress: dict[int, CollectorProgress] = field(default_factory=dict)
    race: ReceivedRollout | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.live.current


class Hook(TrainerHookBase):
    """Piece of the learner that acts at each point it has a method of: a subclass writes those that it needs.

    ==================================== ===============================================================================
    method                               when it is called
    ==================================== ===============================================================================
    ``batch_process(race)``              a race has come in: its columns and rewards as a TensorDict (T,), see
                                         `race_columns`; the hook may change it or return another one. The replay memory
                                         stores what the last hook returns. More of the race is in ``self.run.race``
    ``pre_steps_log(race)``              then, with copies of the columns (without frames); returns figures to log
    ``pre_optim_steps()``                before the race's updates
    ``process_optim_batch(_)``           before each update; may return another batch
    ``process_loss(batch, losses)``      within the update, which is not compiled then; may return other losses, whose
                                         ``loss...`` entries are summed up
    ``post_loss(batch)``                 after the update, which has written ``td_error`` (B,) into the batch
    ``optimizer(losses, *_)``            then, with the update's losses and ``grad_norm``
    ``post_optim()``                     after each update
    ``post_optim_log(batch)``            then; returns figures to log, such as ``{"mine/name": 0.5}``, and in the
                                         terminal with ``"log_pbar": True``
    ``post_optim_complete_log(n, mean)`` after the race's updates, with how many the run has had and their mean losses,
                                         None if the race had none; returns figures to log
    ``post_steps()``                     after them
    ``post_steps_log(race)``             then, as ``pre_steps_log``
    ``begin()``                          once, when the run is taken up, from its checkpoint if it has one
    ``begin_turn()``                     with ``sampling = "synchronous"``, before the collectors' next turn
    ``interval_figures()``               every ``tensorboard_interval_s``; returns figures to log
    ``rare_figures()``                   every two minutes: figures that are many, or take time
    ``tick()``                           several times a second, also while no race comes; be quick
    ``end()``                            once, at the end, also after an error
    ==================================== ===============================================================================

    With ``batch_mode = "truncate_episodes"`` fragments come in before a race is over. A hook is called once for the
    whole race, at its end, unless the class says ``takes_fragments = True``. Actions that came with an earlier fragment
    are False in ``("collector", "mask")``.

    The run's checkpoints hold what ``state_dict`` returns (tensors, numbers, texts, lists, dicts). If a checkpoint has
    no state of this hook, the run resumes with a warning.

    Attributes:
        run: what the run's parts share.
        trainer: torchrl's Trainer, with `collected_frames`.
    """

    run: RunContext
    trainer: RunTrainer
    takes_fragments: ClassVar[bool] = False

    def register(self, trainer: RunTrainer, name: str = "") -> None:
        """Register every method that is a point's, under the class's name unless another one is given."""
        self.trainer, self.run = trainer, trainer.run
        for point in POINTS:
            if hasattr(self, point):
                trainer.register_op(point, getattr(self, point))
        trainer.register_module(name or type(self).__name__, self)
        trainer.hooks.append(self)

    def begin(self) -> None:
        """Do nothing."""

    def begin_turn(self) -> None:
        """Do nothing."""

    def interval_figures(self) -> dict[str, float]:
        """No figures."""
        return {}

    def rare_figures(self) -> dict[str, float]:
        """No figures."""
        return {}

    def tick(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def state_to_write(self) -> dict[str, Any]:
        """Return what checkpoints hold: `state_dict()`, or a form of it that takes less to write."""
        return self.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


class Interval:
    """Clock of a repeated action."""

    def __init__(self, *, is_due_at_first: bool = False) -> None:
        self._last_s = -math.inf if is_due_at_first else time.monotonic()

    def is_due(self, every_s: float) -> bool:
        """Return whether `every_s` seconds have passed since it was due last, or since it was made."""
        now_s = time.monotonic()
        if now_s - self._last_s < every_s:
            return False
        self._last_s = now_s
        return True


class EagerInterval(Interval):
    """Interval that is shorter at first, after `hurry`."""

    def __init__(self) -> None:
        super().__init__()
        self._gap_s = math.inf

    def hurry(self, first_s: float) -> None:
        """Be due `first_s` from now, and then at distances that double up to the interval itself."""
        self._last_s, self._gap_s = time.monotonic(), first_s

    def is_due(self, every_s: float) -> bool:
        """See `Interval.is_due`."""
        if not super().is_due(min(every_s, self._gap_s)):
            return False
        self._gap_s *= 2
        return True
