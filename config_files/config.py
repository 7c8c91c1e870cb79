"""The default configuration: the simulated game, a small network without image, minutes on a laptop's processor.

Every setting is here once, with what it does; `scripts/train.py --list-settings` shows units and ranges. Edit freely:
a wrong or unknown setting stops the program with a message that says what is allowed. `scripts/train.py --config
other.py` reads another file, which may begin with `based_on = "config.py"` and set only what differs;
`--set name=value` overrides one setting.

When a run starts, this folder is copied to save/{run_name}/config/; edits to that copy are applied while the run goes
on, at the next race. Settings that shape networks, buffers or processes (--list-settings says which) wait for the next
start.

A schedule is a tuple of (frame count, value) pairs that starts at frame 0, or a number, which holds for the whole run.
A frame is one action.
"""

# ==================================================================================== what you may want to change first

# Results go to save/{run_name}/ and tensorboard/{run_name}/; the same name resumes.
run_name = "simulated"

# Of every random draw: collectors, learner and network each derive their own seed from it.
seed = 0

# The races in order, over and over. map_name is yours to choose and names the statistics; map_path is what the game
# loads; reference_line is the .npy of virtual checkpoints; is_explo says whether the agent explores or drives greedily
# (an evaluation race); fill_buffer whether the race is learned from; repeat how many such races follow one another.
# In place of the two files an entry may have "generator": {"difficulty": 0.5, "first_seed": 0, "last_seed": 9999}: a
# track is made for each race (with "races_per_track": 4, for four), its seed drawn from that range, its difficulty 0 to
# 1 or drawn from a range (0.2, 0.6). Of the real game, map_path (.Challenge.Gbx) must also lie in maps_folder, where
# training reads its checkpoints.
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

# Number of collector processes, and of games that each plays at the same time, with one batch of inference for all that
# wait for a decision. Through sockets each game is a program of its own, with its own memory and port, and all must fit
# the machine: 1 is a safe choice for the real game. See docs/collectors.rst. With 0 collectors no game is played, and
# the learner has only the data sets that `offline` names.
n_collectors = 1
games_per_collector = 8

# A race that lasts longer is cut off.
cutoff_race_longer_than_ms = 120_000

# So is one whose furthest point advanced by less than this many metres within this time. Too patient, and "full
# throttle along the wall" is a livelihood.
cutoff_no_progress_within_ms = 2_000
cutoff_progress_m = 6.0

# Reward for every ms that passes (negative: faster is better), and for every metre along the reference line.
constant_reward_per_ms = -6 / 5000
reward_per_m_advanced_along_centerline = 5 / 500

# Width of the two layers that read the floats, and of the two dueling heads together.
float_hidden_dim = 256
dense_hidden_dimension = 512

# The frame counts of all schedules are multiplied by this: 0.5 for an easy or short map, 2 for a long or hard one.
schedule_stretch = 1.0

# ------------------------------------------------------------------------------------------------------- your own parts
# Each is "module:attribute", with the module beside this file, in the current folder or in the project's (examples/),
# or a function or class that this file imports, or a functools.partial of one. docs/own_parts.rst says what each is
# called with.

# What learns and decides, and the network of IQN.
agent = "trackmania_rl.agents.builder:IQN"
network = "trackmania_rl.agents.iqn:IQN_Network"

# What is played: races on the map cycle's maps, or a Gymnasium environment (examples/).
games = "trackmania_rl.games.race_games:RaceGames"

# What an action is worth, and where races are remembered.
reward = "trackmania_rl.race.rewards:RaceReward"
memory = "trackmania_rl.training.building:make_memory"

# Hooks of the training: ("my_hooks:LogSpeed",).
hooks = ()

# Check that what is trained on is what the games gave, by check sums; the training ends where it is not. It takes a
# tenth of the speed and more, and memory as long as the run lasts: for a few minutes, with parts of your own.
crc_debug = False

# torchrl transforms of sampled batches: a preprocessor of samples, such as an augmentation (examples/image_shifts.py).
transforms = ()

# -------------------------------------------------------------------------------------------------------------- the run

# Where the learner runs: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0".
torch_device = "auto"

# Where the collectors' networks decide: likewise, but "auto" is the learner's device with an image, and without one the
# processor, which is faster at it.
collector_device = "auto"

