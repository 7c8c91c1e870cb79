"""The numbers behind the pictures, and the file in which they go from who gathers them to who draws.

Lengths, in all comments: A actions, N taus, K chosen states, E elapsed times, T actions of a race, R single actions of
several races, B transitions, W of these.
"""

from __future__ import annotations

import dataclasses
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError, one_line

Array = npt.NDArray[Any]
SectionT = TypeVar("SectionT")

KM_H_PER_M_S: Final = 3.6
PEDALS: Final = (("gas", (1, 0)), ("no pedal", (0, 0)), ("brake", (0, 1)), ("gas and brake", (1, 1)))
"""What gas and brake are called together."""


@dataclass(frozen=True)
class About:
    """Where the numbers come from, and what is needed to read them.

    Attributes:
        map_name: the map cycle's name of the map whose race is shown.
        track: name of the file that was driven; a generated track's says its recipe.
        frames_total: actions that the run had collected.
        training_s: seconds that it had trained.
        ms_per_action: duration of an action.
        mini_race_actions: length of a mini-race; 0 without mini-races.
        action_names: (A,) texts.
        action_controls: (A, 3) gas, brake (0 or 1) and steer, -1 (left) to 1; (0, 3) where actions are no keys.
        line_m: (M, 3) the map's reference line; (0, 3) where there is none.
    """

    map_name: str
    track: str
    frames_total: int
    training_s: float
    ms_per_action: int
    mini_race_actions: int
    action_names: Array
    action_controls: Array
    line_m: Array

    @property
    def s_per_action(self) -> float:
        """Duration of an action in seconds."""
        return self.ms_per_action / 1000


@dataclass(frozen=True)
class DrivenRace:
    """A race of T actions, as it was driven.

    Attributes:
        kind: "explored" or "evaluated".
        is_finished: whether it reached the finish.
        race_time_ms: the finish time, or the time driven.
        checkpoint_times_ms: (C,) of the checkpoints passed, the finish included.
        position_m: (T, 3) at each decision, world axes.
        meters: (T,) along the line.
        controls: (T, 3) gas, brake (0 or 1) and steer, -1 (left) to 1.
    """

    kind: str
    is_finished: bool
    race_time_ms: int
    checkpoint_times_ms: Array
    position_m: Array
    meters: Array
    controls: Array

    @property
    def result(self) -> str:
        """The time, or how far it came."""
        return f"{self.race_time_ms / 1000:.2f} s" if self.is_finished else f"{float(self.meters[-1]):.0f} m"

    def speeds_m_s(self, s_per_action: float) -> Array:
        """(T,) from where the car was before and after each decision."""
        return speeds_m_s(self.position_m, s_per_action)


@dataclass(frozen=True)
class Expectations:
    """What the driver expects in K states of one race.

    Attributes:
        time_s: (K,) since the race's beginning.
        meters: (K,) along the line; NaN where there is none.
        position_m: (K, 3); NaN likewise.
        speed_km_h: (K,); NaN likewise.
        taus: (N,); of an agent without quantiles (0,).
        returns: (K, N, A) at these taus, with the whole mini-race ahead; (K, 1, A) means of an agent without quantiles.
        elapsed_actions: (E,) times elapsed in the mini-race; (0,) without mini-races.
        values: (K, E, A) mean returns with so much elapsed.
    """

    time_s: Array
    meters: Array
    position_m: Array
    speed_km_h: Array
    taus: Array
    returns: Array
    elapsed_actions: Array
    values: Array

    @property
    def best_actions(self) -> Array:
        """(K,) those of the highest mean."""
        best: Array = self.returns.mean(axis=1).argmax(axis=1)
        return best


@dataclass(frozen=True)
class Comparison:
    """What was predicted when R actions of evaluated races were taken, and what came.

    Attributes:
        race: (R,) number of the race, from 0.
        is_of_map: (R,) whether that race was on the map that is shown.
        meters: (R,) along the line; NaN where there is none.
        predicted: (R,) value of the action taken.
        realised: (R,) rewards of the mini-race that began there.
    """

    race: Array
    is_of_map: Array
    meters: Array
    predicted: Array
    realised: Array


@dataclass(frozen=True)
class ErrorsByHorizon:
    """How wrong predictions are for B transitions of the replay memory.

    Attributes:
        is_test: (B,) whether the transition is kept apart, and never trained on.
        actions_left: (B,) of the mini-race.
        loss: (B,).
        error: (B,) target - prediction; NaN where the agent does not tell.
    """

    is_test: Array
    actions_left: Array
    loss: Array
    error: Array


