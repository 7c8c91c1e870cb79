"""Race of a ghost tick by tick: its inputs, and state that follows from the samples so far.

The gearbox, the steering ramp and the turbo have a memory. Their state follows from the speeds, the inputs and the
blocks since the start, so they are simulated along the ghost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from research.replay_windows.ghost_motion import FloatArray, GhostMotion, motion_of
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.replay import Ghost
from trackmania_rl.gbx.replay_inputs import script_of_ghost
from trackmania_rl.protocol.input_script import Input
from trackmania_rl.protocol.messages import TICK_MS
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.inputs import InputSlot, RaceInputs
from trackmania_rl.simulator.physics.engine import KMH_PER_M_S, GearboxState, update_engine
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR, step_value
from trackmania_rl.simulator.physics.vehicle_state import WORK_DTYPE, copy_state, new_vehicle
from trackmania_rl.track.placed_blocks import BlockGrid, forward_of

FALL_WITHIN_M_S2: Final = 2.0  # Tolerance, per axis, of the acceleration of a car in free fall
ENGINE_FIELDS: Final = ("gear", "gearbox_state", "gear_timer_s", "actual_rpm", "clamped_rpm", "slide_factor")
"""Fields of the car's state that follow from speeds and inputs."""

ENGINE_PASSES: Final = 4  # iterations of the engine from one sample to the next
TICK_S: Final = TICK_MS / 1000.0

_CHANGING: Final = int(GearboxState.CHANGING)
_FRONT_M, _REAR_M = 1.78, -1.21  # Where the axles are, along the car


class GhostRaceError(UserError):
    """A ghost's race cannot be followed; the text is the reason."""


@dataclass(frozen=True)
class GhostRace:
    """Race of one ghost; T ticks, one every 10 ms from race time 0 to the last sample."""

    motion: GhostMotion
    controls: FloatArray  # (T, 3) gas, brake and steer that act in the tick beginning at each time
    respawn_ms: tuple[int, ...]  # times of the respawns: the state of that time is the car at rest
    turning_rate: FloatArray  # (T,) the steering ramp at each time
    engine: npt.NDArray[np.void]  # (T,) of VEHICLE_DTYPE, of which `ENGINE_FIELDS` are filled
    turbo_remaining_s: FloatArray  # (T,) how long the last pad still pushes
    turbo_factor: FloatArray  # (T,) of the last pad
    grid: BlockGrid  # the map's blocks; empty where the map is not known

    def tick_of(self, time_ms: int) -> int:
        """Return the tick that begins at a race time."""
        return time_ms // TICK_MS


def race_of_ghost(ghost: Ghost, blocks: tuple[Block, ...], path: Path) -> GhostRace:
    """Follow a ghost from the start of its race.

    Args:
        ghost: the race.
        blocks: of its map; () if it is not known.
        path: of the ghost's file, for errors.

    Raises:
        GhostRaceError: if it has no samples or no inputs, or its samples are not a whole number of ticks apart.
        ReplayInputsError: if its inputs are impossible.
    """
    samples = ghost.samples
    if samples is None or len(samples.time_ms) < 5:
        raise GhostRaceError(f"{path}: the ghost has no samples of where the car was; use another replay")
    if samples.period_ms % TICK_MS:
        raise GhostRaceError(f"{path}: the ghost has a sample every {samples.period_ms} ms, which is no whole tick")
    motion, grid = motion_of(samples), BlockGrid(blocks)
    n_ticks = int(samples.time_ms[-1]) // TICK_MS
    controls, respawn_ms = _inputs(ghost, path, n_ticks)
    remaining_s, factor = _turbo(motion, grid, np.arange(n_ticks) * TICK_MS)
    return GhostRace(
        motion,
        controls,
        respawn_ms,
        _ramp(controls[:, 2]),
        _engine(motion, controls, np.where(remaining_s > 0.0, factor, 0.0), respawn_ms),
        remaining_s,
        factor,
        grid,
    )


