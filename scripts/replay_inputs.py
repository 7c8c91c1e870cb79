"""Play an inputs file on the simulated game and print its time.

The file is in TMInterface's script format. --export writes it for other programs, with the map's name and the time. A
video is H.264, with time, speed, gear and keys over the picture. The exit code is 0 even if the car does not finish.
scripts/tools/maps.py drive plays several files.

Example:
  python scripts/replay_inputs.py save/simulated/best_runs/valley_25460/valley_25460.inputs --map valley --video a.mp4
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.cli import add_video_options, command, end_in_order_when_terminated, mp4_file, port, writing
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.protocol.input_script import read_input_script, write_input_script
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.telemetry.films import film_script
from trackmania_rl.telemetry.terminal_view import describe_race
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer, ScriptResult


@command
def main() -> None:
    arguments = parse_arguments()
    race = replay(arguments)
    print(describe_race(race))
    if arguments.export is not None:
        export(arguments, race)
    if arguments.video is not None:
        print(f"wrote {arguments.video}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("inputs", type=Path, metavar="FILE.inputs", help="the inputs file")
    add("--map", required=True, metavar="NAME", help="track file (maps/kart.toml, line.npy), or a shipped track (kart)")
    add("--export", type=Path, metavar="FILE.txt", help="write the inputs as TMInterface's recorder, with map and time")
    add("--video", type=mp4_file, metavar="FILE.mp4", help="film the game's own pictures at the race's own pace")
    add_video_options(parser)
    add(
        "--maps-folder",
        type=Path,
        default=PROJECT_FOLDER / "maps",
        help="where else --map looks (default: the project's)",
    )
    add("--port", type=port, help="where the game listens (default: any free port)")
    return parser.parse_args()


def replay(arguments: argparse.Namespace) -> ScriptResult:
    track_file = find_track_file(arguments.map, arguments.maps_folder)
    launcher = SimulatedGameLauncher(arguments.port or find_free_port(), arguments.maps_folder)
    with ScriptPlayer(launcher) as player:
        if arguments.video is None:
            return player.play(str(track_file), arguments.inputs)
        return film_script(
            player,
            str(track_file),
            arguments.inputs,
            arguments.video,
            arguments.video_size,
            arguments.video_fps,
            has_overlay=not arguments.no_overlay,
        )


def export(arguments: argparse.Namespace, race: ScriptResult) -> None:
    """Write the inputs, one a line, after comments with the map and the result."""
    head = f"# map: {find_track_file(arguments.map, arguments.maps_folder).stem}\n# {describe_race(race)}\n"
    with writing(arguments.export):
        arguments.export.write_text(head + write_input_script(read_input_script(arguments.inputs)), encoding="utf-8")
    print(f"wrote {arguments.export}")


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
