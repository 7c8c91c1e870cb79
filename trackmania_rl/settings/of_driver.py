"""Settings that are stored with a driver's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trackmania_rl.settings.game import MapEntry
from trackmania_rl.settings.groups import DRIVER_SETTINGS, Settings
from trackmania_rl.settings.loading import SettingsError, settings_from_flat, without_removed
from trackmania_rl.settings.named_part import names_in

NOTHING: Final = ((0, 0.0),)
WITHOUT_LEARNING: Final[Mapping[str, Any]] = {
    "n_collectors": 1,
    "demonstrations": (),
    "offline": (),
    "oversample_long_term_steps": 0,
    "gamma_schedule": ((0, 1.0),),
    "final_speed_reward_per_m_per_s": 0.0,
    "engineered_speedslide_reward_schedule": NOTHING,
    "engineered_neoslide_reward_schedule": NOTHING,
    "engineered_kamikaze_reward_schedule": NOTHING,
    "engineered_close_to_vcp_reward_schedule": NOTHING,
    "shaped_reward_dist_to_cur_vcp": 0.0,
    "shaped_reward_point_to_vcp_ahead": 0.0,
}
"""Settings of learning, with values that fit any driver."""
STATISTICS: Final = "state_normalization"
"""May lack a block that is not observed."""
PARTS: Final = ("games", "agent", "network")
"""Settings of a driver that name code."""


def driver_values(settings: Settings) -> dict[str, Any]:
    """Return a driver's settings by name, in JSON's types.

    Raises:
        SettingsError: if an argument of one of its parts cannot be written.
    """
    values: dict[str, Any] = {}
    for name, group in settings:
        try:
            dumped = group.model_dump(mode="json", include=set(DRIVER_SETTINGS), warnings=False)
        except ValueError as error:  # pydantic's PydanticSerializationError
            raise SettingsError(f"a driver's settings are written as JSON, but in {name}: {error}") from None
        values |= dumped
    return values


def settings_of_driver(values: Mapping[str, Any], map_cycle: Sequence[MapEntry], around: Settings) -> Settings:
    """Merge a driver's settings into this machine's configuration.

    Args:
        values: as `driver_values` returns them, of an untrusted file.
        map_cycle: of the driver.
        around: this machine's configuration.

    Raises:
        SettingsError: if a setting is missing, unknown or wrong.
    """
    values, problems = without_removed(values)
    if problems:
        raise SettingsError(f"its settings: {'; '.join(problems)}")
    if values.keys() != DRIVER_SETTINGS:
        lacking, unknown = sorted(DRIVER_SETTINGS - values.keys()), sorted(values.keys() - DRIVER_SETTINGS)
        raise SettingsError(
            "another version of this program packed it: of its settings this one misses "
            f"{', '.join(lacking) or 'none'}, and does not know {', '.join(unknown)[:200]!r}"
        )
    others = {**around.flat(), **WITHOUT_LEARNING, "map_cycle": tuple(map_cycle)}
    return settings_from_flat({**others, **values}, "its settings")


def differences_of_driver(values: Mapping[str, Any], settings: Settings) -> list[str]:
    """List a driver's settings (`driver_values`) that differ from a configuration's.

    Statistics that only one of them has do not count.
    """
    theirs, ours = values, driver_values(settings)
    differ = [name for name, value in ours.items() if theirs.get(name) != value]
    statistics = theirs.get(STATISTICS)
    if STATISTICS in differ and isinstance(statistics, Mapping):
        in_both = statistics.keys() & ours[STATISTICS].keys()
        if all(statistics[block] == ours[STATISTICS][block] for block in in_both):
            differ.remove(STATISTICS)
    return sorted(differ)


def code_of_driver(settings: Settings) -> list[tuple[str, str]]:
    """List the imports of a driver's settings, as (setting, "module:attribute") pairs."""
    flat = settings.flat()
    return [(setting, name) for setting in PARTS for name in names_in(flat[setting])]
