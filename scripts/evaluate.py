"""Drive the maps of a trained run, or of a driver's file, greedily: times, finish rates, inputs files and videos.

A greedy race has no chance in it: the same driver takes the same time again. So race 1 on a map is greedy throughout,
and with --races N the others begin with --forced-actions actions that accelerate, drawn from the run's seed. They tell
how well the driver copes with starts that it did not choose. The same command gives the same races.

The best race on each map is written as {map}_{time}.inputs, which TMInterface and scripts/replay_inputs.py can play.
For the video (H.264, which browsers and chats play), that file is played again, and the game's own pictures are filmed
at the race's own pace, with time, speed, gear, keys and Q values over them. Of generated tracks, which are many, only
the first one is filmed, unless --film-all asks for all of them.

Maps of the real game (*.Challenge.Gbx) are driven in the real game, at the run's running_speed, and not filmed:
scripts/tools/play_inputs.py --video does that. Tracks (*.toml, *.npy) are driven in the simulated game, whichever game
the run was trained in.

Of a Gymnasium environment (`games = GymnasiumGames(...)`) the table shows returns and lengths of --races episodes. The
first one is filmed, if the environment renders RGB arrays.

Examples:
  python scripts/evaluate.py save/simulated
  python scripts/evaluate.py save/simulated --races 20 --map kart --map maps/hills.toml --json results.json --no-video
  python scripts/evaluate.py save/many_tracks --map generated:0.5:20000-20049
  python scripts/evaluate.py save/tmnf --map maps/hills.toml
  python scripts/evaluate.py somebodys.driver --map kart
  python scripts/evaluate.py save/cartpole --races 20
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

from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import add_video_options, command, end_in_order_when_terminated, mp4_file, port, whole_number  # noqa: E402  # noqa: E402
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.files import shown_path  # noqa: E402
from trackmania_rl.places import PROJECT_FOLDER, WORKING_FOLDER  # noqa: E402
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe  # noqa: E402
from trackmania_rl.telemetry.films import RaceColumns, film_script  # noqa: E402
from trackmania_rl.telemetry.tables import print_table  # noqa: E402
from trackmania_rl.telemetry.terminal_view import format_time, times_text  # noqa: E402
from trackmania_rl.tmi_interaction.launchers import make_launcher  # noqa: E402
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port  # noqa: E402
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer  # noqa: E402

if TYPE_CHECKING:
    from trackmania_rl.gbx.challenge import MedalTimes
    from trackmania_rl.settings import MapEntry
    from trackmania_rl.training.evaluation import MapEvaluation, TrainedDriver


@command
def main() -> None:
    """Run the command line."""
    evaluate(parse_arguments())


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder, save/{run_name}, or a driver's file, NAME.driver")
    add(
        "--map",
        action="append",
        default=[],
        metavar="NAME",
        help="a name of the run's map cycle, a track file (maps/kart.toml, kart, line.npy), or generated tracks by "
        "difficulty and seeds (generated:0.5:1000-1049); may be repeated (default: all maps of the map cycle)",
    )
    add("--races", type=whole_number(1), default=1, metavar="N", help="races on each map (default %(default)s)")
    add(
        "--forced-actions",
        type=whole_number(0),
        default=10,
        metavar="K",
        help="how many actions are forced at the start of races 2 to N (default %(default)s)",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="another checkpoint or driver of this run (default: the newest checkpoint)",
    )
    add("--code", action="append", default=[], metavar="MODULE", help="a driver's file may import this; read it first")
    add("--json", type=Path, metavar="FILE", help="write all figures into this file, times in ms")
    where = "where inputs files and videos go (default: RUN/evaluation; of a driver's file, evaluation/NAME here)"
    add("--output", type=Path, metavar="FOLDER", help=where)
    video = parser.add_mutually_exclusive_group()
    video.add_argument(
        "--video", type=mp4_file, metavar="FILE.mp4", help="the video's file; of several videos, _{map} is added to it"
    )
    video.add_argument("--no-video", action="store_true", help="film nothing")
    add("--film-all", action="store_true", help="film every generated track (default: only the first of them)")
    add_video_options(parser)
    add("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: as in training)")
    add("--port", type=port, help="where the game listens (default: any free port)")
    return parser.parse_args()


def evaluate(arguments: argparse.Namespace) -> None:
    """Drive, print and write.

    Raises:
        UserError: if there is no such run.
    """
    if not arguments.run.exists():
        raise UserError(f"{arguments.run}: there is no such run folder or driver's file{known_runs()}")
    # Torch takes seconds to import: after the command line and its mistakes.
    import torch

    from trackmania_rl.games.race_games import make_race_games
    from trackmania_rl.track.game_map import load_reference_times
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.evaluation import evaluate_map, load_driver

    console = Console()
    driver = load_driver(arguments.run, arguments.checkpoint, arguments.device, code=arguments.code)
    torch.set_num_threads(1)
    if driver.spaces.own_observation is not None:
        evaluate_own_environment(driver, arguments, console)
        return
    maps_folder = PROJECT_FOLDER / driver.settings.game.maps_folder
    output = arguments.output or output_of(arguments.run)
    entries = map_entries(driver.settings, maps_folder, arguments.map, output / "generated_tracks")
    kind = game_of(entries)
    is_kept = driver.settings.game.games_are_kept and kind != "simulated"  # the simulated game is here as well
    game = driver.settings.game.model_copy(update={"game": kind, "games_are_kept": is_kept})
    game_port = arguments.port or (game.base_tmi_port if is_kept else find_free_port())
    launcher = make_launcher(game, driver.settings.user, game_port, maps_folder)
    if arguments.video and not isinstance(launcher, SimulatedGameLauncher):
        raise UserError(
            "--video: races in the real game are not filmed here; leave it out, and film the inputs file that is "
            "written with scripts/tools/play_inputs.py --video"
        )
    games = make_race_games(driver.settings.model_copy(update={"game": game})).behind_sockets([launcher])
    with contextlib.closing(games), console.status("starting the game") as status:
        evaluations = []
        for entry in entries:
            status.update(f"driving {entry.map_name}")
            evaluations.append(
                evaluate_map(driver, games, entry, arguments.races, n_forced_actions=arguments.forced_actions)
            )
    times = load_reference_times(entries, maps_folder)
    print_table(results_table(evaluations, times, f"{arguments.run} after {driver.frames_total:,} frames"), console)
    for map_name, to_beat in times.items():
        console.print(f"to beat on {map_name}: {times_text(to_beat)}", highlight=False, soft_wrap=True)

    if len(evaluations) > 1:
        console.print(finished_share(evaluations), highlight=False)

    files = write_inputs(evaluations, output)
    filmed: list[int] = []
    videos: list[Path] = []
    if isinstance(launcher, SimulatedGameLauncher) and not arguments.no_video:
        filmed = filmed_maps(evaluations, film_all=arguments.film_all)
        videos = film([(evaluations[k], files[k]) for k in filmed], driver, launcher, arguments, console)
    video_of_map = dict(zip(filmed, videos, strict=True))
    if arguments.json is not None:
        text = json.dumps(report(arguments, driver, evaluations, times, files, video_of_map), indent=2) + "\n"
        write_text(arguments.json, text)
    for file in (*files, *videos, *([arguments.json] if arguments.json else [])):
        console.print(f"wrote {file}", soft_wrap=True, highlight=False)


def evaluate_own_environment(driver: TrainedDriver, arguments: argparse.Namespace, console: Console) -> None:
    """Drive episodes of a user's own environment, print and write.

    Raises:
        UserError: if the environment renders nothing for --video, or --map is given.
    """
    from trackmania_rl.training.evaluation import evaluate_environment

    if arguments.map:
        raise UserError(f"--map {arguments.map[0]}: {driver.settings.game.games} has no maps; leave it out")
    output = arguments.output or output_of(arguments.run)
    film = None if arguments.no_video else arguments.video or output / f"{driver.settings.run.run_name}.mp4"
    with console.status("driving"):
        try:
            episodes = evaluate_environment(driver, arguments.races, film)
        except UserError as error:
            if arguments.video or film is None:
                raise
            console.print(f"not filmed: {error}", highlight=False)
            film, episodes = None, evaluate_environment(driver, arguments.races, None)
    returns, lengths = ([getattr(one, name) for one in episodes] for name in ("episode_return", "length"))
    table = Table(title=f"{arguments.run} after {driver.frames_total:,} frames", title_justify="left")
    for heading in ("episodes", "mean return", "best", "worst", "mean length", "terminated"):
        table.add_column(heading, justify="right")
    means = statistics.fmean(returns), statistics.fmean(lengths)
    n_terminated = sum(one.end == "terminated" for one in episodes)
    figures = (f"{number:,.4g}" for number in (means[0], max(returns), min(returns), means[1]))
    table.add_row(f"{len(episodes):,}", *figures, f"{n_terminated}/{len(episodes)}")
    print_table(table, console)
    if film is not None:
        console.print(f"wrote {film}", soft_wrap=True, highlight=False)
    if arguments.json is not None:
        report = {
            **report_of_driver(arguments, driver),
            "mean_return": means[0],
            "mean_length": means[1],
            "episodes": [vars(one) for one in episodes],
            "video_file": film and str(film),
        }
        write_text(arguments.json, json.dumps(report, indent=2) + "\n")
        console.print(f"wrote {arguments.json}", soft_wrap=True, highlight=False)


def known_runs() -> str:
    """List the runs that there are, for an error message."""
    from trackmania_rl.settings.snapshot import own_file

    runs = sorted(folder for folder in (WORKING_FOLDER / "save").glob("*") if own_file(folder).is_file())
    return f"; the runs here are {', '.join(map(shown_path, runs))}" if runs else "; a training makes save/{run_name}"


def output_of(source: Path) -> Path:
    """Where what is driven goes: into the run's own folder, or, of a driver's file, into the current folder."""
    return source / "evaluation" if source.is_dir() else Path("evaluation") / source.stem


def game_of(entries: Sequence[MapEntry]) -> Literal["simulated", "tmnf"]:
    """The game that has these maps.

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


