"""Counts of races, the position of each collector, and the line of each race in races.jsonl."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from tensordict import TensorDictBase

from trackmania_rl.errors import UserError
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.progress import CollectorProgress, RacePosition, RaceUnderWay
from trackmania_rl.schedules import exponential
from trackmania_rl.seeds import set_stream_state
from trackmania_rl.telemetry.figures import cycle_figures
from trackmania_rl.telemetry.race_record import UNDONE_FILE, CommandClock, RaceLog, RaceRecord
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.updates import FollowSchedules

log = logging.getLogger(__name__)

POSITION: Final = ("number", "place", "generator", "generator_number", "game", "frames_total")
COUNTS: Final = ("n_actions", "n_transitions")
DECISIONS: Final = ("actions", "is_greedy", "q_values")
"""Kept attributes of a race under way: of its position, of itself, and of its decisions."""


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
        """Count an update at once: a run may end after so many."""
        self.run.statistics.batches_total = self.run.agent.updates

    def tick(self) -> None:
        """Copy the counts of agent, memory and channels."""
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
        """Return totals of the map cycle, and rates that depend on settings."""
        settings, rates = self.run.settings, self.run.statistics.rates()
        return cycle_figures(self.run.statistics, settings.game.map_cycle) | {
            "train/speed/times_real_time": rates.actions_per_s * settings.game.ms_per_action / 1000,
            "train/speed/transitions_per_s": rates.batches_per_s * settings.replay.batch_size,
        }

    def end(self) -> None:
        """Copy the counts a last time."""
        self.tick()

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return self.run.statistics.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the statistics."""
        self.run.statistics.load_state_dict(state_dict)


class WriteRaceLog(Hook):
    """Writes a line of races.jsonl for each race.

    Args:
        races: has the race.
        clock: seconds since the start of the command.
        disk: checks for space.
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
                statistics = self.run.statistics
                means = statistics.last_metrics.items()
                learning = {f"train/{name}": value for name, value in means if math.isfinite(value)}
                self._log.write(self._races.record, statistics.frames_total, learning)

    def end(self) -> None:
        """Close the file."""
        if self._log is not None:
            with self._disk.surviving():
                self._log.close()


class FollowCollectors(Hook):
    """Keeps each collector's progress in the run, for restarts of collectors, and in checkpoints."""

    takes_fragments = True

    def batch_process(self, _: TensorDictBase) -> None:
        """Note the position of the race or fragment. A demonstration has none."""
        race, progress = self.run.race, self.run.progress
        assert race is not None
        if race.position is None:
            return
        before = progress.get(race.collector, CollectorProgress())
        after, number = before.after(race.position), race.position.number
        if race.is_under_way and race.fragment is not None and race.position.last_decision is not None:
            under_way = RaceUnderWay.after(
                before.under_way.get(number), race.position, race.fragment, race.rollout_results
            )
            after = replace(after, under_way={**after.under_way, number: under_way})
        progress[race.collector] = after

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of each collector."""
        return {
            "collectors": {
                number: {
                    **progress.state_dict(),
                    "under_way": {number: _state_of(race) for number, race in progress.under_way.items()},
                }
                for number, progress in self.run.progress.items()
            }
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the progress.

        Raises:
            KeyError or ValueError: if it is malformed.
        """
        self.run.progress.clear()
        for number, state in state_dict["collectors"].items():
            progress = CollectorProgress.of_state(state)
            for stream in progress.streams.values():
                set_stream_state(np.random.default_rng(), stream)
            under_way = {int(number): _race_of(race) for number, race in state["under_way"].items()}
            self.run.progress[int(number)] = replace(progress, under_way=under_way)


def _state_of(race: RaceUnderWay) -> dict[str, Any]:
    """Return a race under way as plain values and tensors."""
    position, decisions = race.position, race.decisions
    return {
        **{name: getattr(position, name) for name in POSITION},
        **{name: getattr(race, name) for name in COUNTS},
        **{name: torch.from_numpy(np.ascontiguousarray(getattr(decisions, name))) for name in DECISIONS},
    }


def _race_of(state: Mapping[str, Any]) -> RaceUnderWay:
    """Return the race of which `_state_of` returned the state."""
    return RaceUnderWay(
        position=RacePosition(**{name: state[name] for name in POSITION}),
        decisions=BatchDecision(**{name: state[name].numpy() for name in DECISIONS}),
        **{name: state[name] for name in COUNTS},
    )
