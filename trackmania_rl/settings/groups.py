"""The settings by group: name, range, unit, whether a change waits for a restart, and what must fit together.

All that checks or lists settings takes it from here. What each one does is said where users set it, in
`config_files/config.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from trackmania_rl.settings.game import RACES, GameSettings
from trackmania_rl.settings.named_part import NamedPart
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
    Meters,
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
"""The block of the observation that says how far the road's borders are."""
ROAD_AHEAD: Final = "road_ahead"
"""The one that says what the road is like at the zones ahead."""
GrayLevel = Annotated[int, Field(ge=0, le=255)]

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

    run_name: Restart[RunName]
    seed: Restart[NonNegativeInt]
    schedule_stretch: Annotated[float, Field(gt=0, le=1000)]
    torch_device: Restart[Device]
    collector_device: Restart[Device]
    learner_threads: Restart[PositiveInt | Literal["auto"]]
    collector_threads: Restart[PositiveInt]
    use_torch_compile: Restart[bool]
    checkpoint_interval_s: Seconds
    checkpoint_holds_replay: bool
    keep_checkpoints: Annotated[PositiveInt, Field(le=1000)]
    keep_driver_every_s: Annotated[NonNegativeFloat, Unit("s")]
    keep_driver_every_n_batches: Annotated[NonNegativeInt, Unit("batches")]
    keep_drivers_at_most: PositiveInt | None
    minimum_free_disk_mb: Annotated[NonNegativeInt, Unit("MB")]
    collector_silence_s: Seconds = 30.0
    learner_silence_s: Seconds = 60.0
    learner_stall_s: Seconds = 900.0
    hooks: Restart[Parts]
    crc_debug: Restart[bool]


class ObservationSettings(Group):
    """What the float part of the observation holds (reference: 184 floats with the published values)."""

    observation_blocks: Driver[Annotated[tuple[str, ...], Field(min_length=1)]]
    views: Driver[dict[Annotated[str, Field(pattern=r"^[a-z]\w*$")], ViewSettings]]
    range_finder_source: Driver[Literal["track", "picture"]]
    range_finder_reach_m: Driver[Annotated[float, Field(ge=1, le=1000), Unit("m")]]
    range_finder_border_gray: Driver[tuple[GrayLevel, GrayLevel]]
    n_prev_actions_in_inputs: Driver[PositiveInt]
    n_zone_centers_in_inputs: Driver[PositiveInt]
    one_every_n_zone_centers_in_inputs: Driver[PositiveInt]
    n_zone_centers_extrapolate_before_start_of_map: Driver[PositiveInt]
    n_zone_centers_extrapolate_after_end_of_map: Driver[PositiveInt]
    distance_between_zone_centers_m: Driver[Meters]
    road_width_m: Driver[Meters]
    real_checkpoint_radius_m: Driver[Meters]
    margin_to_announce_finish_m: Driver[Meters]
    fourier_wavelengths: Driver[dict[str, tuple[PositiveFloat, ...]]]
    fourier_zone_centers: Driver[NonNegativeInt]
    road_ahead_zone_centers: Driver[PositiveInt] = 20
    state_normalization: Driver[dict[str, BlockStatistics]]

    @field_validator("range_finder_border_gray")
    @classmethod
    def _grays_ascend(cls, grays: tuple[int, int]) -> tuple[int, int]:
        if grays[0] > grays[1]:
            raise ValueError("the darkest gray of the border comes first")
        return grays


class RewardSettings(Group):
    """Reward of one action and the shaping potential of one state."""

    reward: Restart[Part]
    constant_reward_per_ms: Annotated[Finite, Unit("1/ms")]
    reward_per_m_advanced_along_centerline: Annotated[Finite, Unit("1/m")]
    final_speed_reward_per_m_per_s: Annotated[Finite, Unit("1/(m/s)")]
    engineered_speedslide_reward_schedule: Schedule
    engineered_neoslide_reward_schedule: Schedule
    engineered_kamikaze_reward_schedule: Schedule
    engineered_close_to_vcp_reward_schedule: Schedule
    engineered_reward_min_dist_to_cur_vcp_m: Annotated[NonNegativeFloat, Unit("m")]
    engineered_reward_max_dist_to_cur_vcp_m: Meters
    shaped_reward_dist_to_cur_vcp: Annotated[Finite, Unit("1/m")]
    shaped_reward_min_dist_to_cur_vcp_m: Annotated[NonNegativeFloat, Unit("m")]
    shaped_reward_max_dist_to_cur_vcp_m: Meters
    shaped_reward_point_to_vcp_ahead: Finite


