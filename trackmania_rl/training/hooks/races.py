"""What is kept of each race: counts, a line in races.jsonl, and records."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from trackmania_rl.errors import UserError
from trackmania_rl.runs import save_best_run
from trackmania_rl.runs.driver_file import ENDING, DriverTrack, write_driver
from trackmania_rl.schedules import exponential
from trackmania_rl.telemetry.cycle_figures import cycle_figures
from trackmania_rl.telemetry.race_record import UNDONE_FILE, CommandClock, RaceLog, RaceRecord
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.kept_drivers import driver_now
from trackmania_rl.training.hooks.schedules import FollowSchedules

log = logging.getLogger(__name__)


class CountRaces(Hook):
    """Keeps the run's statistics.

    Args:
        schedules: has the learning rate.

    Attributes:
        record: the race that has come in last.
        is_best: whether it is its map's fastest finish.
    """

    record: RaceRecord
    takes_fragments = True

    def __init__(self, schedules: FollowSchedules) -> None:
        self._schedules = schedules
        self.is_best = False

    def batch_process(self, batch: TensorDictBase) -> None:
        """Count the actions that have come in, and a race and its return when it ends."""
        race, statistics = self.run.race, self.run.statistics
        assert race is not None
        if race.collector not in statistics.collectors:
            log.info("collector %d: the first race has come in", race.collector)
        statistics.add_collector_time(race.collector, race.waited_s, race.elapsed_s)
        if (age_s := race.weights_age_s) is not None:
            statistics.weights_age_s[race.collector] = age_s
        n_actions_before = 0 if race.fragment is None else race.fragment.n_actions_before
        if race.is_under_way:
            statistics.frames_total += len(batch) - n_actions_before
            return
        stats = race.end_race_stats
        self.record = RaceRecord.of_rollout(
            stats["map_name"], stats["is_explo"], race.collector, race.rollout_results, stats
        )
        self.is_best = statistics.add_race(self.record, n_counted_actions=n_actions_before)
        sum_of_rewards = float(batch["next", "reward"].numpy().sum(dtype=np.float64))
        if not stats.get("is_demonstration", False) and math.isfinite(sum_of_rewards):
            statistics.add_return(stats["map_name"], stats["is_explo"], sum_of_rewards, len(batch))

    def begin(self) -> None:
        """Count the updates that the run has had."""
        self.post_optim()

    def post_optim(self) -> None:
        """Count an update at once, as a run may end after so many."""
        self.run.statistics.batches_total = self.run.agent.updates

    def tick(self) -> None:
        """Take over the counts that others keep."""
        run, settings, memory = self.run, self.run.settings, self.run.memory
        frames = self.trainer.collected_frames
        run.statistics.observe(
            batches_total=run.agent.updates,
            learner_waited_s=run.channels.rollouts.waited_s,
            replay_transitions=len(memory),
            replay_capacity=memory.capacity or 0,
        )
        run.statistics.rollouts_left_out = run.channels.rollouts.left_out
        run.statistics.current_values = {
            "epsilon": exponential(settings.exploration.epsilon_schedule, frames),
            "epsilon_boltzmann": exponential(settings.exploration.epsilon_boltzmann_schedule, frames),
            "learning_rate": self._schedules.learning_rate,
            "gamma": self._schedules.gamma,
        }

    def interval_figures(self) -> dict[str, float]:
        """Totals of the map cycle, and rates that depend on settings."""
        settings, rates = self.run.settings, self.run.statistics.rates()
        return cycle_figures(self.run.statistics, settings.game.map_cycle) | {
            "train/speed/times_real_time": rates.actions_per_s * settings.game.ms_per_action / 1000,
            "train/speed/transitions_per_s": rates.batches_per_s * settings.replay.batch_size,
        }

    def end(self) -> None:
        """Take them over a last time."""
        self.tick()

    def state_dict(self) -> dict[str, Any]:
        """The statistics."""
        return self.run.statistics.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the statistics."""
        self.run.statistics.load_state_dict(state_dict)