@dataclass(frozen=True)
class Surprises:
    """The W transitions of two races that were predicted worst, the worst first.

    Attributes:
        kind: (W,) of the race, "explored" or "evaluated".
        time_s: (W,) since the race's beginning.
        meters: (W,) along the line; NaN where there is none.
        position_m: (W, 3); NaN likewise.
        direction: (W, 2) of travel, x and z; likewise.
        speed_km_h: (W,); likewise.
        action: (W,) text.
        n_steps: (W,) actions that the transition spans.
        reward: (W,) what they brought.
        error: (W,) target - prediction, or only its size where the agent does not tell more.
        predicted: (W,); NaN where the agent does not tell.
        target: (W,) likewise.
        realised: (W,) rewards of the mini-race that began there; NaN where it was cut off.
        frames: (W, H, W') uint8 what the car saw; H = 0 without an image.
    """

    kind: Array
    time_s: Array
    meters: Array
    position_m: Array
    direction: Array
    speed_km_h: Array
    action: Array
    n_steps: Array
    reward: Array
    error: Array
    predicted: Array
    target: Array
    realised: Array
    frames: Array


@dataclass(frozen=True)
class MindNumbers:
    """All of them; None for what there is not.

    Attributes:
        about: where they come from.
        expectations: in chosen states.
        comparison: of predicted and realised values.
        errors: by horizon.
        surprises: the worst transitions.
        race: the newest evaluated race.
        best: another race of its map: the fastest one known, or the fastest one before it.
    """

    about: About
    expectations: Expectations | None = None
    comparison: Comparison | None = None
    errors: ErrorsByHorizon | None = None
    surprises: Surprises | None = None
    race: DrivenRace | None = None
    best: DrivenRace | None = None


_SECTIONS: Final[dict[str, type]] = {
    "about": About,
    "expectations": Expectations,
    "comparison": Comparison,
    "errors": ErrorsByHorizon,
    "surprises": Surprises,
    "race": DrivenRace,
    "best": DrivenRace,
}


def key_action_name(gas: float, brake: float, steer: float) -> str:
    """What keys are called: "gas", "brake left", "left"..."""
    pedals = next(name for name, pressed in PEDALS if pressed == (int(gas > 0), int(brake > 0)))
    if steer == 0:
        return pedals
    side = "left" if steer < 0 else "right"
    return side if pedals == "no pedal" else f"{pedals} {side}"


def speeds_m_s(position_m: Array, s_per_action: float) -> Array:
    """(T,) from positions (T, 3) at the decisions of a race."""
    if len(position_m) < 2:
        return np.zeros(len(position_m))
    return np.linalg.norm(np.gradient(position_m.astype(np.float64), s_per_action, axis=0), axis=1)


def columns_of(section: Any) -> dict[str, Array]:
    """The fields of a section as arrays."""
    return {field.name: np.asarray(getattr(section, field.name)) for field in dataclasses.fields(section)}


def section_of(kind: type[SectionT], columns: dict[str, Array]) -> SectionT:
    """The section whose fields these are.

    Raises:
        KeyError: if one is missing.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {name: columns[name] for name in names}
    return kind(**{name: value.item() if value.ndim == 0 else value for name, value in values.items()})


def save_numbers(file: Path, numbers: MindNumbers) -> None:
    """Write the numbers into a file.

    Raises:
        OSError: if it cannot be written.
    """
    arrays = {
        f"{name}/{column}": values
        for name in _SECTIONS
        if (section := getattr(numbers, name)) is not None
        for column, values in columns_of(section).items()
    }
    with file.open("wb") as opened:  # by its name alone, numpy would add an ending
        np.savez(opened, **arrays)  # type: ignore[arg-type]


def load_numbers(file: Path) -> MindNumbers:
    """Read the numbers from a file; nothing in it is run.

    Raises:
        UserError: if it cannot be read.
    """
    columns: dict[str, dict[str, Array]] = {}
    try:
        with np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                section, _, column = name.partition("/")
                columns.setdefault(section, {})[column] = stored[name]
        return MindNumbers(**{name: section_of(_SECTIONS[name], columns[name]) for name in columns})
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{file}: holds no numbers of a run's pictures: {one_line(error)}") from error
