"""What tensorboard shows of a run: scalars with a ready layout, histograms of weights, pictures of racing lines.

The horizontal axis is the run's frame count. Tags end with their own map's name where they belong to one:

    race_time_s/{explored|evaluated}/{map}          finished races
    best_time_s/{explored|evaluated}/{map}          not of generated tracks, which are many under one name
    best_minus_{author|gold}_s/{explored|evaluated}/{map}   where the map's file has that time; below 0: beaten
    median_time_s/{explored|evaluated}/{map}        of the recent races: the robust figure; likewise
    finish_rate/{explored|evaluated}/{map}          of the recent races
    meters/..., zone_reached/..., {figure}/...      of the race; the figures of `end_race_stats`, timings among them
    learner/{loss, test_loss, mean_q, grad_norm, ...}
    schedule/{epsilon, learning_rate, gamma, ...}
    speed/{actions_per_s, races_per_s, batches_per_s}
    waiting/{learner, collector_0, ...}
    replay/{transitions, fill}
    weights/{parameter}                             histograms
    racing_line/{map}                               pictures

`WriteTensorboard` chooses which races are written; figures over recent races, and the best, know all of them.

Importing this module imports tensorboard, which takes a moment: only the learner does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.tensorboard import SummaryWriter

from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.telemetry.race_record import RaceRecord
from trackmania_rl.telemetry.statistics import RaceHistory, TrainingStatistics

Layout = dict[str, dict[str, tuple[str, list[str]]]]
"""category: {chart: (kind of chart, regular expressions of tags)}"""

HISTOGRAM_VALUES = 200_000
"""A larger parameter is represented by about so many of its values, evenly spread: millions would hold up learning."""

_MS_PER_S = 1000.0


def custom_scalars_layout(map_names: Iterable[str], maps_with_times: Container[str] = ()) -> Layout:
    """The charts of the "custom scalars" page. Their regular expressions match from a tag's beginning to its end."""

    def lines(*patterns: str) -> tuple[str, list[str]]:
        return ("Multiline", [f"{pattern}$" for pattern in patterns])

    race_times = {"evaluated, median of recent races": lines("median_time_s/evaluated/.*")}
    progress = {"finish rate, evaluated": lines("finish_rate/evaluated/.*")}
    for name in dict.fromkeys(map_names):
        tag = re.escape(name)
        race_times[f"{name}: explored and evaluated"] = lines(f"race_time_s/[^/]*/{tag}")
        race_times[f"{name}: best"] = lines(f"best_time_s/[^/]*/{tag}")
        if name in maps_with_times:
            race_times[f"{name}: best minus author and gold"] = lines(f"best_minus_(author|gold)_s/[^/]*/{tag}")
        progress[f"{name}: zones reached"] = lines(f"zone_reached/[^/]*/{tag}")
        progress[f"{name}: metres"] = lines(f"meters/[^/]*/{tag}")
    return {
        "race times": race_times,
        "progress": progress,
        "learning": {
            "loss and test loss": lines("learner/(test_)?loss"),
            "mean Q": lines("learner/mean_q"),
            "gradient norm": lines("learner/grad_norm.*"),
        },
        "speed": {
            "shares of waiting": lines("waiting/.*"),
            "actions per second": lines("speed/actions_per_s"),
            "batches per second": lines("speed/batches_per_s"),
            "time per action by part, explored": lines("timings[^/]*/[^/]*/explored/.*"),
            "time per action by part, evaluated": lines("timings[^/]*/[^/]*/evaluated/.*"),
            "replay fill": lines("replay/fill"),
        },
        "schedules": {
            "exploration": lines("schedule/epsilon.*"),
            "learning rate": lines("schedule/learning_rate"),
            "gamma": lines("schedule/gamma"),
        },
    }


