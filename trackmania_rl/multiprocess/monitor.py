"""All of a run that is not learning itself: figures, files, pictures, checkpoints, and the edited configuration."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.checkpoints import CheckpointError, RunFolder, load_checkpoint, save_best_run, save_checkpoint
from trackmania_rl.multiprocess.learner import Learning
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.multiprocess.rollout_transport import ReceivedRollout
from trackmania_rl.schedules import exponential
from trackmania_rl.simulator.track_generator import TrackRecipe, generate_track
from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord
from trackmania_rl.telemetry.racing_line import draw_racing_line
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.tensorboard_writer import TensorboardWriter

log = logging.getLogger(__name__)

DISK_IS_TRIED_EVERY_S: Final = 60.0
"""How often at most it is told that the disk fails, and tensorboard's file is begun anew."""


class Interval:
    """Says when something that is done every so often is due."""

    def __init__(self, *, is_due_at_first: bool = False) -> None:
        self._last_s = -math.inf if is_due_at_first else time.monotonic()

    def is_due(self, every_s: float) -> bool:
        """Whether `every_s` seconds have passed since it was due last, or since it was made."""
        now_s = time.monotonic()
        if now_s - self._last_s < every_s:
            return False
        self._last_s = now_s
        return True


class RunMonitor:
    """Watches a run: `on_race` sees each race, `observe` is called after each race and whenever none is there.

    Both cost little: `observe` may be called ten times a second.

    Args:
        live: the settings in force, renewed here.
        folder: where the run's files lie.
        statistics: the run's figures, which the terminal shows.
        clock: seconds since the start of the command.
        reference_lines_m: (N, 3) points of each map's reference line, for the pictures; none for generators.
        learner_waited_s: how long the learner has waited for races.
    """

    def __init__(
        self,
        live: LiveSettings,
        folder: RunFolder,
        statistics: TrainingStatistics,
        clock: CommandClock,
        reference_lines_m: Mapping[str, npt.NDArray[np.float64]],
        learner_waited_s: Callable[[], float],
    ) -> None:
        self.statistics = statistics
        self._live = live
        self._folder = folder
        self._reference_lines_m = reference_lines_m
        self._learner_waited_s = learner_waited_s
        self._race_log = RaceLog(folder.races, clock)
        self._learning: Learning | None = None
        self._tensorboard: TensorboardWriter | None = None
        self._complaints, self._new_tensorboards = (Interval(is_due_at_first=True) for _ in range(2))
        self._latest_line: dict[str, tuple[RaceRecord, str, npt.NDArray[np.float32]]] = {}
        self._scalars, self._pictures, self._checkpoints = Interval(), Interval(), Interval()

    def attach(self, learning: Learning) -> None:
        """Take up the run that `learning` is to do, from its last checkpoint if it has one.

        Raises:
            CheckpointError: if there is a checkpoint that cannot be read, or that does not fit the configuration.
        """
        self._learning = learning
        state = load_checkpoint(self._folder.path)
        if state is not None:
            self._resume(learning, state)
        self._tensorboard = self._open_tensorboard(resumed_at_frame=self.statistics.frames_total)
        learning.publish.publish()

    def on_race(self, race: ReceivedRollout) -> None:
        """Count a race, write it down, and keep it if it is a record."""
        assert self._tensorboard is not None
        stats = race.end_race_stats
        record = RaceRecord.of_rollout(
            stats["map_name"], stats["is_explo"], race.collector, race.rollout_results, race.end_race_stats
        )
        is_record = self.statistics.add_race(record)
        self.statistics.add_collector_time(race.collector, race.waited_s, race.elapsed_s)
        with self._surviving_a_full_disk(of_tensorboard=False):
            self._race_log.write(record, self.statistics.frames_total)
        if not record.counts:
            return
        history = self.statistics.maps[record.map_name].history(record.is_explo)
        with self._surviving_a_full_disk():
            self._tensorboard.write_race(record, history, self.statistics.frames_total)
        self._latest_line[record.map_name] = (record, stats["track"], race.rollout_results["position_m"].copy())
        if is_record:
            self._keep_record(record, race)

    def observe(self) -> None:
        """Do whatever is due: figures, scalars, pictures, a checkpoint, an edited configuration."""
        self._live.refresh()
        self._take_figures()
        telemetry = self._live.current.telemetry
        if self._scalars.is_due(telemetry.tensorboard_interval_s):
            with self._surviving_a_full_disk():
                self._write_scalars()
        if self._pictures.is_due(telemetry.histogram_interval_s):
            with self._surviving_a_full_disk():
                self._write_pictures()
        if self._checkpoints.is_due(self._live.current.run.checkpoint_interval_s):
            self.try_to_save()

    def try_to_save(self) -> bool:
        """Write a checkpoint; a full disk is told and survived."""
        assert self._learning is not None
        state = {"trainer": self._learning.trainer.state_dict(), "statistics": self.statistics.state_dict()}
        try:
            save_checkpoint(self._folder.path, state, self._live.current.run.minimum_free_disk_mb)
        except CheckpointError as error:
            log.error("%s", error)
            return False
        self.statistics.checkpoint_written()
        return True

    def close(self) -> None:
        """Write what is left and close the files."""
        if self._tensorboard is not None:
            with self._surviving_a_full_disk():
                self._write_scalars()
                self._write_pictures()
            with self._surviving_a_full_disk():
                self._tensorboard.close()
        with self._surviving_a_full_disk(of_tensorboard=False):
            self._race_log.close()

    def _open_tensorboard(self, resumed_at_frame: int = 0) -> TensorboardWriter:
        map_names = dict.fromkeys(entry.map_name for entry in self._live.current.game.map_cycle)
        return TensorboardWriter(self._folder.tensorboard, map_names, resumed_at_frame, self.statistics.reference_times)

    @contextlib.contextmanager
    def _surviving_a_full_disk(self, *, of_tensorboard: bool = True) -> Iterator[None]:
        """Go on without the lines or figures that cannot be written; it is told now and then."""
        try:
            yield
        except OSError as error:
            if self._complaints.is_due(DISK_IS_TRIED_EVERY_S):
                log.error("races.jsonl or tensorboard's file cannot be written: %s; the run goes on", error.strerror)
            # After an error tensorboard's writer never writes again, so there has to be another one.
            if of_tensorboard and self._has_space() and self._new_tensorboards.is_due(DISK_IS_TRIED_EVERY_S):
                with contextlib.suppress(OSError):  # the disk may have filled up again
                    self._tensorboard = self._open_tensorboard()

    def _has_space(self) -> bool:
        least_bytes = self._live.current.run.minimum_free_disk_mb << 20
        return shutil.disk_usage(self._folder.path).free >= least_bytes

    def _resume(self, learning: Learning, state: dict[str, Any]) -> None:
        try:
            learning.load_state_dict(state["trainer"])
            self.statistics.load_state_dict(state["statistics"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"{self._folder.checkpoint} does not fit this configuration: {reason[:300]}; undo the change in "
                f"{self._folder.config}, or begin a new run under another run_name"
            ) from error
        log.info("resumed %s at frame %s", self._folder.path, f"{self.statistics.frames_total:,}")

    def _keep_record(self, record: RaceRecord, race: ReceivedRollout) -> None:
        try:
            save_best_run(
                self._folder.best_runs,
                record.map_name,
                record.race_time_ms,
                race.end_race_stats["inputs"],
                race.rollout_results["q_values"],
                self._folder.config,
            )
        except CheckpointError as error:
            log.error("%s", error)

    def _take_figures(self) -> None:
        assert self._learning is not None
        learning, settings, frames = self._learning, self._live.current, self.statistics.frames_total
        self.statistics.observe(
            batches_total=learning.learner.updates,
            learner_waited_s=self._learner_waited_s(),
            replay_transitions=len(learning.buffer) + len(learning.buffer_test),
            replay_capacity=learning.buffer.ring.capacity,
        )
        self.statistics.current_values = {
            "epsilon": exponential(settings.exploration.epsilon_schedule, frames),
            "epsilon_boltzmann": exponential(settings.exploration.epsilon_boltzmann_schedule, frames),
            "learning_rate": learning.schedules.learning_rate,
            "gamma": learning.buffer.rules.gamma,
        }

    def _write_scalars(self) -> None:
        assert self._learning is not None
        assert self._tensorboard is not None
        means = self._learning.stepper.take_means()
        if self._learning.test_loss.test_loss is not None:
            means["test_loss"] = self._learning.test_loss.test_loss
        self.statistics.last_metrics |= means
        self._tensorboard.write_progress(self.statistics, means)
        self._tensorboard.flush()

    def _write_pictures(self) -> None:
        assert self._learning is not None
        assert self._tensorboard is not None
        frames = self.statistics.frames_total
        self._tensorboard.write_histograms(self._learning.learner.online.named_parameters(), frames)
        for map_name, (record, track, positions_m) in self._latest_line.items():
            line_m = self._line_m(map_name, track)
            if line_m is None:
                continue
            result = f"{record.race_time_ms / 1000:.2f} s" if record.race_finished else f"{record.meters:.0f} m"
            picture = draw_racing_line(
                line_m,
                positions_m,
                self._live.current.game.ms_per_action,
                title=f"{map_name}: {result} ({record.kind})",
                subtitle=f"{track}, {frames:,} frames",
                road_width_m=20.0,
            )
            self._tensorboard.write_racing_line(map_name, picture, frames)

    def _line_m(self, map_name: str, track: str) -> npt.NDArray[np.float64] | None:
        """The reference line of a race's track; None for a map that was added to the cycle while the run went on."""
        if map_name in self._reference_lines_m:
            return self._reference_lines_m[map_name]
        recipe = TrackRecipe.from_name(track)
        return None if recipe is None else generate_track(recipe).laid_out.line_m.astype(np.float64)
