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
    LAST_PORT,
    OF_DRIVER,
    RESTART,
    Actions,
    BlockStatistics,
    Device,
    Discount,
    Driver,
    Finite,
    Fraction,
    Group,
    Loggers,
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
    ShareBelow1,
    Shift,
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
    """A view of a column of the rows around a state."""

    column: str
    shift: Shift
    input: bool = True


class RunSettings(Group):
    """The run as a whole: its name, its seed, the machine's arithmetic."""

    run_name: Restart[RunName] = "simulated"
    """Name of the run: its files are in save/{run_name}/ and tensorboard/{run_name}/. The same name resumes."""
    seed: Restart[NonNegativeInt] = 0
    """Seed of every random draw."""
    schedule_stretch: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on the frame counts of all schedules: 0.5 for an easy or short map, 2 for a long or hard one."""
    torch_device: Restart[Device] = "auto"
    """Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0"."""
    collector_device: Restart[Device] = "auto"
    """Device of the collectors' networks. "auto" is the learner's device with an image, and else the processor."""
    learner_threads: Restart[PositiveInt | Literal["auto"]] = "auto"
    """Processor threads of the learner. "auto" is 1; with an image it is the cores without collectors."""