class ReplaySettings(Group):
    """What is remembered, and how a batch of mini-races is drawn from it."""

    memory: Restart[Part]
    batch_size: Annotated[PositiveInt, Field(le=1_000_000), Unit("transitions")]
    memory_size_schedule: Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], Field(min_length=1)]
    memory_size_start_learn_schedule: Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], Field(min_length=1)]
    number_times_single_memory_is_used_before_discard: PositiveFloat
    max_training_steps_per_environment_step: Annotated[PositiveFloat | None, Unit("batches/action")]
    buffer_test_ratio: Restart[Annotated[float, Field(ge=0, lt=1)]]
    buffer_test_side_redraw_probability: Annotated[float, Field(gt=0, le=1)]
    n_steps: Restart[Actions]
    discard_non_greedy_actions_in_nsteps: bool
    no_done_at_end: bool
    temporal_mini_race_duration_actions: Driver[Annotated[PositiveInt | None, Unit("actions")]]
    oversample_long_term_steps: Annotated[NonNegativeInt, Unit("actions")]
    oversample_maximum_term_steps: Annotated[NonNegativeInt, Unit("actions")]
    prio_alpha: Fraction
    prio_beta: Fraction
    prio_epsilon: PositiveFloat
    min_horizon_to_update_priority_actions: Annotated[PositiveInt | None, Unit("actions")]
    transforms: Restart[Parts]
    offline: Restart[Texts]

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

    agent: Driver[Part]
    network: Driver[Part]
    conv_channels: Driver[tuple[PositiveInt, ...]]
    conv_kernel_sizes: Driver[tuple[PositiveInt, ...]]
    conv_strides: Driver[tuple[PositiveInt, ...]]
    float_hidden_dim: Driver[PositiveInt]
    use_layer_norm: Driver[bool]
    dense_hidden_dimension: Driver[PositiveInt]
    iqn_embedding_dimension: Driver[PositiveInt]
    quantile_factors_multiply: Driver[Literal["features", "hidden_layers"]]
    iqn_n: Annotated[int, Field(ge=2, multiple_of=2)]
    iqn_k: Driver[Annotated[int, Field(ge=2, multiple_of=2)]]
    iqn_kappa: PositiveFloat
    use_ddqn: bool
    target_action: Literal["max_of_each_quantile", "argmax_of_mean"]
    target_self_loss_clamp_ratio: PositiveFloat
    expected_reward_per_action: Driver[Finite]
    gamma_schedule: DiscountSchedule
    lr_schedule: LearningRateSchedule
    adam_epsilon: PositiveFloat
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    weight_decay_lr_ratio: NonNegativeFloat
    clip_grad_value: PositiveFloat
    clip_grad_norm: PositiveFloat
    autocast_dtype: Driver[Literal["float32", "float16", "bfloat16"]]
    soft_update_tau: Annotated[float, Field(gt=0, le=1)]
    number_memories_trained_on_between_target_network_updates: Annotated[PositiveInt, Unit("transitions")]
    evaluation_weights_decay: Annotated[float, Field(ge=0, lt=1)]
    reset_every_n_frames_generated: Annotated[NonNegativeInt, Unit("frames")]
    overall_reset_mul_factor: Fraction
    last_layer_reset_mul_factor: Fraction
    additional_transitions_after_reset: Annotated[NonNegativeInt, Unit("transitions")]

    @model_validator(mode="after")
    def _convolutions_fit(self) -> AgentSettings:
        lengths = {len(self.conv_channels), len(self.conv_kernel_sizes), len(self.conv_strides)}
        if len(lengths) != 1:
            raise ValueError("conv_channels, conv_kernel_sizes and conv_strides have one entry for each convolution")
        return self


class ExplorationSettings(Group):
    """How a collector departs from the greedy action."""

    epsilon_schedule: Schedule
    epsilon_boltzmann_schedule: Schedule
    tau_epsilon_boltzmann: NonNegativeFloat
    random_action_throttle_probability: Annotated[float, Field(ge=0, le=1)] | None

    @field_validator("epsilon_schedule", "epsilon_boltzmann_schedule")
    @classmethod
    def _are_probabilities(cls, schedule: Schedule) -> Schedule:
        if any(not 0 <= value <= 1 for _, value in schedule):
            raise ValueError("the values are probabilities, between 0 and 1")
        return schedule


