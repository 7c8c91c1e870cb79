"""The car's laws on simple roads: corners, straights, brakes, walls, surfaces, jumps, and bitwise determinism."""

import hashlib

import numpy as np
import pytest

from trackmania_rl.simulator.physics.chassis import make_texture
from trackmania_rl.simulator.physics.engine import KMH_PER_M_S, GearboxState
from trackmania_rl.simulator.physics.vehicle import TICK_MS, VEHICLE_DTYPE, spawn_vehicle, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR, VehicleParameters
from trackmania_rl.simulator.physics.vehicle_state import NEVER_MS
from trackmania_rl.simulator.tracks.world import Edge, Surface, Track, build_ribbon


def straight(length_m=3000.0, heights=None, **road):
    distance = np.arange(0.0, length_m, 0.5)
    line = np.zeros((len(distance), 3))
    line[:, 2] = distance
    if heights is not None:
        line[:, 1] = heights(distance)
    return Track("straight", build_ribbon(line, **road), (), length_m - 100.0)


PLANE = straight(half_width_m=2000.0)


def settle(track, ticks=40):
    car = spawn_vehicle(track)
    for _ in range(ticks):
        tick(car, 0.0, 0.0, 0.0, track.world, STADIUM_CAR)
    return car


def rolling(track, speed_kmh, heading_rad=0.0):
    """A settled car on the start line, sent off at a speed, turned left from the road by `heading_rad`."""
    car = settle(track)
    cosine, sine = np.cos(heading_rad), np.sin(heading_rad)
    speed = speed_kmh / KMH_PER_M_S
    gear = 1 + int(np.searchsorted([101.7, 162.0, 235.1, 342.0], speed_kmh))
    car["quaternion"] = [np.cos(heading_rad / 2), 0.0, np.sin(heading_rad / 2), 0.0]
    car["velocity_m_s"] = [sine * speed, 0.0, cosine * speed]
    car["local_speed_m_s"] = [0.0, 0.0, speed]
    car["gear"], car["gearbox_state"] = gear, GearboxState.DRIVING
    car["clamped_rpm"] = speed * VehicleParameters().rpm_per_m_s[gear]
    return car


def run(car, track, ticks, gas=1.0, brake=0.0, steer=0.0):
    """Drives with constant inputs; speeds in km/h after every tick."""
    speeds = np.empty(ticks)
    for i in range(ticks):
        tick(car, float(gas), float(brake), float(steer), track.world, STADIUM_CAR)
        speeds[i] = speed_kmh(car)
    return speeds


def speed_kmh(car):
    return float(np.linalg.norm(car["velocity_m_s"][0].astype(np.float64))) * KMH_PER_M_S


def acceleration(car, track, ticks=10, **inputs):
    before = speed_kmh(car)
    return (run(car, track, ticks, **inputs)[-1] - before) / KMH_PER_M_S / (ticks * TICK_MS / 1000.0)


# --- corners

STEADY_FULL_STEER = [  # km/h, yaw rate rad/s, slip degrees, net acceleration m/s^2
    (20, 0.826, 3.5, 13.3),
    (100, 1.765, -0.20, 14.4),
    (250, 1.020, -0.28, 5.74),
    (360, 0.858, -0.31, 5.81),
    (500, 0.785, -0.35, 4.23),
]


@pytest.mark.parametrize(("kmh", "yaw_rate", "slip_deg", "net_m_s2"), STEADY_FULL_STEER)
def test_steady_full_steer(kmh, yaw_rate, slip_deg, net_m_s2):
    car = rolling(PLANE, kmh)
    held_m_s = kmh / KMH_PER_M_S
    for _ in range(150):
        tick(car, 1.0, 0.0, -1.0, PLANE.world, STADIUM_CAR)
        velocity = car["velocity_m_s"][0].astype(np.float64)
        gained_m_s2 = (np.linalg.norm(velocity) - held_m_s) / 0.01
        car["velocity_m_s"] = velocity * held_m_s / np.linalg.norm(velocity)
        car["gearbox_state"], car["gear_timer_s"] = GearboxState.DRIVING, 0.0
    local = car["rotation"][0].T.astype(np.float64) @ velocity
    assert car["angular_velocity_rad_s"][0, 1] == pytest.approx(yaw_rate, rel=0.01)
    assert np.degrees(np.arctan2(local[0], local[2])) == pytest.approx(slip_deg, abs=0.05)
    assert gained_m_s2 == pytest.approx(net_m_s2, rel=0.01)


