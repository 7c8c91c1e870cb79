"""Data sets of races in Minari's format: record races, export replay memories, show one.

`record` drives inputs files, replays (docs/datasets.rst) or trained drivers in the simulated game. `export` takes
the races in runs' replay memories. The setting `offline` names a data set for training: docs/datasets.rst.

Examples:
  python scripts/tools/dataset.py record best.inputs --map valley --id trackmania/valley-expert-v0
  python scripts/tools/dataset.py record save/simulated --races 20 --finished-only --id trackmania/valley-driver-v0
  python scripts/tools/dataset.py export save/first save/second --id trackmania/memories-v0 --folder datasets
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command, end_in_order_when_terminated, whole_number
from trackmania_rl.files import portable
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.telemetry.tables import PlainConsole, print_table
from trackmania_rl.telemetry.terminal_view import format_time

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from trackmania_rl.drivers.evaluation import TrainedDriver
    from trackmania_rl.experience_replay.episodes import DataSetForm, Episode
    from trackmania_rl.experience_replay.minari_files import DataSet


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    arguments.run(arguments, PlainConsole(width=None if sys.stdout.isatty() else 160))


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add_command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def add_configuration(parser: argparse.ArgumentParser, use: str) -> None:
        parser.add_argument("--config", type=Path, metavar="FILE", help=f"configuration {use}")
        parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting of it")

    def add_target(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--id", required=True, metavar="ID", help="NAMESPACE/NAME-vNUMBER")
        where = "where the data set's folder is made (default: $MINARI_DATASETS_PATH, or ~/.minari/datasets)"
        parser.add_argument("--folder", type=Path, metavar="FOLDER", help=where)

    recording = add_command("record", record, "drive races in the simulated game and write them")
    add = recording.add_argument
    source = "an inputs file, a replay or ghost, a run, save/RUN, or a driver's file"
    add("sources", nargs="+", type=Path, metavar="SOURCE", help=source)
    maps = (
        "a name of the map cycle, a track file (kart), or generated:DIFFICULTY:SEEDS; may be repeated (default: the "
        "whole map cycle)"
    )
    add("--map", action="append", default=[], metavar="NAME", help=maps)
    add("--races", type=whole_number(1), default=1, metavar="N", help="of each source on each map (default 1)")
    forced = "actions that accelerate, drawn from the seed, at the start of races 2 to N (default 10)"
    add("--forced-actions", type=whole_number(0), default=10, metavar="K", help=forced)
    add("--finished-only", action="store_true", help="leave races out that do not reach the finish")
    add_configuration(recording, "of files (default: config_files/config.py); a run has its own")
    add_target(recording)

    exporting = add_command("export", export, "write the races in the replay memories of runs' checkpoints")
    exporting.add_argument("sources", nargs="+", type=Path, metavar="RUN", help="save/{run_name}")
    add_target(exporting)

    showing = add_command("info", info, "say what a data set holds, and whether a configuration can learn from it")
    showing.add_argument("dataset", metavar="DATASET", help="its id, or its folder")
    add_configuration(showing, "to compare with (default: none)")
    return parser.parse_args(words)


def record(arguments: argparse.Namespace, console: Console) -> None:
    # Slow imports.
    from trackmania_rl.drivers.driver_file import is_driver_file
    from trackmania_rl.drivers.evaluation import load_driver
    from trackmania_rl.experience_replay.dataset_environments import environment_spec
    from trackmania_rl.experience_replay.episodes import DataSetForm
    from trackmania_rl.experience_replay.minari_files import write_dataset
    from trackmania_rl.race.spaces import race_spaces

    drivers = {source: load_driver(source) for source in arguments.sources if source.is_dir() or is_driver_file(source)}
    first = next(iter(drivers.values()), None)
    settings = load_settings(arguments.config or PROJECT_FOLDER / "config_files" / "config.py", arguments.set)
    settings = settings if first is None else first.settings
    changes = {"game": "simulated", "game_transport": "in_process"}
    settings = settings.model_copy(update={"game": settings.game.model_copy(update=changes)})
    form = DataSetForm(race_spaces(settings))
    for source, driver in drivers.items():
        require_like(source, driver.settings, settings)
    with tempfile.TemporaryDirectory(prefix="trackmania_rl_tracks_") as tracks_folder:
        episodes = driven(arguments, settings, form, drivers, Path(tracks_folder))
        dataset = write_dataset(
            arguments.id,
            printed(console, episodes, finished_only=arguments.finished_only),
            form,
            environment_spec(settings, arguments.map),
            f"Races in the simulated game, driven by {names_of(arguments.sources)}",
            arguments.folder,
        )
    print_written(console, dataset)


def names_of(sources: Sequence[Path]) -> str:
    """Name sources without this machine's folders: the data set may be published."""
    return ", ".join(portable(str(source)) for source in sources)


