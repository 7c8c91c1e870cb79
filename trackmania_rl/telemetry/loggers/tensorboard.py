"""tensorboard's event files, with a ready layout. The horizontal axis is the run's frame count.

Importing this module imports tensorboard, which takes a moment: only the learner does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

Layout = dict[str, dict[str, tuple[str, list[str]]]]
"""category: {chart: (kind of chart, regular expressions of tags)}"""

RESULTS = ("best_time_s", "median_time_s", "finish_rate")
"""Figures by which the page "HParams" compares runs."""


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
    """Writes a run's event files; a `RunLogger`."""

    def __init__(
        self,
        folder: Path,
        map_names: Iterable[str],
        resumed_at_frame: int = 0,
        maps_with_times: Container[str] = (),
    ) -> None:
        """Opens a new event file and writes the layout.

        Args:
            folder: `RunFolder.tensorboard`.
            map_names: maps to lay out charts for.
            resumed_at_frame: where a resumed run goes on. What an earlier session wrote beyond it, after its last
                checkpoint, is taken back.
            maps_with_times: those of them that have times to beat.
        """
        self._folder = folder
        self._map_names = tuple(dict.fromkeys(map_names))
        self._maps_with_times = maps_with_times
        self._open(first_taken_back=resumed_at_frame + 1 if resumed_at_frame > 0 else None)

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """See `RunLogger`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """See `RunLogger`."""
        self._writer.add_histogram(name, values, step)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """See `RunLogger`."""
        self._writer.add_image(name, picture, step, dataformats="HWC")

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Show the small film as a picture, which moves in the browser; tensorboard plays no videos."""
        small = film.with_suffix(".gif")
        with Image.open(small) as first:
            width_px, height_px = first.size
        picture = Summary.Image(height=height_px, width=width_px, colorspace=3, encoded_image_string=small.read_bytes())
        self._write(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """Leave it where it lies: event files hold no files."""

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Show the settings on the page "HParams", beside what the evaluated races came to."""
        results = {f"{figure}/evaluated/{name}": 0.0 for name in self._map_names for figure in RESULTS}
        for summary in hparams(dict(settings), results):
            self._write(summary)

    def flush(self) -> None:
        """See `RunLogger`."""
        self._writer.flush()

    def reopen(self) -> None:
        """Open another file: after an error tensorboard's writer never writes again."""
        self._open()

    def close(self) -> None:
        """See `RunLogger`."""
        self._writer.close()

    def _open(self, first_taken_back: int | None = None) -> None:
        self._writer = SummaryWriter(str(self._folder), purge_step=first_taken_back)
        self._writer.add_custom_scalars(custom_scalars_layout(self._map_names, self._maps_with_times))

    def _write(self, summary: Summary, step: int | None = None) -> None:
        assert self._writer.file_writer is not None
        self._writer.file_writer.add_summary(summary, step)
