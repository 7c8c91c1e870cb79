"""Settings: plain Python files in, one frozen, validated `Settings` object out.

A configuration is a folder with Python files: `config.py`, or a file that begins with `based_on = "config.py"` and sets
what differs; and `inputs_list.py`, `state_normalization.py` and `user_config.py`, beside it or the shipped ones. Names
are flat in the files and grouped here.
"""

from trackmania_rl.settings.game import ActionKeys as ActionKeys
from trackmania_rl.settings.game import DemonstrationEntry as DemonstrationEntry
from trackmania_rl.settings.game import GameSettings as GameSettings
from trackmania_rl.settings.game import Generator as Generator
from trackmania_rl.settings.game import GeneratorSettings as GeneratorSettings
from trackmania_rl.settings.game import MapEntry as MapEntry
from trackmania_rl.settings.groups import DRIVER_SETTINGS as DRIVER_SETTINGS
from trackmania_rl.settings.groups import NEEDS_RESTART as NEEDS_RESTART
from trackmania_rl.settings.groups import RANGE_FINDER as RANGE_FINDER
from trackmania_rl.settings.groups import ROAD_AHEAD as ROAD_AHEAD
from trackmania_rl.settings.groups import AgentSettings as AgentSettings
from trackmania_rl.settings.groups import ExplorationSettings as ExplorationSettings
from trackmania_rl.settings.groups import ObservationSettings as ObservationSettings
from trackmania_rl.settings.groups import ReplaySettings as ReplaySettings
from trackmania_rl.settings.groups import RewardSettings as RewardSettings
from trackmania_rl.settings.groups import Settings as Settings
from trackmania_rl.settings.groups import SyncSettings as SyncSettings
from trackmania_rl.settings.groups import UserSettings as UserSettings
from trackmania_rl.settings.groups import ViewSettings as ViewSettings
from trackmania_rl.settings.loading import SettingsError as SettingsError
from trackmania_rl.settings.loading import changed_settings as changed_settings
from trackmania_rl.settings.loading import load_settings as load_settings
from trackmania_rl.settings.loading import make_importable as make_importable
from trackmania_rl.settings.loading import parse_override as parse_override
from trackmania_rl.settings.loading import settings_from_flat as settings_from_flat
from trackmania_rl.settings.values import NamedPart as NamedPart
from trackmania_rl.settings.values import shifts_of as shifts_of
