"""Counts of races, the position of each collector, and the line of each race in races.jsonl."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from trackmania_rl.errors import UserError
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.seeds import set_stream_state
from trackmania_rl.telemetry.figures import cycle_figures
from trackmania_rl.telemetry.race_record import UNDONE_FILE, CommandClock, RaceLog, RaceRecord
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class CountRaces(Hook):
    """Keeps the run's statistics, and makes the record of each race."""

    takes_fragments = True

    def batch_process(self, batch: TensorDictBase) -> None:
        """Count the new actions, and a race and its return when it ends."""
        race, statistics = self.run.race, self.run.statistics
        if race.collector not in statistics.waiting_shares:
            log.info("collector %d: the first race has arrived", race.collector)
        statistics.add_collector_time(race.collector, race.waited_s, race.elapsed_s)
        if (age_s := race.weights_age_s) is not None:
            statistics.weights_age_s[race.collector] = age_s
        n_actions_before = 0 if race.fragment is None else race.fragment.n_actions_before
        if race.is_under_way:
            statistics.frames_total += len(batch) - n_actions_before
            return
        stats = race.end_race_stats
        self.run.record = record = RaceRecord.of_rollout(
            stats["map_name"], stats["is_explo"], race.collector, race.rollout_results, stats
        )
        statistics.add_race(record, n_counted_actions=n_actions_before)
        if record.counts:
            sum_of_rewards = float(batch["next", "reward"].numpy().sum(dtype=np.float64))
            statistics.add_return(record.map_name, record.is_explo, sum_of_rewards, len(batch))

    def begin(self) -> None:
        self.post_optim()

    def post_optim(self) -> None:
        """Count an update at once, because a run may end after a number of updates."""
        self.run.statistics.batches_total = self.run.agent.updates

    def tick(self) -> None:
        run = self.run
        run.statistics.observe(
            batches_total=run.agent.updates,
            learner_waited_s=run.channels.rollouts.waited_s,
            replay_transitions=len(run.memory),
            replay_capacity=run.memory.capacity or 0,
        )

    def interval_figures(self) -> dict[str, float]:
        """Return totals of the map cycle, rates that depend on settings, and the number of refused races."""
        settings, statistics = self.run.settings, self.run.statistics
        rates = statistics.rates()
        return cycle_figures(statistics, settings.game.map_cycle) | {
            "train/speed/times_real_time": rates.actions_per_s * settings.game.ms_per_action / 1000,
            "train/speed/transitions_per_s": rates.batches_per_s * settings.replay.batch_size,
            "train/total/races_refused": float(statistics.races_refused),
        }

    def end(self) -> None:
        self.tick()

    def state_dict(self) -> dict[str, Any]:
        return self.run.statistics.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.run.statistics.load_state_dict(state_dict)


class WriteRaceLog(Hook):
    """Writes a line of races.jsonl for each race."""

    def __init__(self, clock: CommandClock) -> None:
        self._clock = clock
        self._log: RaceLog | None = None

    def begin(self) -> None:
        """Open the file. Lines of races after the run's checkpoint are moved away."""
        file = self.run.folder.races
        try:
            self._log = RaceLog(file, self._clock, self.run.session, self.run.statistics.frames_total)
        except OSError as error:
            raise UserError(f"{file} cannot be written to: {error.strerror}; free some space, or mend it") from error
        if self._log.n_undone > 0:
            log.info(
                "%d races that came after the checkpoint are undone; their lines are in %s",
                self._log.n_undone,
                UNDONE_FILE,
            )

    def batch_process(self, _: TensorDictBase) -> None:
        assert self._log is not None
        statistics = self.run.statistics
        means = statistics.last_metrics.items()
        learning = {f"train/{name}": value for name, value in means if math.isfinite(value)}
        with self.trainer.surviving_disk():
            self._log.write(self.run.record, statistics.frames_total, learning)

    def end(self) -> None:
        if self._log is not None:
            with self.trainer.surviving_disk():
                self._log.close()


class FollowCollectors(Hook):
    """Keeps each collector's progress for restarts of collectors and in checkpoints."""

    takes_fragments = True

    def batch_process(self, _: TensorDictBase) -> None:
        """Note the position of the race or fragment. A demonstration has none."""
        race, progress = self.run.race, self.run.progress
        if race.position is not None:
            progress[race.collector] = progress.get(race.collector, CollectorProgress()).after(race.position)

    def state_dict(self) -> dict[str, Any]:
        return {"collectors": {collector: progress.state_dict() for collector, progress in self.run.progress.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.run.progress.clear()
        for collector, state in state_dict["collectors"].items():
            self.run.progress[int(collector)] = progress = CollectorProgress.of_state(state)
            for stream in progress.streams.values():
                set_stream_state(np.random.default_rng(), stream)  # raises if it is malformed
