"""Beam search over the exact simulator: all good races of one instant are driven on together, 50 ms at a time.

A layer holds up to W races of the same time. Each is tried with every action; the children are sorted by the estimated
time to the finish (`cost_to_go`) and the best W are kept, but only so many of the same kind: children that are alike in
place across the road, direction and speed compete with each other, so that the beam holds different ways to take the
next corner and not W copies of one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.driving.racing import (
    TICKS_PER_ACTION,
    Course,
    Field,
    act,
    compiled,
    copy_race,
    course_of,
    empty_field,
    is_lost,
    start_of,
)
from benchmarks.driving.cost_to_go import N_SPEEDS, SPEED_STEP_M_S
from trackmania_rl.simulator.world import Track

FloatArray = npt.NDArray[np.float64]
_HASH_SIZE: Final = 1 << 18
_LOST: Final = 1e9


class BeamSettings(NamedTuple):
    """How wide and how varied the search is.

    Attributes:
        width: W, races kept per layer.
        per_cell: races kept of one kind.
        hold: decisions for which each action is held.
        lateral_cell_m: races of one kind lie within this distance across the road ...
        heading_cell_rad: ... point the same way within this angle ...
        speed_cell_m_s: ... and are as fast within this difference.
        slack_s: children whose estimate is this much worse than the best one's are dropped.
        wall_penalty_s: added to the estimate of a car that touches a wall.
        noise_s: spread of a random number added to every estimate, so that searches of other seeds differ.
    """

    width: int = 1000
    per_cell: int = 2
    hold: int = 1
    lateral_cell_m: float = 1.0
    heading_cell_rad: float = 0.08
    speed_cell_m_s: float = 2.0
    slack_s: float = 0.6
    wall_penalty_s: float = 0.05
    noise_s: float = 0.003


def search(
    track: Track,
    to_go_s: FloatArray,
    settings: BeamSettings,
    actions: npt.NDArray[np.int64],
    seed: int,
    max_actions: int,
    start: Field | None = None,
) -> npt.NDArray[np.int8] | None:
    """Search from the start (or another instant) to the finish.

    Args:
        track: where to drive.
        to_go_s: (P, N_SPEEDS) estimated time to the finish.
        settings: width and variety.
        actions: (n,) the actions that are tried.
        seed: of the noise.
        max_actions: longest race.
        start: one race; the track's start by default.

    Returns:
        The actions (T,) of the first race to finish, or None where none does within `max_actions`.
    """
    course = course_of(track)
    n_layers = max_actions // settings.hold
    n_children = settings.width * len(actions)
    parents = np.zeros((n_layers, settings.width), dtype=np.int32)
    taken = np.zeros((n_layers, settings.width), dtype=np.int8)
    beam, children = empty_field(course, settings.width), empty_field(course, n_children)
    copy_race(start_of(track) if start is None else start, 0, beam, 0)
    layer, place, action = _search(course, to_go_s, settings, actions, seed, beam, children, parents, taken)
    if layer < 0:
        return None
    backwards = [action]
    for k in range(layer - 1, -1, -1):
        backwards.append(taken[k, place])
        place = parents[k, place]
    return np.repeat(np.array(backwards[::-1], dtype=np.int8), settings.hold)


@compiled
def _search(
    course: Course,
    to_go_s: FloatArray,
    settings: BeamSettings,
    actions: npt.NDArray[np.int64],
    seed: int,
    beam: Field,
    children: Field,
    parents: npt.NDArray[np.int32],
    taken: npt.NDArray[np.int8],
) -> tuple[int, int, int]:
    """Fill `parents` and `taken` layer by layer; return the layer, parent and action of the best finish, or -1s."""
    np.random.seed(seed)
    n_actions = len(actions)
    value_s = np.zeros(len(children.cars))
    cells = np.zeros(len(children.cars), dtype=np.int64)
    table_cell = np.zeros(_HASH_SIZE, dtype=np.int64)
    table_count = np.zeros(_HASH_SIZE, dtype=np.int64)
    n_races = 1
    for layer in range(len(parents)):
        best_finish, best_finish_ms, best_station_m = -1, 1 << 30, 0.0
        for i in range(n_races):
            for a in range(n_actions):
                child = i * n_actions + a
                copy_race(beam, i, children, child)
                if act(course, children, child, actions[a], TICKS_PER_ACTION * settings.hold):
                    finish_ms, station_m = children.times_ms[child, -1], children.cars[child].station_m
                    if finish_ms < best_finish_ms or (finish_ms == best_finish_ms and station_m > best_station_m):
                        best_finish, best_finish_ms, best_station_m = child, finish_ms, station_m
                    value_s[child] = _LOST
                elif is_lost(course, children, child):
                    value_s[child] = _LOST
                else:
                    value_s[child] = estimate_s(course, children.cars[child], to_go_s, settings)
                    value_s[child] += settings.noise_s * np.random.standard_normal()
                    cells[child] = _cell(course, children.cars[child], settings)
        if best_finish >= 0:
            return layer, best_finish // n_actions, actions[best_finish % n_actions]
        n_children = n_races * n_actions
        order = np.argsort(value_s[:n_children], kind="mergesort")
        table_count[:] = 0
        n_races = 0
        worst_s = value_s[order[0]] + settings.slack_s
        for place in range(n_children):
            child = order[place]
            if value_s[child] > worst_s or value_s[child] >= _LOST or n_races == settings.width:
                break
            slot = (cells[child] * 2654435761) & (_HASH_SIZE - 1)
            while table_count[slot] > 0 and table_cell[slot] != cells[child]:
                slot = (slot + 1) & (_HASH_SIZE - 1)
            if table_count[slot] < settings.per_cell:
                table_cell[slot] = cells[child]
                table_count[slot] += 1
                parents[layer, n_races] = child // n_actions
                taken[layer, n_races] = actions[child % n_actions]
                copy_race(children, child, beam, n_races)
                n_races += 1
        if n_races == 0:
            return -1, -1, -1
    return -1, -1, -1


@compiled
def estimate_s(course: Course, car, to_go_s: FloatArray, settings: BeamSettings) -> float:  # type: ignore[no-untyped-def]
    """Estimated seconds to the finish."""
    section = min(car.ribbon_index, len(to_go_s) - 2)
    speed_m_s = 0.0  # along the road: a car that flies backwards is not fast
    for axis in range(3):
        speed_m_s += car.velocity_m_s[axis] * course.ribbon.forward[section, axis]
    place = min(max(speed_m_s, 0.0) / SPEED_STEP_M_S, N_SPEEDS - 1.001)
    low = int(place)
    share = place - low
    station_m = course.ribbon.station_m
    along = (car.station_m - station_m[section]) / (station_m[section + 1] - station_m[section])
    here = (1.0 - share) * to_go_s[section, low] + share * to_go_s[section, low + 1]
    ahead = (1.0 - share) * to_go_s[section + 1, low] + share * to_go_s[section + 1, low + 1]
    estimate = here + along * (ahead - here)
    if car.has_any_lateral_contact:
        estimate += settings.wall_penalty_s
    return estimate


@compiled
def _cell(course: Course, car, settings: BeamSettings) -> int:  # type: ignore[no-untyped-def]
    """The kind of a race: where across the road, pointing where, moving where, how fast."""
    section = car.ribbon_index
    left, forward, center = course.ribbon.left[section], course.ribbon.forward[section], course.ribbon.center_m[section]
    lateral_m = pointing = along = sideways = speed_squared = forwards = 0.0
    for axis in range(3):
        lateral_m += (car.position_m[axis] - center[axis]) * left[axis]
        pointing += car.rotation[axis, 2] * left[axis]
        along += car.rotation[axis, 2] * forward[axis]
        sideways += car.velocity_m_s[axis] * left[axis]
        forwards += car.velocity_m_s[axis] * forward[axis]
        speed_squared += car.velocity_m_s[axis] ** 2
    heading = np.arctan2(pointing, along) / settings.heading_cell_rad
    course_of_motion = np.arctan2(sideways, max(forwards, 1.0)) / (2.0 * settings.heading_cell_rad)
    speed = np.sqrt(speed_squared) / settings.speed_cell_m_s
    cell = int(np.floor(lateral_m / settings.lateral_cell_m)) + 64
    cell = cell * 128 + int(np.floor(heading)) + 64
    cell = cell * 64 + int(np.floor(course_of_motion)) + 32
    return cell * 128 + int(speed)
