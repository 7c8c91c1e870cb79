"""What torchrl's Trainer iterates over: races as they come in, as columns."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from tensordict import TensorDict

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.training.refused_races import refuse, what_is_not_finite

if TYPE_CHECKING:
    from trackmania_rl.training.context import RunContext

POLL_S: Final = 0.1
"""How long the learner waits for a race before it looks after the run; hooks tick as often."""
FRAMES_PER_ROUND: Final = 500
"""Where nobody drives, the loop goes round once for so many frames."""


class RaceStream:
    """The Trainer's `collector`: an iterator over finished races, whoever drove them.

    With synchronous sampling collectors play in turns, all of them at the same time, and their races come in the
    collectors' order. A turn is never left half done: the run ends between two of them.

    Args:
        run: what races come from; the one that has come in last is its `race`.
        should_stop: whether the run ends; looked at before each race, or each turn.
        on_idle: called whenever no race was there.
        on_turn: called before each turn.

    Attributes:
        n_turns: how many turns the run has had.
        is_between_turns: whether none is under way.
    """

    init_random_frames = 0

    def __init__(
        self,
        run: RunContext,
        should_stop: Callable[[], bool],
        on_idle: Callable[[], None],
        on_turn: Callable[[], None],
    ) -> None:
        self._run = run
        self._should_stop = should_stop
        self._on_idle = on_idle
        self._on_turn = on_turn
        self.n_turns = 0
        self.is_between_turns = True

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield races until the run ends, but for those with numbers that are not finite."""
        races = self._races_of_turns() if self._run.settings.takes_turns else self._races()
        for race in races:
            if (what := what_is_not_finite(race)) is not None:
                refuse(what, race.collector, race.end_race_stats["map_name"], self._run.statistics)
                race.release()
                continue
            self._run.race = race
            yield race_columns(race, only_new=True)

    def _races(self) -> Iterator[ReceivedRollout]:
        while not self._should_stop():
            race = self._run.channels.rollouts.get(POLL_S)
            if race is None:
                self._on_idle()
            else:
                yield race

    def _races_of_turns(self) -> Iterator[ReceivedRollout]:
        collectors = range(self._run.settings.game.n_collectors)
        while not self._should_stop():
            self._on_turn()
            self.is_between_turns = False
            for collector in collectors:
                self._run.channels.rollouts.give_turn(collector, self.n_turns)
            early: defaultdict[int, deque[ReceivedRollout]] = defaultdict(deque)
            for collector in collectors:
                yield from self._races_of_turn(collector, early)
            self.n_turns += 1
            self.is_between_turns = True

    def _races_of_turn(self, collector: int, early: Mapping[int, deque[ReceivedRollout]]) -> Iterator[ReceivedRollout]:
        """Yield what one collector puts in its turn; what comes from others meanwhile waits in `early`."""
        rollouts = self._run.channels.rollouts
        while True:
            is_at_turn = rollouts.is_at_turn(collector)
            while early[collector]:
                yield early[collector].popleft()
            race = rollouts.get(POLL_S if is_at_turn else 0.0)
            if race is not None:
                early[race.collector].append(race)
            elif is_at_turn:
                self._on_idle()
            else:
                break

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


def race_columns(race: ReceivedRollout, *, only_new: bool = False) -> TensorDict:
    """View the columns of a race of T actions as a TensorDict (T,); of T + 1 states, all but the last.

    Its entries are the arrays of `rollout_results`, and ("next", name) for those with a row for the last state.

    Args:
        race: whose arrays are valid.
        only_new: whether to leave out the actions that an earlier fragment of the race brought.
    """
    n_actions = len(race.rollout_results["actions"])
    n_before = race.fragment.n_actions_before if only_new and race.fragment is not None else 0
    columns: dict[str, Any] = {}
    following: dict[str, torch.Tensor] = {}
    for name, value in race.rollout_results.items():
        if isinstance(value, np.ndarray) and len(value) in (n_actions, n_actions + 1) and value.dtype != object:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to a race
                tensor = torch.from_numpy(value)
            columns[name] = tensor[n_before:n_actions]
            if len(value) == n_actions + 1:
                following[name] = tensor[n_before + 1 :]
    return TensorDict(columns | {"next": following}, batch_size=[n_actions - n_before])
