"""Settings of the game: the maps in order, the game instances, and the rules of a race."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from trackmania_rl.settings.values import (
    LAST_PORT,
    Driver,
    FileName,
    Fraction,
    Group,
    Meters,
    Milliseconds,
    NonNegativeInt,
    Part,
    Port,
    PositiveInt,
    Restart,
    Seconds,
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
    """Tracks made on the way, each for `races_per_track` races: its seed is drawn evenly from first to last."""

    difficulty: Fraction | tuple[Fraction, Fraction]
    first_seed: NonNegativeInt
    last_seed: Annotated[int, Field(ge=0, lt=2**63)]
    races_per_track: PositiveInt = 1

    @property
    def difficulty_range(self) -> tuple[float, float]:
        """Lowest and highest difficulty; each track's is drawn evenly in between."""
        return self.difficulty if isinstance(self.difficulty, tuple) else (self.difficulty, self.difficulty)

    @property
    def is_one_track(self) -> bool:
        """Whether it always makes the same track, whose times then compare."""
        lowest, highest = self.difficulty_range
        return self.first_seed == self.last_seed and lowest == highest

    @model_validator(mode="after")
    def _ranges_ascend(self) -> GeneratorSettings:
        if self.difficulty_range[0] > self.difficulty_range[1]:
            raise ValueError(f"difficulty = {self.difficulty}: the lower end of the range comes first")
        if self.first_seed > self.last_seed:
            raise ValueError(f"first_seed = {self.first_seed} is above last_seed = {self.last_seed}")
        return self


class MapEntry(Group):
    """One line of the map cycle: `repeat` races in a row on one map, or each on a newly generated one."""

    map_name: FileName
    map_path: str = ""
    reference_line: str = ""
    generator: GeneratorSettings | None = None
    is_explo: bool
    fill_buffer: bool
    repeat: PositiveInt = 1

    @property
    def has_files(self) -> bool:
        """Whether it is a map with files of its own: neither a generator nor the name of somebody's environment."""
        return self.reference_line != ""

    @model_validator(mode="after")
    def _names_a_map_or_a_generator(self) -> MapEntry:
        n_files = (self.map_path != "") + (self.reference_line != "")
        if n_files == 1 or (n_files == 2 and self.generator is not None):
            raise ValueError(
                f"map {self.map_name!r} has map_path = {self.map_path!r}, reference_line = {self.reference_line!r} and "
                f"{'no' if self.generator is None else 'a'} generator: give map_path and reference_line, or a generator"
            )
        return self


class DemonstrationEntry(Group):
    """A recorded race on a map of the map cycle."""

    map_name: str
    inputs: Annotated[str, Field(min_length=1)]


