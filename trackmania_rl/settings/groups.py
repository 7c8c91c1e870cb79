"""The settings by group: name, range, unit, default, description, and checks of values that must fit together.

`Restart` marks a setting whose change waits for the run's next start. The text below a field is its description in
`--list-settings`, the documentation, the live page and a run's settings.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from trackmania_rl.settings.game import RACES, GameSettings
from trackmania_rl.settings.values import (
    OF_DRIVER,
    RESTART,
    Actions,
    BlockStatistics,
    Device,
    DiscountSchedule,
    Driver,
    Finite,
    Fraction,
    Group,
    LearningRateSchedule,
    Loggers,
    NamedPart,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    Parts,
    PositiveFloat,
    PositiveInt,
    Restart,
    RunName,
    Schedule,
    Seconds,
    Texts,
    Unit,
    shifts_of,
)

RANGE_FINDER: Final = "range_finder_m"
"""Block of the observation with the distances to the road's borders."""
ROAD_AHEAD: Final = "road_ahead"
"""Block of the observation that describes the road at the zones ahead."""
NOTHING: Final = ((0, 0.0),)
"""Schedule of a reward that is switched off."""

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


class ViewSettings(Group):
    """A view of a column of the rows around a state."""

    column: str
    shift: int | str | tuple[int, ...]
    input: bool = True

    @field_validator("shift")
    @classmethod
    def _is_a_shift(cls, shift: int | str | tuple[int, ...]) -> int | str | tuple[int, ...]:
        shifts_of(shift)
        return shift


class RunSettings(Group):
    """The run as a whole: its name, its seed, the machine's arithmetic."""

    run_name: Restart[RunName] = "simulated"
    """Name of the run: its files are in save/{run_name}/ and tensorboard/{run_name}/. The same name resumes."""
    seed: Restart[NonNegativeInt] = 0
    """Seed of every random draw. Collectors, learner and network derive their own seeds from it."""
    schedule_stretch: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the frame counts of all schedules: 0.5 for an easy or short map, 2 for a long or hard one."""
    torch_device: Restart[Device] = "auto"
    """Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0"."""
    collector_device: Restart[Device] = "auto"
    """Device of the collectors' networks. "auto" is the learner's device with an image, and else the processor."""
    learner_threads: Restart[PositiveInt | Literal["auto"]] = "auto"
    """Processor threads of the learner. "auto" measures at the start whether one thread or all free cores are
    faster."""
    use_torch_compile: Restart[bool] = True
    """Compile the update with torch.compile: 1.4 to 1.7 times as fast, after 15 s. A processor needs a C++ compiler."""
    checkpoint_interval_s: Seconds = 300.0
    """Time between two checkpoints. The first ones of a new run come sooner."""
    checkpoint_holds_replay: bool = True
    """Whether checkpoints hold the replay buffer, for an exact resume: 150 MB without images, gigabytes with them."""
    keep_driver_every_s: Annotated[NonNegativeFloat, Unit("s")] = 0.0
    """Time after which the driver is kept in drivers/ (1 to 26 MB each, see scripts/evaluate.py); 0 for never."""
    minimum_free_disk_mb: Annotated[NonNegativeInt, Unit("MB")] = 200
    """Free disk below which no checkpoint is begun. Logs pause earlier."""
    collector_silence_s: Seconds = 30.0
    """Time without a heartbeat after which a collector is killed with its games and restarted."""
    learner_silence_s: Seconds = 60.0
    """Time without a heartbeat after which --supervised kills and restarts the training."""
    hooks: Restart[Parts] = ()
    """Hooks of the training loop, such as ("my_hooks:LogSpeed",): docs/own_parts.rst."""