def results_table(evaluations: list[MapEvaluation], times: Mapping[str, MedalTimes], title: str) -> Table:
    """What a person wants to know of each map; the best time with the medal that it reaches."""
    table = Table(title=title, title_justify="left")
    table.add_column("map", overflow="fold")
    for heading in ("finished", "best", "median", "mean", "metres"):
        table.add_column(heading, justify="right", no_wrap=heading != "finished")
    table.add_column("checkpoints of the best race")
    for evaluation in evaluations:
        best = evaluation.best_race
        medal = medal_of(evaluation, times)
        table.add_row(
            evaluation.map_entry.map_name,
            f"{len(evaluation.finish_times_ms)}/{len(evaluation.races)} ({evaluation.finish_rate:.0%})",
            f"{medal or ''} {format_time(evaluation.best_ms)}".strip(),
            format_time(evaluation.median_ms),
            format_time(evaluation.mean_ms),
            f"{max(race.meters for race in evaluation.races):.0f}",
            " ".join(map(format_time, best.checkpoint_times_ms)) or "none",
        )
    return table


def medal_of(evaluation: MapEvaluation, times: Mapping[str, MedalTimes]) -> str | None:
    """The best of the map's medals that was reached."""
    to_beat = times.get(evaluation.map_entry.map_name)
    return None if to_beat is None or evaluation.best_ms is None else to_beat.medal(evaluation.best_ms)


