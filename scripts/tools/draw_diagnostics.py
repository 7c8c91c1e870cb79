"""Draw plots of a run's values, quantiles, errors and expectations from a checkpoint: docs/reading_a_run.rst.

A training draws the same every pictures_interval_s. Here races are driven anew, greedily, in one game of the run's
kind, all but the first with a few forced actions at the start.

Examples:
  python scripts/tools/draw_diagnostics.py save/simulated --map kart --races 10 --output kart_diagnostics
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import (
    command,
    end_in_order_when_terminated,
    whole_number,
)
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.telemetry.tables import PlainConsole

from rich.text import Text


@command
def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder, save/{run_name}")
    add("--map", metavar="NAME", help="as of scripts/evaluate.py (default: the first map of the map cycle)")
    add("--races", type=whole_number(1), default=5, metavar="N", help="races to drive (default %(default)s)")
    add("--checkpoint", type=Path, metavar="PATH", help="another checkpoint of this run, or a file of its drivers/")
    add("--output", type=Path, metavar="FOLDER", help="where the pictures go (default: RUN/diagnostics)")
    add("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: as in training)")
    draw(parser.parse_args(words))


def draw(asked: argparse.Namespace) -> None:
    # Slow imports.
    from trackmania_rl.telemetry.diagnostics import draw_diagnostics
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.diagnostics import drive_and_gather, load_subject

    console = PlainConsole()
    subject, actor = load_subject(asked.run, asked.checkpoint, asked.device)
    output = asked.output or asked.run / "diagnostics"
    maps_folder = PROJECT_FOLDER / subject.settings.game.maps_folder
    names = [] if asked.map is None else [asked.map]
    entry = map_entries(subject.settings, maps_folder, names, output / "generated_tracks")[0]
    with console.status(Text(f"driving {entry.map_name}")):
        data = drive_and_gather(subject, actor, entry, asked.races, maps_folder)
    with console.status("drawing"):
        for picture in draw_diagnostics(data, output):
            console.print(f"wrote {picture.file}", soft_wrap=True)


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
