"""Figures, histograms and pictures for the run's loggers, and learning figures."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.weights import evaluation_mode
from trackmania_rl.race.race import Race
from trackmania_rl.runs.snapshot import SETTINGS_FILE, handed_on_text
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.figures import progress_figures, quantile_figures, race_figures, weight_samples
from trackmania_rl.telemetry.loggers import BackgroundLogger, open_loggers
from trackmania_rl.training.hooks.hook import Hook, Interval

RARE_INTERVAL_S: Final = 120.0
"""Time between two sets of histograms, and of figures that are many or slow."""


class WriteFigures(Hook):
    """Writes figures to the run log and the loggers; settings, histograms and pictures to the loggers.

    Args:
        figures: means over recent updates.
        hooks: the run's hooks, for their figures.
    """

    def __init__(self, figures: LearningFigures, hooks: Sequence[Hook]) -> None:
        self._figures = figures
        self._hooks = hooks
        self._hook_figure_due: defaultdict[str, Interval] = defaultdict(lambda: Interval(is_due_at_first=True))
        self._loggers: list[BackgroundLogger] = []
        self._race_due: defaultdict[tuple[str, bool], Interval] = defaultdict(lambda: Interval(is_due_at_first=True))
        self._best_written_ms: dict[tuple[str, bool], int | None] = {}
        self._settings_written: Settings | None = None
        self._figures_due = Interval()
        self._rare_due = Interval()

    def begin(self) -> None:
        """Open the loggers. They remove an earlier session's figures after its last checkpoint, if possible."""
        run = self.run
        statistics = self.run.statistics
        self._loggers = open_loggers(run.settings, run.folder, statistics.frames_total, statistics.reference_times)
        self._write_settings()

    @override
    def on_race(self, race: Race) -> None:
        """Write a race's figures if it is the fastest for map and kind, or if `tensorboard_interval_s` has passed.

        A run may drive several races a second for weeks, which would fill the disk.
        """
        facts = race.facts
        statistics = self.run.statistics
        if not facts.counts:
            return
        of_kind = facts.map_name, facts.is_explo
        history = statistics.maps[facts.map_name].history(facts.is_explo)
        is_due = self._race_due[of_kind].is_due(self.run.settings.telemetry.tensorboard_interval_s)
        is_fastest = history.best_time_ms != self._best_written_ms.get(of_kind)
        if not (is_due or is_fastest):
            return
        self._best_written_ms[of_kind] = history.best_time_ms
        self.log_figures(race_figures(facts, history, statistics.reference_times, race.columns["q_values"]))

    def tick(self) -> None:
        if self._figures_due.is_due(self.run.settings.telemetry.tensorboard_interval_s):
            self._write_figures()
        if self._rare_due.is_due(RARE_INTERVAL_S):
            self._write_rare_figures()

    def end(self) -> None:
        if self._settings_written is not None:  # the run began
            self._write_figures()
            self._write_rare_figures()
        for logger in self._loggers:
            logger.close()
        self._loggers = []

    def log_hook_figures(self, values: Mapping[str, float]) -> None:
        """Write figures that hooks return, each at most every `tensorboard_interval_s`."""
        every_s = self.run.settings.telemetry.tensorboard_interval_s
        due = {name: value for name, value in values.items() if self._hook_figure_due[name].is_due(every_s)}
        if due:
            self.log_figures(due)

    def log(self, kind: str, *record: object) -> None:
        """Write a record that `BackgroundLogger.do` takes."""
        for logger in self._loggers:
            logger.do(kind, *record)

    def log_figures(self, values: Mapping[str, float]) -> None:
        """Write figures now."""
        with self.run.surviving_disk():
            self.run.run_log.write_figures(values, self.run.statistics.frames_total)
        self.log("figures", values, self.run.statistics.frames_total)

    def _write_figures(self) -> None:
        means = self._figures.take_means()
        if self._figures.test_loss is not None:
            means["test_loss"] = self._figures.test_loss
        self.run.statistics.last_metrics |= means
        self._write_settings()
        values = progress_figures(self.run.statistics, self.run.settings, means) | self.run.replay.figures()
        for hook in self._hooks:
            values |= hook.interval_figures()
        self.log_figures(values)
        self.log("flush")

    def _write_settings(self) -> None:
        settings = self.run.settings
        if settings is self._settings_written:
            return
        text = handed_on_text(settings, f"Settings of the run {settings.run.run_name}")
        frames = self.run.statistics.frames_total
        self.log("text", f"configuration/{SETTINGS_FILE}", text, frames)
        self._settings_written = settings

    def _write_rare_figures(self) -> None:
        figures = self.run.replay.priority_figures()
        for hook in self._hooks:
            figures |= hook.rare_figures()
        self.log_figures(figures)
        if not self._loggers:
            return
        frames = self.run.statistics.frames_total
        for name, values in weight_samples(self.run.agent.exploration_network.named_parameters()):
            self.log("histogram", name, values, frames)


