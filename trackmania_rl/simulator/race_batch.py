"""Race batch stepped by one call to compiled code.

A race here begins at race time 0 and ends at the finish. Like `race.SimulatedRace` it is driven by `gates.drive`, so
equal inputs give equal cars and times, bit for bit.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.state_blob import HEAD_BYTES, NOT_PASSED
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.collision import World
from trackmania_rl.simulator.physics.gates import Gates, drive, gates_of_track
from trackmania_rl.simulator.physics.vehicle import VEHICLE_DTYPE, spawn_vehicle
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.state_codec import WORD_BYTES, write_car, write_cars
from trackmania_rl.simulator.tracks.world import Track

HEAD_WORDS: Final = HEAD_BYTES // WORD_BYTES
_MOST_GATES_AT_FIRST: Final = 16


class TrackForBatch:
    """Track with the compiled form, for a race batch.

    Raises:
        ValueError: If the track's laps would have unequal gate counts.
    """

    def __init__(self, track: Track) -> None:
        self.world = track.world
        self.gates = gates_of_track(track)
        self.spawned_car = spawn_vehicle(track)
        self._track = track

    @property
    def n_gates(self) -> int:
        """Race gates, all laps, the finish included."""
        return self.gates.total

    @cached_property
    def renderer(self) -> Renderer:
        """Renderer, made on first use: scenery costs more than all else here."""
        return Renderer(self._track)


class CarBatch:
    """K races, each on a separate track; `parameters` are car constants, as `VehicleParameters.packed` makes them.

    Attributes:
        cars: (K,) VEHICLE_DTYPE.
        heads: (K, HEAD_WORDS) uint32, state blob heads; words outside the car are zero.
        passed_count: (K,) int64, gates passed.
        times_ms: (K, most gates on any track so far) int32, official times for the passed gates in order.
        ticks: (K,) int64, ticks made by the last `advance`; fewer than requested if the race finished.
    """

    def __init__(self, n_races: int, parameters: npt.NDArray[np.void] = STADIUM_CAR) -> None:
        self.cars = np.zeros(n_races, dtype=VEHICLE_DTYPE)
        self.heads = np.zeros((n_races, HEAD_WORDS), dtype=np.uint32)
        self.passed_count = np.zeros(n_races, dtype=np.int64)
        self.times_ms = np.full((n_races, _MOST_GATES_AT_FIRST), NOT_PASSED, dtype=np.int32)
        self.ticks = np.zeros(n_races, dtype=np.int64)
        self._gate_is_passed = np.zeros((n_races, _MOST_GATES_AT_FIRST), dtype=np.int32)
        self._parameters = parameters

    def begin(self, race: int, track: TrackForBatch) -> None:
        """Put a race's car at a track's start, at race time 0."""
        missing = track.n_gates - self.times_ms.shape[1]
        if missing > 0:
            self.times_ms = np.pad(self.times_ms, ((0, 0), (0, missing)), constant_values=NOT_PASSED)
            self._gate_is_passed = np.pad(self._gate_is_passed, ((0, 0), (0, missing)))
        self.cars[race] = track.spawned_car[0]
        self.passed_count[race] = 0
        self.times_ms[race] = NOT_PASSED
        self._gate_is_passed[race] = 0
        write_car(self.cars[race : race + 1], self.heads[race])

    def advance(
        self,
        races: npt.NDArray[np.int64],
        track: TrackForBatch,
        controls: npt.NDArray[np.float64],
        n_ticks: int,
    ) -> None:
        """Advance races, each until the ticks are over or the finish is passed; call `write_heads` next.

        Args:
            races: (n,) race numbers.
            track: Their track.
            controls: (n, 3) gas 0..1, brake 0..1, steer -1 (left) .. 1 (right), constant.
            n_ticks: At least 1.
        """
        _advance(
            races,
            self.cars,
            controls,
            track.world,
            self._parameters,
            track.gates,
            self._gate_is_passed,
            self.times_ms,
            self.passed_count,
            self.ticks,
            n_ticks,
        )

    def write_heads(self) -> None:
        """Update `heads` from `cars`."""
        write_cars(self.cars, self.heads)

    def checkpoint_times_ms(self, race: int) -> tuple[int, ...]:
        """Return the official times for a race's passed gates."""
        return tuple(self.times_ms[race, : self.passed_count[race]].tolist())

    def render_gray(
        self,
        races: npt.NDArray[np.int64],
        track: TrackForBatch,
        frames: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Draw the current gray pictures for several races on one track.

        Args:
            races: (n,) int64, their numbers.
            track: Their track.
            frames: (K, R, H, W) uint8, C order; race r's picture is written to `frames[r, rows[r]]`.
            rows: (K,) int64.
        """
        track.renderer.render_gray(races, self.cars, self.passed_count, frames, rows)


@compiled
def _advance(
    races: npt.NDArray[np.int64],
    cars: npt.NDArray[np.void],
    controls: npt.NDArray[np.float64],
    world: World,
    parameters: npt.NDArray[np.void],
    gates: Gates,
    gate_is_passed: npt.NDArray[np.int32],
    times_ms: npt.NDArray[np.int32],
    passed_count: npt.NDArray[np.int64],
    ticks: npt.NDArray[np.int64],
    n_ticks: int,
) -> None:
    n_gates = gates.total
    for i in range(len(races)):
        race = races[i]
        held = (controls[i, 0], controls[i, 1], controls[i, 2])
        ticks[race] = 0
        while ticks[race] < n_ticks and passed_count[race] < n_gates:
            made, passed_count[race] = drive(
                cars[race : race + 1],
                held,
                world,
                parameters,
                gates,
                gate_is_passed[race, : gates.per_lap],
                times_ms[race, :n_gates],
                passed_count[race],
                n_ticks - ticks[race],
            )
            ticks[race] += made