# Processor threads of the learner and of each collector. More is often slower on a busy machine; the learner's "auto"
# tries what is faster when a run starts, one thread or all cores that collectors leave.
learner_threads = "auto"
collector_threads = 1

# Compile the learner's update with torch.compile: 1.4 to 1.7 times as fast. That takes a quarter of a minute, while the
# collectors start. A processor needs a C++ compiler for it; without one a line says so and the update runs as it is.
use_torch_compile = True

# Arithmetic of the networks: "float32", "float16" or "bfloat16". A GPU follows it (in float16 if it has no bfloat16); a
# processor only for bfloat16 and where it has matrix instructions for it (Intel's AMX), which make a large network more
# than twice as fast; else it uses float32.
autocast_dtype = "float16"

# Time between two checkpoints (the first ones of a new run come sooner, from 15 s after its first finish on), and
# whether they hold the replay buffer: a resumed run then goes on as if never stopped, but that takes 150 MB without
# images, gigabytes with them (once: checkpoints share it, and each writes what is new). The last of these says how many
# of the newest stay, beside the one that drove best in its evaluated races.
checkpoint_interval_s = 300.0
checkpoint_holds_replay = True
keep_checkpoints = 3

# After so many seconds each, and after so many batches each, the driver is kept for good in drivers/, 1 MB to 26 MB a
# time: what it was like on the way can be seen later (scripts/evaluate.py FILE). 0 keeps none. Of them all only the
# newest so many stay; None: all.
keep_driver_every_s = 0.0
keep_driver_every_n_batches = 0
keep_drivers_at_most = None

# A checkpoint is not begun with less free disk than this; tensorboard's file and races.jsonl pause earlier.
minimum_free_disk_mb = 200

# A collector that gives no sign of life for so long (it was stopped, or hangs) is killed with its games and replaced.
# It gives one between any two actions, and while it waits for the learner or compiles.
collector_silence_s = 30.0

# With --supervised, a training that gives no sign of life for learner_silence_s (it was stopped, or hangs) is killed
# and started again; so is one whose loop stands still for learner_stall_s, longer than any compiling or saving takes.
learner_silence_s = 60.0
learner_stall_s = 900.0

# ------------------------------------------------------------------------------------------------------------- the game

# How the simulated game is played: "in_process" (stepped by the collectors themselves) or "socket" (as a program of its
# own, spoken to as the real game is, with the very same races). The real game is always reached by its socket.
game_transport = "in_process"

# Whether collectors start their games (False), or only connect to games that scripts/keep_games.py keeps at the same
# ports, on this machine or, through SSH, on another one: docs/game_machines.rst. It needs game_transport = "socket".
games_are_kept = False

# Folder of tracks (.toml) and reference lines (.npy); a relative path starts at the project's folder.
maps_folder = "maps"

# Races to learn from at the beginning: {"map_name": "valley", "inputs": "save/human.inputs"} for each, with a map of
# the cycle above and an inputs file or a .Replay.Gbx; a relative path starts at the project's folder. A new run drives
# these inputs once, before its own races: docs/demonstrations.rst.
demonstrations = ()

# Data sets of races (Minari's) to learn from: "trackmania/valley-expert-v0", "datasets/mine-v0" or several of them in a
# tuple, by id or folder; a relative path starts at the project's folder. A new run has them in its memory before its
# first race; with n_collectors = 0 it learns from them alone, and plays no game: docs/datasets.rst.
offline = ()

# What the agent does: "keys", one of the sets of keys in inputs_list.py, or "analog", three numbers from -1 to 1: steer
# (-1 full left, 1 full right), gas and brake (pressed above 0; this game's car knows no half pressed pedal). Analog
# needs an agent for such actions, and in the real game this project's plugin: docs/analog_actions.rst.
actions = "keys"

# Game speed during a race: 1 is real time; as fast as possible is 1000 (in the simulated game 50).
running_speed = 1000.0

# The game's tick in ms, and ticks per action: 10 x 5 = one decision every 50 ms.
ms_per_engine_tick = 10
engine_ticks_per_action = 5

# Cut a race off after so many actions; None: by the cut-offs above alone. As at any cut-off, training reckons with the
# value of the last state. With soft_horizon only training sees the cuts, so many actions apart: the race goes on.
horizon = None
soft_horizon = False

# Size of the image in the observation; 0 and 0 for none, which learns faster on a processor where the floats describe
# the track.
image_width_px = 0
image_height_px = 0