class ObservationSettings(Group):
    """What the float part of the observation holds (reference: 184 floats with the published values)."""

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
    """Blocks of floats that the agent sees, in any order: docs/observation.rst. There are also speed_m_s,
    range_finder_m and road_ahead."""
    views: Driver[dict[Annotated[str, Field(pattern=r"^[a-z]\w*$")], ViewSettings]] = Field({})
    """Earlier states and actions that the agent sees, such as {"last_gears": {"column": "gear", "shift": "-3:-1"}}:
    docs/views.rst."""
    range_finder_source: Driver[Literal["track", "picture"]] = "track"
    """Where the range finder measures: on the simulated game's track, or in the picture, as the real game needs."""
    n_prev_actions_in_inputs: Driver[PositiveInt] = 5
    """Number of previous actions in the observation."""
    n_zone_centers_in_inputs: Driver[PositiveInt] = 40
    """Number of zone centres ahead in the observation."""
    one_every_n_zone_centers_in_inputs: Driver[PositiveInt] = 20
    """Zones from one centre in the observation to the next: 40 x 20 zones of 0.5 m are 400 m ahead."""
    fourier_wavelengths: Driver[dict[str, tuple[PositiveFloat, ...]]] = Field(
        {
            "zone_centers_m": (32.0, 16.0, 8.0, 4.0),
            "velocity_m_s": (64.0, 32.0, 16.0, 8.0),
            "angular_velocity_rad_s": (8.0, 4.0, 2.0),
        }
    )
    """Wavelengths of the sine and cosine features of a block, in its unit; {} for none: docs/observation.rst."""
    state_normalization: Driver[dict[str, BlockStatistics]]
    """Means and standard deviations by which blocks of the observation are normalized, from state_normalization.py."""


class RewardSettings(Group):
    """Reward of one action and the shaping potential of one state."""

    reward: Restart[Part] = "trackmania_rl.race.rewards:RaceReward"
    """Reward of an action, as a part of your own: docs/own_parts.rst."""
    constant_reward_per_ms: Annotated[Finite, Unit("1/ms")] = -6 / 5000
    """Reward per ms that passes. Negative: faster is better."""
    reward_per_m_advanced_along_centerline: Annotated[Finite, Unit("1/m")] = 5 / 500
    """Reward per metre along the reference line."""
    final_speed_reward_per_m_per_s: Annotated[Finite, Unit("1/(m/s)")] = 0.0
    """Reward per m/s gained while the car moves forwards, taken back for speed lost; 0 for none."""
    engineered_speedslide_reward_schedule: Schedule = NOTHING
    """Reward per action for speed slides, by frame count (linear between entries)."""
    engineered_neoslide_reward_schedule: Schedule = NOTHING
    """Reward per action for neo slides, by frame count (linear between entries)."""
    engineered_kamikaze_reward_schedule: Schedule = NOTHING
    """Reward per action for kamikaze driving, by frame count (linear between entries)."""
    engineered_close_to_vcp_reward_schedule: Schedule = NOTHING
    """Reward per action and metre of distance to the zone's centre, by frame count (linear between entries)."""
    shaped_reward_dist_to_cur_vcp: Annotated[Finite, Unit("1/m")] = 0.0
    """Potential-based shaping: factor of the distance to the zone's centre. Negative draws the car to the line; 0 for
    none."""
    shaped_reward_point_to_vcp_ahead: Finite = 0.0
    """Potential-based shaping: factor of how well the car points along the line ahead; 0 for none."""


class ReplaySettings(Group):
    """What is remembered, and how a batch of mini-races is drawn from it."""

    memory: Restart[Part] = "trackmania_rl.training.building:make_memory"
    """Replay memory, as a part of your own: docs/own_parts.rst."""
    batch_size: Annotated[PositiveInt, Field(le=1_000_000), Unit("transitions")] = 64
    """Transitions in one batch."""
    memory_size_schedule: Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], Field(min_length=1)] = (
        (0, 200_000),
    )
    """Transitions remembered, training and test together, by frame count; the last entry reached holds."""
    memory_size_start_learn_schedule: Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], Field(min_length=1)] = (
        (0, 2_000),
    )
    """Transitions before learning starts (warm-up), by frame count; the last entry reached holds."""
    number_times_single_memory_is_used_before_discard: PositiveFloat = 4.0
    """Replay ratio: how often each transition, of the test side too, is trained on before it is discarded, on
    average."""
    buffer_test_ratio: Restart[Annotated[float, Field(ge=0, lt=1)]] = 0.05
    """Train/test split: share of transitions for the test loss, never trained on."""
    n_steps: Restart[Actions] = 3
    """Actions that one transition spans."""
    discard_non_greedy_actions_in_nsteps: bool = False
    """Cut a transition short at the first exploratory action after its own."""
    no_done_at_end: bool = False
    """Bootstrap the value of the finish, too, as at a cut-off."""
    temporal_mini_race_duration_actions: Driver[Annotated[PositiveInt | None, Unit("actions")]] = 100
    """Length of a mini-race; Q is the sum of rewards within it. 100 x 50 ms = 5 s; published is 7 s. None:
    gamma_schedule alone discounts."""
    oversample_long_term_steps: Annotated[NonNegativeInt, Unit("actions")] = 40
    """Long horizons are sampled more often: elapsed = abs(uniform integer in [5 - long, duration + 5)) - 5, at
    least 0."""
    prio_alpha: Fraction = 0.0
    """Prioritized replay: exponent of the priority; 0 for uniform sampling."""
    transforms: Restart[Parts] = ()
    """torchrl transforms of sampled batches, such as augmentations (examples/image_shifts.py)."""
    offline: Restart[Texts] = ()
    """Minari data sets to learn from, by id or folder. With n_collectors = 0 a run learns from them alone:
    docs/datasets.rst."""

    @model_validator(mode="after")
    def _learning_can_start(self) -> ReplaySettings:
        smallest = min(size for _, size in self.memory_size_schedule)
        start = self.memory_size_start_learn_schedule[0][1]
        if start > smallest:
            raise ValueError(
                f"memory_size_start_learn_schedule begins with {start} transitions, more than the smallest memory "
                f"({smallest} in memory_size_schedule): learning would never start"
            )
        duration_actions = self.temporal_mini_race_duration_actions
        if duration_actions is not None and self.oversample_long_term_steps > duration_actions:
            raise ValueError(
                f"oversample_long_term_steps = {self.oversample_long_term_steps} is more than the mini-race lasts "
                f"(temporal_mini_race_duration_actions = {duration_actions})"
            )
        return self


