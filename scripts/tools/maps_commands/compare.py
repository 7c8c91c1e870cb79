"""`maps.py compare`: where one race wins or loses time on another one."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from maps_commands._runs import (
    MAPS_FOLDER,
    DrivenRun,
    FloatArray,
    drive_script,
    inputs_file,
    run_of_ghost,
    simulated_game,
)
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.gbx.replay_inputs import ghost_of_driver
from trackmania_rl.simulator.tracks.track_file import find_track_file, load_track
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time

if TYPE_CHECKING:
    from maps_commands._comparison import RunComparison

_MS_PER_S = 1000.0


def add_parser(subparsers: Any) -> None:
    """Add the command `compare`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="where one race wins or loses time on another one",
        description="Compare race B with race A along a line: a table by checkpoint, and a picture. A race is a replay "
        "or ghost (.Gbx), an inputs file, or a best_runs folder of a training, whose fastest record is taken; the "
        "latter two are driven on the simulated game and need --map.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="the race that is compared with")
    parser.add_argument("b", type=Path, metavar="B", help="the race that is compared")
    parser.add_argument("--map", metavar="NAME", help="track file or line; default: the line that A drove")
    parser.add_argument("--driver-a", metavar="LOGIN", help="whose ghost of A (default: the fastest)")
    parser.add_argument("--driver-b", metavar="LOGIN", help="whose ghost of B (default: the fastest)")
    parser.add_argument("--output", type=Path, metavar="FILE.png", help="draw them into this file")
    parser.add_argument("--maps-folder", type=Path, default=MAPS_FOLDER, help="where else --map looks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare the two races."""
    # matplotlib takes a second to import, which every other command would wait for.
    from maps_commands._comparison import compare_runs, save_comparison

    track_file = None if arguments.map is None else find_track_file(arguments.map, arguments.maps_folder)
    named = ((arguments.a, arguments.driver_a), (arguments.b, arguments.driver_b))
    with ExitStack() as stack:
        player = None
        runs: list[DrivenRun] = []
        for letter, (path, driver) in zip("AB", named, strict=True):
            if is_replay_file(path):
                ghost = ghost_of_driver(read_replay(path), driver)
                time = format_time(ghost.race_time_ms)
                runs.append(run_of_ghost(ghost, path, f"{letter}: {ghost.login or path.name} {time}"))
                continue
            if track_file is None:
                raise UserError(f"{path}: is no replay, so it has to be driven: name its map with --map")
            script = inputs_file(path, track_file.stem)
            player = player or stack.enter_context(simulated_game(arguments.maps_folder))
            runs.append(drive_script(player, str(track_file), script, f"{letter}: {script.stem}")[1])
    run_a, run_b = runs
    comparison = compare_runs(run_a, run_b, line_m=None if track_file is None else _line(track_file))
    print_comparison(Console(), comparison)
    if arguments.output is not None:
        name = f"{run_b.label} against {run_a.label}"
        save_comparison(comparison, name if track_file is None else f"{track_file.stem}: {name}", arguments.output)
        print(f"wrote {arguments.output}")
    return 0


def print_comparison(console: Console, comparison: RunComparison) -> None:
    """Print the table by checkpoint, and where B is furthest ahead and behind."""
    a, b = comparison.a.label, comparison.b.label
    console.print(Text(f"{a}\n{b}"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="cyan")
    for heading in ("section", "at m", "A", "B", "A alone", "B alone", "B loses", "B behind"):
        table.add_column(heading, justify="left" if heading == "section" else "right", no_wrap=True)
    for section in comparison.sections:
        times = map(format_time, (*section.end_ms, *section.section_ms))
        differences = (f"{time_ms / _MS_PER_S:+.3f}" for time_ms in (section.lost_ms, section.behind_ms))
        table.add_row(section.name, f"{section.end_m:.0f}", *times, *differences)
    if comparison.sections:
        print_table(table, console)
    else:
        console.print("They have no checkpoint in common.")
    behind_ms, distance_m = comparison.behind_ms, comparison.distance_m
    most, least = int(behind_ms.argmax()), int(behind_ms.argmin())
    console.print(
        f"B is furthest behind at {distance_m[most]:.0f} m ({behind_ms[most] / _MS_PER_S:+.3f} s), furthest ahead at "
        f"{distance_m[least]:.0f} m ({behind_ms[least] / _MS_PER_S:+.3f} s); compared over {distance_m[-1]:.0f} m",
        soft_wrap=True,
    )


def _line(track_file: Path) -> FloatArray:
    """(N, 3) the middle of a track's road from start to finish, all laps."""
    track = load_track(track_file)
    ribbon = track.ribbon
    return ribbon.center_m[(ribbon.station_m >= 0) & (ribbon.station_m <= track.finish_station_m)]