class GameSettings(Group):
    """Game instances and the rules under which a race is played and cut off."""

    games: Driver[Part] = RACES
    """What is played, as a part of your own: races on the map cycle's maps, or a Gymnasium environment
    (docs/own_parts.rst)."""
    game: Driver[Literal["simulated", "tmnf"]] = "simulated"
    """Game: "simulated" ships with this project; "tmnf" is TrackMania Nations Forever (config_tmnf.py)."""
    game_transport: Restart[Literal["in_process", "socket"]] = "in_process"
    """How the simulated game is played: inside the collectors, or as programs of their own, reached by sockets as the
    real game is."""
    games_are_kept: Restart[bool] = False
    """Connect to games that scripts/keep_games.py keeps, in place of starting them: docs/game_machines.rst."""
    n_collectors: Restart[NonNegativeInt] = 1
    """Number of collector processes. With 0 no game is played, and the learner has only the data sets in offline."""
    games_per_collector: Restart[Annotated[int, Field(ge=1, le=1024)]] = 8
    """Games that each collector plays at the same time. 1 is a safe choice for the real game: docs/collectors.rst."""
    base_tmi_port: Restart[Port] = 8478
    """First TCP port of the game instances; each takes one more. All must be free."""
    maps_folder: Restart[str] = "maps"
    """Folder of tracks (.toml) and reference lines (.npy); a relative path starts at the project's folder."""
    map_cycle: Annotated[tuple[MapEntry, ...], Field(min_length=1)] = (
        MapEntry(
            map_name="valley",
            map_path="valley.toml",
            reference_line="valley_0.5m.npy",
            is_explo=True,
            fill_buffer=True,
            repeat=4,
        ),
        MapEntry(
            map_name="valley",
            map_path="valley.toml",
            reference_line="valley_0.5m.npy",
            is_explo=False,
            fill_buffer=True,
        ),
    )
    """Races in order, over and over: map or generator, whether the agent explores, whether it learns from the race,
    repetitions."""
    demonstrations: Restart[tuple[DemonstrationEntry, ...]] = ()
    """Races that a new run drives first, {"map_name": ..., "inputs": an inputs file or .Replay.Gbx}:
    docs/demonstrations.rst."""
    running_speed: Annotated[float, Field(gt=0, le=1e6), Unit("x real time")] = 1000.0
    """Game speed during a race. As fast as possible is 1000 (in the simulated game 50)."""
    engine_ticks_per_action: Driver[Annotated[PositiveInt, Unit("ticks")]] = 5
    """Ticks per action: 5 x 10 ms are one decision every 50 ms."""
    image_width_px: Driver[Annotated[int, Field(ge=0, le=4096), Unit("px")]] = 0
    """Width of the image in the observation; 0 for no image, which learns faster on a processor."""
    image_height_px: Driver[Annotated[int, Field(ge=0, le=4096), Unit("px")]] = 0
    """Height of the image in the observation; 0 for no image."""
    frames_per_state: Driver[Annotated[Annotated[int, Field(ge=0, le=16)] | str, Unit("frames")]] = 1
    """Frames that make one image, one per action, or a range such as "-9:0:3"; 0 shows none to the agent:
    docs/views.rst."""
    cutoff_race_longer_than_ms: Restart[Milliseconds] = 120_000
    """A race that lasts longer is cut off."""
    cutoff_no_progress_within_ms: Milliseconds = 2_000
    """A race is cut off if its furthest point advances by less than cutoff_progress_m within this time."""
    cutoff_progress_m: Meters = 6.0
    """Least progress within cutoff_no_progress_within_ms."""
    horizon: Annotated[PositiveInt | None, Unit("actions")] = None
    """Actions after which a race is cut off; None for the other cut-offs alone. The value of the last state is
    bootstrapped."""
    soft_horizon: bool = False
    """With horizon: training treats the race as cut there, and the race continues."""
    tmi_protection_timeout_s: Seconds = 60.0
    """Timeout of a connection to a game instance."""
    game_reboot_below_speed_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of its own best speed below which a game instance is restarted; 0 for never."""
    actions: Driver[Literal["keys", "analog"]] = "keys"
    """What the agent does: one of the sets of keys in inputs_list.py, or analog steer, gas and brake:
    docs/analog_actions.rst."""
    inputs: Driver[Annotated[tuple[ActionKeys, ...], Field(min_length=2)]]
    """Actions of the agent as sets of keys, from inputs_list.py."""
    action_forward_idx: Driver[NonNegativeInt]
    """Index in inputs of the action that the observation shows before the first one."""

    @property
    def ms_per_action(self) -> int:
        """Game time between two decisions."""
        return MS_PER_ENGINE_TICK * self.engine_ticks_per_action

    @property
    def rollouts_at_a_time(self) -> int:
        """Races that leave a collector by themselves: games inside it are stepped together, and count as one."""
        return 1 if self.is_in_process else self.games_per_collector

    @property
    def is_in_process(self) -> bool:
        """Whether collectors play the game within their own process; the real game is always reached by its socket."""
        return self.game == "simulated" and self.game_transport == "in_process"

    @property
    def tmi_ports(self) -> range:
        """Where game instances listen: `games_per_collector` ports for the first collector, then those of the next."""
        n_games = 0 if self.is_in_process else self.n_collectors * self.games_per_collector
        return range(self.base_tmi_port, self.base_tmi_port + n_games)

    def tmi_ports_of(self, collector: int) -> range:
        """List the ports of one collector's games, in their order."""
        first = collector * self.games_per_collector
        return self.tmi_ports[first : first + self.games_per_collector]

    @property
    def cutoff_horizon_actions(self) -> int | None:
        """After how many actions a race is cut off; None where it goes on."""
        return None if self.soft_horizon else self.horizon

    @property
    def soft_horizon_actions(self) -> int | None:
        """How many actions apart training sees a race cut that goes on; None where it does not."""
        return self.horizon if self.soft_horizon else None

    @property
    def takes_pictures(self) -> bool:
        """Whether the game is asked for a picture in each state."""
        return self.image_width_px > 0

    @property
    def has_image(self) -> bool:
        """Whether the observation holds pictures."""
        return self.takes_pictures and self.frames_per_state != 0

    @property
    def frame_shifts(self) -> tuple[int, ...]:
        """Which frames make one image, as shifts of a view; (0,) without an image."""
        frames = self.frames_per_state
        return shifts_of(f"{1 - max(frames, 1)}:0" if isinstance(frames, int) else frames)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(S, H, W) of an image; (1, 0, 0) without one."""
        return (len(self.frame_shifts), self.image_height_px, self.image_width_px) if self.has_image else (1, 0, 0)

    @field_validator("frames_per_state")
    @classmethod
    def _frames_were_seen(cls, frames: int | str) -> int | str:
        if isinstance(frames, str) and shifts_of(frames)[-1] != 0:
            raise ValueError('the last of the frames is the state\'s own: "-9:0:3"')
        return frames

    @model_validator(mode="after")
    def _values_fit_together(self) -> GameSettings:
        for contradiction in self._contradictions():
            raise ValueError(contradiction)
        return self

    def _contradictions(self) -> Iterator[str]:
        if (self.image_width_px == 0) != (self.image_height_px == 0):
            yield "image_width_px and image_height_px are both 0 (no image) or both positive"
        if self.tmi_ports and self.tmi_ports[-1] > LAST_PORT:
            yield (
                f"base_tmi_port = {self.base_tmi_port}, with n_collectors = {self.n_collectors} of games_per_collector "
                f"= {self.games_per_collector}: the last game's port would be {self.tmi_ports[-1]}, and ports end at "
                f"{LAST_PORT}; lower one of them"
            )
        if self.action_forward_idx >= len(self.inputs):
            yield f"action_forward_idx = {self.action_forward_idx} is no index into the {len(self.inputs)} inputs"
        if self.games_are_kept and self.is_in_process:
            yield (
                "games_are_kept = True is for games that scripts/keep_games.py runs, but with game_transport = "
                '"in_process" the collectors play the simulated game themselves: set game_transport = "socket"'
            )
        yield from self._contradictions_of_maps()

    def _contradictions_of_maps(self) -> Iterator[str]:
        generated = {entry.map_name for entry in self.map_cycle if entry.generator is not None}
        with_files = list(dict.fromkeys(entry.map_name for entry in self.map_cycle if entry.generator is None))
        for demonstration in self.demonstrations:
            if demonstration.map_name not in with_files:
                yield (
                    f"demonstrations: {demonstration.inputs!r} is for map {demonstration.map_name!r}, which is not in "
                    f"map_cycle; possible are {', '.join(with_files) or 'none: all its entries are generators'}"
                )
        if of_both_kinds := generated & set(with_files):
            yield (
                f"map_cycle uses the name {min(of_both_kinds)!r} for a map and for a generator: their races would be "
                "counted together; give them two names"
            )
        if generated and self.game != "simulated":
            yield (
                f'map_cycle has the generator {min(generated)!r}, but game = "{self.game}": generated tracks can only '
                "be driven in the simulated game"
            )
