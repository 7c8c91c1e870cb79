"""Settings of the game: the maps in order, the game instances, and the rules of a race."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trackmania_rl.settings.values import (
    Collector,
    Driver,
    FileName,
    Fraction,
    Group,
    Machine,
    Meaning,
    Milliseconds,
    NamedPart,
    NonNegativeInt,
    OrNone,
    Part,
    Pixels,
    Port,
    PositiveFloat,
    PositiveInt,
    Seconds,
    ShareBelow1,
    Unit,
    shifts_of,
)

RACES: Final = "trackmania_rl.games.race_games:RaceGames"
"""The part `games` that plays the map cycle's maps, simulated or real."""
MS_PER_ENGINE_TICK: Final = 10


class ActionKeys(Group):
    """Which of the four keys an action holds down."""

    left: bool
    right: bool
    accelerate: bool
    brake: bool


class GeneratorSettings(Group):
    """Generated tracks, each for `races_per_track` races. Seeds are drawn evenly from first to last."""

    difficulty: Fraction | tuple[Fraction, Fraction]
    first_seed: NonNegativeInt
    last_seed: NonNegativeInt
    races_per_track: PositiveInt = 1

    @property
    def difficulty_range(self) -> tuple[float, float]:
        """Lowest and highest difficulty; each track's is drawn evenly in between."""
        return self.difficulty if isinstance(self.difficulty, tuple) else (self.difficulty, self.difficulty)

    @property
    def is_one_track(self) -> bool:
        """True if all tracks are the same, so that their times compare."""
        lowest, highest = self.difficulty_range
        return self.first_seed == self.last_seed and lowest == highest

    @model_validator(mode="after")
    def _ranges_ascend(self) -> GeneratorSettings:
        if self.difficulty_range[0] > self.difficulty_range[1]:
            raise ValueError(f"difficulty = {self.difficulty}: the lower end of the range comes first")
        if self.first_seed > self.last_seed:
            raise ValueError(f"first_seed = {self.first_seed} is above last_seed = {self.last_seed}")
        return self


def _kind_of_generator(value: Any) -> str:
    is_part = isinstance(value, str | NamedPart) or callable(value) or (isinstance(value, Mapping) and "name" in value)
    return "a part" if is_part else "that ships"


Generator = Annotated[
    Annotated[GeneratorSettings, Tag("that ships")] | Annotated[Part, Tag("a part")], Discriminator(_kind_of_generator)
]
"""Source of an entry's tracks: the one that ships, or a part of your own (`trackmania_rl/track/map_sources.py`)."""


class MapEntry(Group):
    """Entry of the map cycle: `repeat` races in a row on one map, or on generated tracks."""

    map_name: FileName
    map_path: str = ""
    reference_line: str = ""
    generator: Generator | None = None
    is_explo: bool
    fill_buffer: bool
    repeat: PositiveInt = 1

    @property
    def has_files(self) -> bool:
        """True if it names a map's files, and neither a generator nor an environment."""
        return self.reference_line != ""


class DemonstrationEntry(Group):
    """A recorded race on a map of the map cycle."""

    map_name: str
    inputs: Annotated[str, Field(min_length=1)]


