"""Gymnasium environments of races; importing `trackmania_rl` registers them.

* `gymnasium.make("TrackMania/Race-v0")`: one game, simulated or the real one;
* `gymnasium.make_vec("TrackMania/Race-v0", num_envs=64)`: many simulated games in this process, stepped together;
* `"TrackMania/RaceAnalog-v0"`: both with steer, gas and brake as numbers (`actions = "analog"`);
* `"TrackMania/RealTime-v0"`: one game that continues while the driver computes its action (`real_time`).

Observation, actions, rewards and rules are those of a configuration, as in `scripts/train.py`. docs/library.rst has
examples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from trackmania_rl import ANALOG_RACE_ID, RACE_ID, REAL_TIME_RACE_ID
from trackmania_rl.errors import UserError
from trackmania_rl.games.envs.env_races import PROGRESS, EnvRaces
from trackmania_rl.games.envs.race_env import RaceEnv, RaceVectorEnv
from trackmania_rl.games.protocol import Games
from trackmania_rl.games.race_games import make_race_games
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.settings import Settings, load_settings, settings_from_flat
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.track.named_maps import explored_maps, map_entries

__all__ = [
    "ANALOG_RACE_ID",
    "RACE_ID",
    "REAL_TIME_RACE_ID",
    "RaceEnv",
    "RaceVectorEnv",
    "make_race_env",
    "make_race_vector_env",
    "make_real_time_race_env",
]

DEFAULT_CONFIG = PROJECT_FOLDER / "config_files" / "config.py"

PathText = str | os.PathLike[str]


def make_race_env(
    maps: PathText | Sequence[PathText] = (),
    *,
    config: PathText | Settings = DEFAULT_CONFIG,
    overrides: Mapping[str, Any] | None = None,
    actions: str | None = None,
    reward: str = PROGRESS,
    normalize: bool = True,
    render_mode: str | None = None,
) -> RaceEnv:
    """Make one game by the configuration, in this process or behind a socket.

    Args:
        maps: names of the map cycle or of `maps/`, track files, or generated tracks as
            `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; each race is on one of them. None for the map cycle's
            exploration maps with its weights (`explored_maps`), and the first ten seeds of a generator.
        config: a configuration file, or settings, such as a driver's; a relative path begins at the working directory,
            or else at the project's folder.
        overrides: settings that replace the file's; values may be numpy's numbers, paths and `MapEntry`.
        actions: the setting.
        reward: "progress", metres and a finish bonus (`ProgressReward`), or "trainer", as in training (`RaceReward`).
        normalize: whether floats are normalized like the network's input.
        render_mode: see `RaceEnv`.

    Raises:
        UserError: if configuration or maps can't be used, or the reward is unknown.
    """
    return RaceEnv(_make_races(1, maps, _load(config, overrides, actions), reward, normalize), render_mode)


def make_race_vector_env(
    num_envs: int,
    maps: PathText | Sequence[PathText] = (),
    *,
    config: PathText | Settings = DEFAULT_CONFIG,
    overrides: Mapping[str, Any] | None = None,
    actions: str | None = None,
    reward: str = PROGRESS,
    normalize: bool = True,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
) -> RaceVectorEnv:
    """Make many simulated games in this process; arguments as of `make_race_env` and `RaceVectorEnv`.

    After `max_episode_steps` actions races are truncated, as by `gymnasium.make`; None or -1 for no limit.

    Raises:
        UserError: if configuration or maps can't be used, the game is not the simulated one, the reward is unknown, or
            `num_envs` or `max_episode_steps` is out of range.
    """
    if num_envs < 1:
        raise UserError(f"num_envs = {num_envs}: it takes 1 game or more")
    if max_episode_steps is not None and max_episode_steps != -1 and max_episode_steps < 1:
        raise UserError(f"max_episode_steps = {max_episode_steps}: it takes 1 step or more, or -1 for no limit")
    settings = _load(config, overrides, actions)
    if not settings.game.is_in_process:
        raise UserError(
            'many games are stepped together in this process only: game = "simulated", game_transport = "in_process"; '
            'for others, gymnasium.make_vec(..., vectorization_mode="async") starts one game for each environment'
        )
    if max_episode_steps is not None and max_episode_steps != -1:
        horizon = min(max_episode_steps, settings.game.cutoff_horizon_actions or max_episode_steps)
        settings = _load(settings, {"horizon": horizon, "soft_horizon": False})
    return RaceVectorEnv(_make_races(num_envs, maps, settings, reward, normalize), autoreset_mode, render_mode)


def make_real_time_race_env(
    maps: PathText | Sequence[PathText] = (),
    *,
    config: PathText | Settings = DEFAULT_CONFIG,
    overrides: Mapping[str, Any] | None = None,
    reward: str = PROGRESS,
    normalize: bool = True,
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    """Make one game in real time, at `running_speed = 1` unless `overrides` sets it.

    Other arguments are as of `make_race_env`, `options` as of `RealTimeRaceEnv`.

    Raises:
        UserError: if configuration or maps can't be used, or rtgym is missing.
    """
    try:
        from trackmania_rl.games.envs.real_time import RealTimeRaceEnv
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rtgym":
            raise
        raise UserError(
            'TrackMania/RealTime-v0 needs the package rtgym: python -m pip install "trackmania-rl[realtime]"'
        ) from None
    at_clock_speed = {"running_speed": 1.0, **(overrides or {})}
    env = make_race_env(maps, config=config, overrides=at_clock_speed, reward=reward, normalize=normalize)
    return RealTimeRaceEnv(env, **options)


vars(make_race_env)["metadata"] = RaceEnv.metadata  # gymnasium.make reads the render modes here


def _make_races(
    n_games: int, maps: PathText | Sequence[PathText], settings: Settings, reward: str, normalize: bool
) -> EnvRaces:
    maps_folder = PROJECT_FOLDER / settings.game.maps_folder
    names = [os.fspath(name) for name in ([maps] if isinstance(maps, str | os.PathLike) else maps)]
    with ExitStack() as opened:
        tracks_folder = tempfile.mkdtemp(prefix="trackmania_rl_tracks_")
        opened.callback(shutil.rmtree, tracks_folder, ignore_errors=True)
        if names:
            entries = map_entries(settings, maps_folder, names, tracks_folder)
            weights = None
        else:
            entries, weights = explored_maps(settings, tracks_folder)
        builder = make_race_games(settings)
        games: Games
        if settings.game.is_in_process:
            games = builder.in_process(n_games, maps_folder)
        else:
            port = settings.game.base_tmi_port if settings.game.games_are_kept else find_free_port()
            games = builder.behind_sockets([make_launcher(settings.game, settings.user, port, maps_folder)])
        opened.callback(games.close)
        races = EnvRaces(
            settings, games, builder.spaces, entries, weights, tracks_folder, reward=reward, normalize=normalize
        )
        opened.pop_all()  # now closed by the races
    return races


def _load(config: PathText | Settings, overrides: Mapping[str, Any] | None, actions: str | None = None) -> Settings:
    changes = ({} if actions is None else {"actions": actions}) | _plain(overrides or {})
    if isinstance(config, Settings):
        return settings_from_flat(config.flat() | changes) if changes else config
    file = next((file for file in (Path(config), PROJECT_FOLDER / config) if file.is_file()), None)
    if file is None:
        raise UserError(f"config = {os.fspath(config)!r}: there is no such file here, nor in {PROJECT_FOLDER}")
    return load_settings(file, changes)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return value