# Frames that make one image, one per action, the newest last: several show movement. A range takes others: "-9:0:3" is
# every third of the last ten. 0 shows no image: for a range finder that measures in the picture. See docs/views.rst.
frames_per_state = 1

# The camera that the real game's keys 1 to 3 choose; published weights have seen 2. The simulated game has one camera.
game_camera_number = 2

# Timeout of a connection to a game instance; how long an instance waits for an answer within a race, and between two.
tmi_protection_timeout_s = 60.0
timeout_during_race_ms = 10_100
timeout_between_races_ms = 600_000_000

# A game instance is restarted after this time, as the real game slows down over hours, and when it plays at less than
# this share of its own best speed (race time over the time that the client waits for it, five races at a time); 0 for
# never.
game_reboot_interval_s = 43_200.0
game_reboot_below_speed_share = 0.0

# ------------------------------------------------------------------------------------------------------ the observation

# The blocks of floats that the agent sees (docs/observation.rst), in any order. Beside these there are speed_m_s;
# range_finder_m: the ways to the road's borders in 19 directions, as a LIDAR measures them (config_lidar.py has both);
# and road_ahead: how wide the road ahead is, what it is made of and what lies beside it (config_many_tracks.py).
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

# Views: what the agent sees of earlier states and actions, and what training batches hold besides, such as
# {"last_gears": {"column": "gear", "shift": "-3:-1"}}: see docs/views.rst.
views = {}

# Where the range finder measures: "track" (on the simulated game's track, in any transport) or "picture" (in the image,
# which the real game needs); how far it sees; and, in pictures, the darkest and the brightest gray (0 to 255) of the
# road's border, which is a bright line in the simulated game.
range_finder_source = "track"
range_finder_reach_m = 150.0
range_finder_border_gray = (200, 255)

# At how many of the zone centres below the block road_ahead tells what the road is like (simulated game only).
road_ahead_zone_centers = 20

# Number of previous actions in the observation.
n_prev_actions_in_inputs = 5

# Number of virtual checkpoints (zones) ahead in the observation, and how many zones lie from one to the next: 40 and
# 20 at 0.5 m look 400 m ahead, one point every 10 m.
n_zone_centers_in_inputs = 40
one_every_n_zone_centers_in_inputs = 20

# Zones that extend the reference line straight on before its start and beyond its end.
n_zone_centers_extrapolate_before_start_of_map = 20
n_zone_centers_extrapolate_after_end_of_map = 1000

# Distance between two zones on the reference line.
distance_between_zone_centers_m = 0.5

# A zone further than about half of this from the car is not entered.
road_width_m = 90.0

# A zone that holds a real checkpoint of the map is left only within this distance of it.
real_checkpoint_radius_m = 12.0

# The distance to the finish is shown to the agent up to this many metres.
margin_to_announce_finish_m = 700.0

# Fourier features: floats that the network also sees as sine and cosine of these wavelengths, for each block of the
# observation (docs/observation.rst) in its unit; of the zone centres only the nearest so many. A car that misses a wall
# by 20 cm is then told from one that hits it. {} for none.
fourier_wavelengths = {
    "zone_centers_m": (32.0, 16.0, 8.0, 4.0),
    "velocity_m_s": (64.0, 32.0, 16.0, 8.0),
    "angular_velocity_rad_s": (8.0, 4.0, 2.0),
}
fourier_zone_centers = 4

# --------------------------------------------------------------------------------------------------------- more rewards
# All of these are switched off by 0.

# Reward for every m/s of speed gained while the car moves forwards, taken back for speed lost; the last action earns
# none.
final_speed_reward_per_m_per_s = 0.0

# Rewards per action for driving styles, by frame count (linear between entries).
engineered_speedslide_reward_schedule = ((0, 0.0),)
engineered_neoslide_reward_schedule = ((0, 0.0),)
engineered_kamikaze_reward_schedule = ((0, 0.0),)
engineered_close_to_vcp_reward_schedule = ((0, 0.0),)

# The last of them multiplies the distance to the current zone's centre, clipped to [min, max].
engineered_reward_min_dist_to_cur_vcp_m = 5.0
engineered_reward_max_dist_to_cur_vcp_m = 25.0

