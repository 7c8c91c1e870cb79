"""What a run needs beside the machine: maps with their lines, and ports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from filelock import Timeout

from trackmania_rl.doctor.findings import Check, Context, Finding, ok, problem, warning
from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.launchers import make_launcher
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords
from trackmania_rl.tmi_interaction.launchers.kept_game import absent_text, greet, lock_of_kept_game, taken_text
from trackmania_rl.tmi_interaction.launchers.launcher import check_port_is_free
from trackmania_rl.tmi_interaction.tminterface2 import GameError
from trackmania_rl.track.game_map import what_misses_checkpoints
from trackmania_rl.track.reference_line import load_reference_line

KEPT_GAME_GREETS_WITHIN_S: Final = 5.0


def load_map_files(settings: Settings, entry: MapEntry, maps_folder: Path) -> npt.NDArray[np.float64]:
    """Read the files of a map of the map cycle.

    Returns:
        (N, 3) points of the reference line.

    Raises:
        UserError: if the reference line, or the track of the simulated game, is missing or damaged.
    """
    if settings.game.game == "simulated":
        load_track(maps_folder / entry.map_path)
    return load_reference_line(maps_folder / entry.reference_line)


def named_maps(settings: Settings) -> list[MapEntry]:
    """Each map of the map cycle once; generators have no files yet."""
    entries = {entry.map_name: entry for entry in settings.game.map_cycle if entry.has_files}
    return list(entries.values())


def load_reference_lines(settings: Settings, maps_folder: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Read every map of the map cycle, so that a bad one is refused before its races; generators have no files yet.

    Returns:
        (N, 3) points of the reference line by map name.

    Raises:
        UserError: if a reference line, or a track of the simulated game, is missing or damaged.
    """
    return {entry.map_name: load_map_files(settings, entry, maps_folder) for entry in named_maps(settings)}


def check_edited_maps(settings: Settings, maps_folder: Path) -> None:
    """Look at an edited map cycle while games run: what a collector could not drive is refused before it tries.

    Raises:
        UserError: if a file of a map is missing or damaged, or the real game has no such map.
    """
    load_reference_lines(settings, maps_folder)
    if settings.game.game != "simulated":
        launcher = make_launcher(settings.game, settings.user, settings.game.base_tmi_port, maps_folder)
        for entry in named_maps(settings):
            launcher.check_map(entry.map_path)


def check_maps(context: Context) -> list[Finding]:
    """The files of the map cycle's maps, here and in the real game's own folder."""
    settings, findings = context.settings, []
    for entry in named_maps(settings):
        try:
            points_m = load_map_files(settings, entry, context.maps_folder)
        except UserError as error:
            findings.append(problem(Check.MAPS, f"map {entry.map_name}: {error}"))
        else:
            findings.append(ok(Check.MAPS, f"map {entry.map_name}: a reference line of {len(points_m):,} points"))
            if (lack := what_misses_checkpoints(entry, context.maps_folder)) is not None:
                findings.append(warning(Check.MAPS, f"map {entry.map_name}: {lack}"))
    return findings + check_maps_of_game(context)


def check_maps_of_game(context: Context) -> list[Finding]:
    """Whether the real game has the maps, as far as its folder is known."""
    game, findings = context.settings.game, []
    if game.game == "simulated" or game.n_collectors == 0:
        return []
    try:
        launcher = make_launcher(
            game, context.settings.user, game.base_tmi_port, context.maps_folder, context.system.platform
        )
    except UserError:  # no launcher for this system, which another check says
        return []
    for entry in named_maps(context.settings):
        try:
            launcher.check_map(entry.map_path)
        except UserError as error:
            findings.append(problem(Check.MAPS, f"map {entry.map_name}: {error}"))
    return findings


def check_ports(settings: Settings, records: GameRecords | None = None) -> list[Finding]:
    """Whether each game instance finds its port free, or is there where somebody keeps it."""
    records, findings = records or GameRecords(), []
    ports = settings.game.tmi_ports
    if not ports:
        return [ok(Check.PORTS, "none needed: the collectors play their games themselves")]
    if settings.game.games_are_kept:
        return check_kept_games(ports)
    for port in ports:
        try:
            check_port_is_free(port)
        except UserError as error:
            left_behind = records.left_behind(port)
            if left_behind is None:
                findings.append(problem(Check.PORTS, error))
            else:
                findings.append(
                    warning(
                        Check.PORTS,
                        f"port {port} is in use by a game that an earlier run left behind (process {left_behind.pid}); "
                        "the next start ends it",
                    )
                )
    return findings or [ok(Check.PORTS, f"{ports[0]} to {ports[-1]} are free")]


def check_kept_games(ports: Sequence[int]) -> list[Finding]:
    """Whether kept games greet; one that does not fails alone, so it is a problem only where all of them fail."""
    texts = []
    for port in ports:
        try:
            with lock_of_kept_game(port).acquire(blocking=False):
                greet(port, KEPT_GAME_GREETS_WITHIN_S)
        except Timeout:
            return [problem(Check.PORTS, taken_text(port))]
        except GameError as error:
            texts.append(absent_text(port, error))
    if len(texts) == len(ports):
        return [problem(Check.PORTS, texts[0])]
    findings = [warning(Check.PORTS, text) for text in texts]
    return findings or [ok(Check.PORTS, f"the kept games at {ports[0]} to {ports[-1]} greet")]
