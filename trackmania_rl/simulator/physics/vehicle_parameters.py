"""The StadiumCar's constants.

The car has unit mass, so forces are accelerations. `kmh` in a name means a curve argument in km/h, as in the
game's tuning file; all else is in metres, seconds, radians.

Value sources:
    [tuning] the car's tuning values, read alike by the projects ForeverValidator, tmnf-physics and tmuf_physics;
    [replay] the same, and confirmed by open-loop runs against human replays or a published tick trace;
    [engine] read in only one reconstruction of the game's engine;
    [own] chosen here, where the game's value needs parts that this simulator leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import inner

Curve = tuple[tuple[float, float], ...]  # keys (argument, value) by rising argument

N_MATERIALS = 31  # TMNF material ids run from 0 to 30
LARGE_SPEED_KMH = 1e9

_SAME_AS_ASPHALT = (1.0, 1.0, 1.0, 1.0)


def _material_factors() -> tuple[tuple[float, float, float, float], ...]:
    """Return factors (max speed, drive, brake, grip) by material id [replay: 2, 6, 7, 16]; others are like asphalt."""
    special = {
        2: (0.5, 0.4, 0.05, 0.15),  # grass
        3: (1.0, 0.1, 0.0, 0.0),  # ice
        5: (0.2, 0.4, 1.0, 0.5),  # sand
        6: (0.9, 0.9, 0.4, 0.25),  # dirt
    }
    return tuple(special.get(material, _SAME_AS_ASPHALT) for material in range(N_MATERIALS))


@dataclass(frozen=True)
class VehicleParameters:
    """Car constants; the defaults describe the StadiumCar."""

    # Body. Car axes: x left, y up, z forward, from the body's origin.
    inverse_inertia: tuple[float, ...] = (0.48, 0.48, 1.2)  # 1/m^2, about x (pitch), y (yaw), z (roll) [tuning]
    center_of_mass_m: tuple[float, ...] = (0.0, 0.4385, 0.2883)  # [tuning]
    body_centers_m: tuple[tuple[float, ...], ...] = (  # four ellipsoids, without the 3-degree tilt [engine]
        (0.0, 0.471, 0.219),
        (0.0, 0.449, -0.208),
        (0.0, 0.653, -0.898),
        (-0.016, 0.363, 1.754),
    )
    body_radii_m: tuple[tuple[float, ...], ...] = (  # half axes [engine]
        (0.439, 0.362, 1.902),
        (0.968, 0.363, 1.682),
        (1.021, 0.515, 1.038),
        (0.905, 0.283, 0.385),
    )
    max_speed_m_s: float = 277.78  # 1000 km/h, forwards, and for the body in any direction [tuning]
    max_speed_backwards_m_s: float = 138.61  # [engine]
    max_angular_speed_rad_s: float = 100.0  # [engine]
    spawn_height_m: float = 0.21  # above the start block's road [replay]
    respawn_height_m: float = 0.224  # above a checkpoint's road [replay]

    # Time.
    substep_length_m: float = 0.3  # about the body's largest motion [replay]

    # Gravity and air.
    gravity_m_s2: float = 10.0  # [replay]
    gravity_scale_ground: float = 3.0  # with any wheel on the ground [replay]
    gravity_scale_air: float = 2.5  # [replay]
    air_drag_per_s: float = 0.03  # linear, in flight only [replay]
    air_spin_drag: float = 0.4  # torque per rad/s in flight [engine]
    air_spin_drag_quadratic: float = 0.2  # torque per (rad/s)^2 in flight [engine]
    air_counter_steer_factor: float = 3.0  # multiplies the spin's drag argument when steering against the turn [engine]
    air_yaw_hold_limit_rad_s: float = 3.14  # above it, steering with the turn brakes it too [engine]

    # Wheels: front-left, front-right, rear-right, rear-left.
    wheel_points_m: tuple[tuple[float, ...], ...] = (  # where the spring's force acts; the wheel hangs below [tuning]
        (0.8630, 0.3525, 1.7821),
        (-0.8630, 0.3525, 1.7821),
        (-0.8850, 0.3525, -1.2055),
        (0.8850, 0.3525, -1.2055),
    )
    wheel_radii_m: tuple[float, ...] = (0.182, 0.364, 0.364)  # half axes, wheel ellipsoid [tuning]
    half_wheel_base_m: float = 1.49380  # yaw torque lever [tuning]

    # Suspension.
    damper_travel_m: float = 0.2  # while a wheel hangs [tuning]
    damper_relaxation_per_s: float = 5.0  # while a wheel returns to hanging [tuning]
    spring_per_s2: float = 40.0  # force per metre below hanging [tuning]
    damping_per_s: float = 1.0  # force per m/s damper speed [tuning]
    landing_loss: float = 0.2  # share of a bottomed-out wheel's approach speed [engine]
    contact_spin_factor: float = 0.55  # on every contact's turning effect [engine]
    tolerated_depth_m: float = 0.01  # sum over a pass's contacts [engine]
    force_lever: tuple[float, ...] = (0.05, 0.0, 0.05)  # share of the forces that pitches and rolls the body [engine]
    roll_torque_curve: Curve = ((0.0, 0.0), (1.0, 0.8), (10.0, 1.0))  # by 3.6*v_x^2/(|v_z|+1) [engine]

    # Steering and yaw.
    steer_ramp_per_s: float = 20.0  # [replay]
    wheel_angle_base: float = 2.0  # angle = asin(1 / (base + slope*|v_z|)) at full steer [replay]
    wheel_angle_slope_s_m: float = 0.85  # [replay]
    steer_torque_curve_kmh: Curve = (  # per front wheel [replay: 60..420 km/h]
        (-100.0, 7.0),
        (0.0, 16.0),
        (50.0, 10.4),
        (100.0, 8.5),
        (150.0, 6.8),
        (200.0, 5.5),
        (300.0, 4.25),
        (400.0, 4.0),
        (500.0, 3.75),
        (600.0, 3.75),
    )
    steer_torque_min_speed_m_s: float = 0.7  # no torque below [tuning]
    steer_torque_full_speed_m_s: float = 30.0  # full torque above [tuning]
    yaw_friction: float = 0.08 * 20.0  # torque per m/s sideways speed and metre lever [replay]

    # Lateral grip.
    side_friction_per_s: float = 20.0  # gripping wheel's force per m/s slip [replay]
    side_friction_limit_curve_kmh: Curve = (  # largest force per wheel [replay]
        (0.0, 80.0),
        (100.0, 80.0),
        (200.0, 75.0),
        (300.0, 67.0),
        (400.0, 60.0),
        (500.0, 55.0),
    )
    grip_damper_reference_m: float = 0.7  # the argument (reference - s) / reference is zero here [tuning]
    grip_damper_curve: Curve = ((0.0, 0.1), (0.6, 0.3), (0.975, 1.0), (1.0, 1.0))  # [tuning]
    sliding_grip_factor: float = 0.35  # for a wheel that already slides [tuning]
    sliding_brake_grip_factor: float = 0.2  # further, while braked [tuning]
    sliding_excess_share: float = 0.018  # applied to the force beyond the limit [tuning]
    adherence_none: float = 0.3  # up's vertical part below which lateral grip vanishes... [engine]
    adherence_none_longitudinal: float = 0.4  # ...drive and brake here... [engine]
    adherence_full: float = 0.7  # ...and from which all are whole [engine]

    # Drive.
    drive_curve_kmh: Curve = (  # step [replay: 0..550 km/h]
        (-LARGE_SPEED_KMH, 1.0),
        (-102.0, 2.0),
        (-80.0, 6.0),
        (-35.0, 12.0),
        (0.0, 16.0),
        (101.0, 11.0),
        (201.0, 7.0),
        (401.0, 5.5),
        (801.0, 1.0),
    )
    reverse_drive_curve_kmh: Curve = ((-150.0, 0.1), (-100.0, 1.5), (-50.0, 8.0), (0.0, 30.0))  # [tuning]
    slipping_drive_m_s2: float = 10.0  # replaces the drive in a full slide [tuning]
    overspeed_brake_m_s2: float = 10.0  # net force beyond the surface's top speed [engine]
    coast_constant_m_s2: float = 1.0  # throttle released, ground and air [replay]
    coast_linear_per_s: float = 0.3  # [replay]

    # Brakes.
    brake_constant_m_s2: float = 1.0  # [replay]
    brake_linear_per_s: float = 1.75  # [replay]
    brake_cap_m_s2: float = 30.0  # reaching it makes all wheels slide [replay]
    brake_cap_sliding_m_s2: float = 60.0  # when a wheel already slides [engine]
    gas_brake_cap_m_s2: float = 50.0  # throttle while rolling backwards [engine]
    gas_brake_cap_sliding_m_s2: float = 100.0  # [engine]
    brake_sliding_factor: float = 0.5  # per sliding wheel [tuning]
    key_threshold: float = 0.1  # for a pressed pedal [engine]
    reverse_below_m_s: float = 10.0  # the brake key drives backwards below [engine]
    reverse_max_sideways_m_s: float = 2.0  # [engine]

    # Engine and gearbox; gear 0 is reverse.
    max_rpm: float = 11000.0  # [replay]
    rpm_per_m_s: tuple[float, ...] = (400.0, 370.0, 220.0, 160.0, 110.0, 85.0)  # by gear [replay]
    shift_up_share: tuple[float, ...] = (np.inf, 0.95, 0.90, 0.95, 0.95, np.inf)  # of max_rpm, by gear [replay]
    shift_down_share: tuple[float, ...] = (0.0, 0.0, 0.50, 0.57, 0.55, 0.60)  # [tuning]
    gear_timer_s: float = 0.025  # a change's first phase [replay]
    free_rpm_up_per_s: float = 6000.0  # first phase and in flight, throttle pressed [engine]
    free_rpm_down_per_s: float = 3000.0  # same, released [engine]
    change_rpm_down_per_s: float = 17000.0  # second phase, throttle pressed [replay]
    change_rpm_down_sliding_per_s: float = 3000.0  # same, sliding [engine]
    change_rpm_down_coasting_per_s: float = 4000.0  # same, throttle released [engine]
    change_rpm_up_per_s: float = 11500.0  # [engine]
    take_off_rpm_up_per_s: float = 10000.0  # [engine]
    take_off_rpm_down_per_s: float = 4000.0  # [engine]
    take_off_below_m_s: float = 3.0  # take-off band's upper end [engine]
    take_off_above_m_s: float = -2.0
    slide_factor_max: float = 1.15  # wheels' speed over the road's [engine]
    slide_factor_per_s: float = 0.3  # [engine]

    turn_direction_below_rpm: float = 1000.0  # reverse is put in or out below this [engine: two sources, no replay]

    # Walls and body.
    side_contact_loss: float = 0.5  # share of a wheel's approach speed [engine]
    side_contact_min_normal_x: float = 0.7071067811865476  # for contacts that are no ground [engine]
    side_contact_slow_down_s: float = 0.5  # after the last wheel contact with a wall [engine]
    side_contact_curve_kmh: Curve = (
        (0.0, 0.0),
        (50.0, 12.0),
        (100.0, 24.0),
        (200.0, 48.0),
        (400.0, 70.0),
    )  # step [replay]
    body_contact_loss: float = 0.5  # [engine]
    body_contact_friction: float = 0.3  # tangential part as a share of the normal part [engine]

    # Surfaces.
    material_factors: tuple[tuple[float, ...], ...] = _material_factors()  # (31, 4)
    turbo_factor: float = 5.0  # times the drive curve [replay]
    turbo_duration_s: float = 0.25  # after the last contact with the pad [replay]
    turbo2_factor: float = 20.0  # [engine]
    turbo2_duration_s: float = 0.1  # [engine]
    bump_cell_m: float = 0.25  # grass and dirt: texture of 128 cells per 32 m [engine]
    bump_speed_share: float = 0.05  # times v_z, at the texture's brightest [engine]
    bump_limit_grass_m_s: float = 0.2  # [replay: heights and V17, with a texture like the game's]
    bump_limit_dirt_m_s: float = 0.3  # [replay: heights]
    dirt_min_speed_m_s: float = 6.0  # for the next three, with all wheels on dirt [engine]
    dirt_brake_per_s: float = 0.4  # drag while braking [engine]
    dirt_slide_drive: float = 360.0  # scales a sliding wheel's forward part [engine]
    dirt_slide_side: float = 0.2  # sideways part, times the slip angle's sine [engine]
    dirt_slide_side_gas: float = 0.05  # reduces it with the throttle [engine]
    dirt_slide_front_factor: float = 1.5  # [engine]

    def packed(self) -> npt.NDArray[np.void]:
        """Return a read-only (1,) record array with one float64 field per parameter, for `vehicle.tick`."""
        record = np.zeros(1, PARAMETERS_DTYPE)
        for field in fields(self):
            record[field.name] = getattr(self, field.name)
        record.flags.writeable = False
        return record


PARAMETERS_DTYPE = np.dtype(
    [(field.name, np.float64, np.shape(np.asarray(field.default))) for field in fields(VehicleParameters)]
)

STADIUM_CAR = VehicleParameters().packed()


@inner
def step_value(curve: npt.NDArray[np.float64], argument: float) -> float:
    """Return the last key's value at or below the argument."""
    value = curve[0, 1]
    for i in range(1, curve.shape[0]):
        if argument < curve[i, 0]:
            break
        value = curve[i, 1]
    return value


@inner
def linear_value(curve: npt.NDArray[np.float64], argument: float) -> float:
    """Return the value between the keys around the argument."""
    if argument <= curve[0, 0]:
        return curve[0, 1]
    for i in range(1, curve.shape[0]):
        if argument < curve[i, 0]:
            share = (argument - curve[i - 1, 0]) / (curve[i, 0] - curve[i - 1, 0])
            return curve[i - 1, 1] + share * (curve[i, 1] - curve[i - 1, 1])
    return curve[curve.shape[0] - 1, 1]
