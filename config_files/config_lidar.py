"""TMRL's LIDAR observation: speed, last actions, and distances to the road's borders (docs/observation.rst).

Use it with `scripts/train.py --preset lidar`.
"""

based_on = "config.py"
run_name = "lidar"

# A state's blocks, without the way to the finish and the line ahead.
observation_blocks = ("mini_race_time_actions", "speed_m_s", "range_finder_m")

# Earlier states: four ranges with the state's own, and the last two actions.
views = {
    "ranges_before": {"column": "range_finder_m", "shift": "-3:-1"},
    "last_actions": {"column": "actions", "shift": "-2:-1"},
}

# Finer scales of speed and ranges.
fourier_wavelengths = {"speed_m_s": (64.0, 32.0, 16.0, 8.0), "range_finder_m": (64.0, 16.0)}