# Potential-based shaping: this factor x the distance to the current zone's centre, clipped to [min, max]. A negative
# factor draws the car to the line.
shaped_reward_dist_to_cur_vcp = 0.0
shaped_reward_min_dist_to_cur_vcp_m = 2.0
shaped_reward_max_dist_to_cur_vcp_m = 25.0

# Potential-based shaping: this factor x how well the car points along the line ahead.
shaped_reward_point_to_vcp_ahead = 0.0

# ---------------------------------------------------------------------------------------------------- the replay buffer

# Transitions in one batch.
batch_size = 64

# Transitions remembered (training and test together), and how many there must be before learning starts (warm-up), by
# frame count; the last entry reached holds.
memory_size_schedule = ((0, 200_000),)
memory_size_start_learn_schedule = ((0, 2_000),)

# Replay ratio: how often each transition is trained on, on average, before it is discarded. Those of the test side
# count too, so the others are trained on 1 / (1 - buffer_test_ratio) times as often.
number_times_single_memory_is_used_before_discard = 4.0

# Batches at most per action that was driven, of the whole run: what the replay ratio asks beyond that waits, as after
# the warm-up or a reset. None for no such bound.
max_training_steps_per_environment_step = None

# Train/test split: the share of transitions kept apart for the test loss, never trained on, and the probability, at
# each step of a race, of drawing again to which side what follows goes.
buffer_test_ratio = 0.05
buffer_test_side_redraw_probability = 0.1

# Actions that one transition spans.
n_steps = 3

# Cut a transition short at the first exploratory action after its own.
discard_non_greedy_actions_in_nsteps = False

# Whether the finish, too, is bootstrapped, as any state that a race is cut off in: as if it went on from there.
no_done_at_end = False

# Length of a mini-race: Q is the sum of rewards within it. 100 x 50 ms = 5 s; 140, or 7 s, are published. None for no
# mini-races: Q is then discounted by gamma_schedule alone.
temporal_mini_race_duration_actions = 100

# The elapsed time of a sampled state is abs(uniform integer in [max - long, duration + max)) - max, not below 0: long
# horizons, and the full one, are drawn more often.
oversample_long_term_steps = 40
oversample_maximum_term_steps = 5

# Prioritized replay (proportional): exponent of the priority (0 switches it off), exponent of the importance weights,
# and what is added to each priority.
prio_alpha = 0.0
prio_beta = 1.0
prio_epsilon = 2e-3

# Prioritized replay: only a transition that was drawn with fewer actions of its mini-race elapsed than this gets a new
# priority; None: all. Near the end all errors are small, and what is drawn there would hardly be drawn again.
min_horizon_to_update_priority_actions = max(1, temporal_mini_race_duration_actions - 40)

# ---------------------------------------------------------------------------------------------------------- the network

# Convolutions of the image head: channels, kernel sizes and strides, one entry each.
conv_channels = (16, 32, 64, 32)
conv_kernel_sizes = (4, 4, 3, 3)
conv_strides = (2, 2, 2, 1)

# Layer normalization in the layers that read the floats: values stay sane in states unlike any that were learned from.
# The published network has none.
use_layer_norm = True

# Number of cosines that embed a quantile.
iqn_embedding_dimension = 32

# What a quantile multiplies: "features", in front of the heads, as published, or "hidden_layers" of the heads: a state
# then passes through the network once, not once for each quantile, and all states of a batch have the same.
quantile_factors_multiply = "hidden_layers"

# Value baseline: Q = network + this x the actions left in the mini-race, so that a fresh network starts near the truth.
# About the reward of one action at the speed expected early on; 0 for none. With it the heads' last layers are drawn
# small, so that the noise of a fresh network is not taken for value.
expected_reward_per_action = -0.045

# Quantiles per state in training and in play (even, as they are symmetric around 0.5).
iqn_n = 8
iqn_k = 32

# ------------------------------------------------------------------------------------------------------------- learning

# Discount of the next action, by frame count (linear between entries); mini-races allow 1.
gamma_schedule = ((0, 0.999), (600_000, 0.999), (1_500_000, 1.0))

# Learning rate, by frame count (exponential between entries).
lr_schedule = ((0, 1e-3), (600_000, 2e-4), (2_000_000, 4e-5), (6_000_000, 1e-5))

# RAdam's epsilon and betas. After each step every weight is multiplied by 1 - learning rate x the ratio.
adam_epsilon = 1e-4
adam_beta1 = 0.9
adam_beta2 = 0.999
weight_decay_lr_ratio = 1 / 50

