"""Everything about a run except learning: figures, files, pictures, checkpoints, and edits of its configuration."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.checkpoints import (
    CheckpointError,
    DiskTooFullError,
    RunFolder,
    load_checkpoint,
    read_checkpoint,
    save_best_run,
    save_checkpoint,
    save_driver,
)
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.schedules import exponential
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.telemetry.race_record import CommandClock, RaceLog, RaceRecord
from trackmania_rl.telemetry.racing_line import draw_racing_line
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.telemetry.tensorboard_writer import TensorboardWriter
from trackmania_rl.training.learner import Learning

log = logging.getLogger(__name__)

DISK_IS_TRIED_EVERY_S: Final = 60.0
"""Shortest time between two messages about a disk that fails, and between two new files of tensorboard."""
DRIVING_NETWORKS: Final = ("online", "averaged")
"""Those of the learner's state that drive: to explore, and to evaluate."""


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
    """Watches a run: `on_race` sees each race, `observe` is called several times a second, also while no race comes.

    Both cost little.

    Args:
        live: the settings in force, renewed here.
        folder: where the run's files lie.
        statistics: the run's figures, which the terminal shows.
        clock: seconds since the start of the command.
        session: how often the run was started, this time included.
        reference_lines_m: (N, 3) points of each map's reference line, for the pictures; none for generators.
        learner_waited_s: how long the learner has waited for races.
        weights_from: a run that has no checkpoint yet begins with the networks of this run or checkpoint file; None
            for random ones.
        on_attached: called when the run is taken up and nothing stands in the way of learning.
    """

    def __init__(
        self,
        live: LiveSettings,
        folder: RunFolder,
        statistics: TrainingStatistics,
        clock: CommandClock,
        session: int,
        reference_lines_m: Mapping[str, npt.NDArray[np.float64]],
        learner_waited_s: Callable[[], float],
        weights_from: Path | None = None,
        on_attached: Callable[[], None] = lambda: None,
    ) -> None:
        self.statistics = statistics
        self._live = live
        self._folder = folder
        self._reference_lines_m = reference_lines_m
        self._learner_waited_s = learner_waited_s
        self._weights_from = weights_from
        self._on_attached = on_attached
        self._race_log = RaceLog(folder.races, clock, session)
        self._learning: Learning | None = None
        self._tensorboard: TensorboardWriter | None = None
        self._complaint_due = Interval(is_due_at_first=True)
        self._new_tensorboard_due = Interval(is_due_at_first=True)
        self._latest_line: dict[str, tuple[RaceRecord, str, npt.NDArray[np.float32]]] = {}
        self._race_due: defaultdict[tuple[str, bool], Interval] = defaultdict(lambda: Interval(is_due_at_first=True))
        self._best_written_ms: dict[tuple[str, bool], int | None] = {}
        self._telemetry_waits = False  # for space on the disk
        self._scalars_due = Interval()
        self._pictures_due = Interval()
        self._checkpoint_due = Interval()
        self._driver_kept_s = 0.0  # training time of the last one

    def attach(self, learning: Learning) -> None:
        """Take up the run that `learning` is to do, from its last checkpoint if it has one.

        Raises:
            CheckpointError: if there is a checkpoint that cannot be read, or that does not fit the configuration; of
                the run itself, or of the one whose weights it is to begin with; or if its weights are not finite.
        """
        self._learning = learning
        state = load_checkpoint(self._folder.path)
        if state is not None:
            self._resume(learning, state)
            if self._weights_from is not None:
                log.warning("--weights-from is for new runs: this one goes on with the weights of its own checkpoint")
        elif self._weights_from is not None:
            self._begin_with_weights(learning, self._weights_from)
        if not _weights_are_finite(learning):
            raise CheckpointError(
                f"{self._folder.path}: the weights to begin with are not finite numbers; move checkpoint.pt away to go "
                "on from checkpoint.previous.pt, if that one is sound, or begin a new run with other weights"
            )
        self._tensorboard = self._open_tensorboard(resumed_at_frame=self.statistics.frames_total)
        self._driver_kept_s = self.statistics.training_s
        learning.publish.publish()
        self._on_attached()

    def on_race(self, race: ReceivedRollout) -> None:
        """Count a race, write it down, and keep it if it is a record."""
        assert self._tensorboard is not None
        stats = race.end_race_stats
        record = RaceRecord.of_rollout(
            stats["map_name"], stats["is_explo"], race.collector, race.rollout_results, race.end_race_stats
        )
        is_record = self.statistics.add_race(record)
        self.statistics.add_collector_time(race.collector, race.waited_s, race.elapsed_s)
        if not self._telemetry_waits:
            with self._surviving_a_full_disk(of_tensorboard=False):
                self._race_log.write(record, self.statistics.frames_total)
        if not record.counts:
            return
        self._write_race(record)
        self._latest_line[record.map_name] = (record, stats["track"], race.rollout_results["position_m"].copy())
        if is_record:
            self._keep_record(record, race)

    def observe(self) -> None:
        """Do whatever is due: figures, scalars, pictures, a checkpoint, an edited configuration.

        Raises:
            UserError: if a checkpoint is due, and the weights are no longer finite numbers.
        """
        self._live.refresh()
        self._take_figures()
        telemetry = self._live.current.telemetry
        if self._scalars_due.is_due(telemetry.tensorboard_interval_s):
            self._look_at_disk()
            with self._surviving_a_full_disk():
                self._write_scalars()
        if self._pictures_due.is_due(telemetry.histogram_interval_s):
            with self._surviving_a_full_disk():
                self._write_pictures()
        if self._checkpoint_due.is_due(self._live.current.run.checkpoint_interval_s):
            self.try_to_save()
        self._keep_driver()

    def try_to_save(self) -> bool:
        """Write a checkpoint; on a disk that is too full for the replay memory, without it. What fails is told.

        Raises:
            UserError: if the weights are no longer finite numbers; the checkpoints stay as they are.
        """
        assert self._learning is not None
        self._require_finite_weights()
        state = {"trainer": self._learning.trainer.state_dict(), "statistics": self.statistics.state_dict()}
        least_mb = self._live.current.run.minimum_free_disk_mb
        try:
            try:
                save_checkpoint(self._folder.path, state, least_mb)
            except DiskTooFullError:
                if state["trainer"]["replay"]["buffers"] is None:
                    raise
                state["trainer"]["replay"]["buffers"] = None
                save_checkpoint(self._folder.path, state, least_mb)
                log.warning("the disk is too full for the replay memory: the checkpoint is written without it")
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

    def _write_race(self, record: RaceRecord) -> None:
        """Write a race's figures if it is the fastest of its map and kind, or if none of them was written just before.

        A run may drive several races a second, for weeks: all of them would fill the disk, and no chart shows as many.
        """
        assert self._tensorboard is not None
        of_kind = record.map_name, record.is_explo
        history = self.statistics.maps[record.map_name].history(record.is_explo)
        is_due = self._race_due[of_kind].is_due(self._live.current.telemetry.tensorboard_interval_s)
        is_fastest = history.best_time_ms != self._best_written_ms.get(of_kind)
        if self._telemetry_waits or not (is_due or is_fastest):
            return
        self._best_written_ms[of_kind] = history.best_time_ms
        with self._surviving_a_full_disk():
            self._tensorboard.write_race(record, history, self.statistics.frames_total)

    def _look_at_disk(self) -> None:
        """Let races and figures wait while the disk is short of space, which belongs to the checkpoints; it is told."""
        waited, self._telemetry_waits = self._telemetry_waits, not self._has_space()
        if self._telemetry_waits and not waited:
            log.error(
                "races.jsonl and tensorboard's file wait for space: the disk has less free than a checkpoint and "
                "minimum_free_disk_mb = %d MB take; the run goes on without their lines",
                self._live.current.run.minimum_free_disk_mb,
            )
        if waited and not self._telemetry_waits:
            log.warning("races.jsonl and tensorboard's file are written again; the races in between are missing")

    def _open_tensorboard(self, resumed_at_frame: int = 0) -> TensorboardWriter:
        map_names = dict.fromkeys(entry.map_name for entry in self._live.current.game.map_cycle)
        return TensorboardWriter(self._folder.tensorboard, map_names, resumed_at_frame, self.statistics.reference_times)

    @contextlib.contextmanager
    def _surviving_a_full_disk(self, *, of_tensorboard: bool = True) -> Iterator[None]:
        """Go on without the lines or figures that cannot be written; it is told now and then."""
        try:
            yield
        except OSError as error:
            if self._complaint_due.is_due(DISK_IS_TRIED_EVERY_S):
                log.error("races.jsonl or tensorboard's file cannot be written: %s; the run goes on", error.strerror)
            # After an error tensorboard's writer never writes again, so there has to be another one.
            if of_tensorboard and self._has_space() and self._new_tensorboard_due.is_due(DISK_IS_TRIED_EVERY_S):
                with contextlib.suppress(OSError):  # the disk may have filled up again
                    self._tensorboard = self._open_tensorboard()

    def _has_space(self) -> bool:
        """Whether another checkpoint, as large as the last one, would leave `minimum_free_disk_mb` free."""
        needed_bytes = self._live.current.run.minimum_free_disk_mb << 20
        try:
            free_bytes = shutil.disk_usage(self._folder.path).free
            if self._folder.checkpoint.exists():
                needed_bytes += self._folder.checkpoint.stat().st_size
            if self._folder.previous_checkpoint.exists():  # it goes first, where there is no room for three
                free_bytes += self._folder.previous_checkpoint.stat().st_size
            return free_bytes >= needed_bytes
        except OSError:  # the disk is gone
            return False

    def _require_finite_weights(self) -> None:
        """Refuse to keep a network that can neither drive nor learn any more: one update may spoil all weights."""
        assert self._learning is not None
        if not _weights_are_finite(self._learning):
            raise UserError(
                "the network's weights are no longer finite numbers, so the training ends without another checkpoint. "
                "The last one is sound, and the same command goes on from there (or begins anew if there is none). "
                "So that it does not come again, lower lr_schedule or clip_grad_value, or set autocast_dtype = "
                f'"float32", in {self._folder.config}'
            )

    def _resume(self, learning: Learning, state: dict[str, Any]) -> None:
        try:
            learning.load_state_dict(state["trainer"])
            self.statistics.load_state_dict(state["statistics"])
        except torch.OutOfMemoryError:  # a RuntimeError, too, but not the checkpoint's fault
            raise
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self._folder.checkpoint} does not fit this configuration: {one_line(error)}; undo the change in "
                f"{self._folder.config} (what the command line asked for is not kept there), or begin a new run under "
                "another run_name"
            ) from error
        log.info("resumed %s at frame %s", self._folder.path, f"{self.statistics.frames_total:,}")

    def _begin_with_weights(self, learning: Learning, source: Path) -> None:
        """Take over networks only: the learning rate, exploration and the replay memory begin as in any new run."""
        state = load_checkpoint(source) if source.is_dir() else read_checkpoint(source)
        if state is None:
            raise CheckpointError(f"--weights-from {source}: the folder holds no checkpoint")
        try:
            learning.learner.load_weights(state["trainer"]["loss_module"]["online"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"--weights-from {source}: its network does not fit this configuration: {one_line(error)}; begin with "
                "the configuration of that run (--config .../config/config.py), as sizes and inputs must be the same"
            ) from error
        log.info("the networks of %s are the beginning", source)

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

    def _keep_driver(self) -> None:
        """Keep the networks whenever another full `keep_driver_every_s` of training is over; a full disk is told."""
        assert self._learning is not None
        run, now_s = self._live.current.run, self.statistics.training_s
        every_s = run.keep_driver_every_s
        if every_s == 0 or now_s // every_s == self._driver_kept_s // every_s:
            return
        self._driver_kept_s = now_s
        self._require_finite_weights()
        learner = self._learning.learner.state_dict()
        networks = {kind: learner[kind] for kind in DRIVING_NETWORKS}
        try:
            save_driver(self._folder.drivers, networks, self.statistics.frames_total, now_s, run.minimum_free_disk_mb)
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
        if self._telemetry_waits:
            return
        self._tensorboard.write_progress(self.statistics, means)
        self._tensorboard.flush()

    def _write_pictures(self) -> None:
        assert self._learning is not None
        assert self._tensorboard is not None
        if self._telemetry_waits:
            return
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


def _weights_are_finite(learning: Learning) -> bool:
    """Whether the networks that drive have no weight that is infinite or no number."""
    state = learning.learner.state_dict()
    return all(bool(weight.isfinite().all()) for kind in DRIVING_NETWORKS for weight in state[kind].values())