def driven(
    arguments: argparse.Namespace,
    settings: Settings,
    form: DataSetForm,
    drivers: dict[Path, TrainedDriver],
    tracks_folder: Path,
) -> Iterator[Episode]:
    from trackmania_rl.games.in_process import InProcessGames
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.building import make_reward
    from trackmania_rl.training.datasets import policies_of_driver, policies_of_inputs, record_races

    maps_folder = PROJECT_FOLDER / settings.game.maps_folder
    entries = map_entries(settings, maps_folder, arguments.map, tracks_folder)
    games = InProcessGames(1, settings.game, settings.observation, maps_folder)
    reward = make_reward(settings, form.spaces, SeedTree(settings.run.seed))
    n_races, n_forced = arguments.races, arguments.forced_actions
    with contextlib.closing(games):
        for source, entry in itertools.product(arguments.sources, entries):
            if source in drivers:
                policies = policies_of_driver(drivers[source], entry, n_races, n_forced)
            else:
                policies = policies_of_inputs(source, entry, settings, form.spaces, n_races, n_forced)
            yield from record_races(policies, games, entry, settings, form, reward, str(source))


def export(arguments: argparse.Namespace, console: Console) -> None:
    from trackmania_rl.drivers.loading import load_run_settings
    from trackmania_rl.experience_replay.dataset_environments import environment_spec
    from trackmania_rl.experience_replay.minari_files import write_dataset
    from trackmania_rl.training.datasets import episodes_of_run

    settings_of = {source: load_run_settings(source) for source in arguments.sources}
    settings = settings_of[arguments.sources[0]]
    for source, others in settings_of.items():
        require_like(source, others, settings)
    form = form_of(settings)
    dataset = write_dataset(
        arguments.id,
        itertools.chain.from_iterable(episodes_of_run(source, form) for source in settings_of),
        form,
        environment_spec(settings),
        f"The replay memories of {names_of(arguments.sources)}",
        arguments.folder,
    )
    print_written(console, dataset)


def info(arguments: argparse.Namespace, console: Console) -> None:
    from trackmania_rl.experience_replay.dataset_environments import check_dataset
    from trackmania_rl.experience_replay.minari_files import open_dataset

    dataset = open_dataset(arguments.dataset, Path())
    episodes = [(one.is_finished, len(one.actions), float(one.rewards.sum())) for one in dataset.episodes()]
    rows = {
        "id": str(dataset.data.id),
        "folder": str(dataset.folder),
        "environment": "not told" if dataset.env_spec is None else dataset.env_spec.id,
        "holds": f"{dataset.observation_space} and {dataset.action_space}",
        "races": f"{len(episodes):,}, of which {sum(is_finished for is_finished, _, _ in episodes):,} finished",
        "actions": f"{sum(n_actions for _, n_actions, _ in episodes):,}",
        "mean return": f"{sum(total for _, _, total in episodes) / max(1, len(episodes)):.3f}",
        "size": f"{size_mb(dataset):.1f} MB",
    }
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    print_table(table, console)
    if arguments.config is not None:
        settings = load_settings(arguments.config, arguments.set)
        check_dataset(dataset, settings, form_of(settings))
        console.print(f"{arguments.config} can learn from it: offline = {arguments.dataset!r}", soft_wrap=True)


def printed(console: Console, episodes: Iterator[Episode], *, finished_only: bool) -> Iterator[Episode]:
    """Print a line for each race; leave unfinished ones out if requested."""
    for episode in episodes:
        about = episode.about
        is_left_out = finished_only and not episode.is_finished
        result = format_time(about["race_time_ms"]) if episode.is_finished else f"cut off after {about['meters']:.0f} m"
        remark = ", left out" if is_left_out else ""
        console.print(f"{about['source']} on {about['map']}: {result}{remark}", soft_wrap=True)
        if not is_left_out:
            yield episode


def print_written(console: Console, dataset: DataSet) -> None:
    data = dataset.data
    console.print(
        f"wrote {dataset.folder.parent}: {data.total_episodes:,} races, {data.total_steps:,} actions, "
        f"{size_mb(dataset):.1f} MB",
        soft_wrap=True,
    )


def size_mb(dataset: DataSet) -> float:
    return sum(file.stat().st_size for file in dataset.folder.rglob("*") if file.is_file()) / 1e6


def require_like(source: Path, settings: Settings, wanted: Settings) -> None:
    """Raise UserError unless states and actions are like the first run's."""
    from trackmania_rl.experience_replay.dataset_environments import check_fits, environment_spec

    form = form_of(settings)
    action = form.spaces.action
    check_fits(str(source), form.observation_space, action, environment_spec(settings), wanted, form_of(wanted))


def form_of(settings: Settings) -> DataSetForm:
    from trackmania_rl.experience_replay.episodes import DataSetForm
    from trackmania_rl.games.race_games import make_games_builder

    return DataSetForm.of_run(settings, make_games_builder(settings).spaces)


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