# Gradients are clipped to this value, and together to this norm.
clip_grad_value = 1000.0
clip_grad_norm = 30.0

# Threshold of the quantile Huber loss between square and linear.
iqn_kappa = 5e-3

# Double DQN: the online network chooses the next action, the target network values it.
use_ddqn = False

# How the target chooses the next action without double DQN: "max_of_each_quantile", or "argmax_of_mean", which
# overestimates less.
target_action = "argmax_of_mean"

# Each transition's loss is divided by the square root of its target's own quantile loss: noisy states weigh less. The
# divisor is clamped below at its running mean / this ratio.
target_self_loss_clamp_ratio = 4.0

# The target network moves by this share towards the online one, each time so many transitions were trained on.
soft_update_tau = 0.01
number_memories_trained_on_between_target_network_updates = 64

# Evaluation races and evaluate.py use averaged weights, which keep this share of themselves at each publication of
# weights (less of it early in a run); 0 switches it off.
evaluation_weights_decay = 0.998

# Every so many frames mix the network with a fresh one (0: never), by these shares for all layers and the last ones,
# and train on so many more transitions afterwards.
reset_every_n_frames_generated = 0
overall_reset_mul_factor = 0.01
last_layer_reset_mul_factor = 0.8
additional_transitions_after_reset = 1_600_000

# ------------------------------------------------------------------------------------------------------------ exploring

# Probability of a random action in an exploration race, by frame count (exponential between entries).
epsilon_schedule = ((0, 1.0), (2_000, 1.0), (50_000, 0.1), (400_000, 0.03))

# Probability, beside epsilon, of the best action after noise was added to Q; and that noise's standard deviation.
epsilon_boltzmann_schedule = ((0, 0.15), (400_000, 0.03))
tau_epsilon_boltzmann = 0.01

# Probability that a random action is one that accelerates and does not brake; None draws evenly.
random_action_throttle_probability = 0.7

# ---------------------------------------------------------------------------------------------------- between processes

# The learner publishes its weights every so many batches; a collector pulls new ones every so many actions.
send_shared_network_every_n_batches = 20
update_inference_network_every_n_actions = 20

# Races of one collector that shared memory has room for; without free room the collector waits for the learner. Through
# sockets a race is driven into its room, and every game beyond the first has one in addition.
rollout_slots_per_collector = 4

# With collectors on a cluster (train.py --cluster, docs/cluster.rst) the learner publishes its weights no more often
# than every so many seconds.
cluster_publish_every_s = 0.5

# How collectors and learner go together. "asynchronous": side by side. "synchronous": in turns, and the same seed gives
# the same races and weights, byte for byte. "alternating": side by side, and each collector decides for one half of its
# games while the other half drives. See docs/sampling.rst.
sampling = "asynchronous"

# What is handed to the learner: whole races ("complete_episodes"), or fragments of races under way, of so many actions
# each ("truncate_episodes"), which are learned from at once.
batch_mode = "complete_episodes"
rollout_fragment_length = 50

# --------------------------------------------------------------------------------------------------------- what you see

# Where figures and pictures go: "tensorboard", "csv", "wandb", "mlflow", "trackio", or a torchrl logger of your own,
# "my_parts:MyLogger"; any number of them, () for none. See docs/loggers.rst.
loggers = ("tensorboard",)

# Of each map, every so many evaluated races, or every so many seconds, keep one: its columns and a video with speed,
# keys and Q values, for the loggers as well (0: never; 600.0 is a video every ten minutes). See docs/videos.rst.
record_every_n_evaluations = 0
record_every_s = 0.0

# Time between two rows of the loggers' figures (one explored and one evaluated race of a map; records at once), and
# between two sets of histograms and pictures.
tensorboard_interval_s = 10.0
histogram_interval_s = 120.0

# Time between two sets of pictures of what the driver expects, where it errs and how it drives, in the run's folder
# diagnostics/ and for the loggers; the first comes after a minute. 0 for none. See docs/diagnostics.rst.
pictures_interval_s = 600.0

# The loss on the test side is measured every so many batches.
test_loss_every_n_batches = 50

# What the terminal shows: "live" (a table that updates), "plain" (a line now and then), "off", or "auto": live in a
# terminal, plain otherwise.
terminal_view = "auto"