def finished_share(evaluations: list[MapEvaluation]) -> str:
    """How many maps and races were finished, in a sentence."""
    races = [race for evaluation in evaluations for race in evaluation.races]
    n_finished = sum(race.race_finished for race in races)
    n_maps = sum(evaluation.races[0].race_finished for evaluation in evaluations)
    return (
        f"finished: {n_maps} of {len(evaluations)} maps in the race that is greedy throughout "
        f"({n_maps / len(evaluations):.0%}), {n_finished} of {len(races)} races ({n_finished / len(races):.0%})"
    )


def write_inputs(evaluations: list[MapEvaluation], folder: Path) -> list[Path]:
    """Write the inputs of each map's best race; returns the files, in the order of the maps."""
    files = [folder / f"{evaluation.best_race_name}.inputs" for evaluation in evaluations]
    for evaluation, file in zip(evaluations, files, strict=True):
        write_text(file, evaluation.best_race.inputs)
    return files


def filmed_maps(evaluations: list[MapEvaluation], *, film_all: bool) -> list[int]:
    """Which maps are filmed, by their numbers: all, but only the first of the generated ones unless `film_all`."""
    generated = [k for k, one in enumerate(evaluations) if TrackRecipe.from_name(one.map_entry.map_name) is not None]
    left_out = set() if film_all else set(generated[1:])
    return [k for k in range(len(evaluations)) if k not in left_out]


