"""Make a track from a seed and a difficulty: a .toml track file and its .npy reference line.

The same seed and difficulty give the same files. Difficulty 0 is wide, smooth asphalt with long bends; 1 is narrow,
tight and steep, with dirt, grass, missing walls and jumps. Trainings can make such tracks: docs/track_files.rst.

Example:
  python scripts/generate_track.py --seed 7 --difficulty 0.9 --output maps/generated_hard.toml --picture hard.png
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

from trackmania_rl.cli import command, png_file
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_generator import GeneratedTrack, TrackRecipe, generate_track
from trackmania_rl.track.named_maps import folder_to_add_to


@command
def main() -> None:
    generate(parse_arguments())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seed", type=int, required=True, help="a whole number from 0 on")
    add("--difficulty", type=float, default=0.5, help="0 to 1 (default %(default)s)")
    add("--output", type=Path, metavar="FILE.toml", help="default: maps/generated_{difficulty}_{seed}.toml")
    add("--force", action="store_true", help="overwrite other files of that name")
    add("--picture", type=png_file, metavar="FILE.png", help="draw it there, with the scripted driver's line")
    return parser.parse_args()


def generate(arguments: argparse.Namespace) -> None:
    """Make, write and print; UserError if seed or difficulty is out of range, or a file exists."""
    track = generate_track(TrackRecipe(arguments.seed, arguments.difficulty))
    output: Path = arguments.output or folder_to_add_to() / "maps" / f"{track.design.name}.toml"
    if output.suffix != ".toml":
        raise UserError(f"--output {output}: a track file's name ends in .toml")
    named = GeneratedTrack(track.recipe, replace(track.design, name=output.stem), track.laid_out)
    try:
        if not arguments.force and (present := named.file_in_the_way(output)) is not None:
            raise UserError(f"{present} is there already; give another --output, or --force to overwrite it")
        output.parent.mkdir(parents=True, exist_ok=True)
        line_file = named.write(output)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    print(f"{named.length_m:.0f} m, {len(named.laid_out.checkpoints_m)} checkpoints. {track.design.description}")
    print(f"wrote {output} and {line_file}")
    if arguments.picture is not None:
        sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
        from trackmania_rl.simulator.tracks.track_file import load_track

        from draw_track import drive_and_draw  # slow import

        drive_and_draw(load_track(output), "careful", arguments.picture, 1000)


if __name__ == "__main__":
    sys.exit(main())