class SyncSettings(Group):
    """How weights travel from the learner to the collectors, and rollouts back."""

    send_shared_network_every_n_batches: Annotated[PositiveInt, Unit("batches")]
    update_inference_network_every_n_actions: Actions
    rollout_slots_per_collector: Restart[Annotated[int, Field(ge=1, le=64), Unit("races")]]
    cluster_publish_every_s: Restart[Annotated[float, Field(ge=0, le=3600), Unit("s")]]
    sampling: Restart[Literal["asynchronous", "synchronous", "alternating"]]
    batch_mode: Restart[Literal["complete_episodes", "truncate_episodes"]]
    rollout_fragment_length: Restart[Actions]

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

    loggers: Restart[Loggers]
    record_every_n_evaluations: Annotated[NonNegativeInt, Unit("evaluated races")]
    record_every_s: Annotated[NonNegativeFloat, Unit("s")]
    tensorboard_interval_s: Seconds
    histogram_interval_s: Seconds
    pictures_interval_s: Annotated[NonNegativeFloat, Unit("s")]
    test_loss_every_n_batches: Annotated[PositiveInt, Unit("batches")]
    terminal_view: Restart[Literal["auto", "live", "plain", "off"]]

    @field_validator("loggers")
    @classmethod
    def _each_logger_once(cls, loggers: tuple[str | NamedPart, ...]) -> tuple[str | NamedPart, ...]:
        if len(set(map(str, loggers))) < len(loggers):
            raise ValueError("each logger is named once")
        return loggers


