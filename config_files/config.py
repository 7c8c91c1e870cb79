"""The default configuration: the simulated game, a small network without image, minutes on a laptop's processor.

These are the most changed settings, with their defaults. `scripts/train.py --list-settings` and docs/settings.rst list
all settings, with description, unit and range; each can be set here. Wrong or unknown settings are errors.
`scripts/train.py --config other.py` reads another file, which may begin with `based_on = "config.py"` and set only
differences; `--set name=value` overrides a setting.

A new run writes its settings to save/{run_name}/settings.toml. Edits there apply at the next race; settings that shape
networks, buffers or processes, at the next start.

A schedule is a tuple of (frame count, value) pairs from frame 0 on, or one number. A frame is one action.
"""

# ------------------------------------------------------------------------------------------------------ the run

# Results go to save/{run_name}/ and tensorboard/{run_name}/; the same name resumes.
run_name = "simulated"

# Seed of every random draw.
seed = 0

# Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0".
torch_device = "auto"

# Compile the update: 1.4 to 1.7 times as fast, after 15 s.
use_torch_compile = True

# Arithmetic of the networks: "auto" (the faster one), "float32", "float16" or "bfloat16".
autocast_dtype = "auto"

# Time between checkpoints, and whether they hold the replay buffer (for an exact resume).
checkpoint_interval_s = 300.0
checkpoint_holds_replay = True

# ------------------------------------------------------------------------------------------------ races and game

# Races in order, repeated. map_name: any name, for statistics. map_path: the file that the game loads; a .Challenge.Gbx
# must also be in maps_folder. reference_line: the .npy of virtual checkpoints. is_explo: exploration or evaluation
# (greedy) race. fill_buffer: learn from the race. repeat: number of such races in a row.
# Instead of the two files an entry may have "generator": {"difficulty": 0.5, "first_seed": 0, "last_seed": 9999}: a
# track is generated for each race (with "races_per_track": 4, for each four races) with a seed from that range. The
# difficulty is 0 to 1, or a range (0.2, 0.6).
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

# "simulated" (shipped) or "tmnf" (TrackMania Nations Forever: config_tmnf.py).
game = "simulated"

# Collector processes, and games per process: docs/collectors.rst. 1 is safe for the real game.
n_collectors = 1
games_per_collector = 8

# Game speed in a race: 1 is real time; as fast as possible is 1000 (simulated: 50).
running_speed = 1000.0

# Ticks of 10 ms per action.
engine_ticks_per_action = 5

# "keys" (inputs_list.py) or "analog": docs/observation.rst.
actions = "keys"

# Cut off a race that lasts longer, or whose furthest point advances by less than cutoff_progress_m within this time.
cutoff_race_longer_than_ms = 120_000
cutoff_no_progress_within_ms = 2_000
cutoff_progress_m = 6.0

# ----------------------------------------------------------------------------------------- observation and reward

# Blocks of floats in the observation: docs/observation.rst. Others are speed_m_s, range_finder_m (config_lidar.py) and
# road_ahead (config_many_tracks.py).
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
)

# Image size in the observation; 0 and 0 for none.
image_width_px = 0
image_height_px = 0

# Reward per ms, and per metre along the reference line.
constant_reward_per_ms = -6 / 5000
reward_per_m_advanced_along_centerline = 5 / 500

# ----------------------------------------------------------------------------------------------- parts of your own
# Each is "module:attribute" (the module beside this file, in the current folder or in the project), or an imported
# function or class, or a functools.partial of one: docs/own_parts.rst.

# Agent, and IQN's network.
agent = "trackmania_rl.agents.builder:IQN"
network = "trackmania_rl.agents.iqn:IQN_Network"

# Games: races of the map cycle, or a Gymnasium environment (config_cartpole.py).
games = "trackmania_rl.games.race_games:RaceGames"

# Reward of an action, and replay memory.
reward = "trackmania_rl.race.rewards:RaceReward"
memory = "trackmania_rl.training.building:make_memory"

# Hooks of the training: ("my_hooks:LogSpeed",).
hooks = ()

# -------------------------------------------------------------------------------------------------------- learning

# Factor of the frame counts of all schedules: 0.5 for an easy or short map, 2 for a long or hard one.
schedule_stretch = 1.0

# Width of the two layers over the floats, and of both dueling heads together.
float_hidden_dim = 256
dense_hidden_dimension = 512

# Transitions per batch.
batch_size = 64

# Size of the replay buffer, and its transitions before learning starts, by frame count.
memory_size_schedule = ((0, 200_000),)
memory_size_start_learn_schedule = ((0, 2_000),)

# Replay ratio: mean number of times that a transition is trained on.
number_times_single_memory_is_used_before_discard = 4.0

# Length of a mini-race, within which Q sums rewards. None: only gamma_schedule discounts Q.
temporal_mini_race_duration_actions = None

# Discount of the next action (linear between entries), and learning rate (exponential between entries).
gamma_schedule = ((0, 0.98), (300_000, 0.98), (1_200_000, 0.99))
lr_schedule = ((0, 1e-3), (600_000, 2e-4), (2_000_000, 4e-5), (6_000_000, 1e-5))

# Expected reward of an action, for a new network. Change it with the rewards; 0 for none.
expected_reward_per_action = -0.045

# Probability of a random action in an exploration race, and of the best action after adding noise to Q.
epsilon_schedule = ((0, 1.0), (2_000, 1.0), (50_000, 0.1), (400_000, 0.03))
epsilon_boltzmann_schedule = ((0, 0.15), (400_000, 0.03))

# --------------------------------------------------------------------------------------------------------- output

# "tensorboard", "csv", "wandb", "mlflow", "trackio", or your own torchrl logger: docs/loggers.rst.
loggers = ("tensorboard",)

# Record a video of every Nth evaluation race per map; 0 for none: docs/loggers.rst.
record_every_n_evaluations = 0

# "live" (a table that updates), "plain" (a line now and then), "off", or "auto".
terminal_view = "auto"
