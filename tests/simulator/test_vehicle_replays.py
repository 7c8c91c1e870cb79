"""The car against human replays: open-loop runs with the replay's inputs, compared with the ghost every 100 ms.

`replay_windows.json` holds windows of three public replays (two of B13-Obstacle, one called mydli): the car at the
beginning, the ground as a plane under its wheels, the inputs, the ghost's samples. `loop_windows.json` holds windows on
loops of B13-Obstacle, without a ground. Commit e19e7b6 has the program that made them (research/replay_windows).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import read_challenge
from trackmania_rl.simulator.physics.engine import KMH_PER_M_S
from trackmania_rl.simulator.physics.vehicle import TICK_MS, VEHICLE_DTYPE, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.tracks.world import build_ribbon
from trackmania_rl.track.block_world import mesh_of_world, world_of

HALF_WIDTH_M = 1000.0
WINDOWS = {window["name"]: window for window in json.loads(Path(__file__).with_name("replay_windows.json").read_text())}
LOOPS = json.loads(Path(__file__).with_name("loop_windows.json").read_text())


class Errors(NamedTuple):
    """Largest allowed errors, or those of a window per sample."""

    position_m: Any = 0.15
    speed_kmh: Any = 0.4
    yaw_deg: Any = 0.5


FIRST_SECOND = dict.fromkeys(WINDOWS, Errors()) | {
    # A ghost's speed is known to a thousandth, which is 0.4 km/h here; the car is 0.11 m and 0.01 m off.
    # In V2 it leaves a turbo pad near the end of a tick, and each tick on the pad is 0.4 km/h.
    "V2": Errors(speed_kmh=0.7),
    "V5": Errors(speed_kmh=0.5),
    # All four wheels are 1.5 cm above the road at 5.6 s: an edge strip, which the ground here has not.
    "V13": Errors(position_m=0.3),
    # All four wheels are 3 to 7 cm above the road at 17.7 s: an edge strip, which costs 1.8 km/h.
    "V19": Errors(speed_kmh=1.9),
}
WHOLE_WINDOW = {
    "V1": Errors(0.1, 0.4, 0.2),
    "V8": Errors(0.1, 0.4, 0.2),
    # 2.5 s from the spawn: a drop, a ramp, a tap, full left steer and the gap of the 1->2 change.
    "V11": Errors(0.1, 0.3, 0.3),
    # From a respawn through the 1->2 change.
    "V18": Errors(0.1, 0.2, 180.0),
}


def expand(runs):
    """Values of [how often, value] pairs."""
    return np.array([value for count, value in runs for _ in range(count)])


def ground_of(window):
    ground = window["ground"]
    heights_m = expand(ground["heights_m"])
    line_m = np.empty((len(heights_m), 3))
    line_m[:, 1] = heights_m
    line_m[:, [0, 2]] = np.array(ground["first_m"])[[0, 2]] + np.arange(len(line_m))[:, None] * ground["step_m"]
    return build_ribbon(line_m, HALF_WIDTH_M, surface=expand(ground["surfaces"]))


def drive(window, world):
    """Drive a window to its last sample."""
    car = np.zeros(1, VEHICLE_DTYPE)
    for field, value in window["car"].items():
        car[field] = value
    controls, time_ms, errors = iter(expand(window["controls"])), window["start_ms"], []
    for until_ms, x, y, z, q_w, q_x, q_y, q_z, speed_kmh in window["samples"]:
        while time_ms < until_ms:
            tick(car, *next(controls), world, STADIUM_CAR)
            time_ms += TICK_MS
        rotation, velocity = car["rotation"][0].astype(np.float64), car["velocity_m_s"][0].astype(np.float64)
        yaw = np.arctan2(2.0 * (q_x * q_z + q_w * q_y), 1.0 - 2.0 * (q_x**2 + q_y**2))
        yaw_error = np.arctan2(rotation[0, 2], rotation[2, 2]) - yaw
        errors.append(
            (
                np.linalg.norm(car["position_m"][0] - [x, y, z]),
                abs(np.linalg.norm(velocity) * KMH_PER_M_S - speed_kmh),
                abs(np.degrees((yaw_error + np.pi) % (2.0 * np.pi) - np.pi)),
            )
        )
    return Errors(*np.array(errors).T)


@pytest.mark.parametrize("name", WINDOWS)
def test_follows_the_ghost(name):
    errors = drive(WINDOWS[name], ground_of(WINDOWS[name]).road)
    for of_window, first_second, whole in zip(
        errors, FIRST_SECOND[name], WHOLE_WINDOW.get(name, Errors(np.inf, np.inf, np.inf)), strict=True
    ):
        assert of_window[:11].max() <= first_second
        assert of_window.max() <= whole


def test_loops_are_followed_as_a_human_drove_them(shared_data):
    world = mesh_of_world(world_of(read_challenge(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx")))
    ends_m = np.array([drive(window, world).position_m[-1] for window in LOOPS])
    assert len(ends_m) > 20
    assert np.median(ends_m) < 0.45
    assert (ends_m <= 1.0).mean() > 0.85
