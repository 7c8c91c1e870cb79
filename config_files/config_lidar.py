"""A driver that knows its speed, its last actions, and how far the road's borders are: TMRL's LIDAR observation.

Use it with `scripts/train.py --config config_files/config_lidar.py`. Every setting that is not here is as in config.py.
docs/observation.rst says how the range finder measures.
"""

# The file beside this one whose settings hold where this one sets none.
based_on = "config.py"

# Name of the run: its files are in save/{run_name}/.
run_name = "lidar"

# What it sees of a state. It does not know the way to the finish, nor the line ahead.
observation_blocks = ("mini_race_time_actions", "speed_m_s", "range_finder_m")

# And of those before: with its own, the last four ranges; and the last two actions.
views = {
    "ranges_before": {"column": "range_finder_m", "shift": "-3:-1"},
    "last_actions": {"column": "actions", "shift": "-2:-1"},
}

# Finer scales of what it sees.
fourier_wavelengths = {"speed_m_s": (64.0, 32.0, 16.0, 8.0), "range_finder_m": (64.0, 16.0)}