def test_steering_is_symmetric_and_takes_five_ticks_to_its_end():
    left, right = rolling(PLANE, 200.0), rolling(PLANE, 200.0)
    run(left, PLANE, 100, steer=-1.0)
    run(right, PLANE, 2, steer=1.0)
    assert right["turning_rate"][0] == pytest.approx(0.4)
    run(right, PLANE, 3, steer=1.0)
    assert right["turning_rate"][0] == pytest.approx(1.0)
    run(right, PLANE, 95, steer=1.0)
    assert left["position_m"][0, 0] == pytest.approx(-right["position_m"][0, 0], abs=0.05)
    assert left["position_m"][0, 0] > 5.0


# --- straights


@pytest.mark.parametrize(
    ("surface", "kmh", "gas", "brake", "expected_m_s2"),
    [
        (Surface.ASPHALT, 60, 1, 0, 15.9),
        (Surface.ASPHALT, 420, 1, 0, 5.4),
        (Surface.ASPHALT, 60, 0, 0, -5.9),
        (Surface.GRASS, 60, 1, 0, 6.4),
        (Surface.DIRT, 150, 1, 0, 9.9),
        (Surface.ICE, 60, 1, 0, 1.0),  # no grip at all: the slipping drive, 10 m/s^2, times 0.1
        (Surface.TURBO, 300, 1, 0, 42.0),
        (Surface.FREE_WHEEL, 200, 1, 0, -1.0),
        (Surface.GRASS, 150, 0, 1, -14.7),
        (Surface.ICE, 150, 0, 1, -13.2),
    ],
)
def test_drive_and_brakes_by_surface_and_speed(surface, kmh, gas, brake, expected_m_s2):
    track = straight(half_width_m=100.0, surface=surface)
    car = rolling(track, kmh)
    run(car, track, 2, gas=gas, brake=brake)
    measured_m_s2 = acceleration(car, track, ticks=5, gas=gas, brake=brake)
    assert measured_m_s2 == pytest.approx(expected_m_s2, rel=0.04, abs=0.02)


def test_standing_start_and_first_gear_gap():
    """Speeds of a byte-exact trace of a level start, and the 28 ticks without drive between first and second gear."""
    car = settle(PLANE)
    speeds = run(car, PLANE, 260)
    np.testing.assert_allclose(speeds[[29, 39, 49, 58]], [17.04, 22.75, 28.44, 33.55], atol=0.15)
    # The plateau's length is that of the gap; drive is cut while the gearbox changes gear.
    without_drive = np.flatnonzero(np.abs(np.diff(speeds)) < 0.1)
    assert len(without_drive) == pytest.approx(28, abs=2)
    assert 101.7 < speeds[without_drive].min() < speeds[without_drive].max() < 102.6
    assert car["gear"][0] == 2


def test_slope_takes_a_tenth_of_the_ground_gravity():
    """Gravity on the ground is 30 m/s^2: 10 % of slope costs 3 m/s^2."""
    uphill = straight(half_width_m=100.0, heights=lambda distance: 0.1 * distance)
    car = spawn_vehicle(uphill)
    run(car, uphill, 130)
    flat = settle(PLANE)
    run(flat, PLANE, 100)
    on_slope, on_plane = acceleration(car, uphill), acceleration(flat, PLANE)
    assert on_plane - on_slope == pytest.approx(30.0 * np.sin(np.arctan(0.1)), rel=0.03)


def test_straight_braking_follows_the_trace():
    car = rolling(PLANE, 145.83)
    start_m = car["position_m"][0, 2]
    speeds = run(car, PLANE, 50, gas=0.0, brake=1.0)
    np.testing.assert_allclose(
        speeds[[0, 1, 9, 19, 29, 39, 49]], [144.28, 142.73, 130.54, 115.79, 101.51, 87.63, 74.13], atol=0.12
    )
    assert car["position_m"][0, 2] - start_m == pytest.approx(15.2, abs=0.3)


# --- walls


