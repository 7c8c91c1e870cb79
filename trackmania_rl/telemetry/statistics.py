"""The figures of a run while it goes on: counts, rates, times per map, shares of waiting."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.race_record import RaceRecord

RECENT_RACES = 10
"""Races over which recent figures are taken."""
RETURN_RACES = 100
"""Races over which mean returns and lengths are taken, as in Stable-Baselines3."""
RATE_WINDOW_S = 30.0
"""Time over which rates are taken."""
SAMPLE_INTERVAL_S = 1.0
"""Time between two samples of the counts in that window."""


class Returns:
    """Returns and lengths (actions) of the last `n_races` races."""

    def __init__(self, n_races: int = RETURN_RACES) -> None:
        """Starts without a race."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=n_races)

    def add(self, sum_of_rewards: float, n_actions: int) -> None:
        """Add a race."""
        self._recent.append((sum_of_rewards, n_actions))

    @property
    def mean_return(self) -> float:
        """Mean return; 0 before the first race."""
        return statistics.fmean(value for value, _ in self._recent) if self._recent else 0.0

    @property
    def mean_length(self) -> float:
        """Mean number of actions; 0 before the first race."""
        return statistics.fmean(n_actions for _, n_actions in self._recent) if self._recent else 0.0

    def figures(self) -> dict[str, float]:
        """Return both means by Stable-Baselines3's names; empty before the first race."""
        return {"ep_rew_mean": self.mean_return, "ep_len_mean": self.mean_length} if self._recent else {}

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {"recent": [list(race) for race in self._recent]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; earlier versions counted no returns."""
        self._recent.clear()
        self._recent.extend((float(value), int(n_actions)) for value, n_actions in state.get("recent", ()))


class RaceHistory:
    """The races of one map and one kind, explored or evaluated.

    Attributes:
        n_races: all races.
        n_finished: how many reached the finish.
        is_one_track: whether all races were on one track; else their times compare with no others.
        best_time_ms: the fastest finish, None before the first; always None if there are several tracks.
        last_time_ms: the last race's time, None if it was not finished.
        furthest_m: the largest distance reached.
        last_m: the last race's distance.
        progress_unit: of these two, see `RaceRecord`.
        recent: returns and lengths of an own environment's episodes, over as many as the other recent figures.
        returns: of the last `RETURN_RACES` races.
    """

    def __init__(self) -> None:
        """Starts without a race."""
        self.returns = Returns()
        self.n_races = 0
        self.n_finished = 0
        self.is_one_track = True
        self.best_time_ms: int | None = None
        self.last_time_ms: int | None = None
        self.furthest_m = 0.0
        self.last_m = 0.0
        self.progress_unit = "m"
        self.recent = Returns(RECENT_RACES)
        self._recent_times_ms: deque[int | None] = deque(maxlen=RECENT_RACES)

    def add(self, race: RaceRecord) -> bool:
        """Counts a race; returns whether it is the fastest finish so far."""
        self.n_races += 1
        self.is_one_track = not race.is_generated
        self.progress_unit = race.progress_unit
        self.last_m = race.meters
        self.recent.add(race.meters, race.n_actions)
        self.furthest_m = race.meters if self.n_races == 1 else max(self.furthest_m, race.meters)
        self.last_time_ms = race.race_time_ms if race.race_finished else None
        self._recent_times_ms.append(self.last_time_ms)
        if self.last_time_ms is None:
            return False
        self.n_finished += 1
        if not self.is_one_track:
            return False
        is_best = self.best_time_ms is None or self.last_time_ms < self.best_time_ms
        if is_best:
            self.best_time_ms = self.last_time_ms
        return is_best

    @property
    def is_own(self) -> bool:
        """Whether these are episodes of a user's own environment; see `RaceRecord`."""
        return self.progress_unit == "points"

    @property
    def n_recent(self) -> int:
        """How many races the recent figures rest on."""
        return len(self._recent_times_ms)

    @property
    def n_recent_finished(self) -> int:
        """How many of them were finished."""
        return sum(race_time_ms is not None for race_time_ms in self._recent_times_ms)

    @property
    def recent_finish_rate(self) -> float | None:
        """Share of the recent races that were finished; None before the first race."""
        return self.n_recent_finished / self.n_recent if self.n_recent else None

    @property
    def median_time_ms(self) -> float | None:
        """Median of the recent times, an unfinished race counting as slower than any; None if it is one of those.

        One lucky or one lost race hardly moves it: the robust figure for comparing runs. None for several tracks.
        """
        if not self._recent_times_ms or not self.is_one_track:
            return None
        median = statistics.median(
            float("inf") if race_time_ms is None else race_time_ms for race_time_ms in self._recent_times_ms
        )
        return None if median == float("inf") else median

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "n_races": self.n_races,
            "n_finished": self.n_finished,
            "is_one_track": self.is_one_track,
            "best_time_ms": self.best_time_ms,
            "last_time_ms": self.last_time_ms,
            "furthest_m": self.furthest_m,
            "last_m": self.last_m,
            "progress_unit": self.progress_unit,
            "recent_times_ms": list(self._recent_times_ms),
            "recent": self.recent.state_dict(),
            "returns": self.returns.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.n_races = state["n_races"]
        self.n_finished = state["n_finished"]
        self.is_one_track = state["is_one_track"]
        self.best_time_ms = state["best_time_ms"]
        self.last_time_ms = state["last_time_ms"]
        self.furthest_m = state["furthest_m"]
        self.last_m = state["last_m"]
        self.progress_unit = state.get("progress_unit", "m")
        self._recent_times_ms = deque(state["recent_times_ms"], maxlen=RECENT_RACES)
        self.recent.load_state_dict(state.get("recent", {}))
        self.returns.load_state_dict(state.get("returns", {}))


class MapStatistics:
    """One map's races, by kind."""

    def __init__(self) -> None:
        """Starts without a race."""
        self.explored = RaceHistory()
        self.evaluated = RaceHistory()

    def history(self, is_explo: bool) -> RaceHistory:
        """The races of one kind."""
        return self.explored if is_explo else self.evaluated

    @property
    def best_time_ms(self) -> int | None:
        """The fastest finish of either kind."""
        times_ms = [history.best_time_ms for history in (self.explored, self.evaluated)]
        return min((race_time_ms for race_time_ms in times_ms if race_time_ms is not None), default=None)


@dataclass(frozen=True)
class Rates:
    """How fast the run goes, over the last `RATE_WINDOW_S`.

    Attributes:
        actions_per_s: actions that arrived from all collectors.
        races_per_s: races that arrived.
        batches_per_s: batches that the learner trained on.
        learner_waiting_share: share of its time in which the learner waited for races, 0 to 1.
    """

    actions_per_s: float
    races_per_s: float
    batches_per_s: float
    learner_waiting_share: float


@dataclass(frozen=True)
class _Sample:
    time_s: float
    frames: int
    races: int
    batches: int
    learner_waited_s: float


class TrainingStatistics:
    """All figures of a run; the counts survive a restart through `state_dict`.

    Attributes:
        frames_total: actions driven in the whole run.
        races_total: races driven in the whole run.
        batches_total: batches trained on in the whole run.
        updates_not_finite: how many of them had a loss or a gradient that is infinite or no number.
        updates_not_finite_in_a_row: the last so many of them.
        collector_restarts: collectors that were started again in this session.
        collectors_alive: collectors that run.
        races_refused: races of the whole run, or fragments, that were not learned from for numbers that are not finite.
        races_refused_in_a_row: the last so many of them, in this session.
        weights_age_s: how old the weights of each collector's last race were at its end: the time since they had come.
        rollouts_left_out: what was on its way and was not received in this session, by why; see `RolloutSource`.
        returns: of the recent races that count, of all maps and both kinds.
        maps: statistics by map name, in the order in which the maps were first driven.
        reference_times: times to beat by map name, for the maps that have any.
        replay_transitions: what the replay memory holds now.
        replay_capacity: what it can hold.
        current_values: scheduled values in force now (epsilon, learning rate, gamma...), by name.
        last_metrics: the learner's newest means (loss...), by name.
        hook_figures: newest figures that hooks return with `log_pbar`, by name.
        ends_at_s: when the run ends at the latest, on the clock; infinity where nothing says so.
        checkpoint_time_s: when the last checkpoint was written, on the clock; negative if before this session; None
            before the first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, ends_at_s: float = math.inf) -> None:
        """Starts counting.

        Args:
            clock: gives seconds; `CommandClock` in a run.
            ends_at_s: when the run ends at the latest, on the clock; infinity where nothing says so.
        """
        self.frames_total = 0
        self.races_total = 0
        self.batches_total = 0
        self.updates_not_finite = 0
        self.updates_not_finite_in_a_row = 0
        self.races_refused = 0
        self.races_refused_in_a_row = 0
        self.collector_restarts = 0
        self.collectors_alive = 0
        self.weights_age_s: dict[int, float] = {}
        self.rollouts_left_out: Mapping[str, int] = {}
        self.returns = Returns()
        self.maps: dict[str, MapStatistics] = {}
        self.reference_times: dict[str, MedalTimes] = {}
        self.replay_transitions = 0
        self.replay_capacity = 0
        self.current_values: dict[str, float] = {}
        self.last_metrics: dict[str, float] = {}
        self.hook_figures: dict[str, float] = {}
        self.ends_at_s = ends_at_s
        self.checkpoint_time_s: float | None = None
        self._clock = clock
        self._earlier_sessions_s = 0.0
        self._learner_waited_s = 0.0
        self._collector_times_s: dict[int, deque[tuple[float, float]]] = {}
        self._samples: deque[_Sample] = deque()

    @property
    def elapsed_s(self) -> float:
        """Time since the start of the command."""
        return self._clock()

    @property
    def left_s(self) -> float:
        """Time until the run ends at the latest; infinity where nothing says so."""
        return max(0.0, self.ends_at_s - self._clock())

    @property
    def is_own(self) -> bool:
        """Whether a user's own environment is played; False before its first episode."""
        kinds = [kind for of_map in self.maps.values() for kind in (of_map.explored, of_map.evaluated)]
        return any(history.is_own for history in kinds)

    @property
    def races_finished_total(self) -> int:
        """Races of the whole run that count and reached the finish."""
        return sum(of_map.explored.n_finished + of_map.evaluated.n_finished for of_map in self.maps.values())

    @property
    def training_s(self) -> float:
        """Time of the whole run, earlier sessions included."""
        return self._earlier_sessions_s + self._clock()

    def add_race(self, race: RaceRecord, n_counted_actions: int = 0) -> bool:
        """Counts a race; returns whether it is its map's fastest finish of either kind.

        One that does not count as a result (`RaceRecord.counts`) adds to the totals only.

        Args:
            race: which is over.
            n_counted_actions: so many of its actions are in `frames_total` already, as they came in while it went on.
        """
        self.frames_total += race.n_actions - n_counted_actions
        self.races_total += 1
        if not race.counts:
            return False
        of_map = self.maps.setdefault(race.map_name, MapStatistics())
        best_before_ms = of_map.best_time_ms
        is_best_of_kind = of_map.history(race.is_explo).add(race)
        return is_best_of_kind and (best_before_ms is None or race.race_time_ms < best_before_ms)

    def add_return(self, map_name: str, is_explo: bool, sum_of_rewards: float, n_actions: int) -> None:
        """Adds a race's sum of rewards and its length."""
        history = self.maps.setdefault(map_name, MapStatistics()).history(is_explo)
        for returns in (self.returns, history.returns):
            returns.add(sum_of_rewards, n_actions)

    def observe(
        self, *, batches_total: int, learner_waited_s: float, replay_transitions: int, replay_capacity: int
    ) -> None:
        """Takes over the counts that others keep; call it often, at least every few seconds.

        Args:
            batches_total: batches trained on in the whole run.
            learner_waited_s: time in which the learner waited for races, since the start of the command.
            replay_transitions: what the replay memory holds.
            replay_capacity: what it can hold.
        """
        self.batches_total = batches_total
        self.replay_transitions = replay_transitions
        self.replay_capacity = replay_capacity
        self._learner_waited_s = learner_waited_s
        now = self._now()
        if not self._samples or now.time_s - self._samples[-1].time_s >= SAMPLE_INTERVAL_S:
            self._samples.append(now)
        while len(self._samples) > 1 and now.time_s - self._samples[0].time_s > RATE_WINDOW_S:
            self._samples.popleft()

    def add_collector_time(self, collector: int, waited_s: float, elapsed_s: float) -> None:
        """Adds a race's time between two rollouts of a collector, and how much of it was waiting for a free slot."""
        times_s = self._collector_times_s.setdefault(collector, deque(maxlen=RECENT_RACES))
        times_s.append((waited_s, elapsed_s))

    def collector_waiting_share(self, collector: int) -> float:
        """Share of its time that a collector waited over its recent races, 0 to 1."""
        times_s = self._collector_times_s.get(collector, ())
        elapsed_s = sum(elapsed_s for _, elapsed_s in times_s)
        return sum(waited_s for waited_s, _ in times_s) / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def collectors(self) -> tuple[int, ...]:
        """The collectors that sent races."""
        return tuple(sorted(self._collector_times_s))

    @property
    def collectors_waiting_share(self) -> float:
        """The collectors' mean share of waiting, 0 to 1."""
        shares = [self.collector_waiting_share(collector) for collector in self._collector_times_s]
        return statistics.fmean(shares) if shares else 0.0

    def checkpoint_written(self, ago_s: float = 0.0) -> None:
        """Notes when the newest checkpoint was written."""
        self.checkpoint_time_s = self._clock() - ago_s

    def rates(self) -> Rates:
        """The rates now; 0 in the first second after `observe` was first called."""
        now = self._now()
        first = self._samples[0] if self._samples else now
        seconds = now.time_s - first.time_s
        if seconds < SAMPLE_INTERVAL_S:
            return Rates(0.0, 0.0, 0.0, 0.0)
        return Rates(
            actions_per_s=(now.frames - first.frames) / seconds,
            races_per_s=(now.races - first.races) / seconds,
            batches_per_s=(now.batches - first.batches) / seconds,
            learner_waiting_share=min(1.0, (now.learner_waited_s - first.learner_waited_s) / seconds),
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with, as plain values."""
        return {
            "frames_total": self.frames_total,
            "races_total": self.races_total,
            "training_s": self.training_s,
            "updates_not_finite": self.updates_not_finite,
            "races_refused": self.races_refused,
            "returns": self.returns.state_dict(),
            "maps": {
                name: {"explored": of_map.explored.state_dict(), "evaluated": of_map.evaluated.state_dict()}
                for name, of_map in self.maps.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; rates begin from here."""
        self.frames_total = state["frames_total"]
        self.races_total = state["races_total"]
        self._earlier_sessions_s = state["training_s"]
        self.updates_not_finite = state.get("updates_not_finite", 0)  # which earlier versions did not count
        self.races_refused = state.get("races_refused", 0)
        self.returns.load_state_dict(state.get("returns", {}))
        maps = {}
        for name, kinds in state["maps"].items():
            of_map = maps[name] = MapStatistics()
            of_map.explored.load_state_dict(kinds["explored"])
            of_map.evaluated.load_state_dict(kinds["evaluated"])
        self.maps = maps  # at once: the terminal view may be drawn in another thread meanwhile
        self._samples.clear()

    def _now(self) -> _Sample:
        return _Sample(self._clock(), self.frames_total, self.races_total, self.batches_total, self._learner_waited_s)