MOST_NORMS: Final = 10_000
"""Newest gradient norms kept between two reports."""
TEST_LOSS_EVERY_N_BATCHES: Final = 50


class LearningFigures(Hook):
    """Means over losses, gradient norms, update time, the test loss, and each parameter's scale.

    Losses and norms stay on the device until a report, because reading one waits for a GPU.

    Attributes:
        test_loss: newest loss, per transition, on transitions never trained on; None before the first.
    """

    def __init__(self) -> None:
        self.test_loss: float | None = None
        self._sums: dict[str, Tensor] = {}
        self._n_summed = 0
        self._updates_before = 0
        self._grad_norms: deque[Tensor] = deque(maxlen=MOST_NORMS)
        self._updates_begin_s = 0.0
        self._spent_s = {"updates": 0.0, "test_loss": 0.0}
        self._n_timed = 0
        self._reported_at_s = time.perf_counter()

    @override
    def before_updates(self) -> None:
        self._updates_begin_s = time.perf_counter()
        self._updates_before = self.run.agent.updates

    @override
    def on_update(self, batch: TensorDictBase, losses: TensorDictBase) -> None:
        """Add losses and norm. Measure the test loss every `TEST_LOSS_EVERY_N_BATCHES` updates."""
        grad_norm = losses.get("grad_norm", None)
        if grad_norm is not None:
            self._grad_norms.append(grad_norm)
        for name, value in losses.items():
            if value.ndim == 0:
                self._sums[name] = self._sums.get(name, 0.0) + value
        self._n_summed += 1
        if self.run.agent.updates % TEST_LOSS_EVERY_N_BATCHES == 0:
            self._measure_test_loss()

    @override
    def after_updates(self) -> None:
        n_updates = self.run.agent.updates - self._updates_before
        if n_updates > 0:
            self._spent_s["updates"] += time.perf_counter() - self._updates_begin_s
            self._n_timed += n_updates

    def _measure_test_loss(self) -> None:
        began_s = time.perf_counter()
        batch = self.run.memory.sample_test(self.run.settings.replay.batch_size)
        if batch is None:
            return
        loss_module = self.run.agent.loss_module
        with torch.no_grad(), evaluation_mode(loss_module):
            losses = loss_module(batch)
        total = sum(value for name, value in losses.items() if name.startswith("loss"))
        self.test_loss = float(total) / _transitions_in_loss(loss_module, len(batch))
        self._spent_s["test_loss"] += time.perf_counter() - began_s

    def take_means(self) -> dict[str, float]:
        """Return mean losses per transition, gradient norm, Q and the like since the last call, if there were any."""
        n_transitions = _transitions_in_loss(self.run.agent.loss_module, self.run.settings.replay.batch_size)
        means = {name: float(total) / self._n_summed for name, total in self._sums.items()}
        self._sums = {}
        self._n_summed = 0
        return {name: mean / n_transitions if name.startswith("loss") else mean for name, mean in means.items()}

    def interval_figures(self) -> dict[str, float]:
        """Return gradient norm quantiles, the update time and the learner's time shares since the last call."""
        now_s = time.perf_counter()
        passed_s = max(now_s - self._reported_at_s, 1e-9)
        self._reported_at_s = now_s
        figures = {f"train/learner_time/{of}": min(s / passed_s, 1.0) for of, s in self._spent_s.items()}
        if self._n_timed > 0:
            figures["train/update_ms"] = 1000 * self._spent_s["updates"] / self._n_timed
        if self._grad_norms:
            norms = torch.stack(list(self._grad_norms))
            figures |= quantile_figures("train/grad_norm", norms, ("q1", "median", "q3", "d9", "c98", "max"))
        self._spent_s = dict.fromkeys(self._spent_s, 0.0)
        self._n_timed = 0
        self._grad_norms.clear()
        return figures

    def rare_figures(self) -> dict[str, float]:
        """Return `weights/weight_rms/{parameter}`, and `weights/gradient_norm/{parameter}` from the last update."""
        figures: dict[str, Tensor] = {}
        for name, layer in self.run.agent.layers().items():
            end = name.replace(".", "/")
            figures[f"weights/weight_rms/{end}"] = layer.weight.float().square().mean().sqrt()
            if layer.gradient is not None:
                figures[f"weights/gradient_norm/{end}"] = torch.linalg.vector_norm(layer.gradient.float())
        return dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True)) if figures else {}


def _transitions_in_loss(loss_module: nn.Module, batch_size: int) -> int:
    """Return how many transitions' losses one figure sums up: 1 if it is a mean."""
    return batch_size if loss_module.reduction == "sum" else 1