class AgentSettings(Group):
    """Network, IQN loss, optimizer, target network."""

    agent: Driver[Part] = "trackmania_rl.agents.builder:IQN"
    """Agent, which learns and decides, as a part of your own: docs/own_parts.rst."""
    network: Driver[Part] = "trackmania_rl.agents.iqn:IQN_Network"
    """Network of IQN, as a part of your own: docs/own_parts.rst."""
    conv_channels: Driver[tuple[PositiveInt, ...]] = (16, 32, 64, 32)
    """Channels of the image head's convolutions."""
    conv_kernel_sizes: Driver[tuple[PositiveInt, ...]] = (4, 4, 3, 3)
    """Kernel sizes of the image head's convolutions."""
    conv_strides: Driver[tuple[PositiveInt, ...]] = (2, 2, 2, 1)
    """Strides of the image head's convolutions."""
    float_hidden_dim: Driver[PositiveInt] = 256
    """Width of the two layers that read the floats."""
    use_layer_norm: Driver[bool] = True
    """Layer normalization in the layers that read the floats. The published network has none."""
    dense_hidden_dimension: Driver[PositiveInt] = 512
    """Width of the two dueling heads together."""
    iqn_embedding_dimension: Driver[PositiveInt] = 32
    """Number of cosines that embed a quantile."""
    quantile_factors_multiply: Driver[Literal["features", "hidden_layers"]] = "hidden_layers"
    """What a quantile multiplies: the features in front of the heads, as published, or the heads' hidden layers, which
    is faster."""
    iqn_n: Annotated[int, Field(ge=2, multiple_of=2)] = 8
    """Quantiles per state in training; even, as they are symmetric around 0.5."""
    iqn_k: Driver[Annotated[int, Field(ge=2, multiple_of=2)]] = 32
    """Quantiles per state in play; even."""
    iqn_kappa: PositiveFloat = 5e-3
    """Threshold of the quantile Huber loss between square and linear."""
    use_ddqn: bool = False
    """Double DQN: the online network chooses the next action, the target network values it."""
    target_action: Literal["max_of_each_quantile", "argmax_of_mean"] = "argmax_of_mean"
    """How the target chooses the next action without double DQN. "argmax_of_mean" overestimates less."""
    expected_reward_per_action: Driver[Finite] = -0.045
    """Value baseline: Q = network + this x the actions left in the mini-race; 0 for none."""
    gamma_schedule: DiscountSchedule = ((0, 0.999), (600_000, 0.999), (1_500_000, 1.0))
    """Discount of the next action, by frame count (linear between entries). Mini-races allow 1."""
    lr_schedule: LearningRateSchedule = ((0, 1e-3), (600_000, 2e-4), (2_000_000, 4e-5), (6_000_000, 1e-5))
    """Learning rate, by frame count (exponential between entries)."""
    adam_epsilon: PositiveFloat = 1e-4
    """Epsilon of RAdam."""
    weight_decay_lr_ratio: NonNegativeFloat = 1 / 50
    """Weight decay: each step multiplies the weights by 1 - learning rate x this."""
    clip_grad_norm: PositiveFloat = 30.0
    """Bound of the norm of all gradients together."""
    autocast_dtype: Driver[Literal["float32", "float16", "bfloat16"]] = "float16"
    """Arithmetic of the networks. A processor uses bfloat16 where it has AMX, and else float32."""
    soft_update_tau: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share by which the target network moves towards the online one."""
    number_memories_trained_on_between_target_network_updates: Annotated[PositiveInt, Unit("transitions")] = 64
    """Transitions trained on between two updates of the target network."""
    evaluation_weights_decay: Annotated[float, Field(ge=0, lt=1)] = 0.998
    """Decay of the averaged weights in evaluation races, per publication of weights; 0 for no average."""
    reset_every_n_frames_generated: Annotated[NonNegativeInt, Unit("frames")] = 0
    """Frames between two resets, which mix the network with a fresh one; 0 for never."""

    @model_validator(mode="after")
    def _convolutions_fit(self) -> AgentSettings:
        lengths = {len(self.conv_channels), len(self.conv_kernel_sizes), len(self.conv_strides)}
        if len(lengths) != 1:
            raise ValueError("conv_channels, conv_kernel_sizes and conv_strides have one entry for each convolution")
        return self


class ExplorationSettings(Group):
    """How a collector departs from the greedy action."""

    epsilon_schedule: Schedule = ((0, 1.0), (2_000, 1.0), (50_000, 0.1), (400_000, 0.03))
    """Probability of a random action in an exploration race, by frame count (exponential between entries)."""
    epsilon_boltzmann_schedule: Schedule = ((0, 0.15), (400_000, 0.03))
    """Probability, beside epsilon, of the best action after noise was added to Q, by frame count."""
    random_action_throttle_probability: Annotated[float, Field(ge=0, le=1)] | None = 0.7
    """Probability that a random action accelerates and does not brake; None draws evenly."""

    @field_validator("epsilon_schedule", "epsilon_boltzmann_schedule")
    @classmethod
    def _are_probabilities(cls, schedule: Schedule) -> Schedule:
        if any(not 0 <= value <= 1 for _, value in schedule):
            raise ValueError("the values are probabilities, between 0 and 1")
        return schedule


class SyncSettings(Group):
    """How weights travel from the learner to the collectors, and rollouts back."""

    send_shared_network_every_n_batches: Annotated[PositiveInt, Unit("batches")] = 20
    """Batches between two publications of the learner's weights."""
    sampling: Restart[Literal["asynchronous", "synchronous", "alternating"]] = "asynchronous"
    """How collectors and learner go together: side by side, in turns (same seed, same bytes), or in two halves of
    games: docs/sampling.rst."""
    batch_mode: Restart[Literal["complete_episodes", "truncate_episodes"]] = "complete_episodes"
    """What the learner gets: whole races, or fragments of races under way."""
    rollout_fragment_length: Restart[Actions] = 50
    """Length of a fragment."""

    @property
    def is_synchronous(self) -> bool:
        """Whether collectors and learner take turns."""
        return self.sampling == "synchronous"

    @property
    def fragment_length_actions(self) -> int | None:
        """How much of a race is handed on at a time; None for whole races."""
        return self.rollout_fragment_length if self.batch_mode == "truncate_episodes" else None


