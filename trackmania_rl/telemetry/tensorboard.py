"""tensorboard's event files, with a ready layout. The horizontal axis is the run's frame count.

Importing this module imports tensorboard, which takes a moment: only the learner does.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

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

PALETTE = 256
"""Pictures of so many colours at most are written with a palette."""
RESULTS = ("best_time_s", "median_time_s", "finish_rate")
"""Figures by which the page "HParams" compares runs."""


def custom_scalars_layout(
    map_names: Iterable[str], maps_with_times: Container[str] = (), blind_maps: Container[str] = ()
) -> Layout:
    """The charts of the "custom scalars" page: one line each, as all lines of a run have the same colour there.

    Quantiles are a line with a margin. Regular expressions match from a tag's beginning to its end.

    Args:
        map_names: maps to lay out charts for.
        maps_with_times: those of them that have times to beat.
        blind_maps: those of them that are driven, but not trained on.
    """
    names = tuple(dict.fromkeys(map_names))
    race_times = {
        f"{name}: evaluated, median of recent races": _line(f"rollout/median_time_s/evaluated/{name}") for name in names
    }
    progress = {f"{name}: finish rate, evaluated": _line(f"rollout/finish_rate/evaluated/{name}") for name in names}
    values = {}
    for name in names:
        for kind in ("evaluated", "explored"):
            race_times[f"{name}: {kind}"] = _line(f"rollout/race_time_s/{kind}/{name}")
            progress[f"{name}: metres, {kind}"] = _line(f"rollout/meters/{kind}/{name}")
        race_times[f"{name}: best"] = _line(f"rollout/best_time_s/evaluated/{name}")
        values[f"{name}: mean Q of a race"] = _line(f"rollout/mean_q/evaluated/{name}")
        values[f"{name}: action gap"] = _line(f"rollout/action_gap/evaluated/{name}")
        if name in maps_with_times:
            race_times[f"{name}: best minus author time"] = _line(f"rollout/best_minus_author_s/evaluated/{name}")
            race_times[f"{name}: best minus gold time"] = _line(f"rollout/best_minus_gold_s/evaluated/{name}")
    return {
        "race times": race_times,
        "map cycle": _of_cycle(names, maps_with_times, blind_maps),
        "progress": progress,
        "learning": {
            "loss": _line("train/loss"),
            "test loss": _line("train/test_loss"),
            "mean Q of batches": _line("train/mean_q"),
            "gradient norm: median, first quartile to 98th centile": _margin("train/grad_norm", "median", "q1", "c98"),
        },
        "values": values,
        "speed": {
            "learner waits": _line("waiting/learner"),
            "collectors wait, mean": _line("waiting/collectors"),
            "actions per second": _line("train/speed/actions_per_s"),
            "batches per second": _line("train/speed/batches_per_s"),
            "milliseconds of an update": _line("train/update_ms_median"),
            "replay fill": _line("train/replay/fill"),
        },
        "schedules": {
            "exploration: epsilon": _line("train/schedule/epsilon"),
            "exploration: epsilon of Boltzmann": _line("train/schedule/epsilon_boltzmann"),
            "learning rate": _line("train/schedule/learning_rate"),
            "gamma": _line("train/schedule/gamma"),
        },
    }


def _of_cycle(names: Iterable[str], maps_with_times: Container[str], blind_maps: Container[str]) -> dict[str, Chart]:
    """Totals of the maps that are trained on, and of those that are not; arguments as of `custom_scalars_layout`."""
    charts = {}
    for status in dict.fromkeys("blind" if name in blind_maps else "trained" for name in names):
        charts[f"{status} maps: finish rate"] = _line(f"rollout/cycle/finish_rate/{status}")
        charts[f"{status} maps: medians together"] = _line(f"rollout/cycle/median_time_s/{status}")
        if any(name in maps_with_times and (name in blind_maps) == (status == "blind") for name in names):
            charts[f"{status} maps: medians over author times"] = _line(f"rollout/cycle/median_over_author/{status}")
            charts[f"{status} maps: medians over gold times"] = _line(f"rollout/cycle/median_over_gold/{status}")
    return charts


def _line(tag: str) -> Chart:
    return "Multiline", [f"{re.escape(tag)}$"]


def _margin(name: str, value: str, lower: str, upper: str) -> Chart:
    return "Margin", [f"{name}_{value}", f"{name}_{lower}", f"{name}_{upper}"]


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
        image = Image.fromarray(picture)
        if image.getcolors(PALETTE) is not None:
            image = image.quantize(PALETTE, dither=Image.Dither.NONE)
        encoded = io.BytesIO()
        image.save(encoded, format="PNG")
        self._write_image(name, encoded.getvalue(), image.size, step)

    @override
    def log_film(self, name: str, film: Path, step: int) -> None:
        """Write the small film as a picture, which moves in the browser; tensorboard plays no videos."""
        small = film.with_suffix(".gif")
        with Image.open(small) as first:
            self._write_image(name, small.read_bytes(), first.size, step)

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

    def _write_image(self, name: str, encoded: bytes, size_px: tuple[int, int], step: int) -> None:
        width_px, height_px = size_px
        image = Summary.Image(height=height_px, width=width_px, colorspace=3, encoded_image_string=encoded)
        self._files.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)
