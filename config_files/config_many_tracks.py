"""One driver for many tracks: it learns on generated tracks and is evaluated on unseen ones.

Use it with `scripts/train.py --preset many_tracks`. Judge a run on tracks of your choice: `scripts/evaluate.py
save/many_tracks --map generated:0.4:30000-30049`.
"""

based_on = "config.py"
run_name = "many_tracks"

# A track is generated per `races_per_track` races: making one takes time, and games on one track are stepped together.
# Evaluation tracks are never trained on.
map_cycle = (
    {
        "map_name": "generated",
        "generator": {"difficulty": (0.0, 1.0), "first_seed": 0, "last_seed": 9_999, "races_per_track": 4},
        "is_explo": True,
        "fill_buffer": True,
        "repeat": 8,
    },
    {
        "map_name": "unseen",
        "generator": {"difficulty": (0.0, 1.0), "first_seed": 20_000, "last_seed": 20_999},
        "is_explo": False,
        "fill_buffer": False,
        "repeat": 1,
    },
)

# The blocks of config.py, and the road ahead: the line alone does not show walls or grass beside it.
observation_blocks = (
    "mini_race_time_actions",
    "previous_actions",
    "wheel_is_sliding",
    "wheel_has_ground_contact",
    "wheel_damper_absorb_m",
    "gearbox_state",
    "gear",
    "engine_rpm",
    "actions_since_gear_change",
    "wheel_ground_group",
    "angular_velocity_rad_s",
    "velocity_m_s",
    "world_up",
    "zone_centers_m",
    "distance_to_finish_m",
    "is_freewheeling",
    "road_ahead",
)

# Many tracks take longer to learn.
schedule_stretch = 4.0

# As in the shipped driver.
temporal_mini_race_duration_actions = 100
gamma_schedule = ((0, 0.999), (600_000, 0.999), (1_500_000, 1.0))

# Each track is driven only a few times.
memory_size_schedule = ((0, 400_000),)