class TelemetrySettings(Group):
    """What is shown and written while a run is on."""

    loggers: Restart[Loggers] = ("tensorboard",)
    """Where figures go: any of these, or a torchrl logger of your own; () for none: docs/loggers.rst."""
    record_every_n_evaluations: Annotated[NonNegativeInt, Unit("evaluated races")] = 0
    """Of each map, evaluation races between two recordings with a video; 0 for never: docs/videos.rst."""
    tensorboard_interval_s: Seconds = 10.0
    """Time between two rows of the loggers' figures."""
    pictures_interval_s: Annotated[NonNegativeFloat, Unit("s")] = 600.0
    """Time between two sets of diagnostics in the run's diagnostics/; 0 for none: docs/diagnostics.rst."""
    terminal_view: Restart[Literal["auto", "live", "plain", "off"]] = "auto"
    """View in the terminal: a live table, plain lines or none. "auto" is "live" in a terminal, and else "plain"."""

    @field_validator("loggers")
    @classmethod
    def _each_logger_once(cls, loggers: tuple[str | NamedPart, ...]) -> tuple[str | NamedPart, ...]:
        if len(set(map(str, loggers))) < len(loggers):
            raise ValueError("each logger is named once")
        return loggers


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

    @model_validator(mode="after")
    def _values_fit_together(self) -> Settings:
        for contradiction in _contradictions(self):
            raise ValueError(contradiction)
        return self

    @property
    def takes_turns(self) -> bool:
        """Whether collectors and learner take turns, which a run without collectors does not."""
        return self.sync.is_synchronous and self.game.n_collectors > 0

    def flat(self) -> dict[str, Any]:
        """Give every setting by its flat name, as in the configuration files."""
        return {
            name: getattr(getattr(self, group), name)
            for group, model in groups().items()
            for name in model.model_fields
        }


