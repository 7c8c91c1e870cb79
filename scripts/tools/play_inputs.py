"""Play inputs files in the game; print the times, and keep the inputs that the game reports.

The game runs already and listens at --port, or --launch starts one and ends it afterwards. With --output the game's own
replays are copied as well: it saves one if a race is a personal record and its result is confirmed with Enter. With
--video the game's pictures are filmed, with time, speed, gear and keys over them.
--report compares the race with the same inputs on the simulated game, in a file without private data.

Example:
  python scripts/tools/play_inputs.py save/tmnf/best_runs --map "My Challenges/A01.Challenge.Gbx" --output played
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import platform
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import (
    add_video_options,
    command,
    end_in_order_when_terminated,
    mp4_file,
    port,
    whole_number,
    writing,
)
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER, program_version
from trackmania_rl.protocol.messages import LINK_VERSION, TICK_MS
from trackmania_rl.protocol.state_blob import StateView
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.telemetry.films import film_script
from trackmania_rl.telemetry.terminal_view import describe_race
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import RunningGame, SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.launchers.plugin_files import find_plugins_folder
from trackmania_rl.tmi_interaction.personal_records import autosaves_folder, replays_in
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer, ScriptResult

import numpy as np
import numpy.typing as npt

SCRIPT_NAME = "trackmania_rl_play.txt"
"""File in TMInterface's script folder, for the command `load`."""

POLL_INTERVAL_S = 0.2
APART_M = (0.0, 0.001, 0.1, 1.0)
Driven = dict[int, npt.NDArray[np.float32]]
"""Positions (3,) by race time."""
Fingerprint = tuple[float, int]
"""A file's modification time and size."""


@command
def main(words: list[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 also if a race did not finish."""
    return 0 if play(parse_arguments(words)) else 1


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
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
    add("--report", type=Path, metavar="FILE.json", help="versions, times here and there, first differing tick")
    add("--track", metavar="NAME", help="the simulated track for --report (default: the map's name)")
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
    if arguments.report is not None and (len(files) > 1 or arguments.video is not None):
        raise UserError("--report is of one inputs file, without --video")
    settings = load_settings(arguments.config)
    is_simulated = settings.game.game == "simulated"
    map_path = str(find_track_file(arguments.map, arguments.maps_folder)) if is_simulated else arguments.map
    launcher = make_launcher(
        settings.game, settings.user, arguments.port or settings.game.base_tmi_port, arguments.maps_folder
    )
    all_finished, output = True, arguments.output
    if output is not None:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
    with ScriptPlayer(launcher if arguments.launch else RunningGame(launcher)) as player:
        for file in files:
            before = autosaved(settings)
            load_name = None if is_simulated else offer_script(file, settings.user.trackmania_base_path)
            how = {"speed": arguments.speed, "load_name": load_name, "ask_for_inputs": True}
            if arguments.report is not None:
                driven: Driven = {}
                how |= {"step_ms": TICK_MS, "on_state": functools.partial(_note, driven)}
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
            if arguments.report is not None:
                write_report(arguments, file, race, driven)
            all_finished = all_finished and race.is_finished
            if output is not None:
                name = f"{file.stem}_{race.race_time_ms}"
                target = free_path(output / name, ".inputs")
                with writing(target):
                    target.write_text(race.inputs or "", encoding="utf-8")
                if race.is_finished and not is_simulated:
                    keep_replay(arguments, settings, before, name)
    return all_finished


def _note(driven: Driven, state: StateView) -> None:
    driven[state.race_time_ms] = state.position_m.copy()


def write_report(arguments: argparse.Namespace, file: Path, race: ScriptResult, driven: Driven) -> None:
    """Write how a race in the game compares with the same inputs on the simulated game, if it has the map."""
    map_name = arguments.map.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    simulated: Driven = {}
    here = None
    try:
        track = find_track_file(arguments.track or map_name, arguments.maps_folder)
    except UserError as error:
        print(f"  the report has no time on the simulated game: {error}")
    else:
        with ScriptPlayer(SimulatedGameLauncher(find_free_port(), arguments.maps_folder)) as player:
            here = player.play(str(track), file, step_ms=TICK_MS, on_state=functools.partial(_note, simulated))
    apart_m = {t: float(np.abs(driven[t] - simulated[t]).max()) for t in sorted(driven.keys() & simulated.keys())}
    report = {
        "versions": {"project": program_version(), "plugin": LINK_VERSION, "system": f"{platform.system()}"},
        "map": map_name,
        "inputs_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "finished": {"in the game": race.is_finished, "here": here and here.is_finished},
        "race_time_ms": {"in the game": race.race_time_ms, "here": here and here.race_time_ms},
        "checkpoint_times_ms": {"in the game": race.checkpoint_times_ms, "here": here and here.checkpoint_times_ms},
        "first_tick_ms_with_positions_apart_by": {
            f"{limit_m:g} m": next((t for t, m in apart_m.items() if m > limit_m), None) for limit_m in APART_M
        },
    }
    with writing(arguments.report):
        arguments.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"  report: {arguments.report}")


def find_inputs(path: Path) -> list[Path]:
    """Return a file, or the inputs files in and below a folder."""
    files = sorted(path.rglob("*.inputs")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: this folder holds no *.inputs; name a file, or a folder such as save/RUN/best_runs")
    return files


def offer_script(file: Path, trackmania_base_path: str) -> str:
    """Copy a script to the real game's script folder, also under Wine; return the name to load."""
    scripts = find_plugins_folder(trackmania_base_path).with_name("Scripts")
    with writing(scripts / SCRIPT_NAME):
        scripts.mkdir(exist_ok=True)
        shutil.copyfile(file, scripts / SCRIPT_NAME)
    return SCRIPT_NAME


def keep_replay(arguments: argparse.Namespace, settings: Settings, before: dict[Path, Fingerprint], name: str) -> None:
    """Copy the last race's replay, which the game saves within `--replay-wait` seconds."""
    if not settings.user.trackmania_base_path:
        print("  replays are looked for only where trackmania_base_path is set in user_config.py")
        return
    deadline_s = time.monotonic() + arguments.replay_wait
    while not (new := [file for file, fingerprint in autosaved(settings).items() if before.get(file) != fingerprint]):
        if time.monotonic() > deadline_s:
            print("  the game saved no replay: it saves personal records only, see docs/real_game.rst")
            return
        time.sleep(POLL_INTERVAL_S)
    target = free_path(arguments.output / name, ".Replay.Gbx")
    time.sleep(POLL_INTERVAL_S)  # it may be incomplete
    with writing(target):
        shutil.copyfile(new[0], target)
    print(f"  replay: {target}")


def autosaved(settings: Settings) -> dict[Path, Fingerprint]:
    """Return the real game's personal record replays, if the folder is known."""
    if settings.game.game == "simulated" or not settings.user.trackmania_base_path:
        return {}
    try:
        files = replays_in(autosaves_folder(settings.user.trackmania_base_path))
    except UserError:  # the game makes the folder with the first record
        return {}
    return {file: (file.stat().st_mtime, file.stat().st_size) for file in files}


def free_path(path: Path, ending: str) -> Path:
    """Return a free path with an ending, numbered if needed."""
    target, number = path.with_name(path.name + ending), 2
    while target.exists():
        target, number = path.with_name(f"{path.name}_{number}{ending}"), number + 1
    return target


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
