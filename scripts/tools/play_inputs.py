"""Play an inputs file, or a folder of them, in the game; print the times, and keep the inputs that the game reports.

The game runs already and listens at --port, or --launch starts one and ends it afterwards. In the real game the time is
the game's own. With --output the game's own replays are copied as well: it saves one when a race is a personal record
and its result is confirmed with Enter. With --video the game's own pictures are filmed, with time, speed, gear and keys
over them; the game waits for each, so it takes longer than the race.

Examples:
  python scripts/tools/play_inputs.py save/tmnf/best_runs --map "My Challenges/A01.Challenge.Gbx" --output played
  python scripts/tools/play_inputs.py valley.inputs --map valley --launch --config config_files/config.py --speed 80
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import add_video_options, command, end_in_order_when_terminated, mp4_file, port, whole_number  # noqa: E402  # noqa: E402
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.places import PROJECT_FOLDER  # noqa: E402
from trackmania_rl.settings import Settings, load_settings  # noqa: E402
from trackmania_rl.simulator.tracks.track_file import find_track_file  # noqa: E402
from trackmania_rl.telemetry.films import film_script  # noqa: E402
from trackmania_rl.telemetry.terminal_view import describe_race  # noqa: E402
from trackmania_rl.tmi_interaction.launchers import make_launcher  # noqa: E402
from trackmania_rl.tmi_interaction.launchers.launcher import RunningGame  # noqa: E402
from trackmania_rl.tmi_interaction.launchers.plugin_files import find_plugins_folder  # noqa: E402
from trackmania_rl.tmi_interaction.personal_records import autosaves_folder, replays_in  # noqa: E402
from trackmania_rl.tmi_interaction.script_player import ScriptedRace, ScriptPlayer  # noqa: E402

SCRIPT_NAME = "trackmania_rl_play.txt"
"""What a script is called in TMInterface's folder of scripts, where `load` looks; no other file changes there."""

POLL_INTERVAL_S = 0.2
Fingerprint = tuple[float, int]
"""Time of change and size of a file."""


