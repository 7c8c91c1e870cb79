"""One race as a value: arrays for states and actions, and facts.

Games make it, a collector completes it, channels carry it, the learner rewards it, and all else reads it. It may reach
the learner in parts (`Fragment`), each with its place in the collector's map cycle (`CyclePosition`). A new collector
process continues from the newest place (`CollectorProgress`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trackmania_rl.files import check_name
from trackmania_rl.settings import MapEntry
from trackmania_rl.settings.values import FileName

Array = npt.NDArray[Any]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Row = Annotated[int, Field(ge=0, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=200)]
Numbers = Annotated[Mapping[Annotated[str, AfterValidator(check_name)], float], Field(max_length=1000)]
MOST_CHECKPOINTS: Final = 10_000
MOST_INPUT_LETTERS: Final = 1 << 24

POINTS: Final = "points"
"""Unit of `RaceFacts.meters` in a custom environment: the reward sum."""
TERMINATED: Final = "terminated"
"""`RaceFacts.cutoff_reason` for a custom environment's episode with a terminal state."""
RACE_KINDS: Final = {"explored": "exploration", "evaluated": "evaluation"}
"""Displayed names for the two race kinds, by the kinds in figure names."""


class CyclePosition(BaseModel):
    """A race's place in the collector's map cycle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Count  #: in the whole run, from 0
    place: Count  #: in the map cycle, repeats counted
    generator: Text = ""  #: the track's `generator_key`, if any
    generator_number: Count = 0  #: among the generator's races
    streams: Mapping[Text, str] = {}  #: the collector's random stream states


class Fragment(NamedTuple):
    """New part of a race. Rows count from 0 in the arrays. The last fragment of a race contains the whole race."""

    is_last: bool  #: the race has ended
    race_row: Row  #: the race's state in row 0
    n_actions_before: Row  #: actions that an earlier fragment held
    first_row: Row  #: first row needed
    first_transition: Row  #: earlier transitions are in earlier fragments
    end_transition: Row  #: transitions from this row on come later, with all their actions


class RaceFacts(BaseModel):
    """Facts about a race or fragment: the schema for log, messages and files.

    Attributes:
        map_name: name in the map cycle.
        track: map file name without the ending, or `TrackRecipe.name`.
        is_explo: exploration race, or else evaluation race.
        fill_buffer: the replay memory stores the race.
        is_generated: a generator makes many tracks under this map's name.
        collector: collector number.
        position: place among the collector's races; None outside the map cycle.
        sequence: number among a worker's races, from 1; 0 on this machine.
        fragment: new part; None for a whole race.
        n_actions: T.
        race_time_ms: time at the finish or cut-off.
        cutoff_reason: why an unfinished race ended.
        terminated: the last state is terminal: the finish, or the end of a custom environment's episode.
        meters: distance along the reference line to the furthest point; in a custom environment the reward sum.
        progress_unit: for `meters`, "m" or "points".
        furthest_zone_idx: furthest virtual checkpoint.
        checkpoint_times_ms: race times at the checkpoints in all laps, the finish included.
        first_value: the first state's highest value; None from an agent without values.
        weights_age_s: weights' age at the race's end; None without weights.
        weights_digest: of a finished evaluation race, see `SharedVector.with_digest`.
        timings_ms: wall-clock time per action by activity.
        figures: further numbers from a user's part, for the loggers.
        inputs: input script; empty without one.
        waited_s: mean time that the collector's games waited for room since the last race.
        elapsed_s: time since the collector's last race.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    map_name: FileName
    track: Text = ""
    is_explo: bool
    fill_buffer: bool
    is_generated: bool = False
    is_demonstration: bool = False
    collector: Count = 0
    position: CyclePosition | None = None
    sequence: Count = 0
    fragment: Fragment | None = None
    n_actions: Row = 0
    race_finished: bool = False
    race_time_ms: Milliseconds = 0
    cutoff_reason: Text | None = None
    terminated: bool = False
    meters: float = 0.0
    progress_unit: Text = "m"
    furthest_zone_idx: Row = 0
    checkpoint_times_ms: Annotated[tuple[Milliseconds, ...], Field(max_length=MOST_CHECKPOINTS)] = ()
    mean_speed_m_s: float | None = None
    fraction_greedy: float | None = None
    first_value: float | None = None
    weights_age_s: float | None = None
    weights_digest: Text = ""
    timings_ms: Numbers = {}
    figures: Numbers = {}
    inputs: Annotated[str, Field(max_length=MOST_INPUT_LETTERS)] = ""
    waited_s: float = 0.0
    elapsed_s: float = 0.0

    @classmethod
    def of_entry(cls, entry: MapEntry, **others: Any) -> RaceFacts:
        """Return the facts for a race on a map cycle entry."""
        return cls(
            map_name=entry.map_name,
            track=Path(entry.map_path.replace("\\", "/")).stem,  # Windows paths, too
            is_explo=entry.is_explo,
            fill_buffer=entry.fill_buffer,
            **others,
        )

    def with_changes(self, **changes: Any) -> RaceFacts:
        """Return the facts with other values, which are not validated."""
        return self.model_copy(update=changes)

    @property
    def kind(self) -> str:
        """`explored` or `evaluated`, as in figure names."""
        return "explored" if self.is_explo else "evaluated"

    @property
    def counts(self) -> bool:
        """True if the race is the agent's result."""
        return not self.is_demonstration

    @property
    def is_of_environment(self) -> bool:
        """True if this is a custom environment's episode."""
        return self.progress_unit == POINTS

    @property
    def is_under_way(self) -> bool:
        """True for a fragment from a race that continues."""
        return self.fragment is not None and not self.fragment.is_last

    @property
    def new(self) -> Fragment:
        """The part that no earlier fragment held."""
        return self.fragment or Fragment(True, 0, 0, 0, 0, self.n_actions)

    @property
    def split_times_ms(self) -> tuple[int, ...]:
        """Times from checkpoint to checkpoint."""
        return tuple(np.diff(self.checkpoint_times_ms, prepend=0).tolist())

    def numbers(self) -> dict[str, float]:
        """Return the race's figures besides time and distance, for the loggers."""
        named = {
            "mean_speed_m_s": self.mean_speed_m_s,
            "fraction_greedy": self.fraction_greedy,
            "first_value": self.first_value,
            "weights_age_s": self.weights_age_s,
        }
        known = {name: number for name, number in named.items() if number is not None}
        timings = {f"timings_ms/{activity}": spent_ms for activity, spent_ms in self.timings_ms.items()}
        return {**known, **timings, **self.figures}


