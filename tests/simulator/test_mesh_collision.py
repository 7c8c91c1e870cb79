"""A car in a world of triangles: it stands, drives and is held by borders."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Challenge, MedalTimes
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import new_vehicle
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.block_world import mesh_of_world, world_of

ROAD = tuple(Block("StadiumRoadMain", (9, 1, z), 0, 3) for z in range(3, 9))


def mesh_of(*blocks):
    times = MedalTimes(None, None, None, None)
    return mesh_of_world(world_of(Challenge("uid", "made", "me", "Stadium", "Day", (32, 32, 32), 1, times, blocks)))


def car_at(x_m, y_m, z_m, speed_m_s=0.0, heading_rad=0.0):
    car = new_vehicle()
    car["position_m"] = x_m, y_m, z_m
    car["quaternion"] = np.cos(heading_rad / 2), 0.0, np.sin(heading_rad / 2), 0.0
    car["velocity_m_s"] = speed_m_s * np.sin(heading_rad), 0.0, speed_m_s * np.cos(heading_rad)
    return car


def drive(car, mesh, ticks, gas=0.0, steer=0.0):
    for _ in range(ticks):
        tick(car, gas, 0.0, steer, mesh, STADIUM_CAR)


def test_a_car_comes_to_rest_a_centimetre_above_the_road():
    mesh, car = mesh_of(*ROAD), car_at(9 * 32 + 16.0, 9.5, 120.0)
    drive(car, mesh, 200)
    assert car["wheel_has_ground_contact"][0].tolist() == [1, 1, 1, 1]
    assert set(car["wheel_material"][0]) == {int(Surface.ASPHALT)}
    assert car["position_m"][0, 1] - 9.3446 == pytest.approx(0.010, abs=0.004)
    assert np.linalg.norm(car["velocity_m_s"]) < 0.05


def test_beside_the_blocks_it_stands_on_grass_and_over_water_it_falls():
    mesh = mesh_of(*ROAD, Block("StadiumWater", (12, 0, 12), 0, 0x1000))
    car = car_at(200.0, 9.3, 800.0)
    drive(car, mesh, 150)
    assert set(car["wheel_material"][0]) == {int(Surface.GRASS)}
    assert car["position_m"][0, 1] == pytest.approx(9.01, abs=0.02)
    car = car_at(12 * 32 + 16.0, 9.3, 12 * 32 + 16.0)
    drive(car, mesh, 100)
    assert car["position_m"][0, 1] < 0.0


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_border_holds_a_car_and_slows_it_down(side):
    mesh, car = mesh_of(*ROAD), car_at(9 * 32 + 16.0 + side * 8.0, 9.355, 110.0, speed_m_s=50.0, heading_rad=side * 0.3)
    furthest_m = 0.0
    for _ in range(100):
        drive(car, mesh, 1, gas=1.0)
        furthest_m = max(furthest_m, side * (float(car["position_m"][0, 0]) - (9 * 32 + 16.0)))
    assert 10.8 < furthest_m < 12.7
    assert car["last_lateral_contact_time_ms"][0] > 0
    assert np.linalg.norm(car["velocity_m_s"]) < 45.0
    assert np.isfinite(car["position_m"]).all()
