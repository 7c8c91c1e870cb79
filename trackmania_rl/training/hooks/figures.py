"""What loggers show of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from tensordict import TensorDictBase

from trackmania_rl.settings import Settings
from trackmania_rl.settings.snapshot import SETTINGS_FILE, handed_on_text
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.telemetry.figures import progress_figures, race_figures, weight_samples
from trackmania_rl.telemetry.loggers import BackgroundLogger, RunLogger, open_loggers
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.track_pictures import draw_racing_line
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.hook import Hook, Interval
from trackmania_rl.training.hooks.learning_figures import LearningFigures, MeasureTestLoss
from trackmania_rl.training.hooks.races import CountRaces

HISTOGRAM_INTERVAL_S: Final = 120.0
"""Time between two sets of histograms and pictures."""


class WriteFigures(Hook):
    """Gives loggers the run's settings, figures, histograms of weights and pictures; the Trainer's logger as well.

    Args:
        races: has the race.
        figures: the means of recent updates.
        test_loss: the loss on what is never trained on.
        disk: has space, or not.
    """

    def __init__(
        self, races: CountRaces, figures: LearningFigures, test_loss: MeasureTestLoss, disk: DiskWatch
    ) -> None:
        self._races = races
        self._figures = figures
        self._test_loss = test_loss
        self._disk = disk
        self._loggers: list[BackgroundLogger] = []
        self._latest_line: dict[str, tuple[RaceRecord, str, npt.NDArray[np.float32]]] = {}
        self._race_due: defaultdict[tuple[str, bool], Interval] = defaultdict(lambda: Interval(is_due_at_first=True))
        self._best_written_ms: dict[tuple[str, bool], int | None] = {}
        self._settings_told: Settings | None = None
        self._scalars_due = Interval()
        self._pictures_due = Interval()

    def begin(self) -> None:
        """Open the loggers; what an earlier session wrote beyond its last checkpoint is taken back where possible.

        Raises:
            UserError: if one cannot be opened.
        """
        run, statistics = self.run, self.run.statistics
        self._loggers = open_loggers(run.settings, run.folder, statistics.frames_total, statistics.reference_times)
        self._tell_configuration()

    def batch_process(self, _: TensorDictBase) -> None:
        """Write a race's figures if it is the fastest of its map and kind, or if none of them was written just before.

        A run may drive several races a second, for weeks: all of them would fill the disk, and no chart shows as many.
        """
        race, record = self.run.race, self._races.record
        assert race is not None
        if not record.counts:
            return
        of_kind = record.map_name, record.is_explo
        history = self.run.statistics.maps[record.map_name].history(record.is_explo)
        is_due = self._race_due[of_kind].is_due(self.run.settings.telemetry.tensorboard_interval_s)
        is_fastest = history.best_time_ms != self._best_written_ms.get(of_kind)
        if "position_m" in race.rollout_results:
            track, positions_m = race.end_race_stats["track"], race.rollout_results["position_m"]
            self._latest_line[record.map_name] = (record, track, positions_m.copy())
        if self._disk.is_short or not (is_due or is_fastest):
            return
        self._best_written_ms[of_kind] = history.best_time_ms
        q_values: npt.NDArray[np.float32] = race.rollout_results["q_values"]
        frames, values = self._frames, race_figures(record, history, self.run.statistics.reference_times, q_values)
        self._tell(lambda logger: logger.log_figures(values, frames))

    def tick(self) -> None:
        """Write whatever is due."""
        if self._scalars_due.is_due(self.run.settings.telemetry.tensorboard_interval_s):
            self._disk.look()
            self._write_scalars()
        if self._pictures_due.is_due(HISTOGRAM_INTERVAL_S):
            self._write_pictures()

    def end(self) -> None:
        """Write what is left and close the loggers."""
        if self._loggers:
            self._write_scalars()
            self._write_pictures()
        for logger in self._loggers:
            logger.close()
        self._loggers = []

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Write a figure that a hook returned, as torchrl's loggers do."""
        frames = self._frames if step is None else step
        self._tell(lambda logger: logger.log_figures({name: value}, frames))

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], frames: int) -> None:
        """Hand on a picture, (H, W, 3) uint8 RGB, that another hook has."""
        self._tell(methodcaller("log_picture", name, picture, frames))

    def log_race_files(self, map_name: str, recording: Path, film: Path | None, frames: int) -> None:
        """Hand on an evaluated race that was kept: its columns, and its film if there is one."""
        self._tell(lambda logger: logger.log_recording(f"recording/{map_name}", recording, frames))
        if film is not None:
            self._tell(lambda logger: logger.log_film(f"rollout/film/{map_name}", film, frames))

    @property
    def _frames(self) -> int:
        return self.run.statistics.frames_total

    def _tell(self, work: Callable[[RunLogger], object]) -> None:
        """Let each logger do something soon, unless the disk is short."""
        if not self._disk.is_short:
            for logger in self._loggers:
                logger.do(work)

    def _write_scalars(self) -> None:
        means = self._figures.take_means()
        if self._test_loss.test_loss is not None:
            means["test_loss"] = self._test_loss.test_loss
        self.run.statistics.last_metrics |= means
        self._tell_configuration()
        frames, values = self._frames, progress_figures(self.run.statistics, means)
        for hook in self.trainer.hooks:
            values |= hook.interval_figures()
        self._tell(lambda logger: logger.log_figures(values, frames))
        self._tell(lambda logger: logger.flush())

    def _tell_configuration(self) -> None:
        """Log the settings in force, at first and when one has changed."""
        if self._disk.is_short:
            return
        settings = self.run.settings
        if settings is not self._settings_told:
            text = handed_on_text(settings, f"Settings of the run {settings.run.run_name}")
            self._tell(methodcaller("log_text", f"configuration/{SETTINGS_FILE}", text, self._frames))
            self._settings_told = settings

    def _write_pictures(self) -> None:
        if not self._loggers or self._disk.is_short:
            return
        frames = self._frames
        figures: dict[str, float] = {}
        for hook in self.trainer.hooks:
            figures |= hook.rare_figures()
        self._tell(methodcaller("log_figures", figures, frames))
        for name, values in weight_samples(self.run.agent.exploration_network.named_parameters()):
            self._tell(methodcaller("log_histogram", name, values, frames))
        for map_name, (record, track, positions_m) in self._latest_line.items():
            line_m = self._line_m(map_name, track)
            if line_m is not None:
                name, picture = f"rollout/racing_line/{map_name}", self._racing_line(record, track, line_m, positions_m)
                self._tell(methodcaller("log_picture", name, picture, frames))

    def _racing_line(
        self, record: RaceRecord, track: str, line_m: npt.NDArray[np.float64], positions_m: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.uint8]:
        result = f"{record.race_time_ms / 1000:.2f} s" if record.race_finished else f"{record.meters:.0f} m"
        return draw_racing_line(
            line_m,
            positions_m,
            self.run.settings.game.ms_per_action,
            title=f"{record.map_name}: {result} ({record.kind})",
            subtitle=f"{track}, {self.run.statistics.frames_total:,} frames",
        )

    def _line_m(self, map_name: str, track: str) -> npt.NDArray[np.float64] | None:
        """The reference line of a race's track; None for a map that was added to the cycle while the run went on."""
        if map_name in self.run.reference_lines_m:
            return self.run.reference_lines_m[map_name]
        recipe = TrackRecipe.from_name(track)
        return None if recipe is None else generate_track(recipe).laid_out.line_m.astype(np.float64)
