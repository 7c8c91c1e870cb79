"""Draw the Q values in a record: the network's value of each action at each decision of that race.

RUN is a run's folder (the fastest record of each map is drawn), a record's folder, or its q_values.npy. The picture is
q_values.png beside the file.

Examples:
  python scripts/tools/show_q_values.py save/simulated
  python scripts/tools/show_q_values.py save/simulated/best_runs/valley_20450/q_values.npy --picture values.png
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command, writing
from trackmania_rl.errors import UserError
from trackmania_rl.files import read_npy
from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.runs.folder import is_run
from trackmania_rl.runs.snapshot import read_snapshot
from trackmania_rl.settings import SettingsError
from trackmania_rl.telemetry.diagnostics import (
    TEST,
    TEXT,
    TRAIN,
    Array,
    key_action_name,
    new_figure,
    write_picture,
)
from trackmania_rl.telemetry.input_picture import InputTimeline
from trackmania_rl.telemetry.tables import PlainConsole

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

MS_PER_ACTION = 50
"""Default without a run's configuration."""
Q_VALUES_FILE: Final = "q_values.npy"
NO_ACTION: Final = -1
"""Index for inputs without an action."""
MOST_BYTES: Final = 1 << 30
DARKEST_SHARE: Final = 0.02
"""Share of values below the colour scale, so outliers do not stretch it."""


class RaceValues(NamedTuple):
    """Q values in a race with T decisions among A actions."""

    values: npt.NDArray[np.float32]  # (T, A)
    names: tuple[str, ...]  # of the actions
    s_per_action: float
    taken: Array | None = None  # (T,) taken action's index, or `NO_ACTION`; None if unknown

    @property
    def best(self) -> Array:
        """(T,) action with the highest value."""
        return np.asarray(self.values.argmax(axis=1))

    @property
    def gaps(self) -> Array:
        """(T,) difference between the two highest values; 0 with a single action."""
        if self.values.shape[1] < 2:
            return np.zeros(len(self.values))
        two = np.partition(self.values, -2, axis=1)[:, -2:]
        return np.asarray(two[:, 1] - two[:, 0])

    @property
    def share_not_best(self) -> float | None:
        """Share of decisions with another action than the best: exploration, or older weights."""
        if self.taken is None or (self.taken == NO_ACTION).all():
            return None
        known = self.taken != NO_ACTION
        return float((self.taken != self.best)[known].mean())


@command
def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="save/{run_name}, a folder of its best_runs, or a q_values.npy")
    add("--map", metavar="NAME", help="of a run: this map alone (default: all)")
    add("--picture", type=Path, metavar="FILE.png", help="where the picture goes (default: beside the values)")
    asked = parser.parse_args(words)
    files = values_files(asked.run, asked.map)
    if asked.picture and len(files) > 1:
        raise UserError(
            f"--picture is for one record, but {asked.run} has those of {len(files)} maps: choose with --map"
        )
    console = PlainConsole()
    for file in files:
        race = race_of(file, console)
        console.print(f"{file.parent.name}: {summary(race)}")
        picture = asked.picture or file.with_suffix(".png")
        with writing(picture):
            write_picture(picture, draw_q_values(race, f"{file.parent.name}: Q values while driving"))
        console.print(f"wrote {picture}", soft_wrap=True)


def values_files(path: Path, map_name: str | None) -> list[Path]:
    """Return a file, or those in a run's fastest records, for one map or all.

    Raises:
        UserError: if there is none.
    """
    if not path.is_dir():
        return [path]
    if (path / Q_VALUES_FILE).is_file():
        return [path / Q_VALUES_FILE]
    fastest: dict[str, tuple[int, Path]] = {}
    for file in (path / "best_runs").glob(f"*/{Q_VALUES_FILE}"):
        match = re.fullmatch(r"(.+)_(\d{1,9})", file.parent.name)
        if match is not None and map_name in (None, match[1]):
            record = int(match[2]), file
            fastest[match[1]] = min(fastest.get(match[1], record), record)
    if not fastest:
        on_map = "" if map_name is None else f" on {map_name}"
        raise UserError(
            f"{path} holds no Q values of a record{on_map}: a run keeps those of each finish that is its best"
        )
    return [fastest[name][1] for name in sorted(fastest)]


