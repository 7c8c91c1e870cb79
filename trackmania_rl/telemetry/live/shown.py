"""What is shown of a running training: a car as it is now, and a race as it was driven."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LiveCar:
    """A game's car at one moment, and the decision made there.

    Attributes:
        collector: who drives it.
        game: its number among that collector's games.
        map_name: the map cycle's name of the map.
        track: the map file's name without its ending; generated tracks have one each.
        race_time_ms: since the race's beginning.
        position: x, y (up) and z in metres, world axes.
        speed_mps: its speed.
        steer: -1 (left) .. 1 (right).
        gas: whether it accelerates.
        brake: whether it brakes.
        gear: 0 is reverse.
        zone: the virtual checkpoint that it is at.
        meters_advanced: along the line, from where the race began.
        is_explo: whether the race is explored; else it is an evaluation race.
        q_values: the value of each action, or that of the action taken alone; None where none are known.
        age_s: seconds since it was there.
    """

    collector: int
    game: int
    map_name: str
    track: str
    race_time_ms: int
    position: tuple[float, float, float]
    speed_mps: float
    steer: float
    gas: bool
    brake: bool
    gear: int
    zone: int
    meters_advanced: float
    is_explo: bool
    q_values: list[float] | None
    age_s: float


@dataclass(frozen=True, eq=False)
class LiveRace:
    """A race that was driven: S states, an action apart, the last one at the race's end; there the last decision stays.

    Attributes:
        collector: who drove it.
        game: see `LiveCar`; so are map_name, track and is_explo.
        number: counts the races that this collector has told.
        race_finished: whether the finish was reached.
        race_time_ms: the finish time, or the time driven until it was cut off.
        told_s: when it ended, as `time.time` has it.
        map_file: path of the map's file where it was driven.
        time_ms: (S,) int32; of the columns from here on see `LiveCar`.
        position: (S, 3) float32.
        speed_mps: (S,) float32, on the way to the next state.
        steer: (S,) float32.
        gas: (S,) bool.
        brake: (S,) bool.
        was_greedy: (S,) bool, whether the action is the one of the highest value.
        gear: (S,) int16.
        zone: (S,) int32.
        meters_advanced: (S,) float32.
        q_values: (S, A) float32, or (S, 1) of the action taken alone.
        frames: (n, H, W) uint8, what was seen, where a game is played that cannot be drawn again; else None.
        frame_time_ms: (n,) int32, race times of the frames.
    """

    collector: int
    game: int
    number: int
    map_name: str
    track: str
    is_explo: bool
    race_finished: bool
    race_time_ms: int
    told_s: float
    map_file: str
    time_ms: npt.NDArray[np.int32]
    position: npt.NDArray[np.float32]
    speed_mps: npt.NDArray[np.float32]
    steer: npt.NDArray[np.float32]
    gas: npt.NDArray[np.bool_]
    brake: npt.NDArray[np.bool_]
    was_greedy: npt.NDArray[np.bool_]
    gear: npt.NDArray[np.int16]
    zone: npt.NDArray[np.int32]
    meters_advanced: npt.NDArray[np.float32]
    q_values: npt.NDArray[np.float32]
    frames: npt.NDArray[np.uint8] | None
    frame_time_ms: npt.NDArray[np.int32]
