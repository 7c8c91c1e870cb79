"""All pictures of a run that there are numbers for, drawn into its folder pictures/."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently
from trackmania_rl.telemetry.mind.error_pictures import (
    draw_loss_by_horizon,
    draw_predicted_and_realised,
    draw_surprises,
)
from trackmania_rl.telemetry.mind.expectation_pictures import (
    draw_quantile_functions,
    draw_return_distributions,
    draw_values_over_elapsed_time,
)
from trackmania_rl.telemetry.mind.index import RACING_LINE, Entry, add_to_index
from trackmania_rl.telemetry.mind.numbers import About, MindNumbers
from trackmania_rl.telemetry.mind.race_pictures import draw_beside_the_best, draw_line_by_speed, with_line
from trackmania_rl.telemetry.racing_line import Picture

COLOURS: Final = 256


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        name: in file names and loggers.
        title: a heading.
        caption: what it tells.
        draw: draws it; None where the numbers hold nothing to draw.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[MindNumbers], Figure | Picture | None]


KINDS: Final = (
    Kind(
        "quantile_functions",
        "Quantile functions",
        "The return that each action may bring in four states of the newest evaluated race, from the worst luck (tau = "
        "0) to the best (tau = 1). Steep: uncertain; flat: sure. The driver takes the action of the highest mean.",
        draw_quantile_functions,
    ),
    Kind(
        "return_distributions",
        "Distributions of the return",
        "The same returns as densities, a row for each action. Actions whose hills lie apart matter in that state; "
        "where all hills lie above each other, it hardly matters what the driver does.",
        draw_return_distributions,
    ),
    Kind(
        "values_over_elapsed_time",
        "Value against elapsed time",
        "The value of each action while the mini-race runs out. All end near 0, as nothing is left to earn; the fan "
        "between the actions is widest where most is at stake.",
        draw_values_over_elapsed_time,
    ),
    Kind(
        "predicted_and_realised",
        "Predicted and realised value",
        "Q of the action taken against what its mini-race then brought, in recent evaluated races, and the error along "
        "the track. On the dashed line the prediction came true.",
        draw_predicted_and_realised,
    ),
    Kind(
        "loss_by_horizon",
        "Loss by horizon",
        "Loss and error of transitions of the replay memory against the time left in the mini-race. Both sides close "
        "together: no overfitting. A mean error away from 0: values are biased at that horizon.",
        draw_loss_by_horizon,
    ),
    Kind(
        "largest_errors",
        "Largest errors",
        "The transitions of the newest explored and evaluated race that were predicted worst: where they began, what "
        "was done, what was predicted, the target that learning aims at, and what the mini-race really brought.",
        draw_surprises,
    ),
    Kind(
        RACING_LINE,
        "Racing line",
        "The newest evaluated race from above, coloured by speed.",
        draw_line_by_speed,
    ),
    Kind(
        "beside_the_best",
        "Beside the best race",
        "Time, speed and inputs of the newest evaluated race (B) over the distance, beside the fastest race known (A).",
        draw_beside_the_best,
    ),
)


def draw_set(numbers: MindNumbers, folder: Path, log: Callable[[Path], object] = lambda _: None) -> list[Path]:
    """Draw all pictures that there are numbers for, list them in the index, and forget the oldest ones.

    Args:
        numbers: to draw.
        folder: a run's pictures/; made where it does not exist.
        log: is told of each file.

    Returns:
        The files.

    Raises:
        UserError: if a file cannot be written.
    """
    numbers = with_line(numbers)
    about = numbers.about
    entries = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            picture = kind.draw(numbers)
            if picture is not None:
                entry = _entry(kind, about)
                write_picture(folder / entry.file, picture)
                entries.append(entry)
                log(folder / entry.file)
        add_to_index(folder, entries)
    except OSError as error:
        raise UserError(f"pictures {folder}: cannot be written: {error.strerror}") from error
    return [folder / entry.file for entry in entries]


def write_picture(file: Path, picture: Figure | Picture) -> None:
    """Write a PNG.

    Raises:
        OSError: if it cannot be written.
    """
    if isinstance(picture, Figure):
        canvas = picture.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        picture = np.asarray(canvas.buffer_rgba())[:, :, :3]
    part = file.with_name(f".{file.name}.part")
    image = Image.fromarray(np.ascontiguousarray(picture))
    # So many colours are enough for lines and areas, and take a third of the space.
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(part, format="PNG", optimize=True)
    replace_patiently(part, file)


def _entry(kind: Kind, about: About) -> Entry:
    return Entry(
        file=f"{about.frames_total:012d}_{about.map_name}_{kind.name}.png",
        name=kind.name,
        map=about.map_name,
        title=kind.title,
        caption=kind.caption,
        frames=about.frames_total,
        training_s=round(about.training_s, 1),
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
