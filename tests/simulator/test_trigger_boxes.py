"""A car in the box of a gate's trigger: its ellipsoids against the box, against points on them."""

import numpy as np

from trackmania_rl.simulator.physics.trigger_boxes import TriggerBoxes, touches_box
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR

LOW_M, HIGH_M = np.array((100.0, 8.0, 200.0)), np.array((125.0, 19.0, 200.8))
NOSE_M = 1.7821 + 0.364
TAIL_M = 0.898 + 1.038


def touches(position_m, rotation=None) -> bool:
    boxes = TriggerBoxes(LOW_M[None].copy(), HIGH_M[None].copy())
    turned = np.eye(3) if rotation is None else rotation
    return touches_box(boxes, 0, np.array(position_m, dtype=float), turned, STADIUM_CAR[0])


def test_a_car_with_a_point_in_the_box_touches_it() -> None:
    """And one whose every part's points all lie on one side of it does not."""
    random = np.random.default_rng(4)
    centers = np.concatenate((STADIUM_CAR["wheel_points_m"][0], STADIUM_CAR["body_centers_m"][0]))
    radii = np.concatenate((np.tile(STADIUM_CAR["wheel_radii_m"][0], (4, 1)), STADIUM_CAR["body_radii_m"][0]))
    directions = random.normal(size=(4000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    own_m = centers[:, None] + radii[:, None] * directions
    seen = set()
    for _ in range(300):
        rotation = np.linalg.qr(random.normal(size=(3, 3)))[0]
        position_m = np.array((random.uniform(98, 127), random.uniform(6, 21), random.uniform(196, 205)))
        points_m = position_m + own_m @ rotation.T
        is_inside = bool(((points_m >= LOW_M) & (points_m <= HIGH_M)).all(axis=-1).any())
        reach_m = 0.01
        apart = (points_m > HIGH_M + reach_m).all(axis=1) | (points_m < LOW_M - reach_m).all(axis=1)
        if is_inside:
            assert touches(position_m, rotation)
        if apart.any(axis=-1).all():
            assert not touches(position_m, rotation)
            seen.add("apart")
        seen.add(is_inside)
    assert seen == {True, False, "apart"}
