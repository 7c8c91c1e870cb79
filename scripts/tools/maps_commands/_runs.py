"""What the commands that look at races share: finding what a user names, driving it, writing the table of times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trackmania_rl.errors import UserError
from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.script_player import ScriptPlayer
from trackmania_rl.tmi_interaction.transport import GameError

MAPS_FOLDER = PROJECT_FOLDER / "maps"
_RECORD = re.compile(r"(?P<map>.+)_(?P<time_ms>\d{1,9})")
"""A record's file: `{map}_{time}.inputs`, see `trackmania_rl.runs`."""


@contextmanager
def simulated_game(maps_folder: Path) -> Iterator[ScriptPlayer]:
    """A simulated game on which scripts are driven; its troubles are told to the user."""
    try:
        with ScriptPlayer(SimulatedGameLauncher(find_free_port(), maps_folder)) as player:
            yield player
    except GameError as error:
        raise UserError(f"the simulated game failed: {error}") from error


def inputs_file(path: Path, map_name: str) -> Path:
    """The inputs file that a user means: a file, or a folder of records (`best_runs/`, or one of those in it).

    Args:
        path: what the user wrote.
        map_name: of a folder's records, the fastest one of this map is taken.

    Raises:
        UserError: if the folder holds no record of the map; names the maps of those it holds.
    """
    if not path.is_dir():
        return path
    records = []
    for file in sorted({*path.glob("*.inputs"), *path.glob("*/*.inputs")}):
        if match := _RECORD.fullmatch(file.stem):
            records.append((match["map"], int(match["time_ms"]), file))
    of_map = [record for record in records if record[0] == map_name]
    if not of_map and len({name for name, _, _ in records}) == 1:
        of_map = records  # the map cycle may call the map otherwise than its file
    if not of_map:
        known = ", ".join(sorted({name for name, _, _ in records})) or "none"
        raise UserError(f"{path}: holds no record of map {map_name!r}; its records are of maps: {known}")
    return min(of_map, key=lambda record: record[1])[2]
