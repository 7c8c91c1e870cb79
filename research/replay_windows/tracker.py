"""Driver that follows a replay through the world of its map's blocks; where it cannot, the simulated world is wrong.

It is a model-predictive search over the exact simulator by the cross-entropy method (Rubinstein, 1999). A decision
draws plans around the human's inputs and the last plan, drives each from the car's state, draws anew around the best
ones, and applies the best plan's first inputs. A good plan stays on the human's path and gets far along it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from research.replay_windows.ghost_motion import FloatArray
from research.replay_windows.ghost_race import GhostRace
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.collision import World
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.race_batch import RaceBatch, TrackForBatch
from trackmania_rl.simulator.tracks.world import Track

SEGMENT_TICKS: Final = 5  # duration of one input
ELITE_SHARE: Final = 0.1  # share of the plans around which the next ones are drawn
FIRST_SPREAD: Final = 0.5
LEAST_SPREAD: Final = 0.05  # standard deviations of the wheel, -1 to 1, of the first plans and at least
GAS_CHANGED: Final = 0.08
BRAKE_CHANGED: Final = 0.04  # Shares of a plan's segments in which the pedal is inverted
MOST_ASIDE_M2: Final = 100.0
LOOK_BACK_TICKS: Final = 5
LOOK_AHEAD_TICKS: Final = 80  # range of the search for the nearest point of the human's path
GIVES_UP_ASIDE_M: Final = 30.0
BEYOND_TICKS: Final = 200  # reach of plans and path beyond the finish
LATE_MS: Final = 3000  # the tracker stops that far from the path, or so much later than the human's finish


@dataclass(frozen=True)
class TrackerSettings:
    """Settings of the search."""

    segments: int = 16  # of a plan, 100 ms each
    plans: int = 150
    rounds: int = 4
    # what a tick of progress along the path is worth, against the mean square of metres beside it
    progress_weight: float = 0.5


@dataclass(frozen=True)
class Followed:
    """Result of following a replay; D decisions of 50 ms."""

    controls: FloatArray  # (D, 3) gas, brake, steer
    position_m: FloatArray  # (D, 3) after each decision
    aside_m: FloatArray  # (D,) distance from the human's path
    behind_ms: FloatArray  # (D,) time since the human was there; negative where the tracker is ahead
    path_tick: npt.NDArray[np.int64]  # (D,) the human's tick there
    gate_times_ms: tuple[int, ...]  # official times of the gates that were passed
    is_finished: bool


def follow(
    race: GhostRace, track: Track, rng: np.random.Generator, settings: TrackerSettings = TrackerSettings()
) -> Followed:
    """Follow a ghost from the start to the finish, or until it is lost.

    Args:
        race: the ghost's, without a respawn.
        track: its map's world.
        rng: source of the plans.
        settings: of the search.
    """
    path_m = path_of(race)
    for_batch, batch, only = TrackForBatch(track), RaceBatch(1), np.zeros(1, dtype=np.int64)
    batch.begin(0, for_batch)
    plan: FloatArray | None = None
    at = 0
    rows: list[tuple[FloatArray, FloatArray, float, float, int]] = []
    last_tick = len(race.controls) + LATE_MS // TICK_MS
    ticks = 0
    while ticks < last_tick:
        plan = _best_plan(batch.cars, race.controls, path_m, at, plan, for_batch.world, rng, settings)
        batch.advance(only, for_batch, plan[:1], SEGMENT_TICKS)
        ticks += int(batch.ticks[0])
        position_m = batch.cars["position_m"][0].astype(np.float64)
        at, aside_m = _nearest(path_m, at, position_m)
        rows.append((plan[0], position_m, aside_m, float(TICK_MS * (ticks - at)), at))
        is_finished = int(batch.passed_count[0]) == for_batch.n_gates
        if is_finished or aside_m > GIVES_UP_ASIDE_M:
            break
    controls, positions, aside, behind, path_ticks = zip(*rows, strict=True)
    return Followed(
        np.stack(controls),
        np.stack(positions),
        np.array(aside),
        np.array(behind),
        np.array(path_ticks, dtype=np.int64),
        batch.checkpoint_times_ms(0),
        is_finished,
    )


def path_of(race: GhostRace) -> FloatArray:
    """Return the ghost's position at each tick, (T + 1 + BEYOND_TICKS, 3), extrapolated at the end."""
    motion = race.motion
    time_ms = np.arange(len(race.controls) + 1) * TICK_MS
    path_m = np.stack([np.interp(time_ms, motion.time_ms, motion.position_m[:, axis]) for axis in range(3)], axis=1)
    beyond_m = np.arange(1, BEYOND_TICKS + 1)[:, None] * (path_m[-1] - path_m[-2])
    return np.concatenate((path_m, path_m[-1] + beyond_m))


