"""Races of inputs files and ghosts: find the files, drive them on the simulated game, positions over time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import Ghost, script_of_ghost
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.protocol.input_script import InputEvent, read_input_script
from trackmania_rl.protocol.state_blob import StateView
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer, ScriptResult
from trackmania_rl.tmi_interaction.tminterface2 import GameError

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAPS_FOLDER = PROJECT_FOLDER / "maps"
_LINESIGHT_RECORD = re.compile(r"(.+)_(\d{1,6})_(\d{3})")
"""Linesight's record name: map, seconds and milliseconds."""
_RECORD = re.compile(r"(.+)_()(\d{1,9})")
"""Record name, see `trackmania_rl.runs`: map and milliseconds."""


@dataclass(frozen=True)
class DrivenRun:
    """One race; S >= 2 samples, the last at the finish if reached. The checkpoint times include the finish."""

    label: str
    time_ms: npt.NDArray[np.int64]  # (S,) race time, increasing from 0
    position_m: FloatArray  # (S, 3) world axes
    speed_m_s: FloatArray  # (S,)
    checkpoint_times_ms: tuple[int, ...]
    race_time_ms: int | None  # None if unfinished
    events: tuple[InputEvent, ...]  # input changes in time order; () if unknown


@contextmanager
def simulated_game(maps_folder: Path) -> Iterator[ScriptPlayer]:
    """Start a simulated game for scripts. Its errors become UserErrors."""
    try:
        with ScriptPlayer(SimulatedGameLauncher(find_free_port(), maps_folder)) as player:
            yield player
    except GameError as error:
        raise UserError(f"the simulated game failed: {error}") from error


def inputs_file(path: Path, map_name: str) -> Path:
    """Return an inputs file, or a map's fastest record in a folder (`best_runs/` or one of its folders)."""
    if not path.is_dir():
        return path
    records = []
    for file in sorted({*path.glob("*.inputs"), *path.glob("*/*.inputs")}):
        if match := _LINESIGHT_RECORD.fullmatch(file.stem) or _RECORD.fullmatch(file.stem):
            name, seconds, ms = match.groups()
            records.append((name, int(seconds + ms), file))
    of_map = [record for record in records if record[0] == map_name]
    if not of_map and len({name for name, _, _ in records}) == 1:
        of_map = records  # the name in the map cycle may differ from the file name
    if not of_map:
        known = ", ".join(sorted({name for name, _, _ in records})) or "none"
        raise UserError(f"{path}: holds no record of map {map_name!r}; its records are of maps: {known}")
    return min(of_map, key=lambda record: record[1])[2]


def run_of_ghost(ghost: Ghost, path: Path, label: str) -> DrivenRun:
    """Return a ghost's race; UserError if it has no samples or impossible inputs."""
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


def drive_script(player: ScriptPlayer, map_path: str, script: Path, label: str) -> tuple[ScriptResult, DrivenRun]:
    """Drive a script on a game and record the car's motion.

    Raises:
        UserError: if the map or the script can't be used.
        GameError: if the game ends, times out or breaks the protocol.
    """
    events = read_input_script(script)
    times_ms: list[int] = []
    positions_m: list[FloatArray] = []
    velocities_m_s: list[FloatArray] = []

    def note(state: StateView) -> None:
        if not times_ms or state.race_time_ms > times_ms[-1]:
            times_ms.append(state.race_time_ms)
            positions_m.append(state.position_m.astype(np.float64))  # a copy: the state's memory is reused
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
    """Make a run that ends at the finish: drop later samples, and extrapolate the last one in a straight line."""
    if race_time_ms is not None:
        n_before = int(np.searchsorted(time_ms, race_time_ms))
        time_ms, position_m, speed_m_s = time_ms[:n_before], position_m[:n_before], speed_m_s[:n_before]
    if len(time_ms) < 2:
        raise UserError(f"{label}: its car is known at {len(time_ms)} times before the finish; a race needs two")
    if race_time_ms is not None:
        step_m = position_m[-1] - position_m[-2]
        way_m = speed_m_s[-1] * (race_time_ms - time_ms[-1]) / 1000
        finish_m = position_m[-1] + way_m * step_m / max(float(np.linalg.norm(step_m)), 1e-9)
        time_ms = np.append(time_ms, race_time_ms)
        position_m = np.concatenate((position_m, finish_m[None]))
        speed_m_s = np.append(speed_m_s, speed_m_s[-1])
    assert position_m.shape == (len(time_ms), 3)
    assert speed_m_s.shape == time_ms.shape
    return DrivenRun(label, time_ms, position_m, speed_m_s, checkpoint_times_ms, race_time_ms, events)