@command
def main(words: list[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 also if a race did not finish."""
    return 0 if play(parse_arguments(words)) else 1


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("inputs", type=Path, metavar="FILE_OR_FOLDER", help="an inputs file, or a folder with *.inputs in it or below")
    add("--map", required=True, metavar="NAME", help="as map_path in map_cycle; in the simulated game also a bare name")
    add("--output", type=Path, metavar="FOLDER", help="where inputs and replays are kept (default: they are not)")
    add("--launch", action="store_true", help="start a game, and end it afterwards")
    add("--port", type=port, help="where the game listens (default: base_tmi_port)")
    add("--speed", type=whole_number(1, 1000), default=1, help="game speed (default: 1, real time)")
    add("--replay-wait", type=whole_number(0, 600), default=10, metavar="S", help="seconds for which a replay of the "
        "real game is waited for after each race (default: 10); Enter, in the game, confirms the result")  # fmt: skip
    add("--video", type=mp4_file, metavar="FILE.mp4", help="film the race; of several files, _{name} is added to it")
    add_video_options(parser)
    add(
        "--config",
        type=Path,
        default=PROJECT_FOLDER / "config_files" / "config_tmnf.py",
        help="which game, and where it is",
    )
    add("--maps-folder", type=Path, default=PROJECT_FOLDER / "maps", help="the simulated game's maps")
    return parser.parse_args(words)


def play(arguments: argparse.Namespace) -> bool:
    """Play all files; return whether every race finished."""
    files = find_inputs(arguments.inputs)
    settings = load_settings(arguments.config)
    is_simulated = settings.game.game == "simulated"
    map_path = str(find_track_file(arguments.map, arguments.maps_folder)) if is_simulated else arguments.map
    launcher = make_launcher(
        settings.game, settings.user, arguments.port or settings.game.base_tmi_port, arguments.maps_folder
    )
    all_finished = True
    if arguments.output is not None:
        make_folder(arguments.output)
    with ScriptPlayer(launcher if arguments.launch else RunningGame(launcher)) as player:
        for file in files:
            before = autosaved(settings)
            load_name = None if is_simulated else offer_script(file, settings.user.trackmania_base_path)
            how = {"speed": arguments.speed, "load_name": load_name, "ask_for_inputs": arguments.output is not None}
            if arguments.video is None:
                race = player.play(map_path, file, **how)
            else:
                video = arguments.video
                if len(files) > 1:
                    video = video.with_stem(f"{video.stem}_{file.stem}")
                form = (arguments.video_size, arguments.video_fps)
                race = film_script(player, map_path, file, video, *form, has_overlay=not arguments.no_overlay, **how)
                print(f"wrote {video}")
            print(f"{file}: {describe_race(race)}", flush=True)
            all_finished = all_finished and race.is_finished
            if arguments.output is not None:
                keep(arguments.output / f"{file.stem}_{race.race_time_ms}", race)
                if race.is_finished and not is_simulated:
                    keep_replay(arguments, settings, before, f"{file.stem}_{race.race_time_ms}")
    return all_finished


def find_inputs(path: Path) -> list[Path]:
    """The inputs files that a user means."""
    files = sorted(path.rglob("*.inputs")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: this folder holds no *.inputs; name a file, or a folder such as save/RUN/best_runs")
    return files


def offer_script(file: Path, trackmania_base_path: str) -> str:
    """Put a script where the real game's `load` command looks, under Wine too; return the name to load."""
    scripts = find_plugins_folder(trackmania_base_path).with_name("Scripts")
    try:
        scripts.mkdir(exist_ok=True)
        shutil.copyfile(file, scripts / SCRIPT_NAME)
    except OSError as error:
        raise UserError(
            f"{error.filename or file}: the script cannot be copied to {scripts}: {error.strerror}"
        ) from error
    return SCRIPT_NAME


def keep(path: Path, race: ScriptedRace) -> None:
    """Write the inputs that the game reported; a file of the same name, a race of the same time, stays."""
    target = free_path(path, ".inputs")
    try:
        target.write_text(race.inputs or "", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error


def keep_replay(arguments: argparse.Namespace, settings: Settings, before: dict[Path, Fingerprint], name: str) -> None:
    """Copy the replay that the game saves of the race just driven, if it does."""
    if not settings.user.trackmania_base_path:
        print("  replays are looked for only where trackmania_base_path is set in user_config.py")
        return
    deadline_s = time.monotonic() + arguments.replay_wait
    while True:
        new = [file for file, fingerprint in autosaved(settings).items() if before.get(file) != fingerprint]
        if new:
            target = free_path(arguments.output / name, ".Replay.Gbx")
            time.sleep(POLL_INTERVAL_S)  # it may still be written
            try:
                shutil.copyfile(new[0], target)
            except OSError as error:
                raise UserError(f"{new[0]}: cannot be copied to {target}: {error.strerror}") from error
            print(f"  replay: {target}")
            return
        if time.monotonic() > deadline_s:
            break
        time.sleep(POLL_INTERVAL_S)
    print("  the game saved no replay: it saves personal records only, see docs/in_game_helpers.rst")


def autosaved(settings: Settings) -> dict[Path, Fingerprint]:
    """The real game's replays of personal records, as far as one knows where they are."""
    if settings.game.game == "simulated" or not settings.user.trackmania_base_path:
        return {}
    try:
        files = replays_in(autosaves_folder(settings.user.trackmania_base_path))
    except UserError:  # none yet: the game makes the folder with the first
        return {}
    return {file: (file.stat().st_mtime, file.stat().st_size) for file in files}


def make_folder(folder: Path) -> None:
    """Make the output folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}") from error


def free_path(path: Path, ending: str) -> Path:
    """A path with an ending, numbered if need be, at which there is no file."""
    target, number = path.with_name(path.name + ending), 2
    while target.exists():
        target, number = path.with_name(f"{path.name}_{number}{ending}"), number + 1
    return target


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
