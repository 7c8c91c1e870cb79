"""Fine-tuning of a many-tracks driver on one track, without losing its skills.

Use it with `scripts/train.py --preset specialist --weights-from drivers/generalist.driver --map valley`.
"""

based_on = "config_many_tracks.py"
run_name = "specialist"

# The track; --map names another one.
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

# Schedules for minutes, not hours.
schedule_stretch = 1.0

# Few random actions, and many races before the first update: updates on a few similar races would spoil the policy
# elsewhere.
memory_size_start_learn_schedule = ((0, 20_000),)
epsilon_schedule = ((0, 0.02), (300_000, 0.01))
epsilon_boltzmann_schedule = ((0, 0.03),)

# Undiscounted returns and small learning rates, as at the end of the driver's training.
gamma_schedule = ((0, 1.0),)
lr_schedule = ((0, 1e-4), (300_000, 1e-4), (1_000_000, 3e-5), (3_000_000, 1e-5))
