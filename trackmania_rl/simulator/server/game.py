"""Simulated game without a socket: the current map, and the console."""

from __future__ import annotations

import logging
import math
import shlex
from pathlib import Path
from typing import Final

from trackmania_rl.protocol.input_script import read_input_script
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track

logger = logging.getLogger(__name__)

_MAPS_KEPT: Final = 16  # in memory, so a change between them takes no time
_MOST_COMMAND_CHARACTERS: Final = 4096
"""Longest path. shlex's time grows with the length squared."""


class SimulatedGame:
    """One game instance's state: in the menus, or in a race on a map.

    The folders are for the `map` and `load` commands.
    """

    def __init__(self, maps_folder: Path, scripts_folder: Path = Path()) -> None:
        self.race: SimulatedRace | None = None
        self.countdown_speed = 1.0
        self._maps_folder = maps_folder
        self._scripts_folder = scripts_folder
        self._races: dict[tuple[Path, int], SimulatedRace] = {}

    def load_map(self, name: str) -> SimulatedRace:
        """Begin a race on a track file (.toml) or reference line (.npy), relative to the maps folder or absolute.

        Raises:
            TrackFileError: If the file is missing or cannot be driven; the running race continues.
        """
        path = self._maps_folder / name
        try:
            key = (path.resolve(), path.stat().st_mtime_ns)
        except (OSError, ValueError) as error:
            raise TrackFileError(f"{path}: cannot be read: {error}") from error
        race = self._races.pop(key, None) or SimulatedRace(load_track(path))
        race.give_up()
        race.play_script(())
        self._races[key] = race  # the newest last
        if len(self._races) > _MAPS_KEPT:
            del self._races[next(iter(self._races))]
        self.race = race
        return race

    def load_script(self, name: str) -> None:
        """Play an input script, relative to the scripts folder or absolute, in this race and later ones on this map.

        Raises:
            InputScriptError: If the file cannot be read, or is not an input script.
        """
        events = read_input_script(self._scripts_folder / name)
        if self.race is not None:
            self.race.play_script(events)

    def run_command(self, text: str) -> None:
        """Execute a console command; log unknown and failed ones.

        Known are `map NAME`, `load SCRIPT`, `unload` and `set countdown_speed FACTOR`. The real game's others have no
        effect.
        """
        if len(text) > _MOST_COMMAND_CHARACTERS:
            most = _MOST_COMMAND_CHARACTERS
            logger.error("command %.20r...: skipped; it has %d characters, and %d are allowed", text, len(text), most)
            return
        words = _split(text)
        match words:
            case ["map", name]:
                try:
                    self.load_map(name)
                except TrackFileError as error:
                    logger.error("command %r: %s", text, error)
            case ["load", name]:
                try:
                    self.load_script(name)
                except ValueError as error:  # InputScriptError, or an impossible file name
                    logger.error("command %r: %s", text, error)
            case ["unload"]:
                if self.race is not None:
                    self.race.play_script(())
            case ["set", "countdown_speed", factor]:
                self._set_countdown_speed(factor)
            case _:
                logger.debug("command %r means nothing to the simulated game", text)

    def _set_countdown_speed(self, factor: str) -> None:
        try:
            speed = float(factor)
        except ValueError:
            speed = math.nan
        if math.isfinite(speed) and speed > 0:
            self.countdown_speed = speed
        else:
            logger.error("countdown_speed %r is not a number above 0", factor)


def _split(text: str) -> list[str]:
    """Split a command into words; quotes hold words together, backslashes are literal."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed
        return text.split()
