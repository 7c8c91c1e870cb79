"""A sheet of what the driver of a replay would see on the simulated game, in the world that the map's blocks make."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trackmania_rl.simulator.picture.block_scene import BlockScene
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.telemetry.figure_file import write_figure
from trackmania_rl.track.ghost_motion import GhostMotion

ROWS: Final = 6
COLUMNS: Final = 4
VIEW_PX: Final = (400, 300)
DOTS_PER_INCH: Final = 100
TITLE_IN: Final = 0.25


def draw_views(file: Path, title: str, scene: BlockScene, motion: GhostMotion) -> None:
    """Write a PNG of views from behind a ghost's car, at equal times from its first sample to its last.

    Args:
        file: the picture; its folder must exist.
        title: what is written above it.
        scene: the world.
        motion: where the car is.

    Raises:
        UserError: if the picture cannot be written.
    """
    renderer = Renderer(scene)
    width_in, height_in = (size / DOTS_PER_INCH for size in VIEW_PX)
    size_in = COLUMNS * width_in, ROWS * (height_in + TITLE_IN) + TITLE_IN
    figure = Figure(figsize=size_in, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)
    times_ms = np.linspace(motion.time_ms[0], motion.time_ms[-1], ROWS * COLUMNS)
    for axes, time_ms in zip(figure.subplots(ROWS, COLUMNS).ravel(), times_ms, strict=True):
        sample = int(np.argmin(np.abs(motion.time_ms - time_ms)))
        view = renderer.render(motion.position_m[sample], motion.rotation[sample], 0, *VIEW_PX)
        axes.imshow(view[..., 2::-1])
        axes.set_axis_off()
        axes.set_title(f"{motion.time_ms[sample] / 1000.0:.1f} s", fontsize=8, pad=2.0)
    write_figure(figure, file)
