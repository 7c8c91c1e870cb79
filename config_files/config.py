"""The default configuration: the simulated game, a small network without image, minutes on a laptop's processor.

These are the settings that are changed most, with their default values. `scripts/train.py --list-settings` and
docs/settings.rst list all of them, with description, unit and range. Every one can be set here. Edit freely: a wrong or
unknown setting stops the program with a message that says what is allowed. `scripts/train.py --config other.py` reads
another file, which may begin with `based_on = "config.py"` and set only what differs; `--set name=value` overrides one
setting.

When a run starts, all its settings are written to save/{run_name}/settings.toml; edits of that file are applied while
the run trains, at the next race. Settings that shape networks, buffers or processes (--list-settings says which) wait
for the next start.

A schedule is a tuple of (frame count, value) pairs that starts at frame 0, or a number, which holds for the whole run.
A frame is one action.
"""

# ------------------------------------------------------------------------------------------------------ the run

# Results go to save/{run_name}/ and tensorboard/{run_name}/; the same name resumes.
run_name = "simulated"

# Seed of every random draw.
seed = 0

# Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0".
torch_device = "auto"

# Compile the update: 1.4 to 1.7 times as fast, after a quarter of a minute.
use_torch_compile = True

# Arithmetic of the networks: "float32", "float16" or "bfloat16".
autocast_dtype = "float16"

# Time between two checkpoints, and whether they hold the replay buffer, for an exact resume.
checkpoint_interval_s = 300.0
checkpoint_holds_replay = True

# ------------------------------------------------------------------------------------------------ races and game

# Races in order, over and over. map_name is yours to choose and names the statistics; map_path is what the game loads;
# reference_line is the .npy of virtual checkpoints; is_explo says whether the agent explores or drives greedily (an
# evaluation race); fill_buffer whether the race is learned from; repeat how many such races follow one another.
# In place of the two files an entry may have "generator": {"difficulty": 0.5, "first_seed": 0, "last_seed": 9999}: a
# track is made for each race (with "races_per_track": 4, for four), its seed drawn from that range, its difficulty 0 to
# 1 or drawn from a range (0.2, 0.6). Of the real game, map_path (.Challenge.Gbx) must also be in maps_folder.
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

# "simulated" (ships with this project) or "tmnf" (TrackMania Nations Forever with TMInterface: see config_tmnf.py).
game = "simulated"

# Collector processes, and games that each plays at the same time: docs/collectors.rst. 1 is a safe choice for the real
# game.
n_collectors = 1
games_per_collector = 8

# Game speed during a race: 1 is real time; as fast as possible is 1000 (in the simulated game 50).
running_speed = 1000.0

# Ticks of 10 ms per action: one decision every 50 ms.
engine_ticks_per_action = 5

# "keys", the sets of keys in inputs_list.py, or "analog": docs/analog_actions.rst.
actions = "keys"

# A race that lasts longer is cut off, and one whose furthest point advances by less than this within this time.
cutoff_race_longer_than_ms = 120_000
cutoff_no_progress_within_ms = 2_000
cutoff_progress_m = 6.0

# ----------------------------------------------------------------------------------------- observation and reward

# Blocks of floats that the agent sees: docs/observation.rst. There are also speed_m_s, range_finder_m (config_lidar.py)
# and road_ahead (config_many_tracks.py).
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

# Size of the image in the observation; 0 and 0 for none, which learns faster on a processor.
image_width_px = 0
image_height_px = 0

# Reward per ms that passes (negative: faster is better), and per metre along the reference line.
constant_reward_per_ms = -6 / 5000
reward_per_m_advanced_along_centerline = 5 / 500

# ----------------------------------------------------------------------------------------------- parts of your own
# Each is "module:attribute", with the module beside this file, in the current folder or in the project's (examples/),
# or a function or class that this file imports, or a functools.partial of one. docs/own_parts.rst says what each is
# called with.

# Agent, and the network of IQN.
agent = "trackmania_rl.agents.builder:IQN"
network = "trackmania_rl.agents.iqn:IQN_Network"

# What is played: races on the map cycle's maps, or a Gymnasium environment (examples/).
games = "trackmania_rl.games.race_games:RaceGames"

# Reward of an action, and replay memory.
reward = "trackmania_rl.race.rewards:RaceReward"
memory = "trackmania_rl.training.building:make_memory"

# Hooks of the training: ("my_hooks:LogSpeed",).
hooks = ()

# -------------------------------------------------------------------------------------------------------- learning

# The frame counts of all schedules are multiplied by this: 0.5 for an easy or short map, 2 for a long or hard one.
schedule_stretch = 1.0

# Width of the two layers that read the floats, and of the two dueling heads together.
float_hidden_dim = 256
dense_hidden_dimension = 512

# Transitions in one batch.
batch_size = 64

# Transitions remembered, and how many there must be before learning starts, by frame count.
memory_size_schedule = ((0, 200_000),)
memory_size_start_learn_schedule = ((0, 2_000),)

# Replay ratio: how often each transition is trained on, on average, before it is discarded.
number_times_single_memory_is_used_before_discard = 4.0

# Length of a mini-race: Q is the sum of rewards within it. None: Q is discounted by gamma_schedule alone.
temporal_mini_race_duration_actions = 100

# Discount of the next action (linear between entries), and learning rate (exponential between entries).
gamma_schedule = ((0, 0.999), (600_000, 0.999), (1_500_000, 1.0))
lr_schedule = ((0, 1e-3), (600_000, 2e-4), (2_000_000, 4e-5), (6_000_000, 1e-5))

# Expected reward of one action, with which a fresh network starts. Change it with the rewards; 0 for none.
expected_reward_per_action = -0.045

# Probability of a random action in an exploration race; and, beside it, of the best action after noise was added to Q.
epsilon_schedule = ((0, 1.0), (2_000, 1.0), (50_000, 0.1), (400_000, 0.03))
epsilon_boltzmann_schedule = ((0, 0.15), (400_000, 0.03))

# --------------------------------------------------------------------------------------------------- what you see

# Where figures go: "tensorboard", "csv", "wandb", "mlflow", "trackio", or a torchrl logger of your own:
# docs/loggers.rst.
loggers = ("tensorboard",)

# Of each map, record one of so many evaluation races with a video; 0 for none: docs/videos.rst.
record_every_n_evaluations = 0

# "live" (a table that updates), "plain" (a line now and then), "off", or "auto".
terminal_view = "auto"