def test_a_glancing_wall_hit_costs_half_a_second_of_slow_down():
    road = straight(half_width_m=8.0)
    free, hit = rolling(PLANE, 222.0, np.radians(10.0)), rolling(road, 222.0, np.radians(10.0))
    free_speeds, hit_speeds, flags = run(free, PLANE, 100), [], []
    for _ in range(100):
        hit_speeds.append(run(hit, road, 1)[0])
        flags.append(int(hit["has_any_lateral_contact"][0]))
    assert free_speeds[-1] - hit_speeds[-1] > 50.0
    contact_tick = int(np.argmax(np.diff(hit_speeds) < -1.0))
    assert hit_speeds[contact_tick] - hit_speeds[contact_tick + 10] > 15.0
    assert free["last_lateral_contact_time_ms"][0] == NEVER_MS
    assert hit["last_lateral_contact_time_ms"][0] > 0
    assert (flags[0], max(flags)) == (0, 1)
    assert abs(hit["position_m"][0, 0]) < 8.0
    hit["position_m"][0, 0] = 0.0  # back to the middle of the road
    run(hit, road, 1)
    assert hit["has_any_lateral_contact"][0] == 0


@pytest.mark.parametrize("speed", [100.0, 990.0])
def test_no_wall_is_tunnelled(speed):
    road = straight(half_width_m=8.0)
    for angle_deg in (15.0, 45.0, 80.0):
        car = rolling(road, speed, np.radians(angle_deg))
        run(car, road, 150)
        assert abs(car["position_m"][0, 0]) < 8.0, f"through the wall at {angle_deg} degrees"


# --- surfaces


@pytest.mark.parametrize(
    ("pad", "factor", "duration_s"),
    [(Surface.TURBO, 5.0, 0.25), (Surface.TURBO2, 20.0, 0.1)],
)
def test_the_boost_of_a_turbo_pad_and_its_duration(pad, factor, duration_s):
    distance = np.arange(0.0, 3000.0, 0.5)
    track = straight(half_width_m=20.0, surface=np.where((distance > 20) & (distance < 40), pad, Surface.ASPHALT))
    car = rolling(track, 250.0)
    while car["station_m"][0] < 24.0:  # then all wheels are on the pad
        run(car, track, 1)
    assert car["turbo_boost_factor"][0] == pytest.approx(factor, rel=0.01)
    assert car["turbo_remaining_s"][0] == pytest.approx(duration_s)
    assert acceleration(car.copy(), track, ticks=5) == pytest.approx(7.0 + 7.0 * factor, rel=0.04)
    while car["station_m"][0] < 41.0:  # then the last wheel has left the pad
        run(car, track, 1)
    boosted = np.diff(run(car, track, 50)) / KMH_PER_M_S / 0.01 > 20.0
    assert boosted.sum() * 0.01 == pytest.approx(duration_s, abs=0.03)


def test_the_texture_of_bumps_is_the_same_everywhere():
    texture = make_texture()
    assert (texture.shape, texture.max()) == ((128, 128), 255)
    assert hashlib.sha256(texture.tobytes()).hexdigest()[:16] == "438deed344c3880b"


# --- in the air


def test_a_jump_flies_a_parabola_lands_and_drives_on():
    has_road = ~((np.arange(6000) > 200) & (np.arange(6000) < 260))
    road = straight(
        half_width_m=20.0,
        edge=Edge.DROP,
        has_road=has_road,
        heights=lambda distance: -6.0 * np.clip((distance - 100.0) / 30.0, 0.0, 1.0),
    )
    car = rolling(road, 200.0)
    heights, contact = [], []
    for _ in range(300):
        tick(car, 1.0, 0.0, 0.0, road.world, STADIUM_CAR)
        heights.append(float(car["position_m"][0, 1]))
        contact.append(int(car["wheel_has_ground_contact"].sum()))
    airborne = np.flatnonzero(np.array(contact) == 0)
    assert len(airborne) > 10
    fall = np.array(heights)[airborne]
    np.testing.assert_allclose(np.diff(fall, 2) / 0.01**2, -25.0, atol=2.5)
    assert contact[-1] == 4
    assert heights[-1] == pytest.approx(-6.0, abs=0.05)
    assert car["rotation"][0, 1, 1] > 0.999


