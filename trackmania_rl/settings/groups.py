"""The settings by group: name, range, unit, default, description, and checks of values that must fit together.

The text below a field is its description in `--list-settings`, the documentation, the live page and a run's
settings.toml. `Restart` and `Driver` are explained in `values`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from trackmania_rl.settings.game import RACES, GameSettings
from trackmania_rl.settings.values import (
    LARGEST_INT,
    LAST_PORT,
    MEANING,
    OF_COLLECTOR,
    OF_DRIVER,
    OF_MACHINE,
    OF_MEMORY,
    RESTART,
    Actions,
    BlockStatistics,
    Collector,
    Device,
    Discount,
    Driver,
    Finite,
    Fraction,
    Group,
    Loggers,
    Meaning,
    NonNegativeFloat,
    NonNegativeInt,
    OrNone,
    Part,
    Parts,
    PositiveFloat,
    PositiveInt,
    Restart,
    RunName,
    Schedule,
    Seconds,
    Shape,
    ShareBelow1,
    Shift,
    Stored,
    Texts,
    Unit,
)

RANGE_FINDER: Final = "range_finder_m"
"""Block of the observation with the distances to the road's borders."""
ROAD_AHEAD: Final = "road_ahead"
"""Block of the observation that describes the road at the zones ahead."""
NOTHING: Final = ((0, 0.0),)
"""Schedule of a reward that is switched off."""


class ViewSettings(Group):
    """Values of a column in rows around a state."""

    column: str
    shift: Shift
    input: bool = True
    before: Literal["start", "zero"] = "start"


class Until(Group):
    """Limits of a stage; it ends at the first one."""

    max_updates: PositiveInt = LARGEST_INT
    max_frames: PositiveInt = LARGEST_INT

    def is_reached(self, frames: int, updates: int) -> bool:
        """Return whether a run with so many frames and updates is at a limit."""
        return frames >= self.max_frames or updates >= self.max_updates


class RunSettings(Group):
    """The run as a whole: its name, its seed, the machine's arithmetic."""

    run_name: Collector[RunName] = "simulated"
    """Name of the run: its files are in save/{run_name}/ and tensorboard/{run_name}/. The same name resumes; "auto"
    makes a new name of date and time at each start."""
    seed: Restart[NonNegativeInt] = 0
    """Seed of every random draw."""
    schedule_stretch: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the frame counts of all schedules: 0.5 for an easy map, 2 for a hard one."""
    torch_device: Restart[Device] = "auto"
    """Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0"."""
    collector_device: Restart[Device] = "auto"
    """Device of the collectors' networks. "auto": the learner's with an image, else the processor."""
    learner_threads: Restart[PositiveInt | Literal["auto"]] = "auto"
    """Processor threads of the learner. "auto" is 1; with an image it is the cores without collectors."""
    use_torch_compile: Restart[bool] = True
    """Compile the update: 1.4 to 1.7 times as fast, after 15 s. A processor needs a C++ compiler."""
    checkpoint_interval_s: Seconds = 300.0
    """Time between two checkpoints. The first ones of a new run come sooner."""
    checkpoint_holds_replay: bool = True
    """Keep the replay buffer in checkpoints, for an exact resume; with images gigabytes."""
    keep_driver_every_s: Annotated[NonNegativeFloat, Unit("s")] = 0.0
    """Time after which the driver is kept in drivers/, with 1 to 26 MB; 0 for never."""
    threshold_to_save_all_runs_ms: Annotated[NonNegativeInt, Unit("ms")] = 0
    """Time of a race up to which all finished races are kept in good_runs/, as records are; 0 for none."""
    keep_drivers_at_most: OrNone[PositiveInt] = None
    """Newest drivers that stay in drivers/; None for all."""
    minimum_free_disk_mb: Annotated[NonNegativeInt, Unit("MB")] = 200
    """Free disk below which no checkpoint is begun."""
    collector_silence_s: Seconds = 30.0
    """Time without a heartbeat after which a collector and its games are restarted."""
    learner_silence_s: Seconds = 60.0
    """Time without a heartbeat after which --supervised restarts the training."""
    stages: Restart[tuple[tuple[RunName, dict[str, Any], Until], ...]] = ()
    """Several steps in a row: (("clone", {SETTING: VALUE, ...}, {"max_updates": 6000}), ...): docs/datasets.rst."""
    profile: Restart[bool] = False
    """Log the learner's functions with the most time of a round, once a minute (cProfile; slows it down)."""
    hooks: Restart[Parts] = ()
    """Hooks of the training loop, such as ("my_hooks:LogSpeed",): docs/own_parts.rst."""