class WriteRaceLog(Hook):
    """Writes a line of races.jsonl for each race.

    Args:
        races: has the race.
        clock: seconds since the start of the command.
        disk: has space, or not.
    """

    def __init__(self, races: CountRaces, clock: CommandClock, disk: DiskWatch) -> None:
        self._races = races
        self._clock = clock
        self._disk = disk
        self._log: RaceLog | None = None

    def begin(self) -> None:
        """Open the file for more lines, once those are moved away that came after the run's checkpoint.

        Raises:
            UserError: if the disk fails.
        """
        file, frames_total = self.run.folder.races, self.run.statistics.frames_total
        try:
            self._log = RaceLog(file, self._clock, self.run.session, frames_total)
        except OSError as error:
            raise UserError(f"{file} cannot be written to: {error.strerror}; free some space, or mend it") from error
        if self._log.n_undone > 0:
            log.info(
                "%d races that came after the checkpoint are undone; their lines are in %s",
                self._log.n_undone,
                UNDONE_FILE,
            )

    def batch_process(self, _: TensorDictBase) -> None:
        """Write a race."""
        assert self._log is not None
        if not self._disk.is_short:
            with self._disk.surviving():
                self._log.write(self._races.record, self.run.statistics.frames_total)

    def end(self) -> None:
        """Close the file."""
        if self._log is not None:
            with self._disk.surviving():
                self._log.close()


class KeepRecords(Hook):
    """Keeps the inputs and Q values of each map's best race in best_runs/, and the network that drove it.

    Newer weights come in while a race is driven: what is kept is the network, explored or evaluated, at its end. Only
    the best race of a map has one: an older record's is deleted. A record that came after the checkpoint from which a
    run goes on stays a record, although the run does not count it any more.

    Args:
        races: says which race is the best.
    """

    def __init__(self, races: CountRaces) -> None:
        self._races = races
        self._kept_ms: dict[str, int] = {}

    def begin(self) -> None:
        """Look for the records that are there."""
        for folder in self.run.folder.best_runs.glob("[!.]*"):
            map_name, _, time_ms = folder.name.rpartition("_")
            if time_ms.isdecimal():
                self._kept_ms[map_name] = min(int(time_ms), self._kept_ms.get(map_name, int(time_ms)))

    def batch_process(self, _: TensorDictBase) -> None:
        """Keep the race, if it is a record; a disk that fails is told."""
        race, record, folder = self.run.race, self._races.record, self.run.folder
        assert race is not None
        if not (self._races.is_best and record.counts):
            return
        if record.race_time_ms > self._kept_ms.get(record.map_name, record.race_time_ms):
            return
        self._kept_ms[record.map_name] = record.race_time_ms
        try:
            kept = save_best_run(
                folder.best_runs,
                record.map_name,
                record.race_time_ms,
                race.end_race_stats["inputs"],
                race.rollout_results["q_values"],
                folder.config,
            )
            self._keep_driver(kept, record)
        except UserError as error:
            log.error("%s", error)

    def _keep_driver(self, folder: Path, record: RaceRecord) -> None:
        run = self.run
        entry = next((entry for entry in run.settings.game.map_cycle if entry.map_name == record.map_name), None)
        if entry is None:  # an edit took the map away while it was driven
            return
        network = run.agent.exploration_network if record.is_explo else run.agent.evaluation_network
        driver = driver_now(folder.name, run, network, [DriverTrack.of_entry(entry, record.race_time_ms)])
        write_driver(folder / f"{folder.name}{ENDING}", driver, run.settings.run.minimum_free_disk_mb)
        of_map = re.compile(rf"{re.escape(record.map_name)}_\d+")
        for older in folder.parent.glob(f"*/*{ENDING}"):
            if older.parent != folder and of_map.fullmatch(older.stem):
                older.unlink(missing_ok=True)
