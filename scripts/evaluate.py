"""Drive the maps of a trained run, or of a driver's file, greedily: times, finish rates, inputs files and videos.

The first race on a map is greedy; with --races N the others begin with --forced-actions actions that accelerate, drawn
from the run's seed.

The best race on each map is written as {map}_{time}.inputs, which TMInterface and scripts/replay_inputs.py can play,
and filmed (H.264) with time, speed, gear, keys and Q values over the game's picture. Of generated tracks only the first
is filmed, or all with --film-all.

Maps of the real game (*.Challenge.Gbx) are driven in the real game at the run's running_speed, and not filmed:
scripts/tools/play_inputs.py --video does that. Tracks (*.toml, *.npy) are driven in the simulated game.

For a Gymnasium environment the table shows returns and lengths of --races episodes. The first one is filmed if the
environment renders RGB arrays.

Examples:
  python scripts/evaluate.py save/simulated
  python scripts/evaluate.py save/simulated --races 20 --map kart --map maps/hills.toml --json results.json --no-video
  python scripts/evaluate.py downloaded.driver --map kart
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # if not installed

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
from trackmania_rl.paths import (
    PROJECT_FOLDER,
    WORKING_FOLDER,
    shown_path,
)
from trackmania_rl.telemetry.films import FilmData, film_script
from trackmania_rl.telemetry.tables import PlainConsole, print_table
from trackmania_rl.telemetry.terminal_view import format_time, times_text
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer
from trackmania_rl.track.map_sources import TRACKS_FOLDER

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from trackmania_rl.drivers.evaluation import MapEvaluation, TrainedDriver
    from trackmania_rl.gbx.challenge import MedalTimes
    from trackmania_rl.settings import MapEntry


@command
def main() -> None:
    evaluate(parse_arguments())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder, save/{run_name}, or a driver's file, NAME.driver")
    maps = (
        "a name of the run's map cycle, a track file (maps/kart.toml, kart, line.npy), or generated tracks by "
        "difficulty and seeds (generated:0.5:1000-1049); may be repeated (default: all maps of the map cycle)"
    )
    add("--map", action="append", default=[], metavar="NAME", help=maps)
    add("--races", type=whole_number(1), default=1, metavar="N", help="races on each map (default %(default)s)")
    forced = "how many actions are forced at the start of races 2 to N (default %(default)s)"
    add("--forced-actions", type=whole_number(0), default=10, metavar="K", help=forced)
    checkpoint = "another checkpoint or driver of this run (default: the newest checkpoint)"
    add("--checkpoint", type=Path, metavar="FILE", help=checkpoint)
    add("--code", action="append", default=[], metavar="MODULE", help="a driver's file may import this; read it first")
    add("--json", type=Path, metavar="FILE", help="write all figures into this file, times in ms")
    where = "where inputs files and videos go (default: RUN/evaluation; of a driver's file, evaluation/NAME here)"
    add("--output", type=Path, metavar="FOLDER", help=where)
    video = parser.add_mutually_exclusive_group().add_argument
    file = "the video's file; of several videos, _{map} is added to it"
    video("--video", type=mp4_file, metavar="FILE.mp4", help=file)
    video("--no-video", action="store_true", help="film nothing")
    add("--film-all", action="store_true", help="film every generated track (default: only the first of them)")
    add_video_options(parser)
    add("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: as in training)")
    add("--port", type=port, help="where the game listens (default: any free port)")
    return parser.parse_args()


def evaluate(arguments: argparse.Namespace) -> None:
    """Drive, print and write; UserError if there is no such run, or the arguments do not fit it."""
    if not arguments.run.exists():
        raise UserError(f"{arguments.run}: there is no such run folder or driver's file{known_runs()}")
    # Slow imports.
    from trackmania_rl.drivers.evaluation import load_driver

    import torch

    console = PlainConsole()
    driver = load_driver(arguments.run, arguments.checkpoint, arguments.device, code=arguments.code)
    torch.set_num_threads(1)
    # A run's results go to the run's folder, a driver file's to the current one.
    of_file = Path("evaluation") / arguments.run.stem
    output = arguments.output or (arguments.run / "evaluation" if arguments.run.is_dir() else of_file)
    own = driver.spaces.custom_observation is not None
    figures, files = (evaluate_environment if own else evaluate_maps)(driver, arguments, output, console)
    if arguments.json is not None:
        of_driver = {
            "run": str(arguments.run),
            "checkpoint": str(driver.file),
            "seed": driver.settings.run.seed,
            "frames_total": driver.frames_total,
            "training_s": driver.training_s,
        }
        write_text(arguments.json, json.dumps(of_driver | figures, indent=2) + "\n")
        files.append(arguments.json)
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def evaluate_maps(
    driver: TrainedDriver, arguments: argparse.Namespace, output: Path, console: PlainConsole
) -> tuple[dict[str, Any], list[Path]]:
    """Drive maps, print the table, write inputs and videos; return the figures and the files.

    Raises:
        UserError: if a map or the game can't be used.
    """
    from trackmania_rl.drivers.evaluation import evaluate_map
    from trackmania_rl.games.race_games import make_race_games
    from trackmania_rl.track.game_map import load_reference_times
    from trackmania_rl.track.named_maps import map_entries

    maps_folder = PROJECT_FOLDER / driver.settings.game.maps_folder
    entries = map_entries(driver.settings, maps_folder, arguments.map, output / TRACKS_FOLDER)
    kind = game_of(entries)
    is_kept = driver.settings.game.games_are_kept and kind != "simulated"  # the simulated game is local
    game = driver.settings.game.model_copy(update={"game": kind, "games_are_kept": is_kept})
    game_port = arguments.port or (game.base_tmi_port if is_kept else find_free_port())
    launcher = make_launcher(game, driver.settings.user, game_port, maps_folder)
    if arguments.video and not isinstance(launcher, SimulatedGameLauncher):
        raise UserError(
            "--video: races in the real game are not filmed here; leave it out, and film the inputs file that is "
            "written with scripts/tools/play_inputs.py --video"
        )
    games = make_race_games(driver.settings.model_copy(update={"game": game})).behind_sockets([launcher])
    evaluations = []
    with contextlib.closing(games), console.status("starting the game") as status:
        for entry in entries:
            status.update(Text(f"driving {entry.map_name}"))
            one = evaluate_map(driver, games, entry, arguments.races, n_forced_actions=arguments.forced_actions)
            evaluations.append(one)
    times = load_reference_times(entries, maps_folder)
    print_results(evaluations, times, f"{arguments.run} after {driver.frames_total:,} frames", console)
    if arguments.run.is_dir() and arguments.checkpoint is None:
        averaged = "averaged " if driver.settings.agent.evaluation_weights_decay > 0 else ""
        what = "one race" if arguments.races == 1 else f"{arguments.races} races"
        console.print_sentence(
            f"{what} with the newest {averaged}weights; a training's `best` is the best of all its races"
        )
    files = [output / f"{evaluation.best_race_name}.inputs" for evaluation in evaluations]
    for evaluation, file in zip(evaluations, files, strict=True):
        write_text(file, evaluation.best_race.facts.inputs)
    videos: dict[int, Path] = {}
    if isinstance(launcher, SimulatedGameLauncher) and not arguments.no_video:
        folders = [Path(evaluation.map_entry.map_path).parent.name for evaluation in evaluations]
        generated = [number for number, folder in enumerate(folders) if folder == TRACKS_FOLDER]
        left_out = set() if arguments.film_all else set(generated[1:])
        filmed = {k: (evaluations[k], files[k]) for k in range(len(files)) if k not in left_out}
        videos = film(filmed, driver, launcher, arguments, console)
    maps = [evaluation.figures() for evaluation in evaluations]
    for number, evaluation in enumerate(evaluations):
        maps[number]["medal"] = medal_of(evaluation, times)
        maps[number]["inputs_file"] = str(files[number])
        maps[number]["video_file"] = str(videos[number]) if number in videos else None
    share = sum(evaluation.races[0].facts.race_finished for evaluation in evaluations) / len(evaluations)
    return {"share_of_maps_finished": share, "maps": maps}, [*files, *videos.values()]


def evaluate_environment(
    driver: TrainedDriver, arguments: argparse.Namespace, output: Path, console: PlainConsole
) -> tuple[dict[str, Any], list[Path]]:
    """Drive episodes in a user's environment and print the table; return the figures and the files.

    Raises:
        UserError: if the environment renders nothing for --video, or --map is given.
    """
    from trackmania_rl.drivers.evaluation import evaluate_environment as drive

    if arguments.map:
        raise UserError(f"--map {arguments.map[0]}: {driver.settings.game.games} has no maps; leave it out")
    film = None if arguments.no_video else arguments.video or output / f"{driver.settings.run.run_name}.mp4"
    with console.status("driving"):
        try:
            episodes = drive(driver, arguments.races, film)
        except UserError as error:
            if arguments.video or film is None:
                raise
            console.print(f"not filmed: {error}")
            film, episodes = None, drive(driver, arguments.races, None)
    returns = [one.meters for one in episodes]
    mean_return, mean_length = statistics.fmean(returns), statistics.fmean(one.n_actions for one in episodes)
    table = Table(title=f"{arguments.run} after {driver.frames_total:,} frames", title_justify="left")
    for heading in ("episodes", "mean return", "best", "worst", "mean length", "terminated"):
        table.add_column(heading, justify="right")
    n_terminated = sum(one.terminated for one in episodes)
    numbers = (f"{number:,.4g}" for number in (mean_return, max(returns), min(returns), mean_length))
    table.add_row(f"{len(episodes):,}", *numbers, f"{n_terminated}/{len(episodes)}")
    print_table(table, console)
    figures = {
        "mean_return": mean_return,
        "mean_length": mean_length,
        "episodes": [
            {"episode_return": one.meters, "length": one.n_actions, "end": one.cutoff_reason} for one in episodes
        ],
        "video_file": film and str(film),
    }
    return figures, [] if film is None else [film]


def known_runs() -> str:
    """List the existing runs for an error message."""
    from trackmania_rl.runs.folder import is_run

    runs = sorted(folder for folder in (WORKING_FOLDER / "save").glob("*") if is_run(folder))
    return f"; the runs here are {', '.join(map(shown_path, runs))}" if runs else "; a training makes save/{run_name}"


def game_of(entries: Sequence[MapEntry]) -> Literal["simulated", "tmnf"]:
    """Return the game for these maps.

    Raises:
        UserError: if no game has all of them.
    """
    tracks = [entry.map_name for entry in entries if Path(entry.map_path).suffix in (".toml", ".npy")]
    maps = [entry.map_name for entry in entries if entry.map_name not in tracks]
    if tracks and maps:
        raise UserError(
            f"{', '.join(tracks)}: tracks of the simulated game; {', '.join(maps)}: maps of the real one. Choose those "
            "of one game with --map"
        )
    return "tmnf" if maps else "simulated"


def print_results(
    evaluations: list[MapEvaluation], times: Mapping[str, MedalTimes], title: str, console: PlainConsole
) -> None:
    """Print a table with a row per map, times to beat, and finished shares (maps, races)."""
    table = Table(title=title, title_justify="left")
    table.add_column("map", overflow="fold")
    for heading in ("finished", "best", "median", "mean", "metres"):
        table.add_column(heading, justify="right", no_wrap=heading != "finished")
    table.add_column("checkpoints of the best race")
    for evaluation in evaluations:
        figures = evaluation.figures()
        n_finished = sum(race.facts.race_finished for race in evaluation.races)
        table.add_row(
            evaluation.map_entry.map_name,
            f"{n_finished}/{len(evaluation.races)} ({figures['finish_rate']:.0%})",
            f"{medal_of(evaluation, times) or ''} {format_time(figures['best_ms'])}".strip(),
            format_time(figures["median_ms"]),
            format_time(figures["mean_ms"]),
            f"{figures['best_meters']:.0f}",
            " ".join(map(format_time, evaluation.best_race.facts.checkpoint_times_ms)) or "none",
        )
    print_table(table, console)
    for map_name, to_beat in times.items():
        console.print_sentence(f"to beat on {map_name}: {times_text(to_beat)}")
    if len(evaluations) > 1:
        races = [race for evaluation in evaluations for race in evaluation.races]
        n_finished = sum(race.facts.race_finished for race in races)
        n_maps = sum(evaluation.races[0].facts.race_finished for evaluation in evaluations)
        console.print_sentence(
            f"finished: {n_maps} of {len(evaluations)} maps in the race that is greedy throughout "
            f"({n_maps / len(evaluations):.0%}), {n_finished} of {len(races)} races ({n_finished / len(races):.0%})"
        )


def medal_of(evaluation: MapEvaluation, times: Mapping[str, MedalTimes]) -> str | None:
    to_beat = times.get(evaluation.map_entry.map_name)
    best = evaluation.best_race.facts
    return None if to_beat is None or not best.race_finished else to_beat.medal(best.race_time_ms)


def film(
    races: dict[int, tuple[MapEvaluation, Path]],
    driver: TrainedDriver,
    launcher: SimulatedGameLauncher,
    arguments: argparse.Namespace,
    console: PlainConsole,
) -> dict[int, Path]:
    """Film inputs files, compare the times with the races'; return the videos."""
    videos: dict[int, Path] = {}
    with ScriptPlayer(launcher) as player, console.status("filming") as status:
        for number, (evaluation, inputs_file) in races.items():
            map_entry = evaluation.map_entry
            best = evaluation.best_race.facts
            name, until_s = map_entry.map_name, best.race_time_ms / 1000

            def show_progress(race_time_ms: int, name: str = name, until_s: float = until_s) -> None:
                status.update(Text(f"filming {name}: {max(0, race_time_ms) / 1000:.1f} of {until_s:.1f} s"))

            show_progress(0)
            file = arguments.video or inputs_file.with_suffix(".mp4")
            if arguments.video and len(races) > 1:
                file = file.with_stem(f"{file.stem}_{map_entry.map_name}")
            replay = film_script(
                player,
                map_entry.map_path,
                inputs_file,
                file,
                arguments.video_size,
                arguments.video_fps,
                FilmData.of_game(driver.settings.game, evaluation.best_race.columns["q_values"]),
                has_overlay=not arguments.no_overlay,
                on_race_time_ms=show_progress,
                until_ms=None if best.race_finished else best.race_time_ms,
            )
            videos[number] = file
            if (replay.is_finished, replay.checkpoint_times_ms) != (best.race_finished, best.checkpoint_times_ms):
                raise UserError(
                    f"{inputs_file} passes the checkpoints at {list(replay.checkpoint_times_ms)} ms, but its race did "
                    f"at {list(best.checkpoint_times_ms)} ms: the game does not repeat itself; please report this"
                )
    return videos


def write_text(file: Path, text: str) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