def _nearest(path_m: FloatArray, at: int, position_m: FloatArray) -> tuple[int, float]:
    """Return the tick of a path nearest to a place, near the last one, and the distance."""
    first = max(at - LOOK_BACK_TICKS, 0)
    apart_m = np.linalg.norm(path_m[first : at + LOOK_AHEAD_TICKS] - position_m, axis=1)
    nearest = int(apart_m.argmin())
    return first + nearest, float(apart_m[nearest])


def _best_plan(
    cars: npt.NDArray[np.void],
    human: FloatArray,
    path_m: FloatArray,
    at: int,
    last_plan: FloatArray | None,
    world: World,
    rng: np.random.Generator,
    settings: TrackerSettings,
) -> FloatArray:
    """Return the inputs of the next segments, (S, 3)."""
    n_plans, n_segments = settings.plans, settings.segments
    of_human = _segments_of(human, at, n_segments)
    best = of_human if last_plan is None else np.concatenate((last_plan[1:], of_human[-1:]))
    wheel, spread, lowest_cost = best[:, 2], FIRST_SPREAD, np.inf
    n_elite = max(4, round(ELITE_SHARE * n_plans))
    costs = np.empty(n_plans)
    for _ in range(settings.rounds):
        plans = np.empty((n_plans, n_segments, 3))
        plans[:] = best
        plans[:, :, 2] = np.clip(wheel + spread * rng.standard_normal((n_plans, n_segments)), -1.0, 1.0)
        drawn = rng.random((n_plans, n_segments))
        is_gas, is_brake = drawn < GAS_CHANGED, drawn > 1.0 - BRAKE_CHANGED
        plans[:, :, 0] = np.where(is_gas, 1.0 - plans[:, :, 0], plans[:, :, 0])
        plans[:, :, 1] = np.where(is_brake, 1.0 - plans[:, :, 1], plans[:, :, 1])
        plans[0], plans[1] = of_human, best
        _cost_plans(cars, plans, world, STADIUM_CAR, path_m, at, settings.progress_weight, costs)
        order = np.argsort(costs)
        elite = plans[order[:n_elite], :, 2]
        wheel, spread = elite.mean(axis=0), max(LEAST_SPREAD, 0.5 * float(elite.std(axis=0).mean()))
        if costs[order[0]] < lowest_cost:
            lowest_cost, best = float(costs[order[0]]), plans[order[0]].copy()
    return best


def _segments_of(human: FloatArray, at: int, n_segments: int) -> FloatArray:
    """Return the human's inputs from a tick on, averaged by segment, (S, 3); the pedals are pressed or not."""
    ticks = np.minimum(at + np.arange(n_segments * SEGMENT_TICKS), len(human) - 1)
    inputs = human[ticks].reshape(n_segments, SEGMENT_TICKS, 3).mean(axis=1)
    inputs[:, :2] = np.round(inputs[:, :2])
    return np.asarray(inputs)


@compiled
def _cost_plans(
    cars: npt.NDArray[np.void],
    plans: FloatArray,
    world: World,
    parameters: npt.NDArray[np.void],
    path_m: FloatArray,
    at: int,
    progress_weight: float,
    costs: FloatArray,
) -> None:
    """Drive plans (N, S, 3) and write their costs."""
    last = path_m.shape[0] - 2
    for number in range(plans.shape[0]):
        car = cars.copy()
        aside_m2, progress, nearest = 0.0, 0.0, min(at, last)
        for segment in range(plans.shape[1]):
            gas, brake, steer = plans[number, segment, 0], plans[number, segment, 1], plans[number, segment, 2]
            for _ in range(SEGMENT_TICKS):
                tick(car, gas, brake, steer, world, parameters)
            nearest = _nearest_tick(path_m, nearest, car[0].position_m)
            apart_m2, along_m, way_m, way_m2 = 0.0, 0.0, 0.0, 0.0
            for axis in range(3):
                away_m = car[0].position_m[axis] - path_m[nearest, axis]
                way_m = path_m[nearest + 1, axis] - path_m[nearest, axis]
                apart_m2 += away_m * away_m
                along_m += away_m * way_m
                way_m2 += way_m * way_m
            share = along_m / max(way_m2, 1e-6)
            aside_m2 += min(max(apart_m2 - share * along_m, 0.0), MOST_ASIDE_M2)
            progress = nearest + min(max(share, -1.0), 1.0)
        costs[number] = aside_m2 / plans.shape[1] - progress_weight * progress


@compiled
def _nearest_tick(path_m: FloatArray, first: int, position_m: npt.NDArray[np.float32]) -> int:
    """Return the tick of a path from `first` on nearest to a place, not the last one."""
    best, least_m2 = first, np.inf
    for at in range(first, min(first + LOOK_AHEAD_TICKS, path_m.shape[0] - 1)):
        apart_m2 = 0.0
        for axis in range(3):
            apart_m2 += (position_m[axis] - path_m[at, axis]) ** 2
        if apart_m2 < least_m2:
            best, least_m2 = at, apart_m2
    return best