class TensorboardWriter:
    """Writes a run's event files."""

    def __init__(
        self,
        folder: Path,
        map_names: Iterable[str],
        resumed_at_frame: int = 0,
        reference_times: Mapping[str, MedalTimes] | None = None,
    ) -> None:
        """Opens a new event file and writes the layout.

        Args:
            folder: `RunFolder.tensorboard`.
            map_names: maps to lay out charts for.
            resumed_at_frame: where a resumed run goes on. What an earlier session wrote beyond it, after its last
                checkpoint, is taken back.
            reference_times: times to beat by map name.
        """
        self._reference_times = reference_times or {}
        first_taken_back = resumed_at_frame + 1 if resumed_at_frame > 0 else None
        self._writer = SummaryWriter(str(folder), purge_step=first_taken_back)
        self._writer.add_custom_scalars(custom_scalars_layout(map_names, self._reference_times))

    def write_race(self, race: RaceRecord, history: RaceHistory, frames_total: int) -> None:
        """Writes a race.

        Args:
            race: the race.
            history: the races of its map and kind, this one included.
            frames_total: the run's actions, this race included.
        """
        of_this = f"{race.kind}/{race.map_name}"
        times_ms = {
            "race_time_s": history.last_time_ms,
            "best_time_s": history.best_time_ms,
            "median_time_s": history.median_time_ms,
        }
        values = {name: time_ms / _MS_PER_S for name, time_ms in times_ms.items() if time_ms is not None}
        values |= {"meters": race.meters, "zone_reached": float(race.furthest_zone)} | dict(race.figures)
        if history.best_time_ms is not None and race.map_name in self._reference_times:
            values |= _leads_s(history.best_time_ms, self._reference_times[race.map_name])
        if history.recent_finish_rate is not None:
            values["finish_rate"] = history.recent_finish_rate
        for name, value in values.items():
            self._writer.add_scalar(f"{name}/{of_this}", value, frames_total)

    def write_scalar(self, name: str, value: float, frames_total: int) -> None:
        """Writes one figure."""
        self._writer.add_scalar(name, value, frames_total)

    def write_progress(self, figures: TrainingStatistics, learner_means: Mapping[str, float]) -> None:
        """Writes what is measured at intervals.

        Args:
            figures: the run's figures.
            learner_means: means of the learner's figures since the last call; what was not measured is left out.
        """
        rates = figures.rates()
        values = {f"learner/{name}": value for name, value in learner_means.items()}
        values |= {f"schedule/{name}": value for name, value in figures.current_values.items()}
        values |= {
            "speed/actions_per_s": rates.actions_per_s,
            "speed/races_per_s": rates.races_per_s,
            "speed/batches_per_s": rates.batches_per_s,
            "waiting/learner": rates.learner_waiting_share,
            "replay/transitions": float(figures.replay_transitions),
        }
        for collector in figures.collectors:
            values[f"waiting/collector_{collector}"] = figures.collector_waiting_share(collector)
        if figures.replay_capacity > 0:
            values["replay/fill"] = figures.replay_transitions / figures.replay_capacity
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, figures.frames_total)

    def write_histograms(self, named_parameters: Iterable[tuple[str, torch.Tensor]], frames_total: int) -> None:
        """Writes the distribution of each parameter, as `network.named_parameters()` gives them."""
        for name, parameter in named_parameters:
            stride = max(1, parameter.numel() // HISTOGRAM_VALUES)
            values = parameter.detach().flatten()[::stride].float().cpu()
            # A diverged network is worth seeing in its loss; a histogram of nothing but NaN cannot be made.
            finite = values[torch.isfinite(values)]
            if finite.numel() > 0:
                self._writer.add_histogram(f"weights/{name.replace('.', '/')}", finite, frames_total)

    def write_racing_line(self, map_name: str, picture: npt.NDArray[np.uint8], frames_total: int) -> None:
        """Writes a picture, (H, W, 3) RGB, of `racing_line.draw_racing_line`."""
        self._writer.add_image(f"racing_line/{map_name}", picture, frames_total, dataformats="HWC")

    def flush(self) -> None:
        """Makes everything visible to a tensorboard that is running."""
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self._writer.close()


def _leads_s(best_time_ms: int, reference: MedalTimes) -> dict[str, float]:
    """How far the best time lies above those to beat."""
    times_ms = {"author": reference.author_ms, "gold": reference.gold_ms}
    return {
        f"best_minus_{name}_s": (best_time_ms - time_ms) / _MS_PER_S
        for name, time_ms in times_ms.items()
        if time_ms is not None
    }