class UserSettings(Group):
    """This machine's own paths and names, from user_config.py."""

    game_command: Restart[str]
    trackmania_base_path: Restart[str]
    tmloader_path: Restart[str]
    tmloader_profile_name: Restart[str]
    username: Restart[str]


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
    def _rewards_have_what_they_need(self) -> Settings:
        pointing, n_centers = self.reward.shaped_reward_point_to_vcp_ahead, self.observation.n_zone_centers_in_inputs
        if pointing != 0 and n_centers < 2:
            raise ValueError(
                f"shaped_reward_point_to_vcp_ahead = {pointing} needs the direction of the line: set "
                f"n_zone_centers_in_inputs = {n_centers} to 2 or more, or leave the reward at 0"
            )
        return self

    @model_validator(mode="after")
    def _rewards_have_their_blocks(self) -> Settings:
        for name, blocks in _BLOCKS_OF_REWARDS.items():
            value = getattr(self.reward, name)
            is_on = any(number != 0 for _, number in value) if isinstance(value, tuple) else value != 0
            missing = [block for block in blocks if block not in self.observation.observation_blocks]
            if is_on and missing:
                raise ValueError(
                    f"{name} = {value} is computed from {missing[0]}, which observation_blocks leaves out: name it "
                    "there, or leave the reward at 0"
                )
        return self

    @model_validator(mode="after")
    def _road_ahead_is_known(self) -> Settings:
        if ROAD_AHEAD in self.observation.observation_blocks and self.game.game != "simulated":
            raise ValueError(
                f'observation_blocks has "{ROAD_AHEAD}" with game = "{self.game.game}": only the simulated game\'s '
                "tracks have roads that can be read; leave the block out"
            )
        return self

    @model_validator(mode="after")
    def _range_finder_has_what_it_measures_in(self) -> Settings:
        source = self.observation.range_finder_source
        if RANGE_FINDER in self.observation.observation_blocks:
            if source == "track" and self.game.game != "simulated":
                raise ValueError(
                    f'range_finder_source = "track" with game = "{self.game.game}": only the simulated game\'s tracks '
                    'have borders that can be read; set range_finder_source = "picture"'
                )
            if source == "picture" and not self.game.takes_pictures:
                raise ValueError(
                    'range_finder_source = "picture" needs an image, but image_width_px and image_height_px are 0: set '
                    "them, such as to 160 and 120"
                )
        return self

    @model_validator(mode="after")
    def _guesses_have_mini_races(self) -> Settings:
        value = self.agent.expected_reward_per_action
        if value != 0 and self.replay.temporal_mini_race_duration_actions is None:
            raise ValueError(
                f"expected_reward_per_action = {value} counts the actions left in a mini-race, but there are none "
                "(temporal_mini_race_duration_actions = None): set expected_reward_per_action = 0.0"
            )
        return self

    @model_validator(mode="after")
    def _whole_races_are_checked(self) -> Settings:
        if self.run.crc_debug and self.sync.batch_mode != "complete_episodes":
            raise ValueError(
                f'crc_debug = True checks whole races, but batch_mode = "{self.sync.batch_mode}": set batch_mode = '
                '"complete_episodes", or crc_debug = False'
            )
        return self

    @model_validator(mode="after")
    def _maps_have_files(self) -> Settings:
        for entry in self.game.map_cycle:
            if self.game.games == RACES and not entry.has_files and entry.generator is None:
                raise ValueError(
                    f"map {entry.map_name!r} has map_path = {entry.map_path!r}, reference_line = "
                    f"{entry.reference_line!r} and no generator: give map_path and reference_line, or a generator"
                )
        return self

    @model_validator(mode="after")
    def _there_is_something_to_learn_from(self) -> Settings:
        if self.game.n_collectors == 0 and not self.replay.offline:
            raise ValueError(
                "n_collectors = 0 plays no game, and there is nothing else to learn from: name a data set, offline = "
                '"NAMESPACE/NAME-v0", or set n_collectors to 1 or more'
            )
        if self.game.n_collectors == 0 and self.game.demonstrations:
            raise ValueError(
                "n_collectors = 0, but collectors drive the demonstrations: record them as a data set "
                "(scripts/tools/dataset.py record) and name it in offline, or set n_collectors to 1 or more"
            )
        return self

    @model_validator(mode="after")
    def _halves_have_games(self) -> Settings:
        if self.sync.sampling == "alternating" and self.game.games_per_collector < 2:
            raise ValueError(
                f"sampling = 'alternating' is for two halves of a collector's games, but games_per_collector = "
                f"{self.game.games_per_collector}: set it to 2 or more, or sampling to 'asynchronous'"
            )
        return self

    @model_validator(mode="after")
    def _several_frames_have_an_image(self) -> Settings:
        frames = self.game.frames_per_state
        if frames not in (0, 1) and not self.game.takes_pictures:
            raise ValueError(
                f"frames_per_state = {frames} needs an image, but image_width_px and image_height_px are 0: set them, "
                "or leave frames_per_state = 1"
            )
        measures = RANGE_FINDER in self.observation.observation_blocks
        if (
            frames == 0
            and self.game.takes_pictures
            and not (measures and self.observation.range_finder_source == "picture")
        ):
            raise ValueError(
                "frames_per_state = 0: nothing looks at the image; set image_width_px and image_height_px to 0, or "
                "frames_per_state to 1"
            )
        return self

    @property
    def takes_turns(self) -> bool:
        """Whether collectors and learner take turns; a run without collectors has nobody to."""
        return self.sync.is_synchronous and self.game.n_collectors > 0

    def flat(self) -> dict[str, Any]:
        """Give every setting by its flat name, as in the configuration files."""
        return {
            name: getattr(getattr(self, group), name)
            for group, model in groups().items()
            for name in model.model_fields
        }


def groups() -> dict[str, type[Group]]:
    """Give each group's model by its name in `Settings`."""
    return {name: field.annotation for name, field in Settings.model_fields.items()}  # type: ignore[misc]


NEEDS_RESTART = frozenset(
    name for model in groups().values() for name, field in model.model_fields.items() if RESTART in field.metadata
)
"""Settings that shape networks, buffers or processes: editing them in a run's snapshot waits for the next start."""

DRIVER_SETTINGS = frozenset(
    name for model in groups().values() for name, field in model.model_fields.items() if OF_DRIVER in field.metadata
)
"""Settings that say what a network's inputs and outputs mean: observation, actions, mini-race, sizes. A driver's file
holds these and no others."""

ADDED_TO_DRIVERS = {
    name: field.default
    for model in groups().values()
    for name, field in model.model_fields.items()
    if OF_DRIVER in field.metadata and not field.is_required()
}
"""Those that came later, by what earlier drivers mean, whose files do not have them."""