def _inputs(ghost: Ghost, path: Path, n_ticks: int) -> tuple[FloatArray, tuple[int, ...]]:
    """Return controls by tick, and the times of respawns.

    A ghost's event first acts in the tick that begins at its time, which is one tick earlier in a script.
    """
    inputs = RaceInputs(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    events = script_of_ghost(ghost, path).events
    controls = np.zeros((n_ticks, 3))
    next_event = 0
    for tick in range(n_ticks):
        now = next_event
        while next_event < len(events) and events[next_event].time_ms + TICK_MS <= tick * TICK_MS:
            next_event += 1
        if next_event > now:
            inputs.apply(events[now:next_event])
        controls[tick] = inputs.controls
    respawns = (event for event in events if event.input is Input.RESPAWN and event.value)
    return controls, tuple(event.time_ms + TICK_MS for event in respawns)


def _flies(motion: GhostMotion, controls: FloatArray) -> npt.NDArray[np.bool_]:
    """Return whether the velocity changes by the air's gravity and drag alone, per sample."""
    velocity = motion.velocity_m_s
    change_m_s2 = np.gradient(velocity, motion.time_ms / 1000.0, axis=0)
    constants = STADIUM_CAR[0]
    gas = controls[np.minimum(motion.time_ms // TICK_MS, len(controls) - 1), 0]
    speed_m_s = np.maximum(motion.speed_m_s, 1e-6)
    coast_per_s = np.where(
        gas > 0.0, 0.0, constants["coast_constant_m_s2"] / speed_m_s + constants["coast_linear_per_s"]
    )
    fall_m_s2 = -velocity * (constants["air_drag_per_s"] + coast_per_s)[:, None]
    fall_m_s2[:, 1] -= constants["gravity_m_s2"] * constants["gravity_scale_air"]
    return np.asarray((np.abs(change_m_s2 - fall_m_s2) <= FALL_WITHIN_M_S2).all(axis=1))


def _ramp(steer: FloatArray) -> FloatArray:
    """Return the steering at the beginning of each tick, (T,)."""
    step = float(STADIUM_CAR["steer_ramp_per_s"][0]) * TICK_S
    rate, turning = 0.0, np.zeros(len(steer))
    for tick, wanted in enumerate(steer):
        turning[tick] = rate
        rate += min(max(wanted - rate, -step), step)
    return turning


def _engine(
    motion: GhostMotion,
    controls: FloatArray,
    pushed: FloatArray,
    respawn_ms: tuple[int, ...],
) -> npt.NDArray[np.void]:
    """Return engine and gearbox at the beginning of each tick.

    Between two samples the car gains speed by its engine and by a constant remainder (slopes, corners, brakes) that
    gives the next sample's speed; so a gear change within a tenth of a second has its effect.

    Args:
        motion: at the samples.
        controls: (T, 3) by tick.
        pushed: (T,) factor by which turbo pads push, 0 where none does.
        respawn_ms: times at which the engine is reset.
    """
    states, flies = np.repeat(new_vehicle(), len(controls)), _flies(motion, controls)
    along_m_s = np.einsum("si,si->s", motion.velocity_m_s, motion.rotation[:, :, 2])
    period = int(motion.time_ms[1] - motion.time_ms[0]) // TICK_MS
    respawns = {time_ms // TICK_MS for time_ms in respawn_ms}
    car, end = new_vehicle(), new_vehicle()
    for at in range(len(along_m_s) - 1):
        ticks = slice(at * period, (at + 1) * period)
        reset = next((number for number in range(ticks.start, ticks.stop) if number in respawns), None)
        missing_m_s2 = 0.0
        for _ in range(ENGINE_PASSES):
            states[ticks.start] = car[0]
            end_m_s = _engine_between(
                states[ticks],
                controls[ticks],
                pushed[ticks],
                along_m_s[at],
                missing_m_s2,
                not flies[at],
                end,
                STADIUM_CAR,
            )
            missing_m_s2 += (along_m_s[at + 1] - end_m_s) / (period * TICK_S)
        if reset is not None:
            end[:] = new_vehicle()
            states[reset : ticks.stop] = end
        car[:] = end
    return states


@compiled
def _engine_between(
    states: npt.NDArray[np.void],
    controls: FloatArray,
    pushed: FloatArray,
    speed_m_s: float,
    missing_m_s2: float,
    grounded: bool,
    end: npt.NDArray[np.void],
    parameters: npt.NDArray[np.void],
) -> float:
    """Drive the engine from `states[0]` through some ticks to the car `end`; return the speed there."""
    constants, work = parameters[0], np.zeros(1, WORK_DTYPE)[0]
    copy_state(states[0], work)
    for number in range(len(states)):
        copy_state(work, states[number])
        work.gas, work.brake = controls[number, 0], controls[number, 1]
        substeps = int(TICK_S * abs(speed_m_s) / constants.substep_length_m) + 1
        for _ in range(substeps):
            work.local_speed_m_s[2] = speed_m_s
            update_engine(work, constants, grounded, TICK_S / substeps)
            share = pushed[number] + (work.gas if work.gearbox_state != _CHANGING else 0.0)
            drive_m_s2 = share * step_value(constants.drive_curve_kmh, KMH_PER_M_S * speed_m_s) if grounded else 0.0
            speed_m_s += (drive_m_s2 + missing_m_s2) * TICK_S / substeps
    copy_state(work, end[0])
    return speed_m_s


def _turbo(motion: GhostMotion, grid: BlockGrid, tick_ms: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return the remaining time and the factor of the last pad, at the beginning of each tick."""
    duration_s, strength = float(STADIUM_CAR["turbo_duration_s"][0]), float(STADIUM_CAR["turbo_factor"][0])
    position_m = np.stack([np.interp(tick_ms, motion.time_ms, axis) for axis in motion.position_m.T], axis=1)
    forward = np.stack([np.interp(tick_ms, motion.time_ms, axis) for axis in motion.rotation[:, :, 2].T], axis=1)
    remaining_s, factor = np.zeros(len(tick_ms)), np.zeros(len(tick_ms))
    left_s = pushed = 0.0
    for tick in range(len(tick_ms)):
        remaining_s[tick], factor[tick] = left_s, pushed
        left_s = max(left_s - TICK_S, 0.0)
        for along_m in (_FRONT_M, _REAR_M):
            block = grid.under(position_m[tick] + along_m * forward[tick])
            if block is not None and "Turbo" in block.name:
                left_s, pushed = duration_s, strength * float(forward[tick] @ forward_of(block))
    return remaining_s, factor