def flying(spin_rad_s):
    """A level car far above the road, which left it with this spin (about left, up and forward)."""
    car = spawn_vehicle(PLANE)
    car["position_m"][0, 1] = 500.0
    car["angular_velocity_rad_s"] = car["stored_angular_velocity_rad_s"] = spin_rad_s
    return car


def yaw_rate(car):
    return float(car["angular_velocity_rad_s"][0, 1])


@pytest.mark.parametrize("turn", [1.0, -1.0], ids=["left", "right"])
def test_steering_in_flight_holds_a_turn_or_slows_it_down(turn):
    """Steering has the opposite sign of a turn's yaw rate."""
    # What is left after 0.5 s of -0.48 (0.4 w + 0.2 w^2); steering against the turn puts 3 w in the place of w.
    untouched, held, countered, faster = (flying([0.0, rate * turn, 0.0]) for rate in (1.0, 1.0, 1.0, 4.0))
    run(untouched, PLANE, 50)
    run(held, PLANE, 50, steer=-turn)
    run(countered, PLANE, 50, steer=turn)
    run(faster, PLANE, 50, steer=-turn)
    assert yaw_rate(untouched) == pytest.approx(0.869 * turn, abs=0.01)
    assert yaw_rate(held) == pytest.approx(turn, abs=0.01)
    assert yaw_rate(countered) == pytest.approx(0.545 * turn, abs=0.01)
    assert yaw_rate(faster) == pytest.approx(3.14 * turn, abs=0.1), "half a turn a second is the most that is held"


@pytest.mark.parametrize(("pitch_rate", "left_over"), [(1.0, 0.0), (-1.0, -1.0)], ids=["nose down", "nose up"])
def test_braking_in_flight_stops_a_dive_and_nothing_else(pitch_rate, left_over):
    car = flying([pitch_rate, 0.3, -0.2])
    run(car, PLANE, 1, gas=0.0, brake=1.0)
    for name in ("angular_velocity_rad_s", "stored_angular_velocity_rad_s"):
        np.testing.assert_allclose(car[name][0], [left_over, 0.3, -0.2], atol=0.005, err_msg=name)


# --- state


def random_inputs(n):
    keys = np.random.default_rng(7).random((n // 5, 3)).repeat(5, axis=0)
    return np.stack([keys[:, 0] < 0.8, keys[:, 1] < 0.15, np.sign(np.round(3.0 * keys[:, 2] - 1.5))], axis=1) * 1.0


def wild_track():
    """Corners, hills, banking, all surfaces and edges, and gaps."""
    points = np.arange(4000)
    heading = np.cumsum(np.sin(points / 150.0) * 0.5 / 40.0)
    steps = 0.5 * np.stack([np.sin(heading), 0.12 * np.sin(points / 60.0), np.cos(heading)], axis=1)
    surfaces = np.array([Surface.ASPHALT, Surface.DIRT, Surface.GRASS, Surface.ICE, Surface.TURBO])
    ribbon = build_ribbon(
        np.cumsum(steps, axis=0),
        half_width_m=8.0,
        banking_rad=0.2 * np.sin(points / 150.0),
        surface=surfaces[(points // 300) % len(surfaces)],
        edge=(points // 700) % 3,
        has_road=points % 1000 < 985,
    )
    return Track("wild", ribbon, (), 1900.0)


def test_nothing_breaks_the_state_and_its_bytes_come_again():
    track, generator = wild_track(), np.random.default_rng(3)
    for start in range(30):
        car = spawn_vehicle(track, station_m=50.0 * start)
        turn = generator.normal(size=4)
        car["quaternion"] = turn / np.linalg.norm(turn)
        car["velocity_m_s"] = generator.normal(size=3) * 40.0
        car["angular_velocity_rad_s"] = generator.normal(size=3) * 3.0
        copied = np.frombuffer(car.tobytes(), VEHICLE_DTYPE).copy()
        for inputs in random_inputs(300):
            tick(car, *inputs, track.world, STADIUM_CAR)
            tick(copied, *inputs, track.world, STADIUM_CAR)
            assert copied.tobytes() == car.tobytes()
        for name in VEHICLE_DTYPE.names:
            assert np.all(np.isfinite(car[name])), name
        assert speed_kmh(car) < 1000.5
        assert np.linalg.norm(car["rotation"][0] @ car["rotation"][0].T - np.eye(3)) < 1e-5
