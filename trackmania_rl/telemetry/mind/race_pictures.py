"""How the newest evaluated race was driven: its line, coloured by speed, and the race beside the best one."""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from trackmania_rl.protocol.input_script import ANALOG_FULL, Input, InputEvent
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.telemetry.comparison_picture import draw_comparison
from trackmania_rl.telemetry.driven_run import DrivenRun, run_of_samples
from trackmania_rl.telemetry.mind.numbers import Array, DrivenRace, MindNumbers
from trackmania_rl.telemetry.racing_line import ROAD_WIDTH_M, Picture, draw_racing_line
from trackmania_rl.telemetry.run_comparison import RunComparisonError, compare_runs

FEWEST_ACTIONS = 3
"""A race of fewer has no course to draw."""
_INPUTS = (Input.ACCELERATE, Input.BRAKE, Input.STEER)
"""Of the columns of controls."""


def with_line(numbers: MindNumbers) -> MindNumbers:
    """The same numbers; with the reference line of a generated track, which its name tells."""
    recipe = TrackRecipe.from_name(numbers.about.track)
    if len(numbers.about.line_m) or recipe is None:
        return numbers
    line_m = generate_track(recipe).laid_out.line_m
    return dataclasses.replace(numbers, about=dataclasses.replace(numbers.about, line_m=line_m))


def draw_line_by_speed(numbers: MindNumbers) -> Picture | None:
    """Draw the race from above, (H, W, 3) RGB, its line coloured by speed."""
    race, about = numbers.race, numbers.about
    if race is None or len(race.position_m) < FEWEST_ACTIONS:
        return None
    return draw_racing_line(
        about.line_m if len(about.line_m) else race.position_m,
        race.position_m,
        about.ms_per_action,
        title=f"{about.map_name}: {race.result} ({race.kind})",
        subtitle=f"{about.track}, {about.frames_total:,} frames",
        road_width_m=ROAD_WIDTH_M,
    )


def draw_beside_the_best(numbers: MindNumbers) -> Figure | None:
    """Draw time, speed and inputs of the race over the distance, beside the fastest race known."""
    race, best, about = numbers.race, numbers.best, numbers.about
    if race is None or best is None or min(len(race.position_m), len(best.position_m)) < FEWEST_ACTIONS:
        return None
    is_beaten = race.is_finished and race.race_time_ms < best.race_time_ms
    words = (
        ("A: the best race until then", "B: a new best") if is_beaten else ("A: the best race", "B: the newest race")
    )
    a, b = (
        _run_of(one, f"{what}, {one.result} ({one.kind})", about.ms_per_action)
        for what, one in zip(words, (best, race), strict=True)
    )
    try:
        comparison = compare_runs(a, b, about.line_m.astype(np.float64) if len(about.line_m) else None)
    except RunComparisonError:  # one that goes nowhere
        return None
    return draw_comparison(comparison, f"{about.map_name}, {about.frames_total:,} frames")


def events_of_controls(controls: Array, ms_per_action: int) -> tuple[InputEvent, ...]:
    """The changes of inputs of a race.

    Args:
        controls: (T, 3) gas, brake (0 or 1) and steer, -1 (left) to 1, of each action.
        ms_per_action: duration of an action.
    """
    values = np.rint(controls * (1, 1, ANALOG_FULL)).astype(np.int64)
    rows, columns = np.nonzero(np.diff(values, axis=0, prepend=np.zeros((1, 3), dtype=np.int64)))
    return tuple(
        InputEvent(row * ms_per_action, _INPUTS[column], int(values[row, column]))
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    )


def _run_of(race: DrivenRace, label: str, ms_per_action: int) -> DrivenRun:
    return run_of_samples(
        label,
        np.arange(len(race.position_m), dtype=np.int64) * ms_per_action,
        race.position_m.astype(np.float64),
        race.speeds_m_s(ms_per_action / 1000),
        tuple(race.checkpoint_times_ms.tolist()),
        race.race_time_ms if race.is_finished else None,
        events_of_controls(race.controls, ms_per_action),
    )