def race_of(file: Path, console: Console) -> RaceValues:
    """Read a record; action names and actions taken need the run's configuration."""
    values = read_q_values(file)
    names, ms_per_action, taken = tuple(f"action {action}" for action in range(values.shape[1])), MS_PER_ACTION, None
    run_folder, settings = file.resolve().parent.parent.parent, None
    if is_run(run_folder):
        try:
            settings = read_snapshot(run_folder)
        except SettingsError as error:  # e.g. from an older version
            console.print(f"actions have no names here: {error}", soft_wrap=True)
    if settings is not None:
        ms_per_action = settings.game.ms_per_action
        if settings.game.actions == "keys" and len(settings.game.inputs) == values.shape[1]:
            controls = actions_of_game(settings.game).controls(np.arange(values.shape[1]))  # (A, 3)
            names = tuple(key_action_name(*row) for row in controls.tolist())
            inputs = file.with_name(f"{file.parent.name}.inputs")
            if inputs.is_file():
                held = InputTimeline(read_input_script(inputs)).controls_at(ms_per_action * np.arange(len(values)))
                is_alike = (held[:, None] == controls).all(axis=2)  # (T, A)
                taken = np.where(is_alike.any(axis=1), is_alike.argmax(axis=1), NO_ACTION)
    return RaceValues(values, names, ms_per_action / 1000, taken)


def summary(race: RaceValues) -> str:
    n_decisions, n_actions = race.values.shape
    text = f"{n_decisions} decisions among {n_actions} actions, mean Q {race.values.max(axis=1).mean():.3f}"
    if n_actions > 1:
        text += f", the best leads by {np.median(race.gaps):.4f} (median)"
    if race.share_not_best is not None:
        text += f"; {race.share_not_best:.1%} of those taken were not the best"
    return text


def read_q_values(file: Path) -> npt.NDArray[np.float32]:
    """Read a record's values (T, A); UserError if the file is missing, damaged, or holds something else."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; a record's folder in save/{{run_name}}/best_runs has one")
    stored = read_npy(file, MOST_BYTES)
    if stored.ndim != 2 or 0 in stored.shape:
        raise UserError(f"{file}: holds no Q values, which are real numbers (decisions, actions), but {stored.shape}")
    values = np.array(stored, dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{file}: the agent of this run has no values of actions (some are no numbers)")
    return values


def draw_q_values(race: RaceValues, title: str) -> Figure:
    has_choice = race.values.shape[1] > 1
    heights = (2.0, 0.32 * race.values.shape[1] + 0.8, 2.0) if has_choice else (3.0,)
    figure = new_figure((13.0, sum(heights) + 1.2))
    figure.suptitle(title)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    times_s = np.arange(len(race.values)) * race.s_per_action
    panels[0].plot(times_s, race.values.max(axis=1), color=TRAIN, linewidth=1.6)
    panels[0].set_ylabel("Q of the best\naction (reward)")
    if has_choice:
        _draw_advantages(figure, panels[1], race)
        panels[2].fill_between(times_s, race.gaps, color=TRAIN, alpha=0.5, linewidth=0)
        panels[2].set_ylabel("best less second\nbest (reward)")
        panels[2].set_ylim(bottom=0)
        panels[2].set_title("high: the choice matters; near 0: two actions are as good")
    panels[-1].set_xlabel("race time (s)")
    panels[-1].set_xlim(0, len(race.values) * race.s_per_action)
    return figure


def _draw_advantages(figure: Figure, axes: Axes, race: RaceValues) -> None:
    """Draw each action's difference from the best value as colours, and the actions taken as crosses."""
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
    axes.set_title(f"{words}; the darker the worse")
    axes.set_yticks(range(n_actions), race.names)
    axes.grid(visible=False)


if __name__ == "__main__":
    sys.exit(main())
