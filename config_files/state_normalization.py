"""Mean and standard deviation of every float of the observation, by block; the network reads (x - mean) / std.

Each entry is block name -> (means, standard deviations above 0), one number per float. Blocks that observation_blocks
leaves out may be here. The setting `actions` chooses one entry of the previous actions. A block's length follows from
config.py (e.g. 4 x n_prev_actions_in_inputs). Changing the numbers makes checkpoints and published weights meaningless.
docs/observation.rst shows the table.
"""

# fmt: off
state_normalization = {
    # Time elapsed in the mini-race, in actions.
    "mini_race_time_actions": (
        (70.0,),
        (70.0,),
    ),
    # Previous actions, oldest first, with actions = "keys": accelerate, brake, left, right each (0 or 1).
    "previous_actions": (
        (0.8, 0.2, 0.3, 0.3) * 5,
        (0.5,) * 20,
    ),
    # The same with actions = "analog": steer, gas, brake each (-1 to 1).
    "previous_analog_actions": (
        (0.0,) * 15,
        (1.0,) * 15,
    ),
    # Wheel is sliding: front left, front right, rear right, rear left (0 or 1).
    "wheel_is_sliding": (
        (0.1,) * 4,
        (0.5,) * 4,
    ),
    # Wheel touches the ground (0 or 1).
    "wheel_has_ground_contact": (
        (0.9,) * 4,
        (0.5,) * 4,
    ),
    # Compression of the wheel's damper, in metres.
    "wheel_damper_absorb_m": (
        (0.02,) * 4,
        (0.06,) * 4,
    ),
    # Gearbox state: 1 while the gear changes, 2 at the start, else 0.
    "gearbox_state": (
        (0.3,),
        (1.0,),
    ),
    # Gear, 0 (reverse) to 5.
    "gear": (
        (2.5,),
        (2.0,),
    ),
    # Engine speed, in revolutions per minute.
    "engine_rpm": (
        (7000.0,),
        (3000.0,),
    ),
    # Actions since the gear change began, 0 when there is none.
    "actions_since_gear_change": (
        (0.1,),
        (10.0,),
    ),
    # For each wheel, one-hot: asphalt-like, grass-like, dirt-like, turbo.
    "wheel_ground_group": (
        (0.5,) * 16,
        (0.5,) * 16,
    ),
    # Angular velocity in the car's frame (x left, y up, z forward), in rad/s.
    "angular_velocity_rad_s": (
        (0.0,) * 3,
        (0.5, 1.0, 0.5),
    ),
    # Linear velocity in the car's frame, in m/s.
    "velocity_m_s": (
        (0.0, 0.0, 55.0),
        (5.0, 5.0, 20.0),
    ),
    # The world's upward direction in the car's frame.
    "world_up": (
        (0.0, 1.0, 0.0),
        (0.5,) * 3,
    ),
    # Virtual checkpoints ahead, x, y, z in the car's frame each, in metres: the current zone's, then every 10 m.
    "zone_centers_m": (
        (
            0.0, -2.1, -0.2, 0.0, -2.2, 9.5, 0.0, -2.2, 19.1, 0.0, -2.2, 28.5,
            0.0, -2.2, 37.7, 0.0, -2.1, 46.6, 0.0, -2.0, 55.2, 0.0, -1.8, 63.5,
            0.0, -1.5, 71.4, 0.0, -1.3, 78.9, 0.0, -1.0, 86.2, 0.0, -0.7, 93.1,
            0.0, -0.4, 99.8, 0.0, -0.0, 106.0, 0.0, 0.3, 112.0, 0.0, 0.7, 118.0,
            0.0, 1.1, 124.0, 0.0, 1.6, 129.0, 0.0, 2.1, 134.0, 0.0, 2.6, 139.0,
            0.0, 3.1, 143.0, 0.0, 3.7, 148.0, 0.0, 4.2, 152.0, 0.0, 4.8, 156.0,
            0.0, 5.3, 160.0, 0.0, 5.8, 164.0, 0.0, 6.4, 167.0, 0.0, 6.9, 171.0,
            0.0, 7.4, 174.0, 0.0, 7.8, 177.0, 0.0, 8.3, 180.0, 0.0, 8.7, 182.0,
            0.0, 9.1, 185.0, 0.0, 9.5, 187.0, 0.0, 9.9, 189.0, 0.0, 10.2, 191.0,
            0.0, 10.6, 193.0, 0.0, 10.9, 194.0, 0.0, 11.2, 196.0, 0.0, 11.5, 197.0,
        ),
        (
            7.7, 7.7, 2.9, 7.8, 7.8, 3.3, 8.3, 8.3, 4.1, 9.5, 9.5, 5.1,
            11.5, 11.5, 6.4, 14.3, 14.3, 7.9, 17.8, 17.8, 9.7, 21.9, 21.9, 11.7,
            26.3, 26.3, 14.2, 31.1, 31.1, 17.0, 36.1, 36.1, 20.1, 41.3, 41.3, 23.5,
            46.6, 46.6, 27.2, 52.0, 52.0, 31.1, 57.4, 57.4, 35.2, 63.0, 63.0, 39.4,
            68.5, 68.5, 43.7, 74.2, 74.2, 48.1, 79.9, 79.9, 52.5, 85.6, 85.6, 57.0,
            91.4, 91.4, 61.4, 97.2, 97.2, 65.8, 103.0, 103.0, 70.2, 109.0, 109.0, 74.6,
            115.0, 115.0, 79.1, 121.0, 121.0, 83.5, 127.0, 127.0, 88.0, 132.0, 132.0, 92.6,
            138.0, 138.0, 97.2, 144.0, 144.0, 102.0, 149.0, 149.0, 107.0, 155.0, 155.0, 112.0,
            160.0, 160.0, 117.0, 166.0, 166.0, 121.0, 171.0, 171.0, 126.0, 176.0, 176.0, 131.0,
            182.0, 182.0, 136.0, 187.0, 187.0, 141.0, 192.0, 192.0, 146.0, 198.0, 198.0, 151.0,
        ),
    ),
    # Distance left to the finish along the line, in metres, at most 700.
    "distance_to_finish_m": (
        (700.0,),
        (350.0,),
    ),
    # Engine is cut off until the next checkpoint (0 or 1).
    "is_freewheeling": (
        (0.0,),
        (1.0,),
    ),
    # Speed, in m/s.
    "speed_m_s": (
        (55.0,),
        (20.0,),
    ),
    # Distances to the road's borders, from the right over ahead to the left, in metres.
    "range_finder_m": (
        (
            11.0, 11.0, 12.0, 13.0, 16.0, 21.0, 28.0, 38.0, 51.0, 59.0,
            51.0, 38.0, 28.0, 21.0, 16.0, 13.0, 12.0, 11.0, 11.0,
        ),
        (
            12.0, 12.0, 12.0, 14.0, 17.0, 22.0, 25.0, 31.0, 38.0, 41.0,
            38.0, 31.0, 25.0, 22.0, 17.0, 14.0, 12.0, 12.0, 12.0,
        ),
    ),
    # The road at the zone centres ahead: half width in metres, has wall, has grass beside, is dirt, is grass, is there
    # (0 or 1), banking (-1 to 1).
    "road_ahead": (
        (8.0, 0.8, 0.2, 0.1, 0.1, 1.0, 0.0) * 20,
        (2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.2) * 20,
    ),
}
# fmt: on
