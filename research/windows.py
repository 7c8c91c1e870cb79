"""The simulated car beside human replays, a second at a time: `python -m research.windows FOLDER [--list]`.

Each window begins with the car as a replay in the folder shows it, is driven on the blocks of the replay's map with
the replay's inputs for a second without correction, and ends more or less beside the replay's car. The distances at the
ends measure car and blocks. A replay does not hold the engine, the steering ramp and the turbo: they follow from its
race so far. Nor does it hold which wheels slide: the combination that fits best is taken.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from trackmania_rl.gbx.challenge import STADIUM, Block, Challenge
from trackmania_rl.gbx.reading import GbxError
from trackmania_rl.gbx.replay import (
    Ghost,
    GhostSamples,
    ReplayInputsError,
    is_replay_file,
    read_replay,
    script_of_ghost,
)
from trackmania_rl.protocol.input_script import Input
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.inputs import InputSlot, InputState
from trackmania_rl.simulator.physics.engine import KMH_PER_M_S, GearboxState, update_engine
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR, step_value
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, WORK_DTYPE, new_vehicle
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, ground_under
from trackmania_rl.track.block_world import GateBox, mesh_of_world, world_of
from trackmania_rl.track.placed_blocks import BlockGrid, forward_of

LENGTH_MS: Final = 1000
EVERY_MS: Final = 500
WITHIN_M: Final = (0.15, 0.3, 1.0)
FAR_M: Final = 1.0  # `--list` names windows that end further away

STENCIL: Final = 2  # samples before and after that derivatives use
JUMP_M_S: Final = 30.0  # a position that is this much faster than the speeds around it was set: a respawn
NEAR_RESPAWN_MS: Final = 200  # a window that begins this near to a respawn is driven from it
FALL_WITHIN_M_S2: Final = 2.0  # of the acceleration of a car in free fall
LEAST_DAMPER_M: Final = 0.0025  # of a loaded wheel
GROUND_WITHIN_M: Final = 1.0  # of a wheel's ground
GOOD_M: Final = 0.05  # a window this near with no wheel sliding needs no other try
PROBE_RAD_S: Final = 0.05  # by which the initial yaw rate is varied, to fit it to the headings of the first samples
FITTED_SAMPLES: Final = 2
ENGINE_PASSES: Final = 4
AXLES_M: Final = (1.78, -1.21)  # along the car
TICK_S: Final = TICK_MS / 1000.0
ENGINE_FIELDS: Final = ("gear", "gearbox_state", "gear_timer_s", "actual_rpm", "clamped_rpm", "slide_factor")
FLAGS: Final = tuple(sorted(itertools.product((0, 1), repeat=WHEELS), key=sum))
_CHANGING: Final = int(GearboxState.CHANGING)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """Motion of a replay's car at its S samples, world axes."""

    samples: GhostSamples
    rotation: FloatArray  # (S, 3, 3) columns are the car's left, up and forward
    velocity_m_s: FloatArray  # (S, 3) of the centre of mass
    spin_rad_s: FloatArray  # (S, 3) angular velocity


@dataclass(frozen=True)
class GhostRace:
    """Race of a replay by ticks of 10 ms, T in all."""

    motion: Motion
    controls: FloatArray  # (T, 3) gas, brake, steer
    respawn_ms: tuple[int, ...]
    turning_rate: FloatArray  # (T,) steering ramp
    engine: FloatArray  # (T + 1, 6) of `ENGINE_FIELDS`
    turbo_remaining_s: FloatArray  # (T,)
    turbo_factor: FloatArray  # (T,)


@dataclass(frozen=True)
class Result:
    """Window of a replay, driven."""

    map_name: str
    start_ms: int
    block: str  # under the car at the beginning
    apart_m: FloatArray  # (K,) distance of the two cars at each sample
    faster_kmh: float  # of the simulated car at the end
    turned_rad: FloatArray  # (K - 1, 3) attitude beyond the replay's, as rotation vectors


