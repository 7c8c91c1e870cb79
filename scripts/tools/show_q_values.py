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
import re
import sys
from pathlib import Path
from tokenize import TokenError
from typing import Final, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import command  # noqa: E402
from trackmania_rl.errors import UserError, one_line  # noqa: E402
from trackmania_rl.protocol.input_script import InputEvent, read_input_script  # noqa: E402
from trackmania_rl.race.actions import actions_of_game  # noqa: E402
from trackmania_rl.settings import Settings, SettingsError  # noqa: E402
from trackmania_rl.settings.snapshot import own_file, read_own  # noqa: E402
from trackmania_rl.telemetry.diagnostics import (  # noqa: E402
    TEST,
    TEXT,
    TRAIN,
    Array,
    key_action_name,
    new_figure,
    tidy,
    write_picture,
)
from trackmania_rl.telemetry.input_picture import InputTimeline  # noqa: E402
from trackmania_rl.telemetry.tables import print_table  # noqa: E402

MS_PER_ACTION = 50
"""Where no configuration says it."""
Q_VALUES_FILE: Final = "q_values.npy"
NO_ACTION: Final = -1
"""In place of an action's index: none of them holds what was held."""
DARKEST_SHARE: Final = 0.02
"""So small a share of values is darker than the scale's end, lest one of them leave the others without colour."""


class RaceValues(NamedTuple):
    """What a network thought of each action at each decision of a race.

    Attributes:
        values: (T, A) float32.
        names: of the A actions.
        s_per_action: time between two decisions.
        taken: (T,) index of the action taken, or `NO_ACTION`; None where it is not known.
    """

    values: npt.NDArray[np.float32]
    names: tuple[str, ...]
    s_per_action: float
    taken: Array | None = None

    @property
    def best(self) -> Array:
        """(T,) the action of the highest value."""
        best: Array = self.values.argmax(axis=1)
        return best

    @property
    def gaps(self) -> Array:
        """(T,) how far the second best value lies below the best; 0 with a single action."""
        if self.values.shape[1] < 2:
            return np.zeros(len(self.values))
        two = np.partition(self.values, -2, axis=1)[:, -2:]
        gaps: Array = two[:, 1] - two[:, 0]
        return gaps

    @property
    def share_not_best(self) -> float | None:
        """Share of decisions whose action was not the best one: explored, or driven with older weights."""
        if self.taken is None or (self.taken == NO_ACTION).all():
            return None
        known = self.taken != NO_ACTION
        return float((self.taken != self.best)[known].mean())


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
        run_folder = file.resolve().parents[2]
        if own_file(run_folder).is_file():
            try:
                return read_own(run_folder)
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


def read_q_values(file: Path) -> npt.NDArray[np.float32]:
    """Read the values (T, A) of a record; nothing in the file is run.

    Raises:
        UserError: if the file is missing, damaged, or holds something else.
    """
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; a record's folder in save/{{run_name}}/best_runs has one")
    try:
        # Memory mapping compares the header's shape with the file's size, so a damaged one can't ask for terabytes.
        stored = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError, BadZipFile, OverflowError) as error:
        raise UserError(f"{file}: cannot be read as Q values: {one_line(error)}") from error
    if not isinstance(stored, np.ndarray) or stored.ndim != 2 or stored.dtype.kind != "f" or 0 in stored.shape:
        shape = getattr(stored, "shape", "an archive")
        raise UserError(f"{file}: holds no Q values, which are real numbers (decisions, actions), but {shape}")
    values = np.array(stored, dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{file}: the agent of this run tells no values of actions (some are no numbers)")
    return values


def fastest_records(best_runs: Path, map_name: str | None = None) -> dict[str, Path]:
    """Find the fastest record of each map that keeps its Q values: their files by the map's name.

    Args:
        best_runs: the folder of a run's records.
        map_name: the only map to look for.
    """
    found: dict[str, tuple[int, Path]] = {}
    for file in best_runs.glob(f"*/{Q_VALUES_FILE}"):
        match = re.fullmatch(r"(.+)_(\d{1,9})", file.parent.name)
        if match is not None and map_name in (None, match[1]):
            found[match[1]] = min(found.get(match[1], (10**9, file)), (int(match[2]), file))
    return {name: file for name, (_, file) in sorted(found.items())}


def actions_taken(events: list[InputEvent], controls: Array, n_actions: int, ms_per_action: int) -> Array:
    """Find which action was held at each of a race's T decisions, by its inputs.

    Args:
        events: the inputs, in order of time.
        controls: (A, 3) gas, brake and steer of each action.
        n_actions: T.
        ms_per_action: duration of an action.
    """
    timeline = InputTimeline(events)
    held = np.array([timeline.at(index * ms_per_action).controls for index in range(n_actions)])
    is_alike = (held[:, None] == controls).all(axis=2)  # (T, A)
    taken: Array = np.where(is_alike.any(axis=1), is_alike.argmax(axis=1), NO_ACTION)
    return taken


def draw_q_values(race: RaceValues, title: str) -> Figure:
    """Draw the values of a race over its time.

    Args:
        race: what is drawn.
        title: above it.
    """
    has_choice = race.values.shape[1] > 1
    heights = (2.0, 0.32 * race.values.shape[1] + 0.8, 2.0) if has_choice else (3.0,)
    figure = new_figure((13.0, sum(heights) + 1.2))
    figure.suptitle(title, fontsize=13, color=TEXT, parse_math=False)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    times_s = np.arange(len(race.values)) * race.s_per_action
    panels[0].plot(times_s, race.values.max(axis=1), color=TRAIN, linewidth=1.6)
    tidy(panels[0], "", "Q of the best\naction (reward)")
    if has_choice:
        _draw_advantages(figure, panels[1], race)
        panels[2].fill_between(times_s, race.gaps, color=TRAIN, alpha=0.5, linewidth=0)
        tidy(panels[2], "", "best less second\nbest (reward)")
        panels[2].set_ylim(bottom=0)
        panels[2].set_title("high: the choice matters; near 0: two actions are as good", fontsize=10)
    panels[-1].set_xlabel("race time (s)", fontsize=10)
    panels[-1].set_xlim(0, len(race.values) * race.s_per_action)
    return figure


def _draw_advantages(figure: Figure, axes: Axes, race: RaceValues) -> None:
    """How far each action's value lies below the best one's, as colours; what was taken as dots."""
    advantages = race.values - race.values.max(axis=1, keepdims=True)
    n_decisions, n_actions = advantages.shape
    shown = axes.imshow(
        advantages.T,
        aspect="auto",
        cmap="viridis",
        vmin=float(np.quantile(advantages, DARKEST_SHARE)),
        vmax=0,
        interpolation="nearest",
        extent=(0, n_decisions * race.s_per_action, n_actions - 0.5, -0.5),
    )
    figure.colorbar(shown, ax=axes, label="Q less the best (reward)", pad=0.01, extend="min")
    middle_s = (np.arange(n_decisions) + 0.5) * race.s_per_action
    axes.plot(middle_s, race.best, "s", color=TEXT, markersize=2.6, markeredgewidth=0)
    words = "black: the best action"
    if race.taken is not None:
        others = (race.taken != race.best) & (race.taken != NO_ACTION)
        axes.plot(middle_s[others], race.taken[others], "x", color=TEST, markersize=5, markeredgewidth=1.6)
        words += "; orange crosses: another one was taken"
    axes.set_title(f"{words}; the darker the worse", fontsize=10)
    axes.set_yticks(range(n_actions), race.names, fontsize=9)


if __name__ == "__main__":
    sys.exit(main())