VALLEY: Final[dict[str, Any]] = {"map_name": "valley", "map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}


def _ends_with_own_row(frames: int | str) -> int | str:
    if isinstance(frames, str) and shifts_of(frames)[-1] != 0:
        raise ValueError('the last of the frames is the state\'s own: "-9:0:3"')
    return frames


class GameSettings(Group):
    """Game instances, and the rules under which a race is played and cut off."""

    games: Driver[Part] = RACES
    """Games, as a part of your own: races on maps, or a Gymnasium environment (docs/own_parts.rst)."""
    game: Driver[Literal["simulated", "tmnf"]] = "simulated"
    """The game that ships with this project, or TrackMania Nations Forever (config_tmnf.py)."""
    game_transport: Collector[Literal["in_process", "socket"]] = "in_process"
    """Place of the simulated game: in the collectors, or in programs reached by sockets."""
    games_are_kept: Collector[bool] = False
    """Connect to games that scripts/keep_games.py keeps, in place of starting them: docs/other_machines.rst."""
    n_collectors: Machine[NonNegativeInt] = 1
    """Number of collector processes. With 0 the learner has only the data sets in offline."""
    games_per_collector: Collector[Annotated[int, Field(ge=1, le=1024)]] = 8
    """Games that each collector plays at the same time; 1 is safe for the real game: docs/collectors.rst."""
    base_tmi_port: Machine[Port] = 8478
    """First TCP port of the game instances; each takes one more. All must be free."""
    maps_folder: Machine[str] = "maps"
    """Folder of tracks and reference lines; a relative path starts at the project's folder."""
    map_cycle: Meaning[Annotated[tuple[MapEntry, ...], Field(min_length=1)]] = (
        MapEntry.model_validate(VALLEY | {"is_explo": True, "fill_buffer": True, "repeat": 4}),
        MapEntry.model_validate(VALLEY | {"is_explo": False, "fill_buffer": True}),
    )
    """Races in order, over and over: map or generator, exploration, whether it is learned from, repetitions."""
    demonstrations: Machine[tuple[DemonstrationEntry, ...]] = ()
    """Races that a new run drives first, from inputs files or .Replay.Gbx: docs/datasets.rst."""
    running_speed: Annotated[float, Field(gt=0, le=1e6), Unit("x real time")] = 1000.0
    """Game speed during a race. As fast as possible is 1000 (in the simulated game 50)."""
    engine_ticks_per_action: Driver[Annotated[PositiveInt, Unit("ticks")]] = 5
    """Ticks of 10 ms per action: 5 are one decision every 50 ms."""
    image_width_px: Driver[Pixels] = 0
    """Width of the image in the observation; 0 for none."""
    image_height_px: Driver[Pixels] = 0
    """Height of the image in the observation; 0 for none."""
    frames_per_state: Driver[
        Annotated[Annotated[int, Field(ge=0, le=16)] | str, AfterValidator(_ends_with_own_row), Unit("frames")]
    ] = 1
    """Frames in an image, one per action, or a range like "-9:0:3"; 0 shows none to the agent: docs/observation.rst."""
    cutoff_race_longer_than_ms: Collector[Milliseconds] = 120_000
    """A race that lasts longer is cut off."""
    cutoff_no_progress_within_ms: Milliseconds = 2_000
    """A race is cut off if its furthest point advances by less than cutoff_progress_m within this time."""
    cutoff_progress_m: Annotated[PositiveFloat, Unit("m")] = 6.0
    """Least progress within cutoff_no_progress_within_ms."""
    horizon: Annotated[OrNone[PositiveInt], Unit("actions")] = None
    """Actions after which a race is cut off, its last value bootstrapped; None for never."""
    soft_horizon: bool = False
    """With horizon: training treats the race as cut there, and the race continues."""
    tmi_protection_timeout_s: Seconds = 60.0
    """Timeout of a connection to a game instance."""
    timeout_during_race_ms: Collector[Milliseconds] = 10_100
    """Time after which a game in a race drops a silent collector."""
    timeout_between_races_ms: Collector[Milliseconds] = 600_000_000
    """The same between races."""
    game_camera_number: Driver[PositiveInt] = 2
    """The game's camera; the published weights were trained with 2."""
    game_reboot_interval_s: Seconds = 43_200.0
    """Age at which a game instance is restarted; the real game slows down over hours."""
    game_reboot_below_speed_share: ShareBelow1 = 0.0
    """Share of its own best speed below which a game instance is restarted; 0 for never."""
    actions: Driver[Literal["keys", "analog"]] = "keys"
    """Actions: the sets of keys in inputs_list.py, or analog steer, gas and brake: docs/observation.rst."""
    inputs: Driver[Annotated[tuple[ActionKeys, ...], Field(min_length=2)]]
    """Actions of the agent as sets of keys, from inputs_list.py."""
    action_forward_idx: Driver[NonNegativeInt]
    """Index in inputs of the action that the observation shows before the first one."""

    @property
    def ms_per_action(self) -> int:
        """Game time between two decisions."""
        return MS_PER_ENGINE_TICK * self.engine_ticks_per_action

    @property
    def is_in_process(self) -> bool:
        """True if collectors play the game within their own process."""
        return self.game == "simulated" and self.game_transport == "in_process"

    @property
    def tmi_ports(self) -> range:
        """Ports of the game instances: those of the first collector, then those of the next."""
        n_games = 0 if self.is_in_process else self.n_collectors * self.games_per_collector
        return range(self.base_tmi_port, self.base_tmi_port + n_games)

    def tmi_ports_of(self, collector: int) -> range:
        """List the ports of one collector's games."""
        first = collector * self.games_per_collector
        return self.tmi_ports[first : first + self.games_per_collector]

    @property
    def cutoff_horizon_actions(self) -> int | None:
        """Actions after which a race is cut off; None without a hard horizon."""
        return None if self.soft_horizon else self.horizon

    @property
    def soft_horizon_actions(self) -> int | None:
        """Actions between two cuts of a race in training alone; None without a soft horizon."""
        return self.horizon if self.soft_horizon else None

    @property
    def most_states(self) -> int:
        """Number of states of the longest race."""
        return self.cutoff_race_longer_than_ms // self.ms_per_action + 2

    @property
    def has_image(self) -> bool:
        """True if the observation holds pictures."""
        return self.image_width_px > 0 and self.frames_per_state != 0

    @property
    def frame_shifts(self) -> tuple[int, ...]:
        """Frames of an image as shifts of a view; (0,) without an image."""
        frames = self.frames_per_state
        return shifts_of(f"{1 - max(frames, 1)}:0" if isinstance(frames, int) else frames)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(S, H, W) of an image; (1, 0, 0) without one."""
        return (len(self.frame_shifts), self.image_height_px, self.image_width_px) if self.has_image else (1, 0, 0)
