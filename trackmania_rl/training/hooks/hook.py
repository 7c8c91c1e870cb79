"""Base class for training loop hooks, and the run's parts that loop and hooks share."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.agents.agent import Agent
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.run_state import Channels
from trackmania_rl.experience_replay.memory import Memory
from trackmania_rl.race.race import CollectorsProgress, Race
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import RunLog
from trackmania_rl.runs.snapshot import LiveSettings
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.telemetry.statistics import TrainingStatistics

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from trackmania_rl.training.hooks.figures import WriteFigures
    from trackmania_rl.training.updates import NumbersWatch, PartialResets, Replay

log = logging.getLogger(__name__)

Figures = Mapping[str, float]
"""Figures by name. With the entry `log_pbar` they are also shown in the terminal."""

POINTS: Final = {
    "on_fragment": ("race",),
    "on_race": ("race",),
    "before_updates": (),
    "on_batch": ("batch",),
    "on_losses": ("batch", "losses"),
    "on_update": ("batch", "losses"),
    "after_updates": (),
}
"""Points in the training loop at which a hook may act, in the order for one race, with arguments."""
DISK_ERROR_EVERY_S: Final = 60.0
"""Shortest time between two messages about a disk that fails."""


class Interval:
    """Clock for a repeated action."""

    def __init__(self, *, is_due_at_first: bool = False) -> None:
        self._last_s = -math.inf if is_due_at_first else time.monotonic()
        self._gap_s = math.inf

    def hurry(self, first_s: float) -> None:
        """Be due `first_s` from now, and then at distances that double up to the interval itself."""
        self._last_s = time.monotonic()
        self._gap_s = first_s

    def is_due(self, every_s: float) -> bool:
        """Return whether `every_s` seconds have passed since it was due last, or since it was made."""
        now_s = time.monotonic()
        if now_s - self._last_s < min(every_s, self._gap_s):
            return False
        self._last_s = now_s
        self._gap_s *= 2
        return True


class Section(Protocol):
    """Part of a run with a state in checkpoints: tensors, numbers, texts, lists and dicts with these."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass
class RunContext:
    """One run's parts. `learn` puts them together."""

    live: LiveSettings
    spaces: Spaces
    reward: Reward
    agent: Agent
    memory: Memory
    channels: Channels  #: the learner's channel ends to the collectors
    folder: RunFolder
    run_log: RunLog
    statistics: TrainingStatistics
    session: int = 1  #: number of this start
    n_saved_before: int = 0  #: earlier stages' frames and updates
    n_workers: int | None = None  #: connected workers on other machines; None if none may connect
    #: (N, 3) points on each map's reference line, for pictures; none for generators
    reference_lines_m: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    maps_folder: Path = Path("maps")
    progress: CollectorsProgress = field(default_factory=CollectorsProgress)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)  #: this process's
    n_turns: int = 0  #: synchronous sampling turns
    is_within_turn: bool = False  #: an error or a second Ctrl-C ended the run within a synchronous sampling turn
    stop_reason: str | None = None  #: set by `request_stop`
    newest_figures: dict[str, float] = field(default_factory=dict)  #: that hooks returned, by name
    sections: dict[str, Section] = field(default_factory=dict)  #: in checkpoints, by key
    user_hooks: dict[str, Hook] = field(default_factory=dict)  #: by name in checkpoints
    replay: Replay = field(init=False)
    numbers: NumbersWatch = field(init=False)
    resets: PartialResets = field(init=False)
    figures: WriteFigures = field(init=False)
    _disk_error_due: Interval = field(default_factory=lambda: Interval(is_due_at_first=True))

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.live.current

    @property
    def has_collectors(self) -> bool:
        """True if races arrive: from collectors or from workers."""
        return self.n_workers is not None or self.settings.game.n_collectors > 0

    def request_stop(self, reason: str) -> None:
        """End the training after this race, with a checkpoint."""
        self.stop_reason = reason

    @contextlib.contextmanager
    def surviving_disk(self) -> Iterator[None]:
        """Log I/O errors in the block, at most one a minute."""
        try:
            yield
        except OSError as error:
            if self._disk_error_due.is_due(DISK_ERROR_EVERY_S):
                log.error("run.sqlite or another file cannot be written: %s; the run goes on", error.strerror)


class Hook:
    """Piece of the learner. A subclass overrides the methods for the points at which it acts.

    ============================== =====================================================================================
    method                         called
    ============================== =====================================================================================
    ``begin()``                    once, after the run's checkpoint was loaded
    ``begin_turn()``               with ``sampling = "synchronous"``, before the collectors' next turn
    ``on_fragment(race)``          for each fragment of a race under way (``batch_mode = "truncate_episodes"``)
    ``on_race(race)``              for each race that has ended, with its rewards. The replay memory stores the race as
                                   the last hook leaves it: a hook may replace ``race.rewards``, ``race.columns[name]``
                                   or ``race.facts``. The arrays are valid within the call
    ``before_updates()``           before the updates after a race
    ``on_batch(batch)``            before each update; may return another batch
    ``on_losses(batch, losses)``   within the update, which is not compiled then; may return other losses, whose
                                   ``loss...`` entries are summed up
    ``on_update(batch, losses)``   after each update, with ``td_error`` (B,) in the batch, the losses and ``grad_norm``
    ``after_updates()``            after the updates
    ``interval_figures()``         every ``tensorboard_interval_s``
    ``rare_figures()``             every two minutes, for figures that are many or slow
    ``tick()``                     several times a second, also while no race arrives; must be fast
    ``end()``                      once, at the end, also after an error
    ============================== =====================================================================================

    ``on_race``, ``on_update``, ``after_updates`` and the two last but two may return figures to log, such as
    ``{"mine/name": 0.5}``; with ``"log_pbar": True`` they are also in the terminal.

    Checkpoints hold what ``state_dict`` returns (tensors, numbers, texts, lists, dicts). If a checkpoint has no state
    of this hook, the run resumes with a warning.

    Attributes:
        run: the run's parts.
        section: the state's key in checkpoints; empty for the class name below "hooks".
    """

    run: RunContext
    section: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Hook name in checkpoints and messages."""
        return type(self).__name__

    def attach(self, run: RunContext) -> None:
        """Take the run's parts, before everything else.

        Raises:
            SettingsError: if a method takes other arguments than the point's.
        """
        self.run = run
        for point, arguments in POINTS.items():
            try:
                inspect.signature(getattr(self, point)).bind(*arguments)
            except TypeError as error:
                raise SettingsError(
                    f"hooks: {self.name}.{point} cannot be called with ({', '.join(arguments)}): {error}"
                ) from error

    def begin(self) -> None: ...

    def begin_turn(self) -> None: ...

    def on_fragment(self, race: Race) -> Figures | None: ...

    def on_race(self, race: Race) -> Figures | None: ...

    def before_updates(self) -> None: ...

    def on_batch(self, batch: TensorDictBase) -> TensorDictBase | None: ...

    def on_losses(self, batch: TensorDictBase, losses: TensorDictBase) -> TensorDictBase | None: ...

    def on_update(self, batch: TensorDictBase, losses: TensorDictBase) -> Figures | None: ...

    def after_updates(self) -> Figures | None: ...

    def interval_figures(self) -> Figures:
        return {}

    def rare_figures(self) -> Figures:
        return {}

    def tick(self) -> None: ...

    def end(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
