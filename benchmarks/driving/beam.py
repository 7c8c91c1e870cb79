"""Beam search over the exact simulator: all good races of one instant are driven on together, 50 ms at a time.

A layer holds up to W races of the same time. Each is tried with every action; the children are sorted by the estimated
time to the finish (`cost_to_go`) and the best W are kept, but only so many of the same kind: children that are alike in
place across the road, direction and speed compete with each other, so that the beam holds different ways to take the
next corner and not W copies of one. The race that is to be improved is in every layer, whatever its estimate, so a
search never loses what it began with.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.driving.cost_to_go import Estimate, estimated_s, pose
from benchmarks.driving.racing import (
    TICKS_PER_ACTION,
    Course,
    Drive,
    Field,
    act,
    compiled,
    copy_race,
    empty_field,
    is_lost,
)

Actions = npt.NDArray[np.int8]
FloatArray = npt.NDArray[np.float64]

_TABLE_SIZE: Final = 1 << 16
_HASH_FACTOR: Final = 2654435761
"""Knuth's multiplier, 2^32 over the golden ratio (The Art of Computer Programming 3, 6.4)."""
_HOPELESS_S: Final = 1e9
_NO_PARENT: Final = -1


class BeamSettings(NamedTuple):
    """How wide and how varied the search is.

    Attributes:
        width: W, races kept per layer; at most 8192.
        per_cell: races kept of one kind.
        lateral_cell_m: races of one kind lie within this distance across the road ...
        angle_cell_rad: ... point the same way within this angle, and move so within twice of it ...
        speed_cell_m_s: ... and are as fast within this difference.
        slack_s: children whose estimate is this much worse than the best one's are dropped.
        patience_actions: the search ends when for so long no race was estimated to be better than the one to improve.
    """

    width: int = 100
    per_cell: int = 2
    lateral_cell_m: float = 0.5
    angle_cell_rad: float = 0.05
    speed_cell_m_s: float = 1.0
    slack_s: float = 0.5
    patience_actions: int = 60


def search(
    course: Course,
    incumbent: Drive,
    plan: Actions,
    estimate: Estimate,
    settings: BeamSettings,
    actions: npt.NDArray[np.int64],
    noise_s: FloatArray,
    first: int,
) -> Actions | None:
    """Look for a race that finishes earlier than the one given, the same up to action `first`.

    Args:
        course: where to drive.
        incumbent: the race to improve; it finishes.
        plan: (T,) its actions, no more than it used.
        estimate: of the time to the finish.
        settings: width and variety.
        actions: (n,) the actions that are tried.
        noise_s: (M,) numbers that are added to the estimates in turn, so that searches differ.
        first: where the search begins, below T.

    Returns:
        The new plan (at most T,), or None where the search gave up. It may be the old one.
    """
    assert len(plan) == incumbent.n_actions
    n_layers = len(plan) - first
    parents = np.full((n_layers, settings.width), _NO_PARENT, dtype=np.int32)
    taken = np.zeros((n_layers, settings.width), dtype=np.int8)
    beam = empty_field(course, settings.width)
    children = empty_field(course, settings.width * len(actions))
    copy_race(incumbent.states, first, beam, 0)
    layer, parent, action = _search(
        course, incumbent.states, first, estimate, settings, actions, noise_s, beam, children, parents, taken
    )
    if layer < 0:
        return None
    backwards = [action]
    while layer > 0 and parents[layer - 1, parent] != _NO_PARENT:
        layer -= 1
        backwards.append(taken[layer, parent])
        parent = parents[layer, parent]
    return np.concatenate([plan[: first + layer], np.array(backwards[::-1], dtype=np.int8)])


