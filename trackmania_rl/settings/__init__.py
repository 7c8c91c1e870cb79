"""Settings: plain Python files in, one frozen, validated `Settings` object out.

A configuration is a folder of Python files: `config.py`, or a file that begins with `based_on = "config.py"` and sets
what differs; and beside it `inputs_list.py`, `state_normalization.py` and `user_config.py`. Names are flat in the files
and grouped here. A wrong setting raises `SettingsError`, whose text has the name, value and range, and for an unknown
name the nearest one.
"""

from trackmania_rl.settings.game import ActionKeys, DemonstrationEntry, GameSettings, GeneratorSettings, MapEntry
from trackmania_rl.settings.groups import (
    DRIVER_SETTINGS,
    NEEDS_RESTART,
    RANGE_FINDER,
    ROAD_AHEAD,
    AgentSettings,
    ExplorationSettings,
    ObservationSettings,
    ReplaySettings,
    RewardSettings,
    Settings,
    SyncSettings,
    UserSettings,
    ViewSettings,
)
from trackmania_rl.settings.loading import (
    SettingsError,
    changed_settings,
    code_of_driver,
    differences_of_driver,
    driver_values,
    load_settings,
    make_importable,
    parse_override,
    settings_from_flat,
    settings_of_driver,
)
from trackmania_rl.settings.values import NamedPart, shifts_of

__all__ = [
    "DRIVER_SETTINGS",
    "NEEDS_RESTART",
    "RANGE_FINDER",
    "ROAD_AHEAD",
    "ActionKeys",
    "AgentSettings",
    "DemonstrationEntry",
    "ExplorationSettings",
    "GameSettings",
    "GeneratorSettings",
    "MapEntry",
    "NamedPart",
    "ObservationSettings",
    "ReplaySettings",
    "RewardSettings",
    "Settings",
    "SettingsError",
    "SyncSettings",
    "UserSettings",
    "ViewSettings",
    "changed_settings",
    "code_of_driver",
    "differences_of_driver",
    "driver_values",
    "load_settings",
    "make_importable",
    "parse_override",
    "settings_from_flat",
    "settings_of_driver",
    "shifts_of",
]
