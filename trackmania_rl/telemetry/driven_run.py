"""One race as positions, speeds, times and inputs, wherever it comes from: a ghost, or a script on a game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import Ghost
from trackmania_rl.gbx.replay_inputs import script_of_ghost
from trackmania_rl.protocol.input_script import InputEvent, read_input_script
from trackmania_rl.protocol.state_blob import InputSlot, StateView
from trackmania_rl.simulator.inputs import Controls, RaceInputs
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.tmi_interaction.script_player import ScriptedRace, ScriptPlayer

FloatArray = npt.NDArray[np.float64]

_MS_PER_S = 1000.0


@dataclass(frozen=True)
class DrivenRun:
    """One race; S samples, at least 2.

    Attributes:
        label: what to call it.
        time_ms: (S,) int64, race time, increasing from 0; the last is the finish, if it was reached.
        position_m: (S, 3) float64, world axes.
        speed_m_s: (S,) float64.
        checkpoint_times_ms: the last one is the finish, if it was reached.
        race_time_ms: None if the race was not finished.
        events: changes of inputs in order of time; () where they are not known.
    """

    label: str
    time_ms: npt.NDArray[np.int64]
    position_m: FloatArray
    speed_m_s: FloatArray
    checkpoint_times_ms: tuple[int, ...]
    race_time_ms: int | None
    events: tuple[InputEvent, ...]


def run_of_ghost(ghost: Ghost, path: Path, label: str) -> DrivenRun:
    """The race that a ghost holds.

    Args:
        ghost: with samples.
        path: of its file, for errors.
        label: what to call it.

    Raises:
        UserError: if the ghost holds no samples, or inputs that no race has.
    """
    if ghost.samples is None:
        raise UserError(f"{path}: the ghost of {ghost.login or 'an unknown driver'} does not say where the car was")
    samples = ghost.samples
    return run_of_samples(
        label,
        samples.time_ms,
        samples.position_m,
        samples.speed_m_s,
        ghost.checkpoint_times_ms,
        ghost.race_time_ms,
        script_of_ghost(ghost, path).events if ghost.events else (),
    )


def drive_script(player: ScriptPlayer, map_path: str, script: Path, label: str) -> tuple[ScriptedRace, DrivenRun]:
    """Drive a script on a game and write down where the car was.

    Args:
        player: the game.
        map_path: what its `map` command is given.
        script: the inputs file.
        label: what to call the race.

    Raises:
        UserError: if the map or the script can't be used.
        GameError: if the game is gone, silent or speaks nonsense.
    """
    events = read_input_script(script)
    times_ms: list[int] = []
    positions_m: list[FloatArray] = []
    velocities_m_s: list[FloatArray] = []

    def note(state: StateView) -> None:
        if not times_ms or state.race_time_ms > times_ms[-1]:
            times_ms.append(state.race_time_ms)
            positions_m.append(state.position_m.astype(np.float64))  # a copy: the state's memory is used again
            velocities_m_s.append(state.velocity_m_s.astype(np.float64))

    race = player.play(map_path, script, on_state=note)
    return race, run_of_samples(
        label,
        np.array(times_ms),
        np.array(positions_m),
        np.linalg.norm(velocities_m_s, axis=1),
        race.checkpoint_times_ms,
        race.race_time_ms if race.is_finished else None,
        tuple(events),
    )


def run_of_samples(
    label: str,
    time_ms: npt.NDArray[np.int64],
    position_m: FloatArray,
    speed_m_s: FloatArray,
    checkpoint_times_ms: tuple[int, ...],
    race_time_ms: int | None,
    events: tuple[InputEvent, ...],
) -> DrivenRun:
    """A run whose samples end at its finish: later ones are cut off, the way there from the last one is straight.

    Arguments are as the attributes of `DrivenRun`; the finish need not be among the samples.

    Raises:
        UserError: if there are fewer than two samples before the finish.
    """
    if race_time_ms is not None:
        n_before = int(np.searchsorted(time_ms, race_time_ms))
        time_ms, position_m, speed_m_s = time_ms[:n_before], position_m[:n_before], speed_m_s[:n_before]
    if len(time_ms) < 2:
        raise UserError(f"{label}: its car is known at {len(time_ms)} times before the finish; a race needs two")
    if race_time_ms is not None:
        step_m = position_m[-1] - position_m[-2]
        way_m = speed_m_s[-1] * (race_time_ms - time_ms[-1]) / _MS_PER_S
        finish_m = position_m[-1] + way_m * step_m / max(float(np.linalg.norm(step_m)), 1e-9)
        time_ms = np.append(time_ms, race_time_ms)
        position_m = np.concatenate((position_m, finish_m[None]))
        speed_m_s = np.append(speed_m_s, speed_m_s[-1])
    assert position_m.shape == (len(time_ms), 3)
    assert speed_m_s.shape == time_ms.shape
    return DrivenRun(label, time_ms, position_m, speed_m_s, checkpoint_times_ms, race_time_ms, events)


def controls_over_time(events: Sequence[InputEvent]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """What a car feels of its inputs, as steps.

    Args:
        events: in order of time.

    Returns:
        (E,) int64 race times in ms, from 0, and (E, 3) float64: gas 0..1, brake 0..1 and steer -1 (left) .. 1 (right)
        from each time on.
    """
    inputs = RaceInputs(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    times_ms: list[int] = [0]
    controls: list[Controls] = [inputs.controls]
    for time_ms, of_time in groupby(events, key=lambda event: event.time_ms):
        inputs.apply(list(of_time))
        times_ms.append(time_ms)
        controls.append(inputs.controls)
    return np.array(times_ms), np.array(controls)


def describe_race(race: ScriptedRace) -> str:
    """How a script's race ended, in words."""
    checkpoints = ", ".join(map(format_time, race.checkpoint_times_ms)) or "none"
    if race.is_finished:
        return f"finished in {format_time(race.race_time_ms)} ({race.race_time_ms} ms); checkpoints: {checkpoints}"
    return f"not finished after {format_time(race.race_time_ms)}; checkpoints: {checkpoints}"
