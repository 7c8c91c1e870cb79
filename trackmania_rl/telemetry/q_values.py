"""The Q values that a record keeps (`q_values.npy`): read again, summed up, and drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.protocol.input_script import InputEvent
from trackmania_rl.telemetry.diagnostics import TEST, TEXT, TRAIN, Array, new_figure, tidy
from trackmania_rl.telemetry.input_timeline import InputTimeline

Q_VALUES_FILE: Final = "q_values.npy"
NO_ACTION: Final = -1
"""In place of an action's index: none of them holds what was held."""
DARKEST_SHARE: Final = 0.02
"""So small a share of values is darker than the scale's end, lest one of them leave the others without colour."""


@dataclass(frozen=True)
class RaceValues:
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