def highest_value(q_values: npt.NDArray[np.float32]) -> float | None:
    """Return the highest among a state's values (A,); None from an agent without values."""
    value = float(q_values.max())
    return value if math.isfinite(value) else None


@dataclass(eq=False)
class Race:
    """A race, or a fragment of one; a context manager that releases its memory.

    ====================================== =========================== ================================================
    column                                 shape, type                 content
    ====================================== =========================== ================================================
    ``frames``                             (T + 1, 1, H, W) uint8      gray pictures; H = W = 0 without an image
    ``state_float``                        (T + 1, F) float32          floats of the observation, not normalized
    ``actions``                            (T,) int64 or (T, D) float  index into ``inputs``; or steer, gas, brake
    ``action_was_greedy``                  (T,) bool                   the action had the highest value
    ``q_values``                           (T, A) float32              values of the actions; (T, 1) of an analog one
    ``action_log_prob``                    (T,) float32                see `PolicyDecision`; NaN without one
    ``input_w``                            (T,) bool                   accelerating
    ``car_gear_and_wheels``                (T + 1, 22) float32         see `CAR_COLUMNS`
    ``current_zone_idx``                   (T + 1,) int64              zone on the reference line
    ``meters_advanced_along_centerline``   (T + 1,) float64            metres along the line, the finish line's at last
    ``position_m``                         (T + 1, 3) float32          place in the world
    ``speed_m_s``                          (T + 1,) float64            speed
    ``rewards``                            (T,) float32                from a custom environment, not metres
    ====================================== =========================== ================================================

    Custom environments have columns from ``frames`` to ``action_log_prob``, ``rewards`` and ``info_{name}``. The last
    frame of a finished race repeats the one before, as a game behind a socket gives none at the finish.

    Attributes:
        columns: arrays by name; read-only and valid until `release` in the learner.
        facts: everything else.
        rewards: (T,) float32 per action, once the learner has rewarded the race.
        potentials: (T + 1,) float32 each state's shaping potential, likewise.
        give_back: called once by `release`, to free the arrays' memory.
    """

    columns: dict[str, Array]
    facts: RaceFacts
    rewards: npt.NDArray[np.float32] | None = None
    potentials: npt.NDArray[np.float32] | None = None
    give_back: Callable[[], None] | None = None

    @classmethod
    def of_rollout(cls, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Race:
        """Return the race from which both dictionaries were made."""
        columns = {name: column for name, column in rollout_results.items() if isinstance(column, np.ndarray)}
        return cls(columns, RaceFacts(**end_race_stats))

    @property
    def n_actions(self) -> int:
        """T."""
        return len(self.columns["actions"])

    def rollout_results(self) -> dict[str, Any]:
        """Return the columns with `furthest_zone_idx`, and `race_time` (ms) if finished, as one dictionary."""
        results: dict[str, Any] = {**self.columns, "furthest_zone_idx": self.facts.furthest_zone_idx}
        if self.facts.race_finished:
            results["race_time"] = self.facts.race_time_ms
        return results

    def end_race_stats(self) -> dict[str, Any]:
        """Return the facts as a dictionary with plain values."""
        return self.facts.model_dump()

    def copy(self, *, with_frames: bool = True) -> Race:
        """Return a race with arrays of its own."""
        kept = self.columns.items()
        columns = {name: column.copy() for name, column in kept if with_frames or name != "frames"}
        return Race(columns, self.facts, self.rewards, self.potentials)

    def release(self) -> None:
        """Drop the arrays and free their memory. A second call has no effect."""
        give_back = self.give_back
        self.give_back = None
        if give_back is not None:
            self.columns = {}
            give_back()

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def stream_state(rng: np.random.Generator) -> str:
    """Return a random stream's state as a text of some 200 characters."""
    return json.dumps(rng.bit_generator.state, separators=(",", ":"))


def set_stream_state(rng: np.random.Generator, state: str) -> None:
    """Set a random stream to a state of `stream_state`. Raise `ValueError` for another text."""
    try:
        rng.bit_generator.state = json.loads(state)
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"no state of a random stream: {state[:80]}") from error