def _contradictions(settings: Settings) -> Iterator[str]:
    """Find values of several groups that do not fit together."""
    game, observation = settings.game, settings.observation
    yield from _contradictions_of_rewards(settings)
    value = settings.agent.expected_reward_per_action
    if value != 0 and settings.replay.temporal_mini_race_duration_actions is None:
        yield (
            f"expected_reward_per_action = {value} counts the actions left in a mini-race, but there are none "
            "(temporal_mini_race_duration_actions = None): set expected_reward_per_action = 0.0"
        )
    if ROAD_AHEAD in observation.observation_blocks and game.game != "simulated":
        yield (
            f'observation_blocks has "{ROAD_AHEAD}" with game = "{game.game}": only the simulated game\'s tracks have '
            "roads that can be read; leave the block out"
        )
    measures = RANGE_FINDER in observation.observation_blocks
    measures_in_picture = measures and observation.range_finder_source == "picture"
    if measures and not measures_in_picture and game.game != "simulated":
        yield (
            f'range_finder_source = "track" with game = "{game.game}": only the simulated game\'s tracks have borders '
            'that can be read; set range_finder_source = "picture"'
        )
    if measures_in_picture and not game.takes_pictures:
        yield (
            'range_finder_source = "picture" needs an image, but image_width_px and image_height_px are 0: set them, '
            "such as to 160 and 120"
        )
    if game.frames_per_state not in (0, 1) and not game.takes_pictures:
        yield (
            f"frames_per_state = {game.frames_per_state} needs an image, but image_width_px and image_height_px are 0: "
            "set them, or leave frames_per_state = 1"
        )
    if game.frames_per_state == 0 and game.takes_pictures and not measures_in_picture:
        yield (
            "frames_per_state = 0: nothing looks at the image; set image_width_px and image_height_px to 0, or "
            "frames_per_state to 1"
        )
    for entry in game.map_cycle:
        if game.games == RACES and not entry.has_files and entry.generator is None:
            yield (
                f"map {entry.map_name!r} has map_path = {entry.map_path!r}, reference_line = {entry.reference_line!r} "
                "and no generator: give map_path and reference_line, or a generator"
            )
    if game.n_collectors == 0 and not settings.replay.offline:
        yield (
            "n_collectors = 0 plays no game, and there is nothing else to learn from: name a data set, offline = "
            '"NAMESPACE/NAME-v0", or set n_collectors to 1 or more'
        )
    if game.n_collectors == 0 and game.demonstrations:
        yield (
            "n_collectors = 0, but collectors drive the demonstrations: record them as a data set "
            "(scripts/tools/dataset.py record) and name it in offline, or set n_collectors to 1 or more"
        )
    if settings.sync.sampling == "alternating" and game.games_per_collector < 2:
        yield (
            "sampling = 'alternating' is for two halves of a collector's games, but games_per_collector = "
            f"{game.games_per_collector}: set it to 2 or more, or sampling to 'asynchronous'"
        )


def _contradictions_of_rewards(settings: Settings) -> Iterator[str]:
    """Find rewards that do not fit the observation."""
    reward, observation = settings.reward, settings.observation
    pointing, n_centers = reward.shaped_reward_point_to_vcp_ahead, observation.n_zone_centers_in_inputs
    if pointing != 0 and n_centers < 2:
        yield (
            f"shaped_reward_point_to_vcp_ahead = {pointing} needs the direction of the line: set "
            f"n_zone_centers_in_inputs = {n_centers} to 2 or more, or leave the reward at 0"
        )
    for name, blocks in _BLOCKS_OF_REWARDS.items():
        value = getattr(reward, name)
        is_on = any(number != 0 for _, number in value) if isinstance(value, tuple) else value != 0
        missing = [block for block in blocks if block not in observation.observation_blocks]
        if is_on and missing:
            yield (
                f"{name} = {value} is computed from {missing[0]}, which observation_blocks leaves out: name it there, "
                "or leave the reward at 0"
            )


