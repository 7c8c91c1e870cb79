"""Compare races along the line: where one wins or loses time.

A race is a replay or ghost (.Gbx), an inputs file, or a best_runs folder of a training, whose fastest record is taken;
the latter two are driven on the simulated game and need --map.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from maps_commands._reporting import say
from maps_commands._runs import MAPS_FOLDER, DrivenRun, drive_script, inputs_file, run_of_ghost, simulated_game
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import ghost_of_driver, is_replay_file, read_replay
from trackmania_rl.simulator.tracks.track_file import find_track_file, load_track
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.track.line_building import path_of_ghost

from rich.table import Table

if TYPE_CHECKING:
    from maps_commands._comparison import RunComparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("a", type=Path, metavar="A", help="the race that is compared with")
    add("b", type=Path, metavar="B", help="the race that is compared")
    add("--map", metavar="NAME", help="track file or line; default: the line that A drove")
    add("--driver-a", metavar="LOGIN", help="whose ghost of A (default: the fastest)")
    add("--driver-b", metavar="LOGIN", help="whose ghost of B (default: the fastest)")
    add("--output", type=png_file, metavar="FILE.png", help="draw them into this file")
    add("--maps-folder", type=Path, default=MAPS_FOLDER, help="where else --map looks")


def run(arguments: argparse.Namespace) -> int:
    from maps_commands._comparison import compare_runs, save_comparison  # slow import

    track_file = None if arguments.map is None else find_track_file(arguments.map, arguments.maps_folder)
    named = ((arguments.a, arguments.driver_a), (arguments.b, arguments.driver_b))
    with ExitStack() as stack:
        player = None
        runs: list[DrivenRun] = []
        for letter, (path, driver) in zip("AB", named, strict=True):
            if is_replay_file(path):
                ghost = ghost_of_driver(read_replay(path), driver)
                if track_file is None and letter == "A":
                    line_m = path_of_ghost(ghost, str(path)).position_m
                time = format_time(ghost.race_time_ms)
                runs.append(run_of_ghost(ghost, path, f"{letter}: {ghost.login or path.name} {time}"))
                continue
            if track_file is None:
                raise UserError(f"{path}: is no replay, so it has to be driven: name its map with --map")
            script = inputs_file(path, track_file.stem)
            player = player or stack.enter_context(simulated_game(arguments.maps_folder))
            runs.append(drive_script(player, str(track_file), script, f"{letter}: {script.stem}")[1])
    run_a, run_b = runs
    title = f"{run_b.label} against {run_a.label}"
    if track_file is not None:
        track = load_track(track_file)
        ribbon, title = track.ribbon, f"{track_file.stem}: {title}"
        line_m = ribbon.center_m[(ribbon.station_m >= 0) & (ribbon.station_m <= track.finish_station_m)]
    comparison = compare_runs(run_a, run_b, line_m)
    print_comparison(comparison)
    if arguments.output is not None:
        save_comparison(comparison, title, arguments.output)
        say(f"wrote {arguments.output}")
    return 0


def print_comparison(comparison: RunComparison) -> None:
    say(f"{comparison.a.label}\n{comparison.b.label}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="cyan")
    for heading in ("section", "at m", "A", "B", "A alone", "B alone", "B loses", "B behind"):
        table.add_column(heading, justify="left" if heading == "section" else "right", no_wrap=True)
    for section in comparison.sections:
        times = map(format_time, (*section.end_ms, *section.section_ms))
        differences = (f"{time_ms / 1000:+.3f}" for time_ms in (section.lost_ms, section.behind_ms))
        table.add_row(section.name, f"{section.end_m:.0f}", *times, *differences)
    if comparison.sections:
        print_table(table)
    else:
        say("They have no checkpoint in common.")
    behind_ms, distance_m = comparison.behind_ms, comparison.distance_m
    most, least = int(behind_ms.argmax()), int(behind_ms.argmin())
    say(
        f"B is furthest behind at {distance_m[most]:.0f} m ({behind_ms[most] / 1000:+.3f} s), furthest ahead at "
        f"{distance_m[least]:.0f} m ({behind_ms[least] / 1000:+.3f} s); compared over {distance_m[-1]:.0f} m"
    )
