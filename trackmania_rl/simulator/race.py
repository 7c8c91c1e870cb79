"""Simulated race: clock, car, gates, inputs, and their state blob, without sockets and real time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.input_script import Input, InputEvent, write_input_script
from trackmania_rl.protocol.messages import COUNTDOWN_MS, TICK_MS, HeldInputs
from trackmania_rl.protocol.state_blob import (
    NOT_PASSED,
    STATE_HEAD_DTYPE,
    CheckpointLayout,
    StateBlobError,
    new_state_blob,
)
from trackmania_rl.simulator.inputs import InputState
from trackmania_rl.simulator.physics.gates import drive, gates_of_track
from trackmania_rl.simulator.physics.vehicle import respawn_vehicle, spawn_vehicle
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.state_codec import (
    MAX_RACE_MS,
    PRIVATE_HEADER_WORDS,
    WORD_BYTES,
    read_car,
    signature,
    write_car,
)
from trackmania_rl.simulator.tracks.world import Track

_MAGIC: Final = 0x53494D32  # "SIM2"
_RACE_TIMER: Final = 1
"""Race clock's index among the blob's timers; it runs on after the finish."""
_KM_H_PER_M_S: Final = 3.6


class SimulatedRace:
    """Race on one track, from the countdown on; it continues after the finish until it is given up.

    A race from a restored state gives identical blobs and events. `parameters` are the car's constants, as
    `VehicleParameters.packed` makes them.

    Raises:
        ValueError: If the track's laps would have unequal gate counts.
    """

    def __init__(self, track: Track, parameters: npt.NDArray[np.void] = STADIUM_CAR) -> None:
        self.track = track
        self._parameters = parameters
        self._world = track.world
        self._gates = gates_of_track(track)
        self._signature = signature(track)
        self._spawned_car = spawn_vehicle(track)
        self._renderer: Renderer | None = None
        self._script: list[InputEvent] = []
        # The race's counters are in this blob, so saving a state is little more than a copy.
        self._layout = CheckpointLayout(self._gates.per_lap, self._gates.total)
        self._blob = new_state_blob(self._layout.state_count, self._layout.time_count)
        self._words, self._head, self._gate_is_passed, self._times_ms = _views(self._blob, self._layout)
        self._head["engine_max_rpm"] = parameters["max_rpm"][0]
        self._head["max_linear_speed_m_s"] = parameters["max_speed_m_s"][0]
        self._head["wheels"]["is_steerable"] = (1, 1, 0, 0)
        self._head["wheels"]["offset_from_vehicle_m"] = parameters["wheel_points_m"][0]
        self._head["completed_target"] = self.checkpoint_target
        self._head["countdown_ms"] = COUNTDOWN_MS
        self._head["private"][:2] = _MAGIC, self._signature
        self.inputs = InputState(self._head["input_events"])
        self.give_up()

    @property
    def tick_time_ms(self) -> int:
        """Time since the race's start, negative in the countdown; it runs on after the finish."""
        return self._tick_time_ms

    @property
    def race_time_ms(self) -> int:
        """Race clock. It stops, at the official finish time, when the finish is reported."""
        if self.is_finished and self._reported_count == self._passed_count:
            return int(self._times_ms[-1])
        return self._tick_time_ms

    @property
    def is_finished(self) -> bool:
        """True once all gates are passed."""
        return self._passed_count == self.checkpoint_target

    @property
    def is_over(self) -> bool:
        """True if the clock is stopped while the physics continues."""
        return self._tick_time_ms > self.race_time_ms

    @property
    def checkpoint_count(self) -> int:
        """Gates passed so far, all laps."""
        return self._passed_count

    @property
    def checkpoint_target(self) -> int:
        """Race gates, all laps, the finish included."""
        return self._layout.time_count

    @property
    def checkpoint_times_ms(self) -> list[int]:
        """Official times for the passed gates in passing order."""
        return self._times_ms[: self._passed_count].tolist()

    @property
    def lap_count(self) -> int:
        """Laps completed."""
        return self._passed_count // self._layout.state_count

    @property
    def car(self) -> npt.NDArray[np.void]:
        """(1,) VEHICLE_DTYPE; changing it changes the race."""
        return self._car

    def give_up(self) -> None:
        """Restart with the countdown and no key pressed."""
        self._car = self._spawned_car.copy()
        self._tick_time_ms = -COUNTDOWN_MS
        self._gate_is_passed[:] = 0
        self._times_ms[:] = NOT_PASSED
        self._passed_count = self._reported_count = self._reported_laps = 0
        self._respawn_gate: int | None = None
        self.inputs.release_all()

    def advance(self, max_ticks: int = 1) -> int:
        """Advance the race, but not beyond the tick in which a gate is passed; return the ticks made, at least 1.

        Args:
            max_ticks: At least 1; fewer are made at the countdown's end and where the script changes an input.
        """
        respawns, max_ticks = self._play_script(max_ticks)
        if self._tick_time_ms >= MAX_RACE_MS or (respawns and self._respawn_gate is None):
            self.give_up()
        if self._tick_time_ms < 0:
            ticks = min(max_ticks, -self._tick_time_ms // TICK_MS)
        elif respawns:
            ticks = 1
            self._respawn()
        else:
            ticks = self._drive(max_ticks)
        self._tick_time_ms += ticks * TICK_MS
        return ticks

    def take_checkpoint_event(self) -> tuple[int, int] | None:
        """Return (passed, all) gates once per change, else None; reporting the finish stops the clock."""
        if self._passed_count == self._reported_count:
            return None
        self._reported_count = self._passed_count
        return self._passed_count, self.checkpoint_target

    def take_lap_event(self) -> tuple[int, int] | None:
        """Return (completed, all) laps once per change, else None; always None on single-lap tracks."""
        if self.track.n_laps == 1 or self.lap_count == self._reported_laps:
            return None
        self._reported_laps = self.lap_count
        return self.lap_count, self.track.n_laps

    def prevent_finish(self) -> None:
        """Undo the finish, if it was reached; a car that is still in it finishes again in the next tick."""
        if self.is_finished:
            self._times_ms[-1] = NOT_PASSED
            self._forget_finish()

    def set_input(self, held: HeldInputs) -> None:
        """Hold exactly these inputs from the next tick on."""
        self.inputs.hold(self._tick_time_ms, held)

    def play_script(self, events: Sequence[InputEvent]) -> None:
        """Apply these inputs until this race ends and in all later ones; () ends that.

        A respawn puts the car back to the gate passed last, which takes one tick. Before the first gate it restarts the
        race.
        """
        self._script = list(events)

    def input_script(self) -> str:
        """Return this race's inputs so far as an input script."""
        return write_input_script(self.inputs.log)

    def render(self, width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
        """Return this instant's picture, (height_px, width_px, 4) uint8, blue, green, red, 255; top row first.

        Raises:
            ValueError: If a side is not 1 to 4096 pixels.
        """
        if self._renderer is None:
            self._renderer = Renderer(self.track)
        car = self._car[0]
        return self._renderer.render(
            car["position_m"], car["rotation"], car["surface_index"], width_px, height_px, self._passed_count
        )

    def save_state(self) -> bytes:
        """Return the race as a state blob, laid out like `tminterface.structs.SimStateData`."""
        head = self._head
        car = self._car[0]
        race_time_ms = self.race_time_ms
        head["timers_ms"][_RACE_TIMER] = self._tick_time_ms
        head["race_time_ms"] = race_time_ms
        respawn_gate = 0 if self._respawn_gate is None else 1 + self._respawn_gate
        head["private"][2:PRIVATE_HEADER_WORDS] = self._reported_count, self._reported_laps, respawn_gate
        head["input_gas"], head["input_brake"], head["input_steer"] = self.inputs.controls
        head["completed_count"] = head["checkpoints_of_race"] = self._passed_count
        lap, head["checkpoints_of_lap"] = divmod(self._passed_count, self._layout.state_count)
        head["lap"] = lap
        head["race_finished"] = self.is_finished
        head["finish_not_passed"] = not self.is_finished
        x, y, z = car["velocity_m_s"].tolist()
        head["display_speed_km_h"] = int((x * x + y * y + z * z) ** 0.5 * _KM_H_PER_M_S)
        write_car(self._car, self._words)
        return bytes(self._blob)

    def restore_state(self, blob: bytes) -> None:
        """Restore a state saved on this track; the next tick follows the blob's race time.

        If the blob's last checkpoint time is NOT_PASSED, the finish is undone. Restoring reports no event, but gates
        not yet reported when the blob was saved are reported again.

        Raises:
            StateBlobError: If the blob has another shape, is from another track, or holds impossible numbers; the race
                is unchanged.
        """
        layout = CheckpointLayout.of_blob(blob)
        words, head, gate_is_passed, times_ms = _views(blob, layout)
        magic, blob_signature, *counters = head["private"][:PRIVATE_HEADER_WORDS].tolist()
        if (magic, blob_signature) != (_MAGIC, self._signature) or layout.blob_bytes != self._layout.blob_bytes:
            raise StateBlobError(f"state blob that is not of a race on track {self.track.name!r} in this game")
        car = read_car(words, len(self._world.records))
        tick_time_ms = int(head["timers_ms"][_RACE_TIMER])
        is_on_the_clock = -COUNTDOWN_MS <= tick_time_ms <= MAX_RACE_MS and tick_time_ms % TICK_MS == 0
        if not is_on_the_clock or int(car[0]["clock_ms"]) != max(0, tick_time_ms):
            raise StateBlobError(f"state blob whose clocks say {tick_time_ms} and {car[0]['clock_ms']} ms")
        passed_count = _count_passed(times_ms, gate_is_passed, tick_time_ms)
        reported_count, reported_laps, respawn_gate = counters
        if respawn_gate > min(self.checkpoint_target, passed_count * self._layout.state_count):
            raise StateBlobError(f"state blob that respawns at gate {respawn_gate} with {passed_count} passed")
        self.inputs.restore(tick_time_ms, head["input_events"])
        self._car = car
        self._tick_time_ms = tick_time_ms
        self._times_ms[:] = times_ms
        self._gate_is_passed[:] = gate_is_passed
        self._passed_count, self._reported_count, self._reported_laps = passed_count, reported_count, reported_laps
        self._respawn_gate = respawn_gate - 1 if respawn_gate else None
        if not self.is_finished:
            self._forget_finish()

    def _forget_finish(self) -> None:
        self._gate_is_passed[-1] = 0
        self._passed_count = int(np.count_nonzero(self._times_ms != NOT_PASSED))
        self._reported_count = min(self._reported_count, self._passed_count)
        self._reported_laps = min(self._reported_laps, self.lap_count)

    def _drive(self, max_ticks: int) -> int:
        was_passed = self._gate_is_passed.copy()
        ticks, passed_count = drive(
            self._car,
            self.inputs.controls,
            self._world,
            self._parameters,
            self._gates,
            self._gate_is_passed,
            self._times_ms,
            self._passed_count,
            max_ticks,
        )
        if self._passed_count < passed_count < self.checkpoint_target:
            in_lap = passed_count % self._layout.state_count
            gate_of_lap = np.flatnonzero(self._gate_is_passed > was_passed)[-1] if in_lap else -1  # -1: a lap's line
            self._respawn_gate = passed_count - in_lap + int(gate_of_lap)
        self._passed_count = passed_count
        return ticks

    def _respawn(self) -> None:
        assert self._respawn_gate is not None
        self._car = respawn_vehicle(self.track, self._respawn_gate)
        self._car["clock_ms"] = self._tick_time_ms + TICK_MS

    def _play_script(self, max_ticks: int) -> tuple[bool, int]:
        """Apply the script's changes at this instant.

        Returns:
            True if they put the car back; and the ticks until the script's next change, at most `max_ticks`.
        """
        if not self._script or self._tick_time_ms < 0:
            return False, max_ticks
        now = bisect_left(self._script, self._tick_time_ms, key=lambda event: event.time_ms)
        later = bisect_left(self._script, self._tick_time_ms + 1, key=lambda event: event.time_ms)
        events = self._script[now:later]
        self.inputs.apply(events)
        if later < len(self._script):
            max_ticks = min(max_ticks, (self._script[later].time_ms - self._tick_time_ms) // TICK_MS)
        respawns = any(event.input is Input.RESPAWN and event.value for event in events)
        return respawns and not self.is_finished, max_ticks


def _views(
    blob: bytes | bytearray, layout: CheckpointLayout
) -> tuple[npt.NDArray[np.uint32], np.void, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return a blob's 32-bit words, head, checkpoint states (one lap) and checkpoint times, as views."""
    words = np.frombuffer(blob, "<u4")
    head_words = STATE_HEAD_DTYPE.itemsize // WORD_BYTES
    states = words[head_words : head_words + layout.state_count].view("<i4")
    times = words[layout.times_offset // WORD_BYTES :].view("<i4")[::2]
    return words, words[:head_words].view(STATE_HEAD_DTYPE)[0], states, times


def _count_passed(times_ms: npt.NDArray[np.int32], gate_is_passed: npt.NDArray[np.int32], tick_time_ms: int) -> int:
    """Count a blob's passed gates; raise StateBlobError if gates and times do not fit each other."""
    is_passed = times_ms != NOT_PASSED
    count = int(np.count_nonzero(is_passed))
    per_lap = len(gate_is_passed)
    if count == len(times_ms):
        gates_fit = np.count_nonzero(gate_is_passed) == per_lap
    else:  # the lap line's flag may be left over from a finish whose time was cleared
        gates_fit = np.count_nonzero(gate_is_passed[:-1]) == count % per_lap
    passed_times_ms = times_ms[:count]
    times_fit = ((passed_times_ms >= 0) & (passed_times_ms <= tick_time_ms)).all()
    if not (gates_fit and times_fit):
        raise StateBlobError(
            f"state blob with checkpoint times {times_ms} and gates {gate_is_passed} at {tick_time_ms} ms"
        )
    return count
