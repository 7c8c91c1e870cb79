"""tensorboard's event files, with a ready layout. The horizontal axis is the run's frame count.

Importing this module imports tensorboard, which takes a moment: only the learner does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import hparams
from torchrl.record.loggers import get_logger
from typing_extensions import override

from trackmania_rl.settings import MapEntry
from trackmania_rl.telemetry.figures import trained_and_blind
from trackmania_rl.telemetry.loggers import RunLogger

Chart = tuple[str, list[str]]
"""Kind of chart; regular expressions of tags, or the tags of a line and its margins."""
Layout = dict[str, dict[str, Chart]]
"""category: {chart: ...}"""

RESULTS = ("best_time_s", "median_time_s", "finish_rate")
"""Figures by which the page "HParams" compares runs."""


_OF_MAP: Final = {
    "race times": {
        "{map}: evaluated, median of recent races": "rollout/median_time_s/evaluated/{map}",
        "{map}: evaluated": "rollout/race_time_s/evaluated/{map}",
        "{map}: explored": "rollout/race_time_s/explored/{map}",
        "{map}: best": "rollout/best_time_s/evaluated/{map}",
        "{map}: best minus author time": "rollout/best_minus_author_s/evaluated/{map}",
        "{map}: best minus gold time": "rollout/best_minus_gold_s/evaluated/{map}",
    },
    "map cycle": {
        "{status} maps: finish rate": "rollout/cycle/finish_rate/{status}",
        "{status} maps: medians together": "rollout/cycle/median_time_s/{status}",
        "{status} maps: medians over author times": "rollout/cycle/median_over_author/{status}",
        "{status} maps: medians over gold times": "rollout/cycle/median_over_gold/{status}",
    },
    "progress": {
        "{map}: finish rate, evaluated": "rollout/finish_rate/evaluated/{map}",
        "{map}: metres, evaluated": "rollout/meters/evaluated/{map}",
        "{map}: metres, explored": "rollout/meters/explored/{map}",
    },
    "values": {
        "{map}: mean Q of a race": "rollout/mean_q/evaluated/{map}",
        "{map}: action gap": "rollout/action_gap/evaluated/{map}",
    },
}
_OF_RUN: Final = {
    "learning": {
        "loss": "train/loss",
        "test loss": "train/test_loss",
        "mean Q of batches": "train/mean_q",
    },
    "speed": {
        "learner waits": "waiting/learner",
        "collectors wait, mean": "waiting/collectors",
        "actions per second": "train/speed/actions_per_s",
        "batches per second": "train/speed/batches_per_s",
        "milliseconds of an update": "train/update_ms_median",
        "replay fill": "train/replay/fill",
    },
    "schedules": {
        "exploration: epsilon": "train/schedule/epsilon",
        "exploration: epsilon of Boltzmann": "train/schedule/epsilon_boltzmann",
        "learning rate": "train/schedule/learning_rate",
        "gamma": "train/schedule/gamma",
    },
}
_NEEDS_TIMES: Final = ("author", "gold")
"""In titles of charts for maps that have times to beat."""


def custom_scalars_layout(
    map_names: Iterable[str], maps_with_times: Container[str] = (), blind_maps: Container[str] = ()
) -> Layout:
    """Return the charts of the "custom scalars" page. Each has one line, as all lines of a run have the same colour.

    Args:
        map_names: maps of the charts.
        maps_with_times: maps that have times to beat.
        blind_maps: maps that are driven, but not trained on.
    """
    layout: Layout = {category: {} for category in ("race times", "map cycle", "progress", "learning", "values")}
    for name in map_names:
        values = {"map": name, "status": "blind" if name in blind_maps else "trained"}
        for category, charts in _OF_MAP.items():
            for title, tag in charts.items():
                if name in maps_with_times or not any(medal in title for medal in _NEEDS_TIMES):
                    layout[category][title.format_map(values)] = _line(tag.format_map(values))
    for category, charts in _OF_RUN.items():
        layout.setdefault(category, {}).update({title: _line(tag) for title, tag in charts.items()})
    quantiles = [f"train/grad_norm_{quantile}" for quantile in ("median", "q1", "c98")]
    layout["learning"]["gradient norm: median, first quartile to 98th centile"] = "Margin", quantiles
    return layout


def _line(tag: str) -> Chart:
    return "Multiline", [f"{re.escape(tag)}$"]


class TensorboardRun(RunLogger):
    """Event files of a run, with a layout of charts.

    Args:
        folder: `RunFolder.tensorboard`.
        map_cycle: its maps get charts.
        resumed_at_frame: where a resumed run continues. Tensorboard hides what was written beyond it.
        maps_with_times: maps that have times to beat.
    """

    def __init__(
        self,
        folder: Path,
        map_cycle: Iterable[MapEntry],
        resumed_at_frame: int = 0,
        maps_with_times: Container[str] = (),
    ) -> None:
        map_cycle = tuple(map_cycle)
        self._folder = folder
        self._map_names = tuple(dict.fromkeys(entry.map_name for entry in map_cycle))
        self._layout = custom_scalars_layout(self._map_names, maps_with_times, trained_and_blind(map_cycle)[1])
        self.reopen()
        if resumed_at_frame > 0:  # as SummaryWriter's purge_step
            self._files.add_event(Event(step=resumed_at_frame + 1, file_version="brain.Event:2"))
            start = SessionLog(status=SessionLog.START)
            self._files.add_event(Event(step=resumed_at_frame + 1, session_log=start))

    @override
    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Write one event, which takes half of the space of many."""
        if figures:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
            self._files.add_summary(Summary(value=values), step)

    @override
    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        self.logger.log_histogram(name, values, step=step, bins="tensorflow")

    @override
    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        self.logger.experiment.add_image(name, picture, step, dataformats="HWC")

    @override
    def log_film(self, name: str, film: Path, step: int) -> None:
        """Write the .gif as a picture, as tensorboard plays no videos."""
        small = film.with_suffix(".gif")
        with Image.open(small) as first:
            width_px, height_px = first.size
        image = Summary.Image(height=height_px, width=width_px, colorspace=3, encoded_image_string=small.read_bytes())
        self._files.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    @override
    def log_text(self, name: str, text: str, step: int) -> None:
        self.logger.experiment.add_text(name, f"```\n{text}\n```", step)

    @override
    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Write them for the page "HParams", with the results of evaluated races beside them."""
        results = {f"rollout/{figure}/evaluated/{name}": 0.0 for name in self._map_names for figure in RESULTS}
        for summary in hparams(dict(settings), results):
            self._files.add_summary(summary)

    @override
    def flush(self) -> None:
        self.logger.experiment.flush()

    @override
    def reopen(self) -> None:
        """Open another file: after an error tensorboard's writer never writes again."""
        self.logger = get_logger("tensorboard", str(self._folder.parent), self._folder.name)
        self.logger.experiment.add_custom_scalars(self._layout)
        self._files = self.logger.experiment.file_writer

    @override
    def close(self) -> None:
        self.logger.experiment.close()
