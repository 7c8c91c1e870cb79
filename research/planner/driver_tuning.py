"""The scripted driver's best settings for one track, by random search and then by small steps from the best."""

from __future__ import annotations

from typing import Final

import numpy as np

from research.planner.plans import Actions, actions_of_keys
from research.planner.racing import drive_actions
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings, drive
from trackmania_rl.simulator.tracks.world import Track

_LOWEST: Final = np.array([0.6, 10.0, 0.5, 0.2, 3.0, 0.0])
_HIGHEST: Final = np.array([2.0, 60.0, 12.0, 1.0, 20.0, 1.2])
_SHARE_OF_RANDOM: Final = 0.3
_STEP: Final = 0.08
"""Standard deviation of a step, as a share of the range."""
_DECIMALS: Final = 4
"""Settings are rounded before they are tried, so that what is stored is what was driven."""
_MAX_RACE_MS: Final = 180_000


def scripted_race(track: Track, settings: DriverSettings) -> tuple[int, Actions] | None:
    """Return the official time and the actions up to there of the scripted driver, or None where it does not finish."""
    report = drive(track, settings, max_race_ms=_MAX_RACE_MS)
    if report.race_time_ms is None:
        return None
    actions = actions_of_keys(report.keys)
    official = drive_actions(track, actions)  # the report's time is that of the car's middle, some 50 ms later
    return (official.finish_ms, actions[: official.n_actions]) if official.finish_ms >= 0 else None


def tune(track: Track, n_drives: int, seed: int) -> tuple[DriverSettings, int, Actions] | None:
    """Return the fastest settings of some drives with their time and actions, None where no drive finishes.

    Args:
        track: where to drive.
        n_drives: how many, the careful and the fast driver's included.
        seed: of the settings that are tried.
    """
    random = np.random.default_rng(seed)
    best: tuple[DriverSettings, int, Actions] | None = None
    for number in range(n_drives):
        if number < 2:
            settings = (CAREFUL_DRIVER, FAST_DRIVER)[number]
        elif best is None or number < _SHARE_OF_RANDOM * n_drives:
            settings = DriverSettings(*random.uniform(_LOWEST, _HIGHEST).tolist())
        else:
            is_changed = random.random(len(_LOWEST)) < 0.5
            step = random.normal(0.0, _STEP, len(_LOWEST)) * (_HIGHEST - _LOWEST) * is_changed
            settings = DriverSettings(*np.clip(np.array(best[0]) + step, _LOWEST, _HIGHEST).tolist())
        settings = DriverSettings(*(round(value, _DECIMALS) for value in settings))
        race = scripted_race(track, settings)
        if race is not None and (best is None or race[0] < best[1]):
            best = (settings, *race)
    return best
