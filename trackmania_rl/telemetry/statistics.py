"""Run figures: counts, rates, times by map, waiting shares."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.race.race import RACE_KINDS, Race, RaceFacts

log = logging.getLogger(__name__)

RECENT_RACES = 10
"""Number of newest races, per map and kind, over which driving is judged everywhere."""
RETURN_RACES = 100
"""As in Stable-Baselines3."""
MOST_MAPS = 20
"""Most maps in the status: those driven first."""
RATE_WINDOW_S = 30.0
SAMPLE_INTERVAL_S = 1.0


class Result(NamedTuple):
    """Race result; the time is None if unfinished."""

    time_ms: int | None
    meters: float
    n_actions: int
    checkpoint_times_ms: list[int]


class Returns:
    """Returns and lengths (actions) for the last `RETURN_RACES` races."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=RETURN_RACES)

    def add(self, sum_of_rewards: float, n_actions: int) -> None:
        """Add a race."""
        self._recent.append((sum_of_rewards, n_actions))

    def figures(self) -> dict[str, float]:
        """Return both means by Stable-Baselines3's names, if any."""
        if not self._recent:
            return {}
        returns, lengths = zip(*self._recent, strict=True)
        return {"ep_rew_mean": statistics.fmean(returns), "ep_len_mean": statistics.fmean(lengths)}

    def state_dict(self) -> dict[str, Any]:
        """Return the races as plain values."""
        return {"recent": [list(race) for race in self._recent]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the races."""
        self._recent.clear()
        self._recent.extend((float(value), int(n_actions)) for value, n_actions in state["recent"])


@dataclass
class RaceHistory:
    """Exploration or evaluation races on one map.

    Times are finish times, and None without a finish. Best times are for a single track. Distances (`furthest_m`,
    `last_m`) are in `progress_unit`, see `RaceFacts`.

    Attributes:
        best_checkpoints_ms: times at the checkpoints in the fastest race.
        recent: the last `RECENT_RACES` races.
        returns: the last `RETURN_RACES` races.
    """

    n_races: int = 0
    n_finished: int = 0
    is_one_track: bool = True
    best_time_ms: int | None = None
    furthest_m: float = 0.0
    progress_unit: str = "m"
    best_checkpoints_ms: list[int] = field(default_factory=list)
    recent: deque[Result] = field(default_factory=lambda: deque(maxlen=RECENT_RACES))
    returns: Returns = field(default_factory=Returns)

    def add(self, race: RaceFacts) -> bool:
        """Add a race; return whether it is the fastest finish so far."""
        self.n_races += 1
        self.is_one_track = not race.is_generated
        self.progress_unit = race.progress_unit
        self.furthest_m = race.meters if self.n_races == 1 else max(self.furthest_m, race.meters)
        time_ms = race.race_time_ms if race.race_finished else None
        self.recent.append(Result(time_ms, race.meters, race.n_actions, list(race.checkpoint_times_ms)))
        if time_ms is None:
            return False
        self.n_finished += 1
        if not self.is_one_track or (self.best_time_ms is not None and time_ms >= self.best_time_ms):
            return False
        self.best_time_ms = time_ms
        self.best_checkpoints_ms = list(race.checkpoint_times_ms)
        return True

    @property
    def last_time_ms(self) -> int | None:
        """The newest race's time, if it was finished."""
        return self.recent[-1].time_ms if self.recent else None

    @property
    def last_m(self) -> float:
        """The newest race's distance."""
        return self.recent[-1].meters if self.recent else 0.0

    @property
    def mean_recent_m(self) -> float:
        """Mean distance over the recent races; for a custom environment, the mean episode return."""
        return statistics.fmean(race.meters for race in self.recent) if self.recent else 0.0

    @property
    def mean_recent_actions(self) -> float:
        """Mean action count over the recent races."""
        return statistics.fmean(race.n_actions for race in self.recent) if self.recent else 0.0

    @property
    def is_custom_env(self) -> bool:
        """True if these are a custom environment's episodes."""
        return self.progress_unit == "points"

    @property
    def n_recent_finished(self) -> int:
        """Number of recent races that were finished."""
        return sum(race.time_ms is not None for race in self.recent)

    @property
    def recent_finish_rate(self) -> float | None:
        """Share of recent races that were finished."""
        return self.n_recent_finished / len(self.recent) if self.recent else None

    @property
    def median_time_ms(self) -> float | None:
        """Median recent time, unfinished races as infinity; None if infinite or from several tracks."""
        if not self.recent or not self.is_one_track:
            return None
        times_ms = [math.inf if race.time_ms is None else race.time_ms for race in self.recent]
        median_ms = statistics.median(times_ms)
        return None if median_ms == math.inf else median_ms

    @property
    def median_checkpoints_ms(self) -> list[int]:
        """Median checkpoint times over recent finishes with as many checkpoints as the newest one."""
        finishes = [race.checkpoint_times_ms for race in self.recent if race.time_ms is not None and self.is_one_track]
        alike = [times_ms for times_ms in finishes if len(times_ms) == len(finishes[-1])]
        return [round(statistics.median(column)) for column in zip(*alike, strict=True)]

    def row(self) -> dict[str, Any]:
        """Return the row for a map table."""
        return {
            "races": self.n_races,
            "finished": self.n_finished,
            "recent": self.n_recent_finished,
            "n_recent": len(self.recent),
            "best_ms": self.best_time_ms,
            "last_ms": self.last_time_ms,
            "last": self.last_m,
            "furthest": self.furthest_m,
            "unit": self.progress_unit,
            "return": self.mean_recent_m,
            "length": self.mean_recent_actions,
            "median_ms": self.median_time_ms,
            "best_checkpoints_ms": self.best_checkpoints_ms,
            "median_checkpoints_ms": self.median_checkpoints_ms,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the history as plain values."""
        return {name: getattr(self, name) for name in _HISTORY} | {
            "recent": [list(race) for race in self.recent],
            "returns": self.returns.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a history."""
        for name in _HISTORY:
            setattr(self, name, state[name])
        self.recent = deque((Result(*race) for race in state["recent"]), maxlen=RECENT_RACES)
        self.returns.load_state_dict(state["returns"])


_HISTORY: Final = tuple(item.name for item in fields(RaceHistory)[:7])


@dataclass
class MapStatistics:
    """Races on one map."""

    explored: RaceHistory = field(default_factory=RaceHistory)
    evaluated: RaceHistory = field(default_factory=RaceHistory)

    def history(self, is_explo: bool) -> RaceHistory:
        """Return the exploration or the evaluation races."""
        return self.explored if is_explo else self.evaluated

    @property
    def kinds(self) -> dict[str, RaceHistory]:
        """Both histories by kind, as in figure names."""
        return {"explored": self.explored, "evaluated": self.evaluated}

    @property
    def best_time_ms(self) -> int | None:
        """Fastest finish."""
        times_ms = [history.best_time_ms for history in self.kinds.values()]
        return min((race_time_ms for race_time_ms in times_ms if race_time_ms is not None), default=None)


class Rates(NamedTuple):
    """Rates over the last `RATE_WINDOW_S`. The waiting share is 0 to 1."""

    actions_per_s: float
    races_per_s: float
    batches_per_s: float
    learner_waiting_share: float


_Counts = tuple[float, int, int, int, float]
"""Time, then the counts; `Rates` are their differences per second."""


class CountsUpdates(Protocol):
    """The part of the agent that statistics need."""

    updates: int


@dataclass
class TrainingStatistics:
    """A run's figures.

    Attributes:
        clock: seconds since the command started, also for `ends_at_s` and `checkpoint_time_s`.
        agent: counts the updates.
        updates_not_finite: updates with an infinite or NaN loss or gradient; `_in_a_row`: the newest ones.
        races_refused: races or fragments with infinite or NaN numbers, likewise.
        weights_age_s: by collector, weights' age at the end of the last race.
        maps: statistics by map name, in the order of first races.
        reference_times: times to beat by map name.
        current_values: scheduled values in force by name.
        last_metrics: the learner's newest means by name.
        hook_figures: newest figures that hooks return with `log_pbar`, by name.
    """

    clock: Callable[[], float] = time.monotonic
    ends_at_s: float = math.inf
    frames_total: int = 0
    races_total: int = 0
    agent: CountsUpdates | None = None
    updates_not_finite: int = 0
    updates_not_finite_in_a_row: int = 0
    races_refused: int = 0
    races_refused_in_a_row: int = 0
    collector_restarts: int = 0
    collectors_alive: int = 0
    weights_age_s: dict[int, float] = field(default_factory=dict)
    returns: Returns = field(default_factory=Returns)
    maps: dict[str, MapStatistics] = field(default_factory=dict)
    reference_times: dict[str, MedalTimes] = field(default_factory=dict)
    replay_transitions: int = 0
    replay_capacity: int = 0
    current_values: dict[str, float] = field(default_factory=dict)
    last_metrics: dict[str, float] = field(default_factory=dict)
    hook_figures: dict[str, float] = field(default_factory=dict)
    checkpoint_time_s: float | None = None
    _updates_before: int = 0  # until there is an agent
    _earlier_sessions_s: float = 0.0
    _learner_waited_s: float = 0.0
    _collector_times_s: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    _samples: deque[_Counts] = field(default_factory=deque)

    @property
    def elapsed_s(self) -> float:
        """Time since the command started."""
        return self.clock()

    @property
    def updates_total(self) -> int:
        """The agent's updates."""
        return self._updates_before if self.agent is None else self.agent.updates

    @property
    def left_s(self) -> float:
        """Time until the run's latest end."""
        return max(0.0, self.ends_at_s - self.clock())

    @property
    def is_custom_env(self) -> bool:
        """True if a custom environment is played."""
        return any(history.is_custom_env for history in self._histories())

    @property
    def races_finished_total(self) -> int:
        """Races that count and reached the finish."""
        return sum(history.n_finished for history in self._histories())

    @property
    def training_s(self) -> float:
        """Time for the whole run, earlier sessions included."""
        return self._earlier_sessions_s + self.clock()

    def add(self, race: Race) -> None:
        """Count the new actions in a rewarded race or fragment, and race and return when the race has ended.

        A race that is no result (`RaceFacts.counts`) adds to the totals only.
        """
        facts = race.facts
        if facts.collector not in self._collector_times_s:
            log.info("collector %d: the first race has arrived", facts.collector)
        self._add_collector_time(facts)
        if facts.weights_age_s is not None:
            self.weights_age_s[facts.collector] = facts.weights_age_s
        self.frames_total += race.n_actions - facts.new.n_actions_before
        if facts.is_under_way:
            return
        self.races_total += 1
        if not facts.counts:
            return
        assert race.rewards is not None
        history = self.maps.setdefault(facts.map_name, MapStatistics()).history(facts.is_explo)
        history.add(facts)
        sum_of_rewards = float(race.rewards.sum(dtype=np.float64))
        for returns in (self.returns, history.returns):
            returns.add(sum_of_rewards, race.n_actions)

    def observe(self, *, learner_waited_s: float, replay_transitions: int, replay_capacity: int) -> None:
        """Note the learner's counts, at least every few seconds."""
        self.replay_transitions = replay_transitions
        self.replay_capacity = replay_capacity
        self._learner_waited_s = learner_waited_s
        now = self._counts()
        if not self._samples or now[0] - self._samples[-1][0] >= SAMPLE_INTERVAL_S:
            self._samples.append(now)
        while len(self._samples) > 1 and now[0] - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()

    def _add_collector_time(self, facts: RaceFacts) -> None:
        """Add the time between two races, and the part spent waiting for a free slot."""
        times_s = self._collector_times_s.setdefault(facts.collector, deque(maxlen=RECENT_RACES))
        times_s.append((facts.waited_s, facts.elapsed_s))

    @property
    def waiting_shares(self) -> dict[int, float]:
        """Time share, 0 to 1, that each collector waited over its recent races."""
        shares = {}
        for collector, times_s in sorted(self._collector_times_s.items()):
            waited_s, elapsed_s = (sum(column) for column in zip(*times_s, strict=True))
            shares[collector] = waited_s / elapsed_s if elapsed_s > 0 else 0.0
        return shares

    @property
    def collectors_waiting_share(self) -> float:
        """Collectors' mean waiting share, 0 to 1."""
        return statistics.fmean(self.waiting_shares.values()) if self._collector_times_s else 0.0

    def checkpoint_written(self, ago_s: float = 0.0) -> None:
        """Note the newest checkpoint's time."""
        self.checkpoint_time_s = self.clock() - ago_s

    def rates(self) -> Rates:
        """Return the rates; 0 in the first second."""
        now = self._counts()
        first = self._samples[0] if self._samples else now
        seconds, *counts = (count - before for count, before in zip(now, first, strict=True))
        if seconds < SAMPLE_INTERVAL_S:
            return Rates(0.0, 0.0, 0.0, 0.0)
        actions, races, batches, waited_s = counts
        return Rates(actions / seconds, races / seconds, batches / seconds, min(1.0, waited_s / seconds))

    def map_rows(self) -> list[dict[str, Any]]:
        """Return rows by map and kind, for the first `MOST_MAPS` maps."""
        return [
            {"map": name, "kind": RACE_KINDS[kind], **history.row()}
            for name, of_map in list(self.maps.items())[:MOST_MAPS]
            for kind, history in of_map.kinds.items()
            if history.n_races > 0
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the figures that a resumed run needs, as plain values."""
        return {name: getattr(self, name) for name in _SAVED} | {
            "training_s": self.training_s,
            "returns": self.returns.state_dict(),
            "maps": {
                name: {kind: history.state_dict() for kind, history in of_map.kinds.items()}
                for name, of_map in self.maps.items()
            },
        }

    def load_totals(self, figures: Mapping[str, float]) -> None:
        """Load the totals in a run's status, which are shown until a checkpoint is loaded."""
        self.frames_total = int(figures.get("frames_total", 0))
        self.races_total = int(figures.get("races_total", 0))
        self._updates_before = int(figures.get("updates_total", 0))
        self._earlier_sessions_s = figures.get("training_seconds_total", 0.0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the figures."""
        for name in _SAVED:
            setattr(self, name, state[name])
        self._earlier_sessions_s = state["training_s"]
        self.returns.load_state_dict(state["returns"])
        maps = {}
        for name, kinds in state["maps"].items():
            of_map = maps[name] = MapStatistics()
            for kind, history in of_map.kinds.items():
                history.load_state_dict(kinds[kind])
        self.maps = maps  # at once: the terminal view may be drawn in another thread meanwhile
        self._samples.clear()

    def _histories(self) -> list[RaceHistory]:
        return [history for of_map in self.maps.values() for history in of_map.kinds.values()]

    def _counts(self) -> _Counts:
        return self.clock(), self.frames_total, self.races_total, self.updates_total, self._learner_waited_s


_SAVED: Final = ("frames_total", "races_total", "updates_not_finite", "races_refused")
