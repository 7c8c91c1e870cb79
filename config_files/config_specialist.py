"""A driver of many tracks learns one of them better: it begins with what it can, and loses none of it.

Use it with `scripts/train.py --preset specialist --weights-from drivers/generalist.driver --map valley`. Every setting
that is not here is as in config_many_tracks.py and config.py.
"""

# The file beside this one whose settings hold where this one sets none.
based_on = "config_many_tracks.py"

# Name of the run: its files are in save/{run_name}/.
run_name = "specialist"

# The track to learn; --map names another one.
map_cycle = (
    {
        "map_name": "valley",
        "map_path": "valley.toml",
        "reference_line": "valley_0.5m.npy",
        "is_explo": True,
        "fill_buffer": True,
        "repeat": 4,
    },
    {
        "map_name": "valley",
        "map_path": "valley.toml",
        "reference_line": "valley_0.5m.npy",
        "is_explo": False,
        "fill_buffer": True,
        "repeat": 1,
    },
)
memory_size_schedule = ((0, 200_000),)

# Its schedules are for minutes, not for hours.
schedule_stretch = 1.0

# It learns from races that it drives as it can already, and first has enough of them: updates on a few races that are
# alike would spoil what it knows of all others.
memory_size_start_learn_schedule = ((0, 20_000),)
epsilon_schedule = ((0, 0.02), (300_000, 0.01))
epsilon_boltzmann_schedule = ((0, 0.03),)

# It has learned with returns that are not discounted, and goes on with them; in steps that are as small as those with
# which it ended.
gamma_schedule = ((0, 1.0),)
lr_schedule = ((0, 1e-4), (300_000, 1e-4), (1_000_000, 3e-5), (3_000_000, 1e-5))
