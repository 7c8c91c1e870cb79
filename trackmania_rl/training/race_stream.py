"""Iterator over races for torchrl's Trainer: one TensorDict for each race."""

from __future__ import annotations

import logging
import math
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from tensordict import TensorDict

from trackmania_rl.channels.rollouts import ReceivedRollout
from trackmania_rl.errors import UserError
from trackmania_rl.race.rewards import RewardedRace, is_finite_as_stored, reward_as_stored

if TYPE_CHECKING:
    from trackmania_rl.training.trainer import RunTrainer

log = logging.getLogger(__name__)

LEARNED_FROM: Final = ("state_float", "actions", "rewards", "meters_advanced_along_centerline")
"""Columns of a race that reach the replay memory, or that rewards are computed from."""
POLL_S: Final = 0.1
"""Timeout of the wait for a race, after which the hooks tick."""
FRAMES_PER_ROUND: Final = 500
"""Frames of one round of the training loop without collectors."""
MOST_REFUSED_IN_A_ROW: Final = 20
"""Number of refused races without another one between them that ends the run."""


class RaceStream:
    """The Trainer's `collector`: an iterator over races, or over rounds without a race if there are no collectors.

    With synchronous sampling the races of a turn are yielded in the order of the collectors, which play at the same
    time. The run ends between two turns.
    """

    init_random_frames = 0

    def __init__(self, trainer: RunTrainer, should_stop: Callable[[], bool]) -> None:
        self._trainer = trainer
        self._run = trainer.run
        self._should_stop = should_stop

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield races until the run ends. Refuse those with numbers that are not finite."""
        settings = self._run.settings
        if not self._run.has_collectors:
            yield from self._rounds_without_races()
            return
        for race in self._races_of_turns() if settings.takes_turns else self._races():
            rewarded, name = self._check(race)
            if rewarded is None:
                self._refuse(race, name)
                race.release()
                continue
            self._run.race = race
            self._run.statistics.races_refused_in_a_row = 0
            yield race_columns(race, rewarded)
            self._trainer.tick()

    def _check(self, race: ReceivedRollout) -> tuple[RewardedRace | None, str]:
        """Return the rewards of a race; or None, and the name of a column or number of it that is not finite."""
        run, results = self._run, race.rollout_results
        q_values = results.get("q_values")
        columns: dict[str, Any] = {name: results[name] for name in LEARNED_FROM if name in results}
        if q_values is not None and not np.isnan(q_values).all():  # some agents have none
            columns["q_values"] = q_values
        columns |= {name: race.end_race_stats.get(name, 0.0) for name in ("meters", "race_time_ms")}
        for name, column in columns.items():
            if not is_finite_as_stored(column):
                return None, name
        given = run.reward(results, run.settings, run.statistics.frames_total)
        rewarded = reward_as_stored(given, len(results["actions"]))
        for name, column in rewarded._asdict().items():
            if not is_finite_as_stored(column):
                return None, name
        return rewarded, ""

    def _refuse(self, race: ReceivedRollout, what: str) -> None:
        """Count a refused race, and log the 1st, 10th, 100th .... End the run if there are too many in a row."""
        statistics, map_name = self._run.statistics, race.end_race_stats["map_name"]
        statistics.races_refused += 1
        statistics.races_refused_in_a_row += 1
        if math.log10(statistics.races_refused).is_integer():
            log.warning(
                "a race of collector %d on %s is refused, since its %s holds numbers that are not finite; races "
                "refused so far: %s",
                race.collector,
                map_name,
                what,
                f"{statistics.races_refused:,}",
            )
        if statistics.races_refused_in_a_row >= MOST_REFUSED_IN_A_ROW:
            raise UserError(
                f"{MOST_REFUSED_IN_A_ROW} races in a row are refused, the last one on {map_name} since its {what} "
                "holds numbers that are not finite: mend what makes them (the environment, the reward or own floats)"
            )

    def _rounds_without_races(self) -> Iterator[TensorDict]:
        """Yield rounds of `FRAMES_PER_ROUND` masked frames; the first has none, for updates left by a resumed run."""
        counts = False
        while not self._should_stop():
            # An empty batch would count as one frame. Masked frames do not count.
            mask = torch.full((FRAMES_PER_ROUND,), counts)
            yield TensorDict({("collector", "mask"): mask}, batch_size=[FRAMES_PER_ROUND])
            self._trainer.tick()
            counts = True

    def _races(self) -> Iterator[ReceivedRollout]:
        while not self._should_stop():
            race = self._run.channels.rollouts.get(POLL_S)
            if race is None:
                self._trainer.tick()
            else:
                yield race

    def _races_of_turns(self) -> Iterator[ReceivedRollout]:
        trainer, collectors = self._trainer, range(self._run.settings.game.n_collectors)
        while not self._should_stop():
            for hook in trainer.hooks:
                hook.begin_turn()
            trainer.is_within_turn = True
            for collector in collectors:
                self._run.channels.rollouts.give_turn(collector, trainer.n_turns)
            early: defaultdict[int, deque[ReceivedRollout]] = defaultdict(deque)
            for collector in collectors:
                yield from self._races_of_turn(collector, early)
            trainer.n_turns += 1
            trainer.is_within_turn = False

    def _races_of_turn(self, collector: int, early: Mapping[int, deque[ReceivedRollout]]) -> Iterator[ReceivedRollout]:
        """Yield the races of one collector's turn. Races of others wait in `early`."""
        rollouts = self._run.channels.rollouts
        while True:
            is_at_turn = rollouts.is_at_turn(collector)
            while early[collector]:
                yield early[collector].popleft()
            race = rollouts.get(POLL_S if is_at_turn else 0.0)
            if race is not None:
                early[race.collector].append(race)
            elif is_at_turn:
                self._trainer.tick()
            else:
                break

    def shutdown(self) -> None:
        """Do nothing: the supervisor ends the collectors."""


