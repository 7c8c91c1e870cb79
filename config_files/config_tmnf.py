"""The full-size configuration for the real game, with exactly Linesight's published hyperparameters.

Use it with `scripts/train.py --preset tmnf`, after setting the paths in user_config.py.
"""

based_on = "config.py"

# ------------------------------------------------------------------------------------------------- the run and the game

run_name = "tmnf"

# Maps are in the game's own folders, and beside their reference lines in maps/.
game = "tmnf"
map_cycle = (
    {
        "map_name": "hock",
        "map_path": "ESL-Hockolicious.Challenge.Gbx",
        "reference_line": "ESL-Hockolicious_0.5m_cl2.npy",
        "is_explo": True,
        "fill_buffer": True,
        "repeat": 4,
    },
    {
        "map_name": "hock",
        "map_path": "ESL-Hockolicious.Challenge.Gbx",
        "reference_line": "ESL-Hockolicious_0.5m_cl2.npy",
        "is_explo": False,
        "fill_buffer": True,
        "repeat": 1,
    },
)

# Each game is a separate program with its own window and memory.
game_transport = "socket"
n_collectors = 2
games_per_collector = 1
running_speed = 80.0

# The game may start slowly, and slows down over hours.
tmi_protection_timeout_s = 500.0
game_reboot_below_speed_share = 0.3

# Real maps are longer, with slow places.
cutoff_race_longer_than_ms = 300_000
cutoff_progress_m = 0.5

# The published network reads the screen; with images the replay buffer takes gigabytes.
image_width_px = 160
image_height_px = 120
checkpoint_holds_replay = False

# ---------------------------------------------------------------------------------- the published network and algorithm

# Weights trained with Linesight load into this network.
dense_hidden_dimension = 1024
iqn_embedding_dimension = 64
use_layer_norm = False
quantile_factors_multiply = "features"
fourier_wavelengths = {}

# Values start at 0.
expected_reward_per_action = 0.0
shaped_reward_dist_to_cur_vcp = -0.1
target_action = "max_of_each_quantile"

# 7 s ahead.
temporal_mini_race_duration_actions = 140
discard_non_greedy_actions_in_nsteps = True

# Frames of the real game are expensive: each is trained on often, in large batches, from a growing memory.
batch_size = 512
number_times_single_memory_is_used_before_discard = 32.0
memory_size_schedule = ((0, 50_000), (5_000_000, 100_000), (7_000_000, 200_000))
memory_size_start_learn_schedule = ((0, 20_000), (5_000_000, 75_000), (7_000_000, 150_000))

# Schedules are longer.
gamma_schedule = ((0, 0.999), (1_500_000, 0.999), (2_500_000, 1.0))
lr_schedule = ((0, 1e-3), (3_000_000, 5e-5), (12_000_000, 5e-5), (15_000_000, 1e-5))
epsilon_schedule = ((0, 1.0), (50_000, 1.0), (300_000, 0.1), (3_000_000, 0.03))
epsilon_boltzmann_schedule = ((0, 0.15), (3_000_000, 0.03))
random_action_throttle_probability = None

# Updates of the target network and of the collectors, for the larger batches.
soft_update_tau = 0.02
number_memories_trained_on_between_target_network_updates = 2048
send_shared_network_every_n_batches = 10
evaluation_weights_decay = 0.0
