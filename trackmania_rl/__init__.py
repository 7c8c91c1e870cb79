"""Reinforcement-learning trainer for TrackMania Nations Forever and the shipped simulated game.

Importing it registers the Gymnasium environments; numba is imported when one is made, torch with `train`.
"""

import sys
from typing import TYPE_CHECKING, Any, Final

from trackmania_rl.start import IS_COMMAND, require_tested_python, show_error

if IS_COMMAND:
    sys.excepthook = show_error
require_tested_python()

if TYPE_CHECKING:
    from trackmania_rl.run import train as train

    __version__: str

try:
    import gymnasium
except ModuleNotFoundError:  # absent on a machine that only keeps games (requirements-games.txt)
    gymnasium = None  # type: ignore[assignment]

RACE_ID: Final = "TrackMania/Race-v0"
ANALOG_RACE_ID: Final = "TrackMania/RaceAnalog-v0"
REAL_TIME_RACE_ID: Final = "TrackMania/RealTime-v0"

if gymnasium is not None:
    _environments = "trackmania_rl.games.envs"
    gymnasium.register(
        RACE_ID,
        entry_point=f"{_environments}:make_race_env",
        vector_entry_point=f"{_environments}:make_race_vector_env",
    )
    gymnasium.register(
        ANALOG_RACE_ID,
        entry_point=f"{_environments}:make_race_env",
        vector_entry_point=f"{_environments}:make_race_vector_env",
        kwargs={"actions": "analog"},
    )
    gymnasium.register(REAL_TIME_RACE_ID, entry_point=f"{_environments}:make_real_time_race_env", nondeterministic=True)


def __getattr__(name: str) -> Any:
    if name == "train":
        from trackmania_rl.run import train

        return train
    if name == "__version__":
        from trackmania_rl.paths import program_version

        return program_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