class ObservationSettings(Group):
    """Float part of the observation (reference: 184 floats with the published values)."""

    observation_blocks: Driver[Annotated[tuple[str, ...], Field(min_length=1)]] = (
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
    """Blocks of floats, in any order. There are also speed_m_s, range_finder_m and road_ahead: docs/observation.rst."""
    views: Driver[dict[Annotated[str, Field(pattern=r"^[a-z]\w*$")], ViewSettings]] = Field({})
    """Earlier states and actions, like {"last_gears": {"column": "gear", "shift": "-3:-1"}}: docs/observation.rst."""
    range_finder_source: Driver[Literal["track", "picture"]] = "track"
    """Where the range finder measures: on the simulated game's track, or in the picture."""
    n_prev_actions_in_inputs: Driver[PositiveInt] = 5
    """Number of previous actions in the observation."""
    n_zone_centers_in_inputs: Driver[PositiveInt] = 40
    """Number of zone centres ahead in the observation."""
    one_every_n_zone_centers_in_inputs: Driver[PositiveInt] = 20
    """Zones between two centres in the observation: 40 x 20 zones of 0.5 m are 400 m ahead."""
    distance_between_zone_centers_m: Driver[Annotated[float, Field(ge=0.1, le=10), Unit("m")]] = 0.5
    """Distance between neighbouring zone centres. Reference lines keep a point every 0.5 m."""
    road_width_m: Driver[Annotated[PositiveFloat, Unit("m")]] = 90.0
    """Twice the distance from the car beyond which a zone is not entered."""
    margin_to_announce_finish_m: Driver[Annotated[PositiveFloat, Unit("m")]] = 700.0
    """Distance from which the finish is in the observation."""
    fourier_wavelengths: Driver[dict[str, tuple[PositiveFloat, ...]]] = Field(
        {
            "zone_centers_m": (32.0, 16.0, 8.0, 4.0),
            "velocity_m_s": (64.0, 32.0, 16.0, 8.0),
            "angular_velocity_rad_s": (8.0, 4.0, 2.0),
        }
    )
    """Wavelengths of a block's sine and cosine features, in its unit; {} for none: docs/observation.rst."""
    state_normalization: Driver[dict[str, BlockStatistics]]
    """Means and standard deviations that normalize the blocks, from state_normalization.py."""


class RewardSettings(Group):
    """Reward of one action and the shaping potential of one state."""

    reward: Meaning[Restart[Part]] = "trackmania_rl.race.rewards:RaceReward"
    """Reward of an action, replaceable by your own: docs/own_parts.rst."""
    constant_reward_per_ms: Meaning[Annotated[Finite, Unit("1/ms")]] = -6 / 5000
    """Reward per ms that passes. Negative: faster is better."""
    reward_per_m_advanced_along_centerline: Meaning[Annotated[Finite, Unit("1/m")]] = 5 / 500
    """Reward per metre along the reference line."""
    final_speed_reward_per_m_per_s: Meaning[Annotated[Finite, Unit("1/(m/s)")]] = 0.0
    """Reward per m/s gained while the car moves forwards, taken back for speed lost; 0 for none."""
    engineered_speedslide_reward_schedule: Meaning[Schedule[Finite]] = NOTHING
    """Reward per action for speed slides (linear between entries)."""
    engineered_neoslide_reward_schedule: Meaning[Schedule[Finite]] = NOTHING
    """Reward per action for neo slides (linear between entries)."""
    engineered_kamikaze_reward_schedule: Meaning[Schedule[Finite]] = NOTHING
    """Reward per action for kamikaze driving (linear between entries)."""
    engineered_close_to_vcp_reward_schedule: Meaning[Schedule[Finite]] = NOTHING
    """Reward per action and metre of distance to the zone's centre (linear between entries)."""
    shaped_reward_dist_to_cur_vcp: Meaning[Annotated[Finite, Unit("1/m")]] = 0.0
    """Potential: factor of the distance to the zone's centre. Negative draws the car to the line; 0 for none."""
    shaped_reward_point_to_vcp_ahead: Meaning[Finite] = 0.0
    """Potential: factor of how well the car points along the line ahead; 0 for none."""


class ReplaySettings(Group):
    """Replay memory, and how a batch of mini-races is drawn from it."""

    memory: Stored[Part] = "trackmania_rl.training.building:make_memory"
    """Replay memory, replaceable by your own: docs/own_parts.rst."""
    batch_size: Annotated[PositiveInt, Field(le=1_000_000), Unit("transitions")] = 64
    """Transitions in one batch."""
    memory_size_schedule: Schedule[PositiveInt] = ((0, 200_000),)
    """Transitions remembered, training and test together; the last entry reached holds."""
    replay_storage: Stored[Literal["ram", "disk"]] = "ram"
    """Place of the replay memory: "disk" for one larger than RAM, in files of save/RUN/replay: docs/long_runs.rst."""
    memory_size_start_learn_schedule: Schedule[PositiveInt] = ((0, 2_000),)
    """Transitions before learning starts (warm-up); the last entry reached holds."""
    number_times_single_memory_is_used_before_discard: PositiveFloat = 4.0
    """Replay ratio: how often each transition is trained on before it is discarded, on average."""
    buffer_test_ratio: Stored[ShareBelow1] = 0.05
    """Train/test split: share of transitions for the test loss, never trained on."""
    n_steps: Stored[Actions] = 3
    """Actions that one transition spans."""
    discard_non_greedy_actions_in_nsteps: bool = False
    """Cut a transition short at the first exploratory action after its own."""
    no_done_at_end: bool = False
    """Bootstrap the value of the finish, too, as at a cut-off."""
    temporal_mini_race_duration_actions: Driver[Annotated[OrNone[PositiveInt], Unit("actions")]] = None
    """Length of a mini-race; Q is the sum of rewards within it. Published is 140 (7 s). None: gamma alone discounts."""
    oversample_long_term_steps: Annotated[NonNegativeInt, Unit("actions")] = 40
    """Long horizons are sampled more often: elapsed = max(0, abs(i) - 5), i random in [5 - this, duration + 5)."""
    prio_alpha: Fraction = 0.0
    """Prioritized replay: exponent of the priority; 0 for uniform sampling."""
    prio_beta: Fraction = 1.0
    """Share of the correction for it: exponent of the importance weights."""
    prio_epsilon: PositiveFloat = 2e-3
    """Added to the error of a transition for its priority."""
    transforms: Stored[Parts] = ()
    """torchrl transforms of sampled batches, such as augmentations (examples/image_shifts.py)."""
    demonstrations_share: Stored[ShareBelow1] = 0.0
    """Share of demonstrations in each batch. They are then stored apart and never overwritten; 0 to mix them in."""
    offline: Annotated[Stored[Texts], OF_MACHINE] = ()
    """Minari data sets to learn from, by id or folder; alone, if n_collectors = 0: docs/datasets.rst."""


class AgentSettings(Group):
    """Network, IQN loss, optimizer, target network."""

    agent: Shape[Part] = "trackmania_rl.agents.builder:IQN"
    """Agent, which learns and decides, replaceable by your own: docs/own_parts.rst."""
    network: Shape[Part] = "trackmania_rl.agents.iqn:IQN_Network"
    """Network of the agent, replaceable by your own: docs/own_parts.rst."""
    conv_channels: Shape[tuple[PositiveInt, ...]] = (16, 32, 64, 32)
    """Channels of the image head's convolutions."""
    conv_kernel_sizes: Shape[tuple[PositiveInt, ...]] = (4, 4, 3, 3)
    """Kernel sizes of the image head's convolutions."""
    conv_strides: Shape[tuple[PositiveInt, ...]] = (2, 2, 2, 1)
    """Strides of the image head's convolutions."""
    float_hidden_dim: Shape[PositiveInt] = 256
    """Width of the two layers that read the floats."""
    use_layer_norm: Shape[bool] = True
    """Layer normalization in the layers that read the floats. The published network has none."""
    dense_hidden_dimension: Shape[PositiveInt] = 512
    """Width of the two dueling heads together."""
    iqn_embedding_dimension: Shape[PositiveInt] = 32
    """Number of cosines that embed a quantile."""
    quantile_factors_multiply: Driver[Literal["features", "hidden_layers"]] = "hidden_layers"
    """Factor of a quantile: on the features in front of the heads, as published, or, faster, on their hidden layers."""
    iqn_n: Annotated[int, Field(ge=2, multiple_of=2)] = 8
    """Quantiles per state in training; even, as they are symmetric around 0.5."""
    iqn_k: Shape[Annotated[int, Field(ge=2, multiple_of=2)]] = 32
    """Quantiles per state in play; even."""
    iqn_kappa: PositiveFloat = 5e-3
    """Threshold of the quantile Huber loss between square and linear."""
    demonstrations_margin: NonNegativeFloat = 0.0
    """Margin of DQfD, in reward: a demonstration's action must be better by it; needs demonstrations_share. 0: off."""
    use_ddqn: bool = False
    """Double DQN: the online network chooses the next action, the target network values it."""
    target_action: Literal["max_of_each_quantile", "argmax_of_mean"] = "argmax_of_mean"
    """How the target chooses the next action without double DQN. "argmax_of_mean" overestimates less."""
    expected_reward_per_action: Driver[Finite] = -0.045
    """Value baseline: Q = network + this x the actions left in the mini-race, or x 50 without; 0 for none."""
    gamma_schedule: Schedule[Discount] = ((0, 0.98), (300_000, 0.98), (1_200_000, 0.99))
    """Discount of the next action (linear between entries). Mini-races allow 1."""
    lr_schedule: Schedule[NonNegativeFloat] = ((0, 1e-3), (600_000, 2e-4), (2_000_000, 4e-5), (6_000_000, 1e-5))
    """Learning rate (exponential between entries)."""
    adam_epsilon: PositiveFloat = 1e-4
    """Epsilon of RAdam."""
    adam_beta1: ShareBelow1 = 0.9
    """Decay of RAdam's mean of gradients."""
    adam_beta2: ShareBelow1 = 0.999
    """Decay of RAdam's mean of squared gradients."""
    weight_decay_lr_ratio: NonNegativeFloat = 1 / 50
    """Weight decay: each step multiplies the weights by 1 - learning rate x this."""
    clip_grad_value: PositiveFloat = 1000.0
    """Bound of each entry of the gradient."""
    clip_grad_norm: PositiveFloat = 30.0
    """Bound of the norm of all gradients together."""
    autocast_dtype: Shape[Literal["auto", "float32", "float16", "bfloat16"]] = "auto"
    """Arithmetic of the networks. "auto": float16 on a GPU; on a processor bfloat16 if it is faster, or float32."""
    soft_update_tau: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share by which the target network moves towards the online one."""
    number_memories_trained_on_between_target_network_updates: Annotated[PositiveInt, Unit("transitions")] = 64
    """Transitions trained on between two updates of the target network."""
    evaluation_weights_decay: ShareBelow1 = 0.998
    """Decay of the averaged weights in evaluation races, per publication of weights; 0 for no average."""
    reset_every_n_frames_generated: Annotated[NonNegativeInt, Unit("frames")] = 0
    """Frames between two resets, which mix the network with a fresh one; 0 for never."""
    single_reset_flag: Annotated[int, Field(ge=0)] = 0
    """Another number than before resets the network once, while the run trains."""
    overall_reset_mul_factor: Fraction = 0.01
    """Share of the fresh network at a reset."""
    last_layer_reset_mul_factor: Fraction = 0.8
    """The same in the last layers of the heads."""
    additional_transitions_after_reset: Annotated[NonNegativeInt, Unit("transitions")] = 1_600_000
    """Transitions trained on after a reset beyond those of the replay ratio."""


class ExplorationSettings(Group):
    """Departure of a collector from the greedy action."""

    epsilon_schedule: Schedule[Fraction] = ((0, 1.0), (2_000, 1.0), (50_000, 0.1), (400_000, 0.03))
    """Probability of a random action in an exploration race (exponential between entries)."""
    epsilon_boltzmann_schedule: Schedule[Fraction] = ((0, 0.15), (400_000, 0.03))
    """Probability, beside epsilon, of the best action after noise was added to Q."""
    random_action_throttle_probability: OrNone[Fraction] = 0.7
    """Probability that a random action accelerates and does not brake; None draws evenly."""


class SyncSettings(Group):
    """How weights travel from the learner to the collectors, and rollouts back."""

    send_shared_network_every_n_batches: Annotated[PositiveInt, Unit("batches")] = 20
    """Batches between two publications of the learner's weights."""
    sampling: Collector[Literal["asynchronous", "synchronous", "alternating"]] = "asynchronous"
    """Collectors and learner run side by side, in turns (exact repeats), or in two halves: docs/collectors.rst."""
    batch_mode: Collector[Literal["complete_episodes", "truncate_episodes"]] = "complete_episodes"
    """What the learner gets: whole races, or fragments of races under way."""
    rollout_fragment_length: Collector[Actions] = 50
    """Length of a fragment."""
    min_samples_per_worker_packet: Collector[Actions] = 1
    """Actions that a worker (train.py --workers) gathers before it sends their races."""
    sample_compressor: Collector[Part] = "trackmania_rl.channels.over_grpc:SampleCompressor"
    """Part that makes a race's columns smaller on a worker, and rebuilds them on the learner: docs/own_parts.rst."""

    @property
    def is_synchronous(self) -> bool:
        """True if collectors and learner take turns."""
        return self.sampling == "synchronous"

    @property
    def fragment_length_actions(self) -> int | None:
        """Length of a fragment; None for whole races."""
        return self.rollout_fragment_length if self.batch_mode == "truncate_episodes" else None


class TelemetrySettings(Group):
    """What is shown and written while a run is on."""

    loggers: Restart[Loggers] = ("tensorboard",)
    """Loggers of figures, or torchrl loggers of your own; () for none: docs/loggers.rst."""
    record_every_n_evaluations: Annotated[NonNegativeInt, Unit("evaluation races")] = 0
    """Of each map, evaluation races between two recordings with a video; 0 for never: docs/loggers.rst."""
    record_every_s: Annotated[NonNegativeFloat, Unit("s")] = 0.0
    """Of each map, training time between two such recordings; 0 for never."""
    tensorboard_interval_s: Seconds = 10.0
    """Time between two rows of the loggers' figures."""
    pictures_interval_s: Annotated[NonNegativeFloat, Unit("s")] = 600.0
    """Time between two sets of diagnostics in the run's diagnostics/; 0 for none: docs/reading_a_run.rst."""
    terminal_view: Restart[Literal["auto", "live", "plain", "off"]] = "auto"
    """A live table, plain lines or none. "auto" is "live" in a terminal, and else "plain"."""


class UserSettings(Group):
    """This machine's own paths and names, from user_config.py."""

    game_command: Restart[str] = ""
    """Command line that starts one game instance on Linux, with {port} in it."""
    trackmania_base_path: Restart[str] = ""
    """Folder of the game's own documents (Tracks, Config)."""
    tmloader_path: Restart[str] = ""
    """TMLoader's program (Windows); empty for where its installer puts it."""
    tmloader_profile_name: Restart[str] = "default"
    """TMLoader's profile that loads TMInterface."""
    username: Restart[str] = ""
    """Login of your online account; empty: the game asks."""


class Settings(Group):
    """A whole configuration: frozen, validated, picklable, one attribute for each group."""

    run: RunSettings
    game: GameSettings
    observation: ObservationSettings
    reward: RewardSettings
    replay: ReplaySettings
    agent: AgentSettings
    exploration: ExplorationSettings
    sync: SyncSettings
    telemetry: TelemetrySettings
    user: UserSettings

    @property
    def takes_turns(self) -> bool:
        """True if collectors and learner take turns, which a run without collectors does not."""
        return self.sync.is_synchronous and self.game.n_collectors > 0

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flat name, as in the configuration files."""
        return {name: value for _, group in self for name, value in group}

    @model_validator(mode="after")
    def _values_fit_together(self) -> Settings:
        for contradiction in _contradictions(self):
            raise ValueError(contradiction)
        return self


_BLOCKS_OF_REWARDS: Final[dict[str, tuple[str, ...]]] = {
    "final_speed_reward_per_m_per_s": ("velocity_m_s",),
    "engineered_speedslide_reward_schedule": ("velocity_m_s", "wheel_has_ground_contact"),
    "engineered_neoslide_reward_schedule": ("velocity_m_s", "wheel_has_ground_contact"),
    "engineered_kamikaze_reward_schedule": ("previous_actions", "wheel_has_ground_contact"),
    "engineered_close_to_vcp_reward_schedule": ("zone_centers_m",),
    "shaped_reward_dist_to_cur_vcp": ("zone_centers_m",),
    "shaped_reward_point_to_vcp_ahead": ("zone_centers_m",),
}
"""Rewards that are computed from the observation, by the blocks that they need."""


def _contradictions(settings: Settings) -> Iterator[str]:
    game = settings.game
    observation = settings.observation
    reward = settings.reward
    replay = settings.replay
    agent = settings.agent
    sync = settings.sync

    smallest = min(size for _, size in replay.memory_size_schedule)
    start = replay.memory_size_start_learn_schedule[0][1]
    duration = replay.temporal_mini_race_duration_actions
    if start > smallest:
        yield f"memory_size_start_learn_schedule {start} > memory_size_schedule {smallest}: learning would never start"
    if duration is not None and replay.oversample_long_term_steps > duration:
        yield f"oversample_long_term_steps is above temporal_mini_race_duration_actions = {duration}"
    if agent.demonstrations_margin > 0 and replay.demonstrations_share == 0:
        yield "demonstrations_margin needs demonstrations_share above 0, as no other transitions are marked"
    if len({len(agent.conv_channels), len(agent.conv_kernel_sizes), len(agent.conv_strides)}) != 1:
        yield "conv_channels, conv_kernel_sizes and conv_strides have one entry for each convolution"
    if sync.sampling == "alternating" and game.games_per_collector < 2:
        yield 'sampling = "alternating" is for two halves of a collector\'s games: set games_per_collector to 2 or more'

    is_simulated = game.game == "simulated"
    measures_in = observation.range_finder_source if RANGE_FINDER in observation.observation_blocks else ""
    if ROAD_AHEAD in observation.observation_blocks and not is_simulated:
        yield f'"{ROAD_AHEAD}" in observation_blocks reads the simulated game\'s tracks: leave it out'
    if measures_in == "track" and not is_simulated:
        yield 'range_finder_source = "track" reads the simulated game\'s tracks: set it to "picture"'
    if measures_in == "picture" and game.image_width_px == 0:
        yield 'range_finder_source = "picture" needs an image: set image_width_px = 160 and image_height_px = 120'
    if (game.image_width_px == 0) != (game.image_height_px == 0):
        yield "image_width_px and image_height_px are both 0 (no image) or both positive"
    if game.frames_per_state not in (0, 1) and game.image_width_px == 0:
        yield f"frames_per_state = {game.frames_per_state} needs an image: set image_width_px and image_height_px, or 1"

    if game.tmi_ports and game.tmi_ports[-1] > LAST_PORT:
        yield f"base_tmi_port = {game.base_tmi_port}: the last of {len(game.tmi_ports)} games would pass {LAST_PORT}"
    if game.action_forward_idx >= len(game.inputs):
        yield f"action_forward_idx = {game.action_forward_idx} is no index into the {len(game.inputs)} inputs"
    if game.games_are_kept and game.is_in_process:
        yield 'games_are_kept = True is for games that scripts/keep_games.py runs: set game_transport = "socket"'

    names = [name for name, _, _ in settings.run.stages]
    without_end = Until()
    if len({*names}) < len(names):
        yield f"stages: two of {', '.join(names)} have the same name"
    for name, values, until in settings.run.stages:
        if until == without_end and name != names[-1]:
            yield f"stages: {name} never ends: give it max_updates or max_frames, as in {{'max_updates': 6000}}"
        for setting in values:
            if setting not in FIELDS or setting in ("stages", "run_name"):
                yield f"stages: {name} has {setting}, which is no setting of a stage"

    generated = {entry.map_name for entry in game.map_cycle if entry.generator is not None}
    others = {entry.map_name for entry in game.map_cycle if entry.generator is None}
    for entry in game.map_cycle:
        if entry.generator is not None:
            is_complete = entry.map_path == entry.reference_line == ""
        elif game.games == RACES:
            is_complete = "" not in (entry.map_path, entry.reference_line)
        else:  # levels of an environment need no line
            is_complete = entry.map_path != "" or entry.reference_line == ""
        if not is_complete:
            yield f"map {entry.map_name!r}: give map_path and reference_line, or a generator"
    for name in (demonstration.map_name for demonstration in game.demonstrations):
        if name not in others:
            yield f"demonstrations: map {name!r} is not in map_cycle; it has {', '.join(sorted(others)) or 'none'}"
    if of_both_kinds := generated & others:
        yield f"map_cycle uses the name {min(of_both_kinds)!r} for a map and for a generator: give them two names"
    if generated and not is_simulated:
        yield f"map_cycle has the generator {min(generated)!r}: only the simulated game drives generated tracks"

    if reward.shaped_reward_point_to_vcp_ahead != 0 and observation.n_zone_centers_in_inputs < 2:
        yield "shaped_reward_point_to_vcp_ahead needs n_zone_centers_in_inputs of 2 or more, or leave the reward at 0"
    for name, blocks in _BLOCKS_OF_REWARDS.items():
        missing = [block for block in blocks if block not in observation.observation_blocks]
        if missing and (value := getattr(reward, name)) not in (0, NOTHING):
            yield f"{name} = {value} is computed from {missing[0]}: name it in observation_blocks, or set it to 0"


def groups() -> dict[str, type[Group]]:
    """Return each group's model by its name in `Settings`."""
    return {name: field.annotation for name, field in Settings.model_fields.items()}  # type: ignore[misc]


FIELDS: Final = {name: field for model in groups().values() for name, field in model.model_fields.items()}
DEFAULTS: Final = {name: field.default for name, field in FIELDS.items() if not field.is_required()}
"""Default of each setting; the companions of a configuration set the others."""


def _marked(mark: str) -> frozenset[str]:
    return frozenset(name for name, field in FIELDS.items() if mark in field.metadata)


NEEDS_RESTART: Final = _marked(RESTART)
"""Settings that shape networks, buffers or processes: an edit of them waits for the run's next start."""
DRIVER_SETTINGS: Final = _marked(OF_DRIVER)
"""Settings that define a network, its inputs and outputs. A driver's file holds these and no others."""
COLLECTOR_SETTINGS: Final = DRIVER_SETTINGS | _marked(OF_COLLECTOR)
"""Settings that a running collector depends on. A worker whose learner has others is started again."""
SHAPING_SETTINGS: Final = DRIVER_SETTINGS | _marked(OF_MEMORY)
"""Settings that shape networks and replay memory."""
MACHINE_SETTINGS: Final = _marked(OF_MACHINE)
"""Settings of one machine. A worker does not take them from its learner."""
MEANING_SETTINGS: Final = _marked(MEANING)
"""Settings that change the meaning of a network's values."""