def motion_of(samples: GhostSamples) -> Motion:
    """Derive velocities and turning; derivatives do not reach over a respawn."""
    time_s, rotation = samples.time_ms / 1000.0, samples.axes
    step_m = np.linalg.norm(np.diff(samples.position_m, axis=0), axis=1)
    faster_m_s = np.maximum(samples.speed_m_s[1:], samples.speed_m_s[:-1])
    run = np.concatenate(([0], np.cumsum(step_m > (faster_m_s + JUMP_M_S) * np.diff(time_s))))
    origin_m_s, spin_rad_s = np.zeros_like(samples.position_m), np.zeros_like(samples.position_m)
    for at in range(len(time_s)):
        near = np.arange(max(at - STENCIL, 0), min(at + STENCIL + 1, len(time_s)))
        near = near[run[near] == run[at]]
        powers = np.vander(time_s[near] - time_s[at], increasing=True).T
        weights = np.linalg.solve(powers, np.eye(len(near))[min(1, len(near) - 1)]) if len(near) > 1 else np.zeros(1)
        origin_m_s[at] = weights @ samples.position_m[near]
        spin_rad_s[at] = weights @ _rotation_vectors(rotation[near] @ rotation[at].T)
    velocity_m_s = origin_m_s + np.cross(spin_rad_s, rotation @ STADIUM_CAR["center_of_mass_m"][0])
    # The game moves the car with the velocity from before a substep, so positions lag half a substep behind.
    substep_m = float(STADIUM_CAR["substep_length_m"][0])
    n_substeps = np.floor(TICK_S * (samples.speed_m_s + np.linalg.norm(spin_rad_s, axis=1)) / substep_m) + 1.0
    for number in range(run[-1] + 1):
        of_run = run == number
        if of_run.sum() > 1:
            change = np.gradient(velocity_m_s[of_run], time_s[of_run], axis=0)
            velocity_m_s[of_run] += 0.5 * TICK_S / n_substeps[of_run, None] * change
    length_m_s = np.linalg.norm(velocity_m_s, axis=1)
    share = np.divide(samples.speed_m_s, length_m_s, out=np.zeros_like(length_m_s), where=length_m_s > 0.0)
    return Motion(samples, rotation, velocity_m_s * share[:, None], spin_rad_s)