def groups() -> dict[str, type[Group]]:
    """Give each group's model by its name in `Settings`."""
    return {name: field.annotation for name, field in Settings.model_fields.items()}  # type: ignore[misc]


DEFAULTS: Final = {
    name: field.default
    for model in groups().values()
    for name, field in model.model_fields.items()
    if not field.is_required()
}
"""Default of each setting; the companions of a configuration set the others."""

OTHER_WORDS: Final = {
    "learning_rate": "lr_schedule",
    "lr": "lr_schedule",
    "gamma": "gamma_schedule",
    "epsilon": "epsilon_schedule",
    "buffer_size": "memory_size_schedule",
    "batch": "batch_size",
    "tau": "soft_update_tau",
    "n_step": "n_steps",
    "train_freq": "number_times_single_memory_is_used_before_discard",
    "learning_starts": "memory_size_start_learn_schedule",
}
"""Other libraries' words, and the settings that an error message suggests for them."""

REMOVED: Final[dict[str, Any]] = {
    "action_backward_idx": 6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "additional_transitions_after_reset": 1600000,
    "buffer_test_side_redraw_probability": 0.1,
    "clip_grad_value": 1000.0,
    "cluster_publish_every_s": 0.5,
    "collector_threads": 1,
    "crc_debug": False,
    "distance_between_zone_centers_m": 0.5,
    "engineered_reward_max_dist_to_cur_vcp_m": 25.0,
    "engineered_reward_min_dist_to_cur_vcp_m": 5.0,
    "fourier_zone_centers": 4,
    "game_camera_number": 2,
    "game_reboot_interval_s": 43200.0,
    "histogram_interval_s": 120.0,
    "keep_checkpoints": 3,
    "keep_driver_every_n_batches": 0,
    "keep_drivers_at_most": None,
    "last_layer_reset_mul_factor": 0.8,
    "learner_stall_s": 900.0,
    "margin_to_announce_finish_m": 700.0,
    "max_training_steps_per_environment_step": None,
    "min_horizon_to_update_priority_actions": 60,
    "most_not_finite_updates_in_a_row": 100,
    "ms_per_engine_tick": 10,
    "n_zone_centers_extrapolate_after_end_of_map": 1000,
    "n_zone_centers_extrapolate_before_start_of_map": 20,
    "output_layer_init_gain": 0.05,
    "overall_reset_mul_factor": 0.01,
    "oversample_maximum_term_steps": 5,
    "prio_beta": 1.0,
    "prio_epsilon": 0.002,
    "range_finder_border_gray": (200, 255),
    "range_finder_reach_m": 150.0,
    "real_checkpoint_radius_m": 12.0,
    "record_every_s": 0.0,
    "return_bounds_per_action": None,
    "road_ahead_zone_centers": 20,
    "road_width_m": 90.0,
    "rollout_slots_per_collector": 4,
    "shaped_reward_max_dist_to_cur_vcp_m": 25.0,
    "shaped_reward_min_dist_to_cur_vcp_m": 2.0,
    "target_self_loss_average_rate": 0.01,
    "target_self_loss_clamp_ratio": 4.0,
    "tau_epsilon_boltzmann": 0.01,
    "test_loss_every_n_batches": 50,
    "timeout_between_races_ms": 600000000,
    "timeout_during_race_ms": 10100,
    "update_inference_network_every_n_actions": 20,
    "use_target_self_loss_scaling": True,
}
"""Settings of earlier versions, with the constant that each has become."""
NO_LONGER_READ: Final = frozenset(
    {"action_backward_idx", "cluster_publish_every_s", "min_horizon_to_update_priority_actions"}
)
"""Those of them that may have any value: nothing used it, or it follows from other settings now."""

NEEDS_RESTART = frozenset(
    name for model in groups().values() for name, field in model.model_fields.items() if RESTART in field.metadata
)
"""Settings that shape networks, buffers or processes: an edit of them waits for the run's next start."""

DRIVER_SETTINGS = frozenset(
    name for model in groups().values() for name, field in model.model_fields.items() if OF_DRIVER in field.metadata
)
"""Settings that say what a network's inputs and outputs mean: observation, actions, mini-race, sizes. A driver's file
holds these and no others."""