@dataclass(frozen=True, slots=True)
class CollectorProgress:
    """Position from which a collector continues, after the races received by the learner."""

    n_races: int = 0
    place: int = 0
    of_generators: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)

    def after(self, race: CyclePosition) -> CollectorProgress:
        """Return the progress after a race; races from several games may arrive out of order."""
        is_newest = race.number >= self.n_races
        of_generators = dict(self.of_generators)
        if race.generator:
            of_generators[race.generator] = max(of_generators.get(race.generator, 0), race.generator_number + 1)
        return CollectorProgress(
            n_races=race.number + 1 if is_newest else self.n_races,
            place=race.place + 1 if is_newest else self.place,
            of_generators=of_generators,
            streams=race.streams,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain values."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> CollectorProgress:
        """Load what `state_dict` returned.

        Raises:
            KeyError or ValueError: if malformed.
        """
        counts = {"n_races": state["n_races"], "place": state["place"], **state["of_generators"]}
        if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
            raise ValueError(f"a collector's progress has the counts {counts}")
        return cls(state["n_races"], state["place"], dict(state["of_generators"]), dict(state["streams"]))


class CollectorsProgress(dict[int, CollectorProgress]):
    """Each collector's progress by number, for collector restarts and checkpoints."""

    def add(self, facts: RaceFacts) -> None:
        """Note the position of a race or fragment. A demonstration has none."""
        if facts.position is not None:
            before = self.get(facts.collector, CollectorProgress())
            self[facts.collector] = before.after(facts.position)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain values."""
        return {"collectors": {collector: progress.state_dict() for collector, progress in self.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state.

        Raises:
            KeyError or ValueError: if malformed.
        """
        self.clear()
        for collector, state in state_dict["collectors"].items():
            self[int(collector)] = progress = CollectorProgress.of_state(state)
            for stream in progress.streams.values():
                set_stream_state(np.random.default_rng(), stream)
