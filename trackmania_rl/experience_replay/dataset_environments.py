"""A data set's environment, and compatibility with a run."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, Space

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import DataSetForm
from trackmania_rl.experience_replay.minari_files import DataSet
from trackmania_rl.files import portable, without_whole_paths
from trackmania_rl.games.envs import ANALOG_RACE_ID, RACE_ID
from trackmania_rl.games.envs.env_races import TRAINER
from trackmania_rl.settings import DRIVER_SETTINGS, GameSettings, NamedPart, ObservationSettings, Settings
from trackmania_rl.settings.game import RACES
from trackmania_rl.settings.groups import MACHINE_SETTINGS

GROUPS_OF_AN_ENVIRONMENT: Final = ("game", "observation", "reward")
"""Settings groups for `TrackMania/Race-v0`."""
OTHERS: Final = MACHINE_SETTINGS - {"maps_folder"} | {"games_per_collector"}
"""Settings in these groups that do not belong to an environment."""
MEANING: Final = sorted(
    DRIVER_SETTINGS
    & (GameSettings.model_fields.keys() | ObservationSettings.model_fields.keys())
    - {"games", "game", "image_width_px", "image_height_px", "action_forward_idx"}
    - {"fourier_wavelengths", "state_normalization"}
)
"""Settings that change what floats or actions mean, but not always their shapes."""
_NORMALIZED: Final = "holds normalized observations: record it from an environment with normalize=False"

log = logging.getLogger(__name__)


def environment_spec(settings: Settings, maps: Sequence[str] = ()) -> EnvSpec | None:
    """Return the specification for a configuration's environment, valid on any machine with this project.

    Args:
        settings: run settings.
        maps: see `make_race_env`; none for those in the map cycle. Only the last path part is written.

    Returns:
        The specification; None for custom environments without a Gymnasium id, or with non-JSON arguments.
    """
    games = settings.game.games
    if games == RACES:
        overrides = _values(settings) | {"schedule_stretch": 1.0}  # schedules are already stretched
        spec = copy.deepcopy(gymnasium.spec(RACE_ID))
        names = [portable(name) for name in maps]
        spec.kwargs = {"maps": names, "overrides": overrides, "reward": TRAINER, "normalize": False}
        return spec
    env = games.keywords.get("env") if isinstance(games, NamedPart) else None
    if not isinstance(env, str):
        return None
    spec = gymnasium.spec(env)
    try:
        spec.to_json()
    except (TypeError, ValueError):
        return None
    return spec


def check_fits(
    name: str, observation: Space[Any], action: Space[Any], spec: EnvSpec | None, settings: Settings, form: DataSetForm
) -> None:
    """Check that a data set with these spaces and environment fits a run with these settings and form.

    Raises:
        UserError: with both sides' shapes, or the settings that differ.
    """
    wanted = form.observation_space
    wanted_action = form.spaces.action
    if not (_is_like(observation, wanted) and _is_like(action, wanted_action)):
        raise UserError(
            f"{name} has {observation} and {action}; this configuration has {wanted} and {wanted_action}: learn from "
            "it with the configuration that it was recorded with, or record another one with this configuration "
            "(scripts/tools/dataset.py)"
        )
    if spec is None or spec.id not in (RACE_ID, ANALOG_RACE_ID) or settings.game.games != RACES:
        return
    if spec.kwargs.get("normalize", True):
        raise UserError(f"{name} {_NORMALIZED}")
    theirs = spec.kwargs.get("overrides") or {}
    ours = _values(settings)
    different = [
        f"{setting} is {theirs[setting]!r} there and {ours[setting]!r} here"
        for setting in MEANING
        if setting in theirs and theirs[setting] != ours[setting]
    ]
    if different:
        raise UserError(
            f"{name} has the shapes of this configuration, but they mean something else: {', '.join(different)}; set "
            "these alike"
        )


def check_dataset(dataset: DataSet, settings: Settings, form: DataSetForm) -> None:
    """Check that a data set, first episode included, fits a run; see `check_fits`.

    Raises:
        UserError: if it does not, or the observations are normalized, whatever the environment entry says.
    """
    check_fits(dataset.name, dataset.observation_space, dataset.action_space, dataset.env_spec, settings, form)
    if settings.game.games != RACES:
        return
    if dataset.env_spec is None:
        log.warning(
            "%s names no environment: let it be recorded with the settings of observation and actions of this run",
            dataset.name,
        )
    own_size = np.hypot(form.spaces.float_mean, form.spaces.float_std)
    for episode in itertools.islice(dataset.episodes(), 1):
        size = np.sqrt(np.square(episode.floats.astype(np.float64)).mean(axis=0))
        tells = (size > 0) & (np.abs(np.log(own_size)) > 1)
        size_log = np.abs(np.log(size[tells]))
        difference_log = np.abs(np.log(size[tells] / own_size[tells]))
        if tells.any() and np.median(size_log) < np.median(difference_log):
            raise UserError(f"{dataset.name} {_NORMALIZED}")


def _is_like(given: Space[Any], wanted: Space[Any]) -> bool:
    """Return whether shapes, action counts and bounds equal those in `wanted`."""
    if isinstance(wanted, Dict):
        if not isinstance(given, Dict) or given.spaces.keys() != wanted.spaces.keys():
            return False
        return all(_is_like(given[name], part) for name, part in wanted.spaces.items())
    if isinstance(wanted, Discrete):
        return isinstance(given, Discrete) and given.n == wanted.n and given.start == wanted.start
    if not isinstance(given, Box) or not isinstance(wanted, Box) or given.shape != wanted.shape:
        return False
    if wanted.dtype == np.uint8:
        return given.dtype == np.uint8
    is_bounded = wanted.is_bounded()
    return not is_bounded or (np.allclose(given.low, wanted.low) and np.allclose(given.high, wanted.high))


def _values(settings: Settings) -> dict[str, Any]:
    """Return an environment's settings by name, as JSON types and without this user's folders."""
    values = settings.model_dump(mode="json", include=set(GROUPS_OF_AN_ENVIRONMENT))
    flat = {name: value for group in values.values() for name, value in group.items() if name not in OTHERS}
    without_folders: dict[str, Any] = without_whole_paths(flat)
    if not Path(flat["maps_folder"]).is_relative_to(Path("~").expanduser()):
        without_folders["maps_folder"] = flat["maps_folder"]  # so that the environment is made again on this machine
    return without_folders