def race_columns(race: ReceivedRollout, rewarded: RewardedRace) -> TensorDict:
    """Return a race of T actions in torchrl's form, a TensorDict (T,).

    ===================================== ============================================================================
    entry                                 content
    ===================================== ============================================================================
    name                                  column `name` of `rollout_results`, such as `state_float`, without the last
                                          of T + 1 states; a view of the race's memory
    ("next", name)                        columns of states without the first; a view of the same memory
    ("next", "reward")                    (T, 1) float32, see `Reward`
    "potential", ("next", "potential")    (T,) float32, shaping potential of the states
    ("next", "done")                      (T, 1) bool: whether the race ended with the action
    ("next", "terminated")                (T, 1) bool: whether it ended at the finish
    ("collector", "mask")                 (T,) bool, False for actions of earlier fragments; absent if all are new
    ===================================== ============================================================================

    """
    results = race.rollout_results
    n_actions = len(results["actions"])
    columns: dict[str, Any] = {}
    following: dict[str, torch.Tensor] = {}
    for name, value in results.items():
        if isinstance(value, np.ndarray) and len(value) in (n_actions, n_actions + 1) and value.dtype != object:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                tensor = torch.from_numpy(value)
            columns[name] = tensor[:n_actions]
            if len(value) == n_actions + 1:
                following[name] = tensor[1:]
    potentials = torch.tensor(rewarded.potentials)
    columns["potential"], following["potential"] = potentials[:-1], potentials[1:]
    following["reward"] = torch.tensor(rewarded.rewards).unsqueeze(1)
    following["done"] = torch.zeros((n_actions, 1), dtype=torch.bool)
    following["terminated"] = torch.zeros((n_actions, 1), dtype=torch.bool)
    following["done"][-1:] = not race.is_under_way
    following["terminated"][-1:] = "race_time" in results or bool(results.get("terminated", False))
    if race.fragment is not None and race.fragment.n_actions_before > 0:
        columns["collector"] = {"mask": torch.arange(n_actions) >= race.fragment.n_actions_before}
    return TensorDict(columns | {"next": following}, batch_size=[n_actions])