def film(
    races: list[tuple[MapEvaluation, Path]],
    driver: TrainedDriver,
    launcher: SimulatedGameLauncher,
    arguments: argparse.Namespace,
    console: Console,
) -> list[Path]:
    """Play each map's inputs file again, film it, and compare its times with the race's; returns the videos."""
    videos: list[Path] = []
    with ScriptPlayer(launcher) as player, console.status("filming") as status:
        for evaluation, inputs_file in races:
            map_entry, best = evaluation.map_entry, evaluation.best_race
            status.update(f"filming {map_entry.map_name}")
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
                RaceColumns.of_game(driver.settings.game, best.q_values),
                has_overlay=not arguments.no_overlay,
                until_ms=None if best.race_finished else best.race_time_ms,
            )
            videos.append(file)
            if (replay.is_finished, replay.checkpoint_times_ms) != (best.race_finished, best.checkpoint_times_ms):
                raise UserError(
                    f"{inputs_file} passes the checkpoints at {list(replay.checkpoint_times_ms)} ms, but its race did "
                    f"at {list(best.checkpoint_times_ms)} ms: the game does not repeat itself; please report this"
                )
    return videos


def report(
    arguments: argparse.Namespace,
    driver: TrainedDriver,
    evaluations: list[MapEvaluation],
    times: Mapping[str, MedalTimes],
    inputs_files: list[Path],
    video_of_map: dict[int, Path],
) -> dict[str, Any]:
    """All figures as plain values for JSON."""
    maps = [evaluation.as_dict() for evaluation in evaluations]
    for index, inputs_file in enumerate(inputs_files):
        maps[index]["medal"] = medal_of(evaluations[index], times)
        maps[index]["inputs_file"] = str(inputs_file)
        maps[index]["video_file"] = str(video_of_map[index]) if index in video_of_map else None
    return {
        **report_of_driver(arguments, driver),
        "share_of_maps_finished": sum(e.races[0].race_finished for e in evaluations) / len(evaluations),
        "maps": maps,
    }


def report_of_driver(arguments: argparse.Namespace, driver: TrainedDriver) -> dict[str, Any]:
    """The driver's part of the figures."""
    return {
        "run": str(arguments.run),
        "checkpoint": str(driver.file),
        "seed": driver.settings.run.seed,
        "frames_total": driver.frames_total,
        "training_s": driver.training_s,
    }


def write_text(file: Path, text: str) -> None:
    """Write a file, its folder too.

    Raises:
        UserError: if the disk says no.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
