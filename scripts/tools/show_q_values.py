"""Show the Q values that a record keeps: what the network thought of each action at each decision of that race.

RUN is a run's folder, of whose maps the fastest record each is shown; or a record's folder; or its q_values.npy. The
table has a row for every second, the picture, q_values.png beside the file, all decisions.

Examples:
  python scripts/tools/show_q_values.py save/simulated
  python scripts/tools/show_q_values.py save/simulated --map valley --every 0.5
  python scripts/tools/show_q_values.py save/simulated/best_runs/valley_20450/q_values.npy --picture values.png
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import command  # noqa: E402
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.protocol.input_script import read_input_script  # noqa: E402
from trackmania_rl.race.actions import actions_of_game  # noqa: E402
from trackmania_rl.settings import Settings, SettingsError, load_settings  # noqa: E402
from trackmania_rl.settings.live import SNAPSHOT_FILE  # noqa: E402
from trackmania_rl.telemetry.diagnostics import key_action_name, write_picture  # noqa: E402
from trackmania_rl.telemetry.q_values import (  # noqa: E402
    Q_VALUES_FILE,
    RaceValues,
    actions_taken,
    draw_q_values,
    fastest_records,
    read_q_values,
)
from trackmania_rl.telemetry.tables import print_table  # noqa: E402

MS_PER_ACTION = 50
"""Where no configuration says it."""


@command
def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="save/{run_name}, a folder of its best_runs, or a q_values.npy")
    add("--map", metavar="NAME", help="of a run: this map alone (default: all)")
    add("--every", type=float, default=1.0, metavar="S", help="seconds from row to row of the table (default 1)")
    add("--picture", type=Path, metavar="FILE.png", help="where the picture goes (default: beside the values)")
    add("--no-picture", action="store_true", help="draw nothing")
    asked = parser.parse_args(words)
    if not asked.every > 0:
        raise UserError(f"--every {asked.every}: seconds from row to row, more than 0")
    files = values_files(asked.run, asked.map)
    if asked.picture and len(files) > 1:
        raise UserError(
            f"--picture is for one record, but {asked.run} has those of {len(files)} maps: choose with --map"
        )
    console = Console()
    for file in files:
        race = race_of(file, console)
        print_table(table_of(race, f"{file.parent.name}: Q values", asked.every), console)
        console.print(summary(race), highlight=False)
        if not asked.no_picture:
            picture = asked.picture or file.with_suffix(".png")
            try:
                write_picture(
                    picture, draw_q_values(race, f"{file.parent.name}: what the network thought while driving")
                )
            except OSError as error:
                raise UserError(f"picture {picture}: cannot be written: {error.strerror}") from error
            console.print(f"wrote {picture}", soft_wrap=True, highlight=False)


def values_files(path: Path, map_name: str | None) -> list[Path]:
    """The files that an argument means.

    Raises:
        UserError: if it means none.
    """
    if not path.is_dir():
        return [path]
    if (path / Q_VALUES_FILE).is_file():
        return [path / Q_VALUES_FILE]
    records = fastest_records(path / "best_runs", map_name)
    if not records:
        on_map = "" if map_name is None else f" on {map_name}"
        raise UserError(
            f"{path} holds no Q values of a record{on_map}: a run keeps those of each finish that is its best"
        )
    return list(records.values())


def race_of(file: Path, console: Console) -> RaceValues:
    """A record's values, with the names of actions and what was taken, as far as its run's folder tells them.

    Raises:
        UserError: if the file or the record's inputs cannot be used.
    """
    values = read_q_values(file)
    settings = settings_of(file, console)
    names, ms_per_action, taken = tuple(f"action {action}" for action in range(values.shape[1])), MS_PER_ACTION, None
    if settings is not None:
        ms_per_action = settings.game.ms_per_action
        if settings.game.actions == "keys" and len(settings.game.inputs) == values.shape[1]:
            controls = actions_of_game(settings.game).controls(np.arange(values.shape[1]))
            names = tuple(key_action_name(*row) for row in controls.tolist())
            inputs = file.with_name(f"{file.parent.name}.inputs")
            if inputs.is_file():
                taken = actions_taken(read_input_script(inputs), controls, len(values), ms_per_action)
    return RaceValues(values, names, ms_per_action / 1000, taken)


def settings_of(file: Path, console: Console) -> Settings | None:
    """The configuration of the run in whose best_runs a file lies; None where it lies elsewhere, or is of no use."""
    with contextlib.suppress(IndexError):
        snapshot = file.resolve().parents[2] / "config" / SNAPSHOT_FILE
        if snapshot.is_file():
            try:
                return load_settings(snapshot)
            except SettingsError as error:  # such as that of an older version
                console.print(f"actions have no names here: {error}", highlight=False, soft_wrap=True)
    return None


def table_of(race: RaceValues, title: str, every_s: float) -> Table:
    """A row every so often: the two best actions and their values."""
    table = Table(title=title, title_justify="left")
    table.add_column("time", justify="right")
    table.add_column("best action")
    table.add_column("Q", justify="right")
    has_choice = race.values.shape[1] > 1
    if has_choice:
        table.add_column("second best")
        for heading in ("less by", "worst less by"):
            table.add_column(heading, justify="right")
    for row in range(0, len(race.values), max(1, round(every_s / race.s_per_action))):
        values = race.values[row]
        order = np.argsort(-values)
        cells = [f"{row * race.s_per_action:.2f} s", race.names[order[0]], f"{values[order[0]]:.3f}"]
        if has_choice:
            cells += [race.names[order[1]], f"{values[order[0]] - values[order[1]]:.4f}"]
            cells += [f"{values[order[0]] - values[order[-1]]:.4f}"]
        table.add_row(*cells)
    return table


def summary(race: RaceValues) -> str:
    """The race in a sentence."""
    n_decisions, n_actions = race.values.shape
    text = f"{n_decisions} decisions among {n_actions} actions, mean Q {race.values.max(axis=1).mean():.3f}"
    if n_actions > 1:
        text += f", the best leads by {np.median(race.gaps):.4f} (median)"
    if race.share_not_best is not None:
        text += f"; {race.share_not_best:.1%} of those taken were not the best"
    return text


if __name__ == "__main__":
    sys.exit(main())