def race_of_ghost(ghost: Ghost, samples: GhostSamples, blocks: tuple[Block, ...], path: Path) -> GhostRace:
    """Follow a ghost from the start of its race.

    Raises:
        ReplayInputsError: if its inputs are impossible.
    """
    motion = motion_of(samples)
    controls, respawn_ms = _inputs(ghost, path, int(samples.time_ms[-1]) // TICK_MS)
    remaining_s, factor = _turbo(motion, BlockGrid(blocks), len(controls))
    ramp, rate = np.zeros(len(controls)), 0.0
    step = float(STADIUM_CAR["steer_ramp_per_s"][0]) * TICK_S
    for number, wanted in enumerate(controls[:, 2]):
        ramp[number] = rate
        rate += min(max(wanted - rate, -step), step)
    engine = _engine(motion, controls, np.where(remaining_s > 0.0, factor, 0.0), respawn_ms)
    return GhostRace(motion, controls, respawn_ms, ramp, engine, remaining_s, factor)


def _inputs(ghost: Ghost, path: Path, n_ticks: int) -> tuple[FloatArray, tuple[int, ...]]:
    """Return controls by tick, and the times of respawns; a ghost's event acts a tick later than a script's."""
    inputs = InputState(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    events, controls, begin = script_of_ghost(ghost, path).events, np.zeros((n_ticks, 3)), 0
    for number in range(n_ticks):
        end = begin
        while end < len(events) and events[end].time_ms + TICK_MS <= number * TICK_MS:
            end += 1
        if end > begin:
            inputs.apply(events[begin:end])
        controls[number], begin = inputs.controls, end
    respawns = (event.time_ms for event in events if event.input is Input.RESPAWN and event.value)
    return controls, tuple(time_ms + TICK_MS for time_ms in respawns)


def _turbo(motion: Motion, grid: BlockGrid, n_ticks: int) -> tuple[FloatArray, FloatArray]:
    """Return the remaining time and the factor of the last pad, at the beginning of each tick."""
    samples, tick_ms = motion.samples, np.arange(n_ticks) * TICK_MS
    position_m = np.stack([np.interp(tick_ms, samples.time_ms, axis) for axis in samples.position_m.T], axis=1)
    forward = np.stack([np.interp(tick_ms, samples.time_ms, axis) for axis in motion.rotation[:, :, 2].T], axis=1)
    remaining_s, factor, left_s, pushed = np.zeros(n_ticks), np.zeros(n_ticks), 0.0, 0.0
    for number in range(n_ticks):
        remaining_s[number], factor[number] = left_s, pushed
        left_s = max(left_s - TICK_S, 0.0)
        for along_m in AXLES_M:
            block = grid.under(position_m[number] + along_m * forward[number])
            if block is not None and "Turbo" in block.name:
                left_s = float(STADIUM_CAR["turbo_duration_s"][0])
                pushed = float(STADIUM_CAR["turbo_factor"][0]) * float(forward[number] @ forward_of(block))
    return remaining_s, factor


def _engine(motion: Motion, controls: FloatArray, pushed: FloatArray, respawn_ms: tuple[int, ...]) -> FloatArray:
    """Return `ENGINE_FIELDS` (T, 6) at the beginning of each tick.

    Between two samples the car gains speed by its engine and by a constant remainder (slopes, corners, brakes) that
    gives the next sample's speed; so a gear change within a tenth of a second has its effect.
    """
    samples, states = motion.samples, np.zeros((len(controls) + 1, len(ENGINE_FIELDS)))
    along_m_s = np.einsum("si,si->s", motion.velocity_m_s, motion.rotation[:, :, 2])
    flies, period = _flies(motion, controls), samples.period_ms // TICK_MS
    at_rest = np.array([float(new_vehicle()[field][0]) for field in ENGINE_FIELDS])
    states[0] = at_rest
    for at in range(len(along_m_s) - 1):
        ticks = slice(at * period, (at + 1) * period)
        missing_m_s2 = 0.0
        for _ in range(ENGINE_PASSES):
            between = states[ticks.start : ticks.stop + 1], controls[ticks], pushed[ticks]
            end_m_s = _engine_between(*between, along_m_s[at], missing_m_s2, not flies[at], STADIUM_CAR)
            missing_m_s2 += (along_m_s[at + 1] - end_m_s) / (period * TICK_S)
        for reset in (time_ms // TICK_MS for time_ms in respawn_ms):
            if ticks.start <= reset < ticks.stop:
                states[reset : ticks.stop + 1] = at_rest
    return states


def _flies(motion: Motion, controls: FloatArray) -> npt.NDArray[np.bool_]:
    """Return whether the velocity changes by the air's gravity and drag alone, at each sample."""
    samples, constants = motion.samples, STADIUM_CAR[0]
    change_m_s2 = np.gradient(motion.velocity_m_s, samples.time_ms / 1000.0, axis=0)
    gas = controls[np.minimum(samples.time_ms // TICK_MS, len(controls) - 1), 0]
    coast_per_s = (
        constants["coast_constant_m_s2"] / np.maximum(samples.speed_m_s, 1e-6) + constants["coast_linear_per_s"]
    )
    slowing_per_s = constants["air_drag_per_s"] + np.where(gas > 0.0, 0.0, coast_per_s)
    fall_m_s2 = -motion.velocity_m_s * slowing_per_s[:, None]
    fall_m_s2[:, 1] -= constants["gravity_m_s2"] * constants["gravity_scale_air"]
    return np.asarray((np.abs(change_m_s2 - fall_m_s2) <= FALL_WITHIN_M_S2).all(axis=1))


@compiled
def _engine_between(
    states: FloatArray,
    controls: FloatArray,
    pushed: FloatArray,
    speed_m_s: float,
    missing_m_s2: float,
    grounded: bool,
    parameters: npt.NDArray[np.void],
) -> float:
    """Drive the engine from `states[0]` through T ticks; return the speed at the end."""
    constants, car = parameters[0], np.zeros(1, WORK_DTYPE)[0]
    car.gear, car.gearbox_state, car.gear_timer_s = int(states[0, 0]), int(states[0, 1]), states[0, 2]
    car.actual_rpm, car.clamped_rpm, car.slide_factor = states[0, 3], states[0, 4], states[0, 5]
    for number in range(len(controls)):
        car.gas, car.brake = controls[number, 0], controls[number, 1]
        substeps = int(TICK_S * abs(speed_m_s) / constants.substep_length_m) + 1
        for _ in range(substeps):
            car.local_speed_m_s[2] = speed_m_s
            update_engine(car, constants, grounded, TICK_S / substeps)
            share = pushed[number] + (car.gas if car.gearbox_state != _CHANGING else 0.0)
            drive_m_s2 = share * step_value(constants.drive_curve_kmh, KMH_PER_M_S * speed_m_s) if grounded else 0.0
            speed_m_s += (drive_m_s2 + missing_m_s2) * TICK_S / substeps
        after = states[number + 1]
        after[0], after[1], after[2] = car.gear, car.gearbox_state, car.gear_timer_s
        after[3], after[4], after[5] = car.actual_rpm, car.clamped_rpm, car.slide_factor
    return speed_m_s


def windows_of(race: GhostRace) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Cut a race into windows without a respawn inside: the time each is driven from, and its samples."""
    times_ms = race.motion.samples.time_ms
    for begin_ms in range(0, int(times_ms[-1]) - LENGTH_MS + 1, EVERY_MS):
        near = [time_ms for time_ms in race.respawn_ms if abs(time_ms - begin_ms) <= NEAR_RESPAWN_MS]
        start_ms, end_ms = (near[-1] if near else begin_ms), begin_ms + LENGTH_MS
        if not any(start_ms < time_ms < end_ms for time_ms in race.respawn_ms):
            yield start_ms, np.flatnonzero((times_ms >= start_ms) & (times_ms <= end_ms))


def drive_window(
    race: GhostRace, start_ms: int, at: npt.NDArray[np.int64], mesh: SurfaceMesh, gates: tuple[GateBox, ...], name: str
) -> Result:
    """Drive a window with each combination of sliding wheels until one fits; return the best.

    Where wheels leave or meet the ground, the yaw rate from the replay's attitudes may fit better than the fitted one.
    """
    motion = race.motion
    if start_ms == 0 or start_ms in race.respawn_ms:
        return _driven(race, start_ms, at, mesh, _resting_car(motion, int(at[0]), start_ms, gates), name)
    car = new_vehicle()
    for field, value in zip(ENGINE_FIELDS, race.engine[start_ms // TICK_MS], strict=True):
        car[field] = value
    rotation = motion.rotation[at[0]]
    car["position_m"], car["quaternion"] = motion.samples.position_m[at[0]], motion.samples.rotation[at[0]]
    car["rotation"] = rotation
    car["velocity_m_s"], car["angular_velocity_rad_s"] = motion.velocity_m_s[at[0]], motion.spin_rad_s[at[0]]
    car["local_speed_m_s"] = rotation.T @ motion.velocity_m_s[at[0]]
    car["stored_angular_velocity_rad_s"] = rotation.T @ motion.spin_rad_s[at[0]]
    car["turning_rate"] = race.turning_rate[start_ms // TICK_MS]
    car["turbo_remaining_s"] = race.turbo_remaining_s[start_ms // TICK_MS]
    car["turbo_boost_factor"] = race.turbo_factor[start_ms // TICK_MS]
    _set_wheels(car, mesh)
    results = []
    for sliding in FLAGS:
        car["wheel_is_sliding"] = sliding
        for first in (_with_fitted_turn(race, start_ms, at, mesh, car), car):
            results.append(_driven(race, start_ms, at, mesh, first, name))
        if min(result.apart_m.max() for result in results) <= GOOD_M:
            break
    return min(results, key=lambda result: float(result.apart_m.mean()))


def _resting_car(motion: Motion, at: int, start_ms: int, gates: tuple[GateBox, ...]) -> npt.NDArray[np.void]:
    """Return a car at the start or just respawned: above the road, with its dampers out."""
    car, position_m = new_vehicle(), motion.samples.position_m[at]
    if start_ms > 0:
        position_m = min(
            (gate.spawn_m for gate in gates), key=lambda spawn_m: float(np.linalg.norm(spawn_m - position_m))
        )
    car["position_m"], car["quaternion"] = position_m, motion.samples.rotation[at]
    car["rotation"] = motion.rotation[at]
    car["wheel_damper_absorb_m"] = STADIUM_CAR["damper_travel_m"]
    return car


def _set_wheels(car: npt.NDArray[np.void], mesh: SurfaceMesh) -> None:
    """Set dampers and contacts from the wheels' heights above the ground."""
    rotation = car["rotation"][0].astype(np.float64)
    radii_m, travel_m = STADIUM_CAR["wheel_radii_m"][0], float(STADIUM_CAR["damper_travel_m"][0])
    for wheel, point_m in enumerate(STADIUM_CAR["wheel_points_m"][0]):
        x, y, z = (car["position_m"][0] + rotation @ point_m).tolist()
        ground = ground_under(mesh, x, y, z, GROUND_WITHIN_M)
        normal = rotation.T @ np.array(ground.normal)
        above_m = ground.height_m - float(np.linalg.norm(normal * radii_m)) if ground.exists else np.inf
        car["wheel_damper_absorb_m"][0, wheel] = np.clip(above_m, LEAST_DAMPER_M, travel_m)
        if above_m < travel_m:
            car["wheel_has_ground_contact"][0, wheel] = 1
            car["wheel_material"][0, wheel] = ground.material
            car["wheel_contact_normal"][0, wheel] = normal
    car["was_grounded"] = int(car["wheel_has_ground_contact"].any())


def _with_fitted_turn(
    race: GhostRace, start_ms: int, at: npt.NDArray[np.int64], mesh: SurfaceMesh, car: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    """Return the car with the yaw rate that keeps its heading nearest to the replay's at the first samples.

    Samples every 0.1 s are too far apart for the yaw rate while the driver taps.
    """
    up, early, headings = race.motion.rotation[at[0], :, 1], at[: 1 + FITTED_SAMPLES], []
    for extra_rad_s in (0.0, PROBE_RAD_S):
        probe = car.copy()
        probe["angular_velocity_rad_s"] += extra_rad_s * up
        headings.append(_driven(race, start_ms, early, mesh, probe, "").turned_rad @ up)
    change, fitted = (headings[1] - headings[0]) / PROBE_RAD_S, car.copy()
    if change @ change > 0.0:
        fitted["angular_velocity_rad_s"] -= (headings[0] @ change) / (change @ change) * up
    return fitted


def _driven(
    race: GhostRace,
    start_ms: int,
    at: npt.NDArray[np.int64],
    mesh: SurfaceMesh,
    first: npt.NDArray[np.void],
    map_name: str,
) -> Result:
    samples, car, time_ms = race.motion.samples, first.copy(), start_ms
    apart_m, rotation = [], []
    for sample in at:
        now, time_ms = time_ms, int(samples.time_ms[sample])
        _tick(car, race.controls[now // TICK_MS : time_ms // TICK_MS], mesh, STADIUM_CAR)
        apart_m.append(float(np.linalg.norm(car["position_m"][0] - samples.position_m[sample])))
        rotation.append(car["rotation"][0].astype(np.float64))
    beyond = np.array(rotation[1:]).reshape(-1, 3, 3) @ np.swapaxes(race.motion.rotation[at[1:]], 1, 2)
    faster_kmh = KMH_PER_M_S * (float(np.linalg.norm(car["velocity_m_s"][0])) - float(samples.speed_m_s[at[-1]]))
    return Result(map_name, start_ms, "", np.array(apart_m), faster_kmh, _rotation_vectors(beyond))


@compiled
def _tick(car: npt.NDArray[np.void], controls: FloatArray, mesh: SurfaceMesh, parameters: npt.NDArray[np.void]) -> None:
    """Drive one tick with each of some controls (T, 3)."""
    for number in range(len(controls)):
        tick(car, controls[number, 0], controls[number, 1], controls[number, 2], mesh, parameters)


def _rotation_vectors(rotation: FloatArray) -> FloatArray:
    """Return axis times angle (K, 3) of turns (K, 3, 3), each less than half a turn."""
    skew = rotation - np.swapaxes(rotation, 1, 2)
    axis = 0.5 * np.stack((skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]), axis=1)
    sine = np.linalg.norm(axis, axis=1)
    angle = np.arctan2(sine, 0.5 * (np.trace(rotation, axis1=1, axis2=2) - 1.0))
    return np.asarray(axis * np.divide(angle, sine, out=np.ones_like(sine), where=sine > 1e-12)[:, None])


def ghosts_in(folder: Path) -> Iterator[tuple[Path, Challenge, Ghost, GhostSamples]]:
    """Read each race of the Stadium car in a folder once."""
    seen = set[tuple[str, int | None, int]]()
    for file in sorted(path for path in folder.rglob("*") if is_replay_file(path)):
        try:
            replay = read_replay(file)
        except GbxError:
            continue
        if replay.challenge is None or replay.challenge.environment != STADIUM:
            continue
        for ghost in replay.ghosts:
            key = replay.challenge.plain_name, ghost.race_time_ms, len(ghost.events)
            samples = ghost.samples
            if key not in seen and ghost.events and samples is not None and samples.period_ms % TICK_MS == 0:
                seen.add(key)
                yield file, replay.challenge, ghost, samples


def drive_ghost(challenge: Challenge, ghost: Ghost, samples: GhostSamples, file: Path) -> Iterator[Result]:
    """Drive all windows of a race, up to its finish.

    Raises:
        ReplayInputsError: if its inputs are impossible.
    """
    race = race_of_ghost(ghost, samples, challenge.blocks, file)
    world, grid = world_of(challenge), BlockGrid(challenge.blocks)
    mesh, end_ms = mesh_of_world(world), ghost.race_time_ms or int(samples.time_ms[-1])
    for start_ms, at in windows_of(race):
        if samples.time_ms[at[-1]] <= end_ms:
            result = drive_window(race, start_ms, at, mesh, world.gates, challenge.plain_name)
            block = grid.under(samples.position_m[at[0]])
            yield replace(result, block="" if block is None else block.name)


def main() -> None:
    """Print the table of windows by map."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help=f"name the windows that end more than {FAR_M:g} m away")
    arguments = parser.parse_args()
    by_map = defaultdict[str, list[Result]](list)
    for file, challenge, ghost, samples in ghosts_in(arguments.folder):
        with suppress(ReplayInputsError):
            by_map[challenge.plain_name] += drive_ghost(challenge, ghost, samples, file)
    table = Table("map", "windows", *(f"{limit_m} m" for limit_m in WITHIN_M), "median m", "median km/h")
    for name, results in sorted(by_map.items()):
        ends_m = np.array([result.apart_m[-1] for result in results])
        shares = [f"{100.0 * float((ends_m <= limit_m).mean()):.0f} %" for limit_m in WITHIN_M]
        faster_kmh = float(np.median([abs(result.faster_kmh) for result in results]))
        table.add_row(name, str(len(results)), *shares, f"{np.median(ends_m):.2f}", f"{faster_kmh:.1f}")
    console = Console(width=120)
    console.print(table)
    for result in (result for results in by_map.values() for result in results):
        if arguments.list and result.apart_m[-1] > FAR_M:
            where = f"{result.map_name} at {result.start_ms / 1000:.1f} s on {result.block}"
            console.print(f"{where}: {result.apart_m[-1]:.1f} m, {result.faster_kmh:+.0f} km/h", soft_wrap=True)


if __name__ == "__main__":
    main()