@compiled
def _search(
    course: Course,
    incumbents: Field,
    first: int,
    estimate: Estimate,
    settings: BeamSettings,
    actions: npt.NDArray[np.int64],
    noise_s: FloatArray,
    beam: Field,
    children: Field,
    parents: npt.NDArray[np.int32],
    taken: npt.NDArray[np.int8],
) -> tuple[int, int, int]:
    """Fill `parents` and `taken` layer by layer; return the layer, parent and action of the best finish, or -1s."""
    n_actions = len(actions)
    value_s = np.zeros(len(children.cars))
    cells = np.zeros(len(children.cars), dtype=np.int64)
    chosen = np.zeros(settings.width, dtype=np.int64)
    n_races, hopeless_layers, n_drawn = 1, 0, 0
    for layer in range(len(parents)):
        best_finish = -1
        for i in range(n_races):
            for a in range(n_actions):
                child = i * n_actions + a
                copy_race(beam, i, children, child)
                value_s[child] = _HOPELESS_S
                if act(course, children, child, actions[a], TICKS_PER_ACTION):
                    if best_finish < 0 or _finishes_before(children, child, best_finish):
                        best_finish = child
                elif not is_lost(course, children, child):
                    value_s[child], cells[child] = _judge(course, estimate, settings, children.cars[child])
                    value_s[child] += noise_s[n_drawn % len(noise_s)]
                    n_drawn += 1
        if best_finish >= 0:
            return layer, best_finish // n_actions, actions[best_finish % n_actions]
        if layer + 1 == len(parents):
            break
        rival_s, _ = _judge(course, estimate, settings, incumbents.cars[first + layer + 1])
        n_races, best_s = _select(value_s[: n_races * n_actions], cells, settings, chosen)
        for i in range(n_races):
            parents[layer, i], taken[layer, i] = chosen[i] // n_actions, actions[chosen[i] % n_actions]
            copy_race(children, chosen[i], beam, i)
        copy_race(incumbents, first + layer + 1, beam, n_races)
        parents[layer, n_races] = _NO_PARENT
        n_races += 1
        hopeless_layers = 0 if best_s < rival_s - 0.001 else hopeless_layers + 1
        if hopeless_layers > settings.patience_actions:
            break
    return -1, -1, -1


@compiled
def _select(
    value_s: FloatArray, cells: npt.NDArray[np.int64], settings: BeamSettings, chosen: npt.NDArray[np.int64]
) -> tuple[int, float]:
    """Write the best children to `chosen`, W - 1 at most; return how many, and the best one's estimate."""
    order = np.argsort(value_s, kind="mergesort")
    best_s = value_s[order[0]]
    cell_of_slot = np.zeros(_TABLE_SIZE, dtype=np.int64)
    count_of_slot = np.zeros(_TABLE_SIZE, dtype=np.int64)
    kept = 0
    for child in order:
        if value_s[child] > best_s + settings.slack_s or value_s[child] >= _HOPELESS_S or kept == settings.width - 1:
            break
        slot = (cells[child] * _HASH_FACTOR) & (_TABLE_SIZE - 1)
        while count_of_slot[slot] > 0 and cell_of_slot[slot] != cells[child]:
            slot = (slot + 1) & (_TABLE_SIZE - 1)
        if count_of_slot[slot] < settings.per_cell:
            cell_of_slot[slot] = cells[child]
            count_of_slot[slot] += 1
            chosen[kept] = child
            kept += 1
    return kept, best_s


@compiled
def _finishes_before(races: Field, i: int, j: int) -> bool:
    """Whether a finished race is better than another one: earlier, or further beyond the finish in the same tick."""
    if races.times_ms[i, -1] != races.times_ms[j, -1]:
        return bool(races.times_ms[i, -1] < races.times_ms[j, -1])
    return bool(races.cars[i].station_m > races.cars[j].station_m)


@compiled
def _judge(course: Course, estimate: Estimate, settings: BeamSettings, car) -> tuple[float, int]:  # type: ignore[no-untyped-def]
    """A car's estimated time to the finish, and the number of its kind."""
    lateral_m, heading_rad, motion_rad, speed_m_s = pose(course, car)
    value_s = estimated_s(course, estimate, car, lateral_m, heading_rad, motion_rad, speed_m_s)
    cell = int(lateral_m / settings.lateral_cell_m) + 1024
    cell = cell * 1024 + int(heading_rad / settings.angle_cell_rad) + 512
    cell = cell * 1024 + int(0.5 * motion_rad / settings.angle_cell_rad) + 512
    return value_s, cell * 1024 + int(speed_m_s / settings.speed_cell_m_s) + 512
