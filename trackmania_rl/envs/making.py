"""Environments from a configuration and names of tracks: what `gymnasium.make` calls."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trackmania_rl.envs.race_env import RaceEnv
from trackmania_rl.envs.race_games import GameInProcess, GameOfManager, RaceGame
from trackmania_rl.envs.race_vector_env import RaceVectorEnv
from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import PROJECT_FOLDER, GameInstanceManager
from trackmania_rl.tmi_interaction.launcher_choice import make_launcher
from trackmania_rl.tmi_interaction.launchers import find_free_port
from trackmania_rl.track.named_maps import map_entries

DEFAULT_CONFIG = PROJECT_FOLDER / "config_files" / "config.py"


def make_race_env(
    maps: str | Sequence[str] = (),
    *,
    config: str | Path = DEFAULT_CONFIG,
    overrides: Mapping[str, Any] | None = None,
    normalize: bool = True,
    render_mode: str | None = None,
) -> RaceEnv:
    """One game: in this process, or, as the configuration says, an instance reached through its socket.

    Args:
        maps: each race is on one of them: names of the configuration's map cycle or of `maps/`, track files, or
            generated tracks as `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; none for all of the map cycle.
        config: a configuration file.
        overrides: settings that win over the file.
        normalize: whether floats are normalized as the network does it.
        render_mode: see `RaceEnv`.

    Raises:
        UserError: if configuration or maps can't be used.
    """
    settings, entries, maps_folder, resources = _prepare(maps, config, overrides)
    game: RaceGame
    if settings.game.is_in_process:
        game = GameInProcess(settings, maps_folder)
    else:
        launcher = make_launcher(settings.game, settings.user, find_free_port(), maps_folder)
        game = GameOfManager(GameInstanceManager(settings.game, settings.observation, launcher))
    return RaceEnv(settings, entries, game, normalize=normalize, render_mode=render_mode, resources=resources)


def make_race_vector_env(
    num_envs: int,
    maps: str | Sequence[str] = (),
    *,
    config: str | Path = DEFAULT_CONFIG,
    overrides: Mapping[str, Any] | None = None,
    normalize: bool = True,
) -> RaceVectorEnv:
    """Many simulated games in this process. Arguments as of `make_race_env`.

    Raises:
        UserError: if configuration or maps can't be used, or it is not the simulated game's.
    """
    settings, entries, maps_folder, resources = _prepare(maps, config, overrides)
    if not settings.game.is_in_process:
        raise UserError(
            'many games are stepped together in this process only: game = "simulated", game_transport = "in_process"; '
            'for others, gymnasium.make_vec(..., vectorization_mode="async") starts one game for each environment'
        )
    return RaceVectorEnv(num_envs, settings, entries, maps_folder, normalize=normalize, resources=resources)


def _prepare(
    maps: str | Sequence[str], config: str | Path, overrides: Mapping[str, Any] | None
) -> tuple[Settings, list[MapEntry], Path, ExitStack]:
    """Settings, maps, the folder where relative paths of maps begin, and what is to be closed at the end."""
    settings = load_settings(Path(config), [f"{name}={value!r}" for name, value in (overrides or {}).items()])
    maps_folder = PROJECT_FOLDER / settings.game.maps_folder
    names = [maps] if isinstance(maps, str) else maps
    with ExitStack() as resources:
        tracks_folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="trackmania_rl_tracks_"))
        entries = map_entries(settings, maps_folder, names, Path(tracks_folder))
        return settings, entries, maps_folder, resources.pop_all()
